"""The flavours of TensorRT that fusescope can drive, behind one protocol.

An adapter is imported only in the worker process, and it imports its TensorRT only when it is asked to compile.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fusescope.graph.errors import UserError

DEFAULT_TIMEOUT_S = 1800.0
"""Seconds after which a compiler that still works is taken to hang."""

LONGEST_TIMEOUT_S = 7 * 86400.0
"""A week: the system's timers count milliseconds in 31 bits."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What the builder is told."""

    target: str
    """What to build for, such as ``sm120``."""

    opt_level: int | None = None
    """Builder optimization level, 0 to 5; None for the runtime's default (3)."""

    aux_streams: int | None = None
    """Highest number of auxiliary streams; 0 for a single stream, None for the runtime's heuristic."""

    avg_timing_iterations: int | None = None
    """Timing iterations that a tactic's time is averaged over; None for the runtime's default (1)."""

    workspace_bytes: int | None = None
    """Limit of the workspace memory pool; None for the runtime's default."""


@dataclass(frozen=True, slots=True)
class ParserError:
    """One complaint of the ONNX parser."""

    message: str
    """The parser's words."""

    node: str = ""
    """The ONNX node that it complains about; empty if it names none."""

    operator: str = ""
    """That node's operator type."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came out of a compilation: a plan, or the reasons why there is none."""

    version: str
    """The runtime's version."""

    plan: bytes | memoryview | None
    """The serialized engine; None when the builder refused."""

    dump: str
    """The engine dump; empty when there is no plan or the builder printed none."""

    parser_errors: tuple[ParserError, ...] = ()
    """The parser's complaints, if it refused the model."""

    parse_s: float = 0.0
    """Seconds that parsing took."""

    build_s: float = 0.0
    """Seconds that the builder call took."""


Log = Callable[[str, str], None]
"""Called with the severity (``E``, ``W``, ``I``, ``V``) and the message, as the builder speaks."""


class Runtime(Protocol):
    """What an adapter module provides."""

    MODULE: str
    """The Python module of the runtime."""

    TARGETS: tuple[str, ...]
    """What it can build for on a machine without a GPU."""

    def compile_model(self, model: Path, options: CompileOptions, log: Log) -> Compiled:
        """Compile an ONNX file. Never raises for what the compiler refuses: that is in the result."""


ADAPTERS: Mapping[str, str] = {"tensorrt-rtx": "fusescope.profiler.runtimes.tensorrt_rtx"}
"""Runtime name to its adapter module."""


def runtime_named(name: str) -> Runtime:
    """The adapter of a runtime.

    Raises:
        UserError: There is no runtime of that name.
    """
    if name not in ADAPTERS:
        raise UserError(f"unknown runtime {name!r}", remedy=f"choose one of {', '.join(ADAPTERS)}")
    adapter: Runtime = importlib.import_module(ADAPTERS[name])
    return adapter
