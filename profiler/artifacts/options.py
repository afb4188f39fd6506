"""What trtexec says of how it was called and where it ran, from its log or from TREx's metadata out of it."""

import re
from collections.abc import Mapping

_VERBOSITY = {"0": "layer names only", "1": "none", "2": "detailed"}
_YES = {"Enabled": "yes", "Disabled": "no"}
_CLOCK = re.compile(r"(?P<value>[0-9]{1,6}(?:\.[0-9]{1,9})?)(?: (?P<unit>GHz|MHz))?")
_WARMUP = re.compile(r"\(\+ (?P<time>[0-9]{1,12}) ?ms warm ?up\)")
_SHAPE = re.compile(r"=(?P<sizes>[0-9]{1,9}(?:x[0-9]{1,9})*)(?:\+|$)")
_PLAIN: Mapping[str, str] = {
    "Selected Device": "gpu",
    "Compute Capability": "compute_capability",
    "Precision": "precision",
    "Streams": "streams",
    "Inference Streams": "streams",
}
_SWITCHES: Mapping[str, str] = {
    "CUDA Graph": "cuda_graph",
    "Spin-wait": "spin_wait",
    "Data transfers": "data_transfers",
    "Separate profiling": "separate_profile_run",
}
_CLOCKS: Mapping[str, str] = {
    "Compute Clock Rate": "clock_mhz",
    "Application Compute Clock Rate": "clock_mhz",
    "Memory Clock Rate": "memory_clock_mhz",
    "Application Memory Clock Rate": "memory_clock_mhz",
}


def facts_of(options: Mapping[str, str]) -> dict[str, str]:
    """What lines such as ``Precision: FP32+FP16`` say, by the keys of `fusescope.profiler.artifacts.recording.FACTS`.

    Args:
        options: Trtexec's words to their values. Empty values say nothing.
    """
    said = {name: value.strip(" \t\r") for name, value in options.items() if value.strip(" \t\r")}
    facts = {key: said[name] for name, key in _PLAIN.items() if name in said}
    facts |= {key: _YES[said[name]] for name, key in _SWITCHES.items() if said.get(name) in _YES}
    facts |= {key: clock for name, key in _CLOCKS.items() if (clock := _clock(said.get(name, "")))}
    if "Load engine" in said:
        facts.pop("precision", None)  # the flags of this run, not those that the engine was built with
    elif said.get("Profiling verbosity") in _VERBOSITY:
        facts["verbosity"] = _VERBOSITY[said["Profiling verbosity"]]
    if said.get("Format") == "ONNX" and "Model" in said:
        facts["onnx"] = said["Model"]
    if warmup := _WARMUP.search(said.get("Duration", "")):
        facts["warmup"] = f"{warmup['time']} ms"
    if batch := _batch(said):
        facts["batch"] = batch
    return facts


def version_of(token: str) -> str:
    """The version in a token of trtexec's first line: 8203 is 8.2.3, 101601 is 10.16.1; empty if it is none."""
    if not (token.isascii() and token.isdecimal() and 4 <= len(token) <= 6):
        return token if re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,4}){1,3}", token) else ""
    number, scale = int(token), 1000 if len(token) == 4 else 10_000
    major, rest = divmod(number, scale)
    return f"{major}.{rest // 100}.{rest % 100}"


def common_batch(shapes: list[tuple[int, ...]]) -> str:
    """The first dimension that all inputs share; empty if they do not."""
    firsts = {shape[0] for shape in shapes if shape}
    return str(firsts.pop()) if len(firsts) == 1 else ""


def _batch(said: Mapping[str, str]) -> str:
    if (explicit := said.get("Batch", "")).isdecimal():
        return explicit
    text = said.get("Input inference shapes", said.get("Input inference shape", ""))
    return common_batch([tuple(map(int, match["sizes"].split("x"))) for match in _SHAPE.finditer(text)])


def _clock(text: str) -> str:
    """Megahertz, without digits that mean nothing; TREx takes the unit, which is GHz, away."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return ""
    return f"{float(match['value']) * (1 if match['unit'] == 'MHz' else 1000):.6g}"
