"""From runs to a `Comparison`: aligned, region by region, against the first of them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fusescope.graph.errors import UserError
from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.alignment import weight_stems
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.comparable import cautions
from fusescope.profiler.comparison import ComparedRegion, ComparedRun, Comparison, RegionSide
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.kinds import NOT_KERNELS
from fusescope.profiler.region_changes import borders, changes, dtypes, work_of
from fusescope.profiler.regions import Region, align
from fusescope.profiler.run import Run
from fusescope.profiler.tables import total_us

_NAMED = 2
"""Neighbours of a region that computes nothing that its name lists."""

UNMATCHED = "entries of the profile that are no layer"
"""Name of the region that holds them."""


def compare(runs: Sequence[Run]) -> Comparison:
    """Hold engines against the first of them.

    Args:
        runs: The reference, and what is held against it.

    Raises:
        UserError: There are fewer than two.
    """
    if len(runs) < 2:
        raise UserError("one run cannot be compared", where=runs[0].folder, remedy="give two or more")
    explanations = [explain(run) for run in runs]
    views = [EngineView(run.engine, run.model) for run in runs]
    labels = _labels([run.provenance.name for run in runs])
    compared = tuple(
        ComparedRun(label, each.observed, each.quantized, each.findings)
        for label, each in zip(labels, explanations, strict=True)
    )
    regions = [*_regions(views, explanations), *_unmatched(explanations)]
    return Comparison(
        runs=compared,
        regions=tuple(regions),
        groups=pd.concat(
            {label: each.groups["quantized"] for label, each in zip(labels, explanations, strict=True)}, axis=1
        ),
        warnings=_warnings(runs, labels, explanations),
    )


def _labels(names: Sequence[str]) -> list[str]:
    """The names, those that repeat numbered."""
    times = Counter(names)
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(f"{name} ({seen[name]})" if times[name] > 1 else name)
    return labels


def _warnings(runs: Sequence[Run], labels: Sequence[str], explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """What a reader must know, each once with the engines that it is about."""
    about: dict[str, list[str]] = {}
    for label, warning in _warned(runs, labels, explanations):
        about.setdefault(warning, []).append(label)
    return tuple(f"{', '.join(whose)}: {warning}" for warning, whose in about.items())


def _warned(
    runs: Sequence[Run], labels: Sequence[str], explanations: Sequence[Explanation]
) -> Iterator[tuple[str, str]]:
    for run, label, explanation in zip(runs, labels, explanations, strict=True):
        yield from ((label, warning) for warning in explanation.warnings)
        if run is not runs[0]:
            yield from ((f"{labels[0]} and {label}", caution) for caution in cautions(run, runs[0]))


def _regions(views: Sequence[EngineView], explanations: Sequence[Explanation]) -> Iterator[ComparedRegion]:
    tables = [explanation.layers for explanation in explanations]
    regions = align(views)
    stems = [weight_stems(view) for view in views]
    names = [_computing_name(region, views, stems) for region in regions]
    for region, name in zip(regions, names, strict=True):
        pieces = list(zip(region.layers, views, strict=True))
        sides = [_side(indices, view, table) for (indices, view), table in zip(pieces, tables, strict=True)]
        yield ComparedRegion(
            name=_converting_name(region, names) if region.converts else name,
            aligned_by=region.aligned_by,
            converts=region.converts,
            nodes=next((work for indices, view in pieces if (work := work_of(indices, view))), ()),
            sides=tuple(
                replace(side, changes=changes(pieces[0], piece) if place and region.converts not in NOT_KERNELS else ())
                for place, (side, piece) in enumerate(zip(sides, pieces, strict=True))
            ),
        )


def _side(indices: Sequence[int], view: EngineView, table: pd.DataFrame) -> RegionSide:
    rows = table.loc[list(indices)]
    read, written = borders(indices, view)
    return RegionSide(
        layers=tuple(indices),
        kernels=int(rows["kernel"].sum()),
        bytes=int(rows["traffic_bytes"].sum()),
        time_us=total_us(table, rows, "time_us"),
        net_us=total_us(table, rows, "net_us"),
        read_dtypes=dtypes(read),
        write_dtypes=dtypes(written),
    )


def _unmatched(explanations: Sequence[Explanation]) -> Iterator[ComparedRegion]:
    """Time that a profile has for no layer, so that the regions add up to the profile."""
    if any(explanation.coverage.unmatched_times for explanation in explanations):
        spent = [
            None
            if explanation.coverage.time_us is None
            else explanation.coverage.time_us - float(explanation.layers["time_us"].sum())
            for explanation in explanations
        ]
        sides = tuple(RegionSide((), 0, 0, time_us, None, (), ()) for time_us in spent)
        yield ComparedRegion(UNMATCHED, "", "unmatched", (), sides)


def _computing_name(region: Region, views: Sequence[EngineView], stems: Sequence[Mapping[str, str]]) -> str:
    """After the weight of its first conv or gemm, else after a node, else as the engine calls its first layer."""
    for indices, view, known in zip(region.layers, views, stems, strict=True):
        work = work_of(indices, view)
        weighted = [name for name in work if view.graph.nodes[name].op in WEIGHTED]
        chosen = list(dict.fromkeys(known.get(name, name) for name in weighted)) or list(work[:1])
        chosen = chosen or [view.engine.layers[index].name for index in indices[:1]]
        if chosen:
            return _listed(chosen)
    return ""


def _converting_name(region: Region, names: Sequence[str]) -> str:
    """What is done to the tensors between which regions."""
    before, behind = ([names[place] for place in places] for places in (region.before, region.behind))
    if region.converts in NOT_KERNELS:
        return region.converts
    start = f"from {_listed(before)}" if before else "of an input"
    return f"{region.converts} {start}{f' to {_listed(behind)}' if behind else ', an output'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
