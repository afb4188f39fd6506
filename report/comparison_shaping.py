"""What a comparison shows, as rows of text: the same in the terminal and in Markdown."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from fusescope.graph.units import count, megabytes, microseconds, plural
from fusescope.profiler.comparison import ComparedRegion, ComparedRun, Comparison
from fusescope.profiler.kinds import GROUPS
from fusescope.report.shaping import BALANCE

Row = tuple[str, ...]

_PRESENCE = {"both": "in both", "reference": "only in {reference}", "engine": "only in {engine}"}


_CLOCK: Sequence[tuple[str, Callable[[ComparedRun], float | None], Callable[[float], str]]] = (
    ("median latency", lambda run: run.latency_us, microseconds),
    ("sum of layer times", lambda run: run.layers_us, microseconds),
    ("sum above latency", lambda run: run.gap_us, microseconds),
    ("executed layers", lambda run: run.side.executed_layers, lambda number: count(int(number))),
    ("profiler adds per layer", lambda run: run.side.profile_overhead_us, microseconds),
    ("latency per sample", lambda run: run.sample_us, microseconds),
    ("samples per second", lambda run: run.samples_per_s, lambda rate: count(round(rate))),
)


def figure_rows(comparison: Comparison) -> Iterator[Row]:
    """What each engine is in figures, a row per figure: those of a clock only where one ran."""
    runs = comparison.runs
    yield ("layers", *(count(run.side.layers) for run in runs))
    for label, figure, unit in BALANCE:
        values = [figure(run.side) for run in runs]
        yield (label, *("-" if value is None else unit(value) for value in values))
    yield ("convs and gemms", *(count(run.side.weighted) for run in runs))
    batches = [run.side.provenance.batch for run in runs]
    if len(set(batches)) > 1:
        yield ("batch", *("-" if batch is None else count(batch) for batch in batches))
        yield ("traffic per sample", *(_rounded(run.sample_bytes) for run in runs))
    if any(run.side.layer_time or run.side.latency for run in runs):
        yield ("times are", *(_source(run) for run in runs))
    for label, clocked, shown in _CLOCK:
        times = [clocked(run) for run in runs]
        if any(time is not None for time in times):
            yield (label, *("-" if time is None else shown(time) for time in times))


def _source(run: ComparedRun) -> str:
    clocks = (run.side.latency, run.side.layer_time)
    return ", ".join(dict.fromkeys(clock.source for clock in clocks if clock is not None)) or "-"


def _rounded(size: float | None) -> str:
    return megabytes(None if size is None else round(size))


def clock_sentences(comparison: Comparison) -> Iterator[str]:
    """What lies between sums of layer times and latencies, of each engine and of their differences."""
    first = comparison.runs[0]
    for run in comparison.runs:
        gap, overhead = run.gap_us, run.side.profile_overhead_us
        if gap is None:
            continue
        told = f"{run.label}: its layer times add up to {microseconds(abs(gap))} {'less' if gap < 0 else 'more'} than"
        told += " its median latency"
        if overhead is not None and run.side.executed_layers is not None:
            times = f"{microseconds(overhead)} for each of {count(run.side.executed_layers)} layers"
            told += f", {times}: about what the profiler adds"
        yield f"{told}."
    for run in comparison.runs[1:]:
        spent, latency = _difference(first.layers_us, run.layers_us), _difference(first.latency_us, run.latency_us)
        if spent is not None and latency is not None:
            yield (
                f"{run.label} against {first.label}: the layers differ by {microseconds(spent, signed=True)} in all, "
                f"the latency by {microseconds(latency, signed=True)}: what the profiler adds to more or fewer layers "
                "is in the first only."
            )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def contribution_rows(comparison: Comparison, place: int) -> Iterator[Row]:
    """What the difference of an engine is made of, and the whole of it: what, where, regions, less, more, figures."""
    found = comparison.contributions(place)
    names = {"reference": comparison.runs[0].label, "engine": comparison.runs[place].label}
    for each in found:
        numbers = (count(number) for number in (each.regions, each.less, each.more))
        figures = (count(each.kernels, signed=True), megabytes(each.bytes, signed=True))
        times = (microseconds(each.time_us, signed=True),) * comparison.is_timed
        yield (each.what, _PRESENCE[each.presence].format(**names), *numbers, *figures, *times)
    spent = [each.time_us for each in found if each.time_us is not None]
    total = (microseconds(sum(spent), signed=True) if spent else "-",) * comparison.is_timed
    numbers = (count(sum(getattr(each, key) for each in found)) for key in ("regions", "less", "more"))
    moved = megabytes(sum(each.bytes for each in found), signed=True)
    yield ("in all", "", *numbers, count(sum(each.kernels for each in found), signed=True), moved, *total)


def contribution_columns(comparison: Comparison) -> Row:
    """Heads of `contribution_rows`."""
    return (
        "what its layers do",
        "where",
        "regions",
        "less",
        "more",
        "kernels",
        "bytes",
        *(("time",) * comparison.is_timed),
    )


def group_rows(comparison: Comparison) -> Iterator[Row]:
    """Totals by group: kernels, bytes and, with a clock, time of each engine."""
    for group in GROUPS:
        cells = [comparison.groups[run.label].loc[group] for run in comparison.runs]
        if any(cell["layers"] for cell in cells):
            figures = [count(int(cell["kernels"])) for cell in cells]
            figures += [megabytes(int(cell["bytes"])) for cell in cells]
            figures += [microseconds(cell["time_us"]) for cell in cells if comparison.is_timed]
            yield (group, *figures)


def group_columns(comparison: Comparison) -> Row:
    """Heads of `group_rows`."""
    figures = ("kernels", "bytes", *(("time",) * comparison.is_timed))
    return ("group", *(f"{run.label} {figure}" for figure in figures for run in comparison.runs))


def region_columns(comparison: Comparison) -> Row:
    """Heads of `region_rows`."""
    labels = [run.label for run in comparison.runs]
    figures = ("time", "bytes") if comparison.is_timed else ("kernels", "bytes")
    amounts = [f"{label} {figures[0]}" for label in labels]
    changes = [f"{label} {figure}" for label in labels[1:] for figure in (f"{figures[0]} more", "bytes more")]
    return ("region", "what changed", *amounts, *changes)


def region_rows(comparison: Comparison, order: str, at_most: int | None = None) -> Iterator[Row]:
    """A row per region, one for those that are left out, and the whole, which they add up to.

    Args:
        comparison: The engines.
        order: A key of `fusescope.profiler.comparison.ORDERS`.
        at_most: Rows that are shown; None for all.
    """
    regions = comparison.ordered(order)
    shown, rest = regions[:at_most], regions[len(regions[:at_most]) :]
    for region in shown:
        yield (region.name, told_changes(region, comparison), *_region_figures([region], comparison))
    if rest:
        yield (plural(len(rest), "more region"), "", *_region_figures(rest, comparison))
    yield ("in all", "", *_region_figures(regions, comparison))


def told_changes(region: ComparedRegion, comparison: Comparison) -> str:
    """What changed in a region; of several engines, each by its name."""
    several = len(comparison.runs) > 2
    told = []
    for run, side in zip(comparison.runs, region.sides, strict=True):
        if side.changes:
            words = "; ".join(change.what for change in side.changes)
            told.append(f"{run.label}: {words}" if several else words)
    return ". ".join(told)


def _region_figures(regions: Sequence[ComparedRegion], comparison: Comparison) -> Iterator[str]:
    places = range(len(comparison.runs))
    if comparison.is_timed:
        yield from (microseconds(_sum(region.sides[place].time_us for region in regions)) for place in places)
    else:
        yield from (count(sum(region.sides[place].kernels for region in regions)) for place in places)
    for place in places[1:]:
        if comparison.is_timed:
            yield microseconds(_sum(region.time_difference(place) for region in regions), signed=True)
        else:
            yield count(sum(region.kernel_difference(place) for region in regions), signed=True)
        yield megabytes(sum(region.byte_difference(place) for region in regions), signed=True)


def _sum(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if known else None
