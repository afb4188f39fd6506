"""TensorRT for RTX: its builder compiles on a machine without a GPU when it is given an explicit target.

The engine is read from the builder's own log: at VERBOSE severity and DETAILED verbosity it prints the whole engine as
one message, the same record that the inspector gives on a GPU, where deserializing the plan would need a driver.
"""

import time
from pathlib import Path
from typing import Any

from fusescope.profiler.artifacts.oneline import HEADER
from fusescope.profiler.runtimes import Compiled, CompileOptions, Log, ParserError

MODULE = "tensorrt_rtx"
TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")


def compile_model(model: Path, options: CompileOptions, log: Log) -> Compiled:
    """Compile an ONNX file ahead of time for the target.

    Args:
        model: The ONNX file. External data is looked for beside it.
        options: What the builder is told.
        log: Receives every message of the builder, the engine dump excepted.

    Returns:
        The plan and the engine dump, or the parser's complaints.
    """
    import tensorrt_rtx as trt

    logger = _logger(trt, log)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    start = time.perf_counter()
    parsed = parser.parse_from_file(str(model))
    parse_s = time.perf_counter() - start
    if not parsed:
        return Compiled(trt.__version__, None, "", _parser_errors(parser), parse_s)
    config = _config(trt, builder, options)
    start = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    build_s = time.perf_counter() - start
    view = None if plan is None else memoryview(plan)
    dump = logger.dumps[-1] if logger.dumps else ""
    return Compiled(trt.__version__, view, dump, (), parse_s, build_s)


def _logger(trt: Any, log: Log) -> Any:
    letters = {
        trt.ILogger.Severity.INTERNAL_ERROR: "E",
        trt.ILogger.Severity.ERROR: "E",
        trt.ILogger.Severity.WARNING: "W",
        trt.ILogger.Severity.INFO: "I",
        trt.ILogger.Severity.VERBOSE: "V",
    }

    class Logger(trt.ILogger):  # type: ignore[misc]  # the bindings carry no types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.dumps: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if message.startswith(HEADER):
                self.dumps.append(message)
            else:
                log(letters[severity], message)

    return Logger()


def _config(trt: Any, builder: Any, options: CompileOptions) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, options.target.upper()), 0)
    if options.opt_level is not None:
        config.builder_optimization_level = options.opt_level
    if options.aux_streams is not None:
        config.max_aux_streams = options.aux_streams
    if options.avg_timing_iterations is not None:
        config.avg_timing_iterations = options.avg_timing_iterations
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    return config


def _parser_errors(parser: Any) -> tuple[ParserError, ...]:
    errors = (parser.get_error(index) for index in range(parser.num_errors))
    return tuple(ParserError(error.desc(), error.node_name(), error.node_operator()) for error in errors)
