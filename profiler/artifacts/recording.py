"""What a recorded file holds, whatever its format: one or more engines, their profiles, their latencies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fusescope.profiler.layers import Engine
from fusescope.profiler.timing import Latency, LayerProfile


@dataclass(frozen=True)
class Section:
    """What a file says of one engine. A log of several builds has several sections."""

    label: str
    """Which engine of the file it is about, such as ``build 2``; empty if the file is about one."""

    engine: Engine | None = None
    """Its layers; None if the file holds none."""

    profile: LayerProfile | None = None
    """Times of its layers; None if the file holds none."""

    latency: Latency | None = None
    """Times of whole inferences; None if the file holds none."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What the file says of how it came to be, by the keys of `FACTS`."""

    warnings: tuple[str, ...] = ()
    """What a reader must know before believing a figure, one sentence each."""


@dataclass(frozen=True)
class Recording:
    """A file that somebody recorded."""

    path: Path
    """The file."""

    format: str
    """A key of `fusescope.profiler.artifacts.FORMATS`."""

    sections: tuple[Section, ...]
    """At least one."""


FACTS: Mapping[str, str] = {
    "tensorrt_version": "version of TensorRT, such as 10.16.1",
    "runtime": "tensorrt or tensorrt-rtx",
    "gpu": "name of the GPU",
    "compute_capability": "such as 8.0",
    "driver": "version of the driver",
    "precision": "as the recording says it, such as FP32+FP16 or Strongly Typed",
    "command": "the command line that recorded it",
    "batch": "inferences' batch size",
    "streams": "inference streams that ran at once; more than one inflates layer times",
    "aux_streams": "auxiliary streams of the engine; more than none makes layers overlap",
    "cuda_graph": "whether a CUDA graph was launched: yes or no",
    "spin_wait": "whether the host waited without sleeping: yes or no",
    "data_transfers": "whether inputs and outputs were copied in every inference: yes or no",
    "separate_profile_run": "whether latency and layer times are of different runs: yes or no",
    "verbosity": "profiling verbosity that the engine was built with: layer names only, none or detailed",
    "clock_mhz": "clock of the streaming multiprocessors",
    "memory_clock_mhz": "clock of the memory",
    "warmup": "warm-up, as said",
    "iterations": "inferences timed",
    "onnx": "the ONNX file that was parsed",
    "plan_bytes": "size of the plan",
    "build_s": "seconds of the build",
    "status": "PASSED or FAILED, as trtexec ends",
}
"""Key of `Section.facts` to its meaning; values are text, as recorded."""
