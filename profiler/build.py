"""Building an engine: prepare the ONNX model, compile it in a process of its own, keep the result as a run."""

import hashlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.files import replacing
from fusescope.graph.model import check_proto, graph_of
from fusescope.graph.names import Renamed, name_nodes
from fusescope.graph.sites import quantize_sites
from fusescope.graph.structure import fill, is_structure_only, strip
from fusescope.profiler.run import MODEL, RECORD, Provenance, Run, read_run, write_record
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S, CompileOptions, Runtime, runtime_named
from fusescope.profiler.targets import check_target
from fusescope.profiler.worker import BUILD_LOG, LAYERS, OUTCOME, PLAN

WORKER = (sys.executable, "-m", "fusescope.profiler.worker")
Worker = subprocess.Popen[str]

# The builder takes and frees megabytes for every model. glibc gives them back to the system and has them faulted in
# again, which was half of the time of compiling many small models.
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
_LARGEST_TENSOR = 2**31 - 1
_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_TAIL_LINES = 3
_RUN_FILES = {RECORD, MODEL, LAYERS, BUILD_LOG, PLAN}


class CompileError(UserError):
    """TensorRT refused the model, crashed, was killed or hung."""


@dataclass(frozen=True)
class Compilable:
    """A model as it goes to the compiler: every node named, every weight there, every input size fixed."""

    proto: onnx.ModelProto
    """The model."""

    name: str
    """Name for messages and reports."""

    weights: str
    """``as given``, or that they are seeded values of a structure-only model."""

    formats: tuple[str, ...]
    """Quantized formats of its activations, such as ``fp8``; empty for a model without Quantizes."""

    renamed: tuple[Renamed, ...]
    """Nodes that had no name, or one that another node has."""

    batch: int | None
    """First dimension of the first input; None if it has none."""

    changed: Mapping[str, str]
    """What was done to the given model, by the option that does it: ``shape``, ``dtype``; empty if nothing."""


def prepare(proto: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int]] | None = None) -> Compilable:
    """Make a model ready for the compiler, in place.

    Args:
        proto: The model with its weights, or a structure-only one, which is filled with seeded values.
        name: Name for messages and reports.
        shapes: Input name to the sizes to fix it to.

    Raises:
        UserError: The ONNX checker refuses the model, an input has no fixed size, or `shapes` does not fit.
    """
    check_proto(proto, name)
    _fix_shapes(proto, name, shapes or {})
    if is_structure_only(proto):
        proto = fill(proto)
    renamed = name_nodes(proto)
    graph = graph_of(proto, name=name)
    formats = tuple(sorted({site.format or "unknown" for site in quantize_sites(graph)}))
    first = proto.graph.input[0].type.tensor_type.shape.dim if proto.graph.input else ()
    weights = metadata(proto).get("fusescope.weights", "as given")
    changed = {"shape": " ".join(f"{key}={'x'.join(map(str, sizes))}" for key, sizes in (shapes or {}).items())}
    changed["dtype"] = metadata(proto).get("fusescope.dtype", "")
    return Compilable(
        proto=proto,
        name=name,
        weights=weights,
        formats=formats,
        renamed=renamed,
        batch=first[0].dim_value if first else None,
        changed={key: value for key, value in changed.items() if value},
    )


def build(
    model: Compilable,
    output: Path,
    *,
    runtime: str,
    options: CompileOptions,
    name: str = "",
    request: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Run:
    """Compile a model and keep the engine as a run.

    Args:
        model: The model, from `prepare`.
        output: The run's folder; replaced as a whole when the build succeeded.
        runtime: ``tensorrt-rtx``.
        options: What the builder is told.
        name: What to call the run in reports; the model's name by default.
        request: Hash of what was asked for, to know the run by later.
        timeout_s: Seconds after which the compiler is ended.

    Raises:
        UserError: The runtime is not installed, or the target does not fit the model.
        CompileError: The compiler refused the model, crashed, was killed or hung.
    """
    adapter = runtime_named(runtime)
    _require_installed(runtime, adapter)
    check_target(options.target, adapter.TARGETS, model.formats)
    place = replacing(output, may_replace=_is_run)
    with place as folder, tempfile.TemporaryDirectory(dir=output.absolute().parent) as scratch:
        folder.mkdir()
        model_path = Path(scratch) / MODEL
        _save(model.proto, model_path)
        asked = {"runtime": runtime, "model": str(model_path), "options": asdict(options)}
        with start_worker(asked, Path(scratch) / "request.json", folder) as process:
            try:
                # While the compiler works: what the run keeps of the model.
                sha256 = _sha256(Path(scratch))
                onnx.save_model(strip(model.proto), folder / MODEL)
                outcome = _outcome(process, folder, model.name, timeout_s)
            finally:
                process.kill()
        (folder / OUTCOME).unlink()
        write_record(
            folder,
            Provenance(
                name=name or model.name,
                runtime=runtime,
                runtime_version=outcome["version"],
                target=options.target,
                how="compiled ahead of time on a CPU; convolution kernels are chosen later, on the GPU",
                model_name=model.name,
                model_sha256=sha256,
                weights=model.weights,
                scales=metadata(model.proto).get("fusescope.scales", "as given") if model.formats else "",
                recipe=recipe_of(model.proto, model.name),
                request=request,
                batch=model.batch,
                options={**{key: value for key, value in asdict(options).items() if key != "target"}, **model.changed},
                plan_bytes=outcome["plan_bytes"],
                parse_s=outcome["parse_s"],
                build_s=outcome["build_s"],
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                fusescope_version=__version__,
            ),
        )
        run = _readable(folder, model.name)
    return replace(run, folder=output)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, or what is left of a damaged one."""
    return (folder / RECORD).is_file() or {path.name for path in folder.iterdir()} <= _RUN_FILES


def recipe_of(proto: onnx.ModelProto, name: str) -> dict[str, Any]:
    """How a model was quantized, as `fusescope quantize` recorded it in its metadata; empty if it did not.

    Raises:
        UserError: The metadata cannot be read.
    """
    text = metadata(proto).get("fusescope.recipe", "{}")
    try:
        recipe = json.loads(text)
    except ValueError:
        recipe = None
    if not isinstance(recipe, dict):
        raise UserError("its metadata fusescope.recipe is damaged", where=name, remedy="quantize the model again")
    return recipe


def metadata(proto: onnx.ModelProto) -> dict[str, str]:
    """The model's metadata properties."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def _fix_shapes(proto: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int]]) -> None:
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in constants}
    for wanted, sizes in shapes.items():
        if wanted not in inputs:
            raise UserError(f"has no input {wanted!r}", where=name, remedy=f"it has {', '.join(inputs)}")
        dims = inputs[wanted].type.tensor_type.shape.dim
        fits = len(dims) == len(sizes) and all(
            size > 0 and (dim.dim_value <= 0 or dim.dim_value == size) for dim, size in zip(dims, sizes, strict=True)
        )
        if not fits:
            raise UserError(
                f"the shape {'x'.join(map(str, sizes))} does not fit input {wanted!r}, which is {_shape_text(dims)}",
                where=name,
            )
        for dim, size in zip(dims, sizes, strict=True):
            dim.dim_value = size
    huge = next((key for key, each in inputs.items() if _elements(each) > _LARGEST_TENSOR), None)
    if huge is not None:
        dims = inputs[huge].type.tensor_type.shape.dim
        raise UserError(f"input {huge!r} is {_shape_text(dims)}: more than TensorRT can index", where=name)
    open_inputs = {
        key: value.type.tensor_type.shape.dim
        for key, value in inputs.items()
        if any(dim.dim_value <= 0 for dim in value.type.tensor_type.shape.dim)
    }
    if open_inputs:
        listed = ", ".join(f"{key} {_shape_text(dims)}" for key, dims in open_inputs.items())
        example = " ".join(f"--shape {key}={_example(dims)}" for key, dims in open_inputs.items())
        raise UserError(f"has inputs of no fixed size: {listed}", where=name, remedy=f"give them with {example}")


def _elements(value: onnx.ValueInfoProto) -> int:
    return math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)


def _example(dims: Any) -> str:
    """A shape to give: what is fixed as it is, an open first dimension as batch 1, the others left open."""
    sizes = [str(dim.dim_value) if dim.dim_value > 0 else "N" for dim in dims]
    return "x".join(["1" if sizes[0] == "N" else sizes[0], *sizes[1:]])


def _shape_text(dims: Any) -> str:
    return "[" + ", ".join(str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?" for dim in dims) + "]"


def _require_installed(name: str, adapter: Runtime) -> None:
    if importlib.util.find_spec(adapter.MODULE) is None:
        raise UserError(
            f"the runtime {name} is not installed: its wheels exist for Linux x86_64 and Windows only",
            remedy="everything but compiling works here; compile on such a machine and copy the run's folder",
        )


def _save(proto: onnx.ModelProto, path: Path) -> None:
    large = proto.ByteSize() > _PROTOBUF_LIMIT_BYTES
    onnx.save_model(proto, path, save_as_external_data=large)


def _sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob(f"{MODEL}*")):
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def start_worker(asked: Mapping[str, Any], request: Path, folder: Path, overlay: Path | None = None) -> Worker:
    """Start a process that compiles, with a release's overlay first on its path.

    Args:
        asked: What to compile: see `fusescope.profiler.worker`.
        request: File to write `asked` to.
        folder: Where the worker writes.
        overlay: Folder of a release that is not the installed one.
    """
    request.write_text(json.dumps(asked), encoding="utf-8")
    environment = {**_ALLOCATOR, **os.environ}
    if overlay is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(overlay), environment.get("PYTHONPATH", ""))))
    command = [*WORKER, str(request), str(folder)]
    quiet, kept = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, stdout=quiet, stderr=kept, text=True, errors="replace", env=environment)


def _outcome(process: Worker, folder: Path, name: str, timeout_s: float) -> dict[str, Any]:
    try:
        _, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            f"the compiler did not finish within {timeout_s:g} s{_tail(folder)}",
            where=name,
            remedy="give it longer with --timeout",
        ) from error
    if process.returncode < 0:
        cause = signal.Signals(-process.returncode).name
        hint = "often for lack of memory" if cause == "SIGKILL" else "a defect of the compiler"
        raise CompileError(f"the compiler was ended by {cause}, {hint}{_tail(folder)}", where=name)
    if process.returncode > 0:
        last = complaint.strip().splitlines()[-1:] or ["no message"]
        raise CompileError(f"the compiling process failed: {last[0]}{_tail(folder)}", where=name)
    try:
        outcome: dict[str, Any] = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CompileError(f"the compiling process left no result{_tail(folder)}", where=name) from error
    _refused(outcome, folder, name)
    return outcome


def _readable(folder: Path, name: str) -> Run:
    """The run, read before it replaces an older one."""
    try:
        return read_run(folder)
    except UserError as error:
        raise CompileError(f"the builder's engine dump {error.what}", where=name) from error


def _refused(outcome: Mapping[str, Any], folder: Path, name: str) -> None:
    if outcome["parser_errors"]:
        first = outcome["parser_errors"][0]
        node = f"node {first['node']!r} ({first['operator']}): " if first["node"] else ""
        raise CompileError(f"the ONNX parser refuses {node}{first['message']}", where=name)
    if outcome["plan_bytes"] is None:
        raise CompileError(f"the builder refuses the model{_tail(folder, errors_only=True)}", where=name)
    if not (folder / LAYERS).exists():
        raise CompileError(f"the builder printed no engine dump{_tail(folder)}", where=name)


def _tail(folder: Path, *, errors_only: bool = False) -> str:
    log = folder / BUILD_LOG
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    shown = [line for line in lines if line.startswith("[E]")] if errors_only else lines[-_TAIL_LINES:]
    return f"; it said: {' | '.join(shown)}" if shown else ""
