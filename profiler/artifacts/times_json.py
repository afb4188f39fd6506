"""The times of whole inferences that ``trtexec --exportTimes`` writes, from TensorRT 7.1 on.

A list with one object per inference. Times of day count from the start of the measurement, warm-up included. Up to
TensorRT 8.4 the inferences of the warm-up are in the file, from 8.5 on they are not; nothing in it says which, so it is
told by when the first one begins.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fusescope.graph.errors import UserError
from fusescope.graph.units import count, plural
from fusescope.profiler.artifacts.files import parse_json
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.values import milliseconds, shown
from fusescope.profiler.timing import Latency, Spread

if TYPE_CHECKING:
    from fusescope.profiler.measure.timer import Floats

WARMUP_MS = 200.0
"""How long trtexec warms up by default (``--warmUp``)."""

_START = re.compile(r'\s*\[\s*\{\s*"(?:start(?:Enq|In|H2d|Compute)Ms|computeMs|latencyMs)"\s*:')
_COMPUTE, _LATENCY = "computeMs", "latencyMs"
_BEGIN = ("startH2dMs", "startInMs", "startComputeMs")
_END = ("endD2hMs", "endOutMs", "endComputeMs")
_AT_ONCE = 1.05
"""Inferences at once on average from which they must have overlapped; times of day are rounded to six digits."""

_TICK_MS = 1e-6


def recognise(text: str) -> bool:
    """Whether a text is such a list, by how it begins."""
    return _START.match(text) is not None


def read(text: str, origin: str, warmup_ms: float = WARMUP_MS) -> tuple[Section, ...]:
    """Read the times of inferences.

    Args:
        text: The file.
        origin: Its name.
        warmup_ms: How long the warm-up was, if it is in the file.

    Raises:
        UserError: It is cut short, an inference has no GPU time, or a time is negative or no number.
    """
    rows = parse_json(text, origin)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError("is no list of inferences", where=origin, remedy="record it with trtexec --exportTimes")
    columns = _columns(rows, origin)
    skip, warnings = _warmup(columns, warmup_ms)
    columns = {key: values[skip:] for key, values in columns.items()}
    compute = spread_of(columns[_COMPUTE])
    latency = Latency(
        compute=compute,
        total=spread_of(columns[_LATENCY]) if _LATENCY in columns else None,
        enqueue=_enqueue(columns),
        throughput_qps=_throughput(columns),
        source="recorded",
        origin=origin,
    )
    warnings += _overlap(columns)
    if compute.samples == 1:
        warnings.append("one inference was timed: its latency has no spread")
    return (Section("", latency=latency, facts={"iterations": str(compute.samples)}, warnings=tuple(warnings)),)


def spread_of(samples_ms: "Floats | Sequence[float]") -> Spread:
    """Summarize the times of single inferences or of one layer in each of them."""
    import numpy as np

    from fusescope.profiler.measure.statistics import coefficient_of_variation, spread

    samples = np.asarray(samples_ms, dtype=np.float64)
    variation = coefficient_of_variation(samples) if samples.any() else 0.0
    return replace(spread(samples), variation=variation)


def _columns(rows: Sequence[Mapping[str, object]], origin: str) -> dict[str, "Floats"]:
    """The columns that every inference has, as arrays."""
    import numpy as np

    names = [name for name in rows[0] if name.endswith("Ms")]
    if _COMPUTE not in names:
        raise UserError(f"has no {_COMPUTE}: the GPU time of an inference", where=origin)
    columns = {}
    for name in names:
        values = [
            milliseconds(row.get(name), f"{shown(name)} of inference {place}", origin)
            for place, row in enumerate(rows, start=1)
        ]
        columns[name] = np.array(values)
    return columns


def _warmup(columns: Mapping[str, "Floats"], warmup_ms: float) -> tuple[int, list[str]]:
    """How many inferences at the start were the warm-up, and what to say of them."""
    starts = columns.get("startComputeMs")
    if starts is None:
        return 0, ["the file does not say when an inference began: whether the warm-up is in it cannot be told"]
    early = int((starts < warmup_ms).sum())
    if not early:
        return 0, []
    when = f"the first inference of the file begins at {starts[0]:.4g} ms, within a warm-up of {warmup_ms:.4g} ms"
    if early == len(starts):
        return 0, [f"{when}, and so does the last: none was left out, so that the latency is not that of a warm GPU"]
    what = f"the {plural(early, 'inference')} of the warm-up"
    return early, [f"{when}, as TensorRT up to 8.4 writes it: {what} of {count(len(starts))} in it were left out"]


def _first(columns: Mapping[str, "Floats"], names: Sequence[str]) -> "Floats | None":
    return next((columns[name] for name in names if name in columns), None)


def _enqueue(columns: Mapping[str, "Floats"]) -> Spread | None:
    if "startEnqMs" not in columns or "endEnqMs" not in columns:
        return None
    took = columns["endEnqMs"] - columns["startEnqMs"]
    # Six digits of a time of day leave nothing of an enqueue of microseconds, seconds after the start.
    return spread_of(took) if (took > 0).all() else None


def _throughput(columns: Mapping[str, "Floats"]) -> float | None:
    begin, end = _first(columns, _BEGIN), _first(columns, _END)
    took_ms = _took(begin, end)
    return 1e3 * len(columns[_COMPUTE]) / took_ms if took_ms else None


def _took(begin: "Floats | None", end: "Floats | None") -> float:
    """Milliseconds from the first begin to the last end; zero if that is not known, or less than any clock tells."""
    took = 0.0 if begin is None or end is None else float(end.max() - begin.min())
    return took if took > _TICK_MS else 0.0


def _overlap(columns: Mapping[str, "Floats"]) -> list[str]:
    """Whether inferences ran at once: then each of them waited for the others."""
    took_ms = _took(columns.get("startComputeMs"), columns.get("endComputeMs"))
    at_once = float(columns[_COMPUTE].sum()) / took_ms if took_ms else 0.0
    if at_once <= _AT_ONCE:
        return []
    return [
        f"{at_once:.1f} inferences ran at once on average, as with --infStreams: each took longer for the others, so "
        "that the latency is not that of one inference alone"
    ]
