"""The performance summary that trtexec prints, of every version.

From TensorRT 8.0 on it has one line per quantity (``GPU Compute Time: min = ...``); 7.x has a heading per quantity with
a line per figure below it.
"""

import re
from collections.abc import Mapping, Sequence

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.values import milliseconds, number
from fusescope.profiler.timing import Latency, Spread

TITLE = "=== Performance summary ==="
"""The line above the summary from TensorRT 8.0 on."""

OLD_TITLE = "Host Latency"
"""The line above the summary of TensorRT 7.x."""

COMPUTE, TOTAL, ENQUEUE, THROUGHPUT = "GPU Compute Time", "Latency", "Enqueue Time", "Throughput"
"""What the summary calls its quantities; `TOTAL` includes the copies of inputs and outputs."""

_OLD_NAMES = {OLD_TITLE: TOTAL, "GPU Compute": COMPUTE, ENQUEUE: ENQUEUE}
_FIGURE = re.compile(r"(min|max|mean|median|percentile\([0-9.]{1,8}%\)) = (\S{1,40}) ms(?:,|$)")
_OLD_FIGURE = re.compile(r"(min|max|mean|median|percentile): (\S{1,40}) ms(?: at ([0-9.]{1,8})%)?(?: |$)")
_RATE = re.compile(r"[Tt]hroughput: (\S{1,40}) qps")


def is_summary(line: str) -> bool:
    """Whether a line of a log, without its prefix, may stand in a summary of TensorRT 7.x, which has no end."""
    return line in _OLD_NAMES or _OLD_FIGURE.match(line) is not None or line.startswith(("throughput:", "walltime:"))


def read_summary(lines: Sequence[str], origin: str) -> Latency:
    """Read a performance summary.

    Args:
        lines: Its lines without the log's prefix.
        origin: The file, and the place in it.

    Raises:
        UserError: It has no GPU time of an inference, or a figure is negative or no number.
    """
    spreads: dict[str, dict[str, float]] = {}
    throughput, quantity = None, ""
    for line in lines:
        quantity = _OLD_NAMES.get(line.strip(), quantity)
        name, colon, figures = line.partition(": ")
        if rate := _RATE.match(line):
            # 7.x prints 0 qps where the network has an explicit batch.
            throughput = milliseconds(number(rate[1]), THROUGHPUT, origin) or None
        elif old := _OLD_FIGURE.match(line):
            key = f"percentile({old[3]}%)" if old[3] else old[1]
            spreads.setdefault(quantity, {})[key] = milliseconds(number(old[2]), f"{key} of {quantity}", origin)
        elif colon and (found := _FIGURE.findall(figures)):
            spreads[name] = {key: milliseconds(number(value), f"{key} of {name}", origin) for key, value in found}
    if "median" not in spreads.get(COMPUTE, {}):
        raise UserError(f"is cut short: its summary has no median of {COMPUTE}", where=origin)
    return latency_of(spreads, throughput, origin)


def latency_of(spreads: Mapping[str, Mapping[str, float]], throughput: float | None, origin: str) -> Latency:
    """A latency out of the figures of a summary.

    Args:
        spreads: Quantity to figure (``median``, ``percentile(99%)``) to milliseconds; `COMPUTE` must be there.
        throughput: Inferences per second.
        origin: The file, and the place in it.
    """
    return Latency(
        compute=_spread(spreads[COMPUTE]),
        total=_spread(spreads[TOTAL]) if TOTAL in spreads else None,
        enqueue=_spread(spreads[ENQUEUE]) if ENQUEUE in spreads else None,
        throughput_qps=throughput,
        source="recorded",
        origin=origin,
    )


def _spread(figures: Mapping[str, float]) -> Spread:
    return Spread(
        median_ms=figures.get("median"),
        mean_ms=figures.get("mean"),
        min_ms=figures.get("min"),
        max_ms=figures.get("max"),
        p90_ms=figures.get("percentile(90%)"),
        p95_ms=figures.get("percentile(95%)"),
        p99_ms=figures.get("percentile(99%)"),
    )
