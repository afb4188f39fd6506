"""From explanations to what the report shows of them, as plain data: nothing here draws, and nothing computes anew."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fusescope.graph.rules import PREDICTIONS
from fusescope.graph.units import count, mebibytes, megabytes, microseconds, percent, plural
from fusescope.profiler.explanation import BALANCE_KEY, Explanation, Finding, QuantizeCost, Side, Trial
from fusescope.profiler.verdicts import VERDICTS

TOP_FINDINGS = 3
_NO_MODULE = "(no ONNX node)"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of the report: baselines that several explanations share are there once."""

    label: str
    """What to call it; no two engines have the same."""

    side: Side
    """Its figures."""

    quantize: QuantizeCost | None
    """What its Quantizes are and cost; None for a baseline."""

    layers: pd.DataFrame
    """Its layer table."""


@dataclass(frozen=True, slots=True)
class Report:
    """All engines of a report, and which of them each explanation is about."""

    engines: tuple[Engine, ...]
    """Every engine once, each baseline before what is held against it."""

    pairs: tuple[tuple[int | None, int], ...]
    """Per explanation: places in `engines` of its baseline (None without one) and of its quantized engine."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the first screen."""

    label: str
    """What it is."""

    before: str
    """Of the baseline; empty without one."""

    after: str
    """Of the engine that is explained."""

    change: str
    """The difference; empty without a baseline, or where there is none."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the network with the traffic of its kernels, those of its own modules among them."""

    path: str
    """Names from the root down, joined by ``/``; empty for the whole network."""

    parent: str
    """Path of the module that it is in; empty for the topmost ones, and for the whole network."""

    label: str
    """Its own name."""

    bytes: int
    """Traffic in the engine that is explained."""

    baseline_bytes: int | None
    """Traffic in the baseline; None without one."""

    kernels: int
    """Its kernels."""

    group: str
    """The group that moves most of its bytes."""


BALANCE: Sequence[tuple[str, Callable[[Side], int | None], Callable[..., str]]] = (
    ("kernels", lambda side: side.kernels, count),
    ("traffic", lambda side: side.traffic_bytes, megabytes),
    ("written by convolutions", lambda side: side.conv_write_bytes, megabytes),
    ("plan", lambda side: side.plan_bytes, mebibytes),
    ("longest chain of kernels", lambda side: side.chain_kernels, count),
    ("convs and gemms in 8 bits", lambda side: side.weighted_in_8_bits, count),
)
"""The figures that two engines are held against each other by: what, of which side, how written."""


def gather(explanations: Sequence[Explanation]) -> Report:
    """Name the engines of a report, and list each once.

    An engine is called what its run is called; the batch is added where batches differ, a number where names still
    do not.
    """
    found: list[tuple[Side, QuantizeCost | None, pd.DataFrame]] = []
    pairs: list[tuple[int | None, int]] = []
    for explanation in explanations:
        base = None
        if explanation.baseline is not None and explanation.baseline_layers is not None:
            sides = [side if cost is None else None for side, cost, _ in found]
            if explanation.baseline not in sides:
                found.append((explanation.baseline, None, explanation.baseline_layers))
                sides.append(explanation.baseline)
            base = sides.index(explanation.baseline)
        found.append((explanation.quantized, explanation.quantize, explanation.layers))
        pairs.append((base, len(found) - 1))
    labels = _labels([side for side, _, _ in found])
    engines = (Engine(label, *parts) for label, parts in zip(labels, found, strict=True))
    return Report(tuple(engines), tuple(pairs))


def _labels(sides: Sequence[Side]) -> list[str]:
    several = len({side.provenance.batch for side in sides}) > 1
    labels: list[str] = []
    for side in sides:
        label = side.provenance.name
        if several:
            label += f", batch {side.provenance.batch or '-'}"
        names = (label, *(f"{label} ({number})" for number in range(2, len(sides) + 1)))
        labels.append(next(name for name in names if name not in labels))
    return labels


def answer(explanation: Explanation) -> str:
    """The answer in one sentence or two: figures of engines, and a word about speed only where a clock ran."""
    return "".join((_latencies(explanation), _engines(explanation)))


def _latencies(explanation: Explanation) -> str:
    """Time of an inference, where it is known of all engines that are explained."""
    after = explanation.quantized.latency
    before = None if explanation.baseline is None else explanation.baseline.latency
    if after is None or (explanation.baseline is not None and before is None):
        return ""
    sources = " and ".join(dict.fromkeys(each.source for each in (before, after) if each is not None))
    if before is None:
        return f"An inference takes {after.median_ms:.3f} ms ({sources}). "
    change = after.median_ms / before.median_ms - 1
    return (
        f"An inference takes {after.median_ms:.3f} ms instead of {before.median_ms:.3f} ms, "
        f"{percent(abs(change))} {'less' if change < 0 else 'more'} ({sources}). "
    )


def _engines(explanation: Explanation) -> str:
    side, cost, baseline = explanation.quantized, explanation.quantize, explanation.baseline
    kernels, moved = count(side.kernels), megabytes(side.traffic_bytes)
    if baseline is not None:
        kernels += f" kernels instead of {count(baseline.kernels)}"
        moved += f" instead of {megabytes(baseline.traffic_bytes)}"
    else:
        kernels += " kernel" if side.kernels == 1 else " kernels"
    if not cost.sites:
        return f"The engine runs {kernels} and moves {moved}: {_without_sites(explanation)}"
    formats = " and ".join(text.upper() for text in sorted(set(explanation.sites["format"])))
    alone, carrying = cost.kernels_alone, cost.kernels_carrying
    return (
        f"In {formats} the engine runs {kernels} and moves {moved}: {count(side.weighted_in_8_bits)} of "
        f"{count(side.weighted)} convolutions and gemms read 8-bit tensors. Its Quantizes sit in "
        f"{plural(carrying, 'kernel')}, {count(alone)} of which {'does' if alone == 1 else 'do'} nothing else."
    )


def _without_sites(explanation: Explanation) -> str:
    side, cost = explanation.quantized, explanation.quantize
    in_8_bits = f"{count(side.weighted_in_8_bits)} of {count(side.weighted)} convolutions and gemms read 8-bit tensors"
    match explanation.quantization:
        case "implicit":
            return f"{in_8_bits}. The compiler chose them: the model has no Quantize."
        case "unknown":
            return "the recording shows no element types, so that nothing can be said about quantization."
        case "explicit" if not side.provenance.model_name:
            return (
                f"{in_8_bits}. {plural(cost.kernels_carrying, 'kernel writes', 'kernels write')} a quantized tensor, "
                f"{count(cost.kernels_alone)} of which {'does' if cost.kernels_alone == 1 else 'do'} nothing else. "
                "Why cannot be told without the ONNX model."
            )
        case _:
            return "no tensor of its graph is quantized."


def tiles(baseline: Side | None, side: Side) -> tuple[Tile, ...]:
    """The figures of the first screen, and those of a clock only where there was one."""
    shown = []
    for label, figure, unit in BALANCE:
        before, after = None if baseline is None else figure(baseline), figure(side)
        change = "" if before is None or after is None else unit(after - before, signed=True)
        shown.append(Tile(label, "" if before is None else unit(before), "-" if after is None else unit(after), change))
    return (*shown, *_clock_tiles(baseline, side))


def _clock_tiles(baseline: Side | None, side: Side) -> list[Tile]:
    shown = []
    if side.latency is not None:
        before = baseline.latency if baseline is not None else None
        shown.append(
            Tile(
                f"latency, {side.latency.source}",
                f"{before.median_ms:.3f} ms" if before else "",
                f"{side.latency.median_ms:.3f} ms",
                f"{side.latency.median_ms - before.median_ms:+.3f} ms" if before else "",
            )
        )
    if side.layer_time is not None:
        total = baseline.layer_time if baseline is not None else None
        shown.append(
            Tile(
                f"sum of layer times, {side.layer_time.source}; not the latency",
                f"{total.total_ms:.3f} ms" if total else "",
                f"{side.layer_time.total_ms:.3f} ms",
                f"{side.layer_time.total_ms - total.total_ms:+.3f} ms" if total else "",
            )
        )
    if side.profile_overhead_us is not None:
        added = baseline.profile_overhead_us if baseline is not None else None
        shown.append(
            Tile(
                "added by the profiler, per layer",
                "" if added is None else microseconds(added),
                microseconds(side.profile_overhead_us),
                "",
            )
        )
    return shown


def is_timed(explanation: Explanation) -> bool:
    """Whether a profiler timed the layers of either engine."""
    sides = (explanation.baseline, explanation.quantized)
    return any(side is not None and side.layer_time is not None for side in sides)


def drawn_measures(sides: Iterable[Side | None]) -> str:
    """What figures of some engines show: time where a clock ran on the layers of all, else kernels; and traffic."""
    timed = all(side is None or side.layer_time is not None for side in sides)
    return f"{'Time' if timed else 'Kernels'} and traffic"


def group_figures(row: "pd.Series[Any]", *, timed: bool) -> tuple[str, ...]:
    """Kernels and bytes of a group and, where a clock ran, its time and its shares of all, as they are written."""
    times = (microseconds(row["time_us"]), percent(row["share"]), percent(row["net_share"])) if timed else ()
    return count(int(row["kernels"])), megabytes(int(row["bytes"])), *times


def shown_groups(explanation: Explanation) -> list[str]:
    """Groups that hold kernels or bytes on either side, heaviest work first."""
    figures = explanation.groups.loc[:, explanation.groups.columns.get_level_values(1).isin(["kernels", "bytes"])]
    return [str(group) for group in figures.index[(figures != 0).any(axis=1)]]


def baselines(explanations: Iterable[Explanation]) -> tuple[str, ...]:
    """Names of the baselines of some explanations."""
    found = (explanation.baseline for explanation in explanations)
    return tuple(dict.fromkeys(side.provenance.name for side in found if side is not None))


def causes(explanation: Explanation) -> tuple[Finding, ...]:
    """The findings but for the balance, which reports show by itself."""
    return tuple(finding for finding in explanation.findings if finding.key != BALANCE_KEY)


def top_findings(explanation: Explanation) -> tuple[Finding, ...]:
    """The costliest causes, for the first screen."""
    return causes(explanation)[:TOP_FINDINGS]


def told_trial(trial: Trial, findings: Sequence[Finding]) -> str:
    """What came of a trial, in words: the same figures are told once, with the first of the findings.

    Args:
        trial: The trial.
        findings: All findings of its explanation, in their order.
    """
    if trial.same_as is not None:
        return f"the same engine as for: {findings[trial.same_as].title}"
    told = f"{count(trial.kernels, signed=True)} kernels, {megabytes(trial.bytes, signed=True)} of traffic"
    if change := trial.accuracy:
        told += (
            f", top-1 {change.points:+.2f} points ({change.low:+.2f} to {change.high:+.2f}, 95 % interval, on "
            f"{plural(change.images, 'image')})"
        )
    return told if trial.helped else f"{told}: no gain on this runtime"


def told_no_sites(explanation: Explanation) -> str:
    """Why there is no table of Quantize sites."""
    if explanation.quantized.provenance.model_name:
        return "No tensor of this graph is quantized."
    return "Sites are places in the ONNX graph, and the model is not known: import the recording with --onnx."


def predicted_against_seen(explanation: Explanation) -> dict[str, dict[str, int]]:
    """Sites by prediction (of full TensorRT) and, within, by verdict (of what was compiled), those that occur."""
    sites = explanation.sites
    counted = Counter(zip(sites["prediction"], sites["verdict"], strict=True))
    verdicts = [verdict for verdict in VERDICTS if verdict in set(sites["verdict"])]
    return {
        prediction: {verdict: counted[prediction, verdict] for verdict in verdicts}
        for prediction in PREDICTIONS
        if prediction in set(sites["prediction"])
    }


def modules(layers: pd.DataFrame, baseline_layers: pd.DataFrame | None) -> tuple[Module, ...]:
    """The network as a tree of modules, by the paths in the names of ONNX nodes; the whole network comes first.

    A kernel that computes nodes of several modules is counted under that of the first, so that a module's bytes are
    those of its modules and its own, and the whole is the engine.
    """
    totals: dict[tuple[str, ...], _Total] = {(): _Total()}
    for path, kernel, group, moved in _placed(layers):
        for depth in range(len(path) + 1):
            total = totals.setdefault(path[:depth], _Total())
            total.kernels += kernel
            total.groups[group] += moved
    for path, _, _, moved in _placed(baseline_layers) if baseline_layers is not None else ():
        for depth in range(len(path) + 1):
            totals.setdefault(path[:depth], _Total()).baseline_bytes += moved
    return tuple(
        Module(
            path="/".join(path),
            parent="/".join(path[:-1]),
            label=path[-1] if path else "",
            bytes=total.groups.total(),
            baseline_bytes=None if baseline_layers is None else total.baseline_bytes,
            kernels=total.kernels,
            group=max(total.groups, key=total.groups.__getitem__, default="other"),
        )
        for path, total in sorted(totals.items())
    )


@dataclass(slots=True)
class _Total:
    kernels: int = 0
    baseline_bytes: int = 0
    groups: Counter[str] = field(default_factory=Counter)


def _placed(layers: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], bool, str, int]]:
    """Module path, whether it is a kernel, group and bytes of each layer that has any."""
    columns = (layers[name] for name in ("work", "onnx_nodes", "members", "kernel", "group", "traffic_bytes"))
    for work, nodes, members, kernel, group, moved in zip(*columns, strict=True):
        if kernel or moved:
            yield module_path(work or nodes or members), bool(kernel), group, int(moved)


def module_path(nodes: Sequence[str]) -> tuple[str, ...]:
    """Module of the first ONNX node: ``/layer1/layer1.0/conv1/Conv`` is in ``layer1``, ``layer1.0``, ``conv1``.

    A name without a path is a module of its own.
    """
    parts = [part for part in nodes[0].split("/") if part] if nodes else []
    return tuple(parts[:-1] if len(parts) > 1 else parts or [_NO_MODULE])


def pivot(rows: Iterable[dict[str, Any]], columns: Iterable[str]) -> dict[str, list[Any]]:
    """Rows as columns: a table that names each column once."""
    rows = list(rows)
    return {column: [row[column] for row in rows] for column in columns}
