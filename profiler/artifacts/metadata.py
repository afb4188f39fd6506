"""What TREx's scripts kept beside an engine: options and summary of a build or a profile, and the GPU's properties."""

import re
from collections.abc import Mapping, Sequence

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.files import parse_json
from fusescope.profiler.artifacts.options import facts_of
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.summary import COMPUTE, THROUGHPUT, latency_of
from fusescope.profiler.artifacts.values import milliseconds, shown
from fusescope.profiler.timing import Latency

_PARTS = ("model_options", "build_options", "inference_options", "performance_summary", "device_information")
_START = re.compile(
    rf'\s*(?:\{{\s*"(?:{"|".join(_PARTS)})"\s*:\s*\{{|\[\s*\{{\s*"Name"\s*:\s*"[^"]{{0,200}}"\s*,\s*"Comp)'
)
_FIGURES = ("min", "max", "mean", "median")
_PERCENTILES: Mapping[int, tuple[str, ...]] = {
    5: ("percentile(99%)",),
    7: ("percentile(90%)", "percentile(95%)", "percentile(99%)"),
}
"""Length of a list of figures to what it ends with: one percentile up to TensorRT 8.4, three from 8.5 on."""


def recognise(text: str) -> bool:
    """Whether a text is such metadata, by how it begins."""
    return _START.match(text) is not None


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read the metadata of a build, of a profile, or of the GPUs of a machine.

    Args:
        text: The file.
        origin: Its name.

    Raises:
        UserError: It is cut short, says nothing, or holds a time that is negative or no number.
    """
    document = parse_json(text, origin)
    if isinstance(document, list):
        section = _gpus([each for each in document if isinstance(each, dict)])
    elif isinstance(document, dict):
        section = _options(document, origin)
    else:
        raise UserError("is no metadata of TREx", where=origin)
    if not section.facts and not section.warnings and section.latency is None:
        raise UserError("says nothing that fusescope knows", where=origin)
    return (section,)


def _options(document: Mapping[str, object], origin: str) -> Section:
    options: dict[str, str] = {}
    for name in _PARTS:
        part = document.get(name)
        if name != "performance_summary" and isinstance(part, dict):
            options |= {key: str(value) for key, value in part.items() if isinstance(value, str | int | float)}
    summary = document.get("performance_summary")
    latency = _latency(summary, origin) if isinstance(summary, dict) else None
    return Section("", latency=latency, facts=facts_of(options))


def _latency(summary: Mapping[str, object], origin: str) -> Latency:
    spreads = {name: _figures(name, values, origin) for name, values in summary.items() if isinstance(values, list)}
    if "median" not in spreads.get(COMPUTE, {}):
        raise UserError(f"has a summary without {COMPUTE}", where=origin)
    throughput = summary.get(THROUGHPUT)
    return latency_of(spreads, milliseconds(throughput, THROUGHPUT, origin) if throughput else None, origin)


def _figures(name: str, values: Sequence[object], origin: str) -> dict[str, float]:
    keys = (*_FIGURES, *_PERCENTILES.get(len(values), ()))
    what = f"of {shown(name)}"
    return {key: milliseconds(value, f"{key} {what}", origin) for key, value in zip(keys, values, strict=False)}


def _gpus(devices: Sequence[Mapping[str, object]]) -> Section:
    """Facts of the GPU; nothing of several that differ, since which of them ran is not said."""
    facts = [_gpu(device) for device in devices]
    if all(each == facts[0] for each in facts):
        return Section("", facts=facts[0] if facts else {})
    names = ", ".join(dict.fromkeys(each.get("gpu", "?") for each in facts))
    return Section(
        "", facts={}, warnings=(f"the machine has several GPUs, and which of them ran is not said: {names}",)
    )


def _gpu(device: Mapping[str, object]) -> dict[str, str]:
    facts = {}
    capability = device.get("ComputeCapability")
    if isinstance(device.get("Name"), str):
        facts["gpu"] = str(device["Name"])
    if isinstance(capability, list) and len(capability) == 2:
        facts["compute_capability"] = f"{capability[0]}.{capability[1]}"
    # CUDA gives clocks in kHz: the highest, not that of the moment.
    for key, name in (("clock_mhz", "CLOCK_RATE"), ("memory_clock_mhz", "MEMORY_CLOCK_RATE")):
        clock = device.get(name)
        if isinstance(clock, int) and clock > 0:
            facts[key] = f"{clock / 1000:.6g}"
    return facts
