"""The JSON documents of fusescope's commands. Keys are relied on by scripts: add, do not rename."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a command with a small document starts fast
    import pandas as pd

    from fusescope.graph.neighbourhood import Excerpt
    from fusescope.graph.rules import Prediction
    from fusescope.graph.sites import QuantizeSite
    from fusescope.profiler.comparison import ComparedRegion, ComparedRun, Comparison
    from fusescope.profiler.explanation import Explanation, Finding, QuantizeCost, Side

VERSION = 1
_FIGURES = ("layers", "kernels", "bytes", "floor_us")
_TIMES = {"total_us": "time_us", "net_us": "net_us", "share": "share", "net_share": "net_share"}


def header(name: str) -> dict[str, Any]:
    """What every document begins with: its schema and version."""
    return {"schema": f"fusescope.{name}", "version": VERSION}


def explanation_document(explanation: "Explanation") -> dict[str, Any]:
    """The document of ``fusescope explain --json``: everything that the reports are made from."""
    from fusescope.profiler.spots import Spot

    source = _source(explanation.quantized)
    return {
        **header("explanation"),
        "observed": explanation.observed,
        "expected": explanation.expected,
        "baseline": None if explanation.baseline is None else asdict(explanation.baseline),
        "quantized": asdict(explanation.quantized),
        "groups": _groups(explanation),
        "quantize": _quantize(explanation.quantize, source),
        "reasons": [_reason(row, source) for row in records(explanation.reasons.reset_index())],
        "findings": [_finding(finding, source) for finding in explanation.findings],
        "coverage": asdict(explanation.coverage),
        "sites": records(explanation.sites),
        "layers": records(explanation.layers),
        "baseline_layers": None if explanation.baseline_layers is None else records(explanation.baseline_layers),
        "blocks": None if explanation.blocks is None else records(explanation.blocks),
        "graph": _graph(explanation.excerpt),
        "spots": _columns(explanation.spots, Spot),
        "gpu": explanation.gpu or None,
        "warnings": list(explanation.warnings),
        "quantization": explanation.quantization,
        "reformats": records(explanation.reformats),
        "transitions": records(explanation.transitions),
    }


def sites_document(
    graph_name: str, sites: "Sequence[QuantizeSite]", predictions: "Sequence[Prediction]"
) -> dict[str, Any]:
    """The document of ``fusescope sites --json``: a row per site with what the documented rules expect of it."""
    rows = [{**asdict(site), **asdict(prediction)} for site, prediction in zip(sites, predictions, strict=True)]
    return {**header("sites"), "model": graph_name, "sites": rows}


def study_document(
    title: str,
    explanations: "Sequence[Explanation]",
    failures: Sequence[Mapping[str, Any]],
    written: Sequence[Path],
    accuracy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of ``fusescope study --json``: an explanation per batch and variant, and what was written.

    Args:
        title: Title of the study.
        explanations: What was compiled.
        failures: What could not be.
        written: Files and folders.
        accuracy: The evaluation, from `fusescope.report.accuracy.evaluation_document`; None without one.
    """
    return {
        **header("study"),
        "title": title,
        "explanations": [
            {
                "batch": explanation.quantized.provenance.batch,
                "variant": explanation.quantized.provenance.name,
                **explanation_document(explanation),
            }
            for explanation in explanations
        ],
        "accuracy": accuracy,
        "failures": list(failures),
        "written": [str(path) for path in written],
    }


def comparison_document(comparison: "Comparison", order: str) -> dict[str, Any]:
    """The document of ``fusescope compare --json``: every region of every engine, in an order; they add up to each."""
    places = range(1, len(comparison.runs))
    return {
        **header("comparison"),
        "order": order,
        "runs": [_compared(run) for run in comparison.runs],
        "contributions": [
            {
                "run": comparison.runs[place].label,
                **(document := asdict(each)),
                "time": _difference_time(comparison, place, document.pop("time_us")),
            }
            for place in places
            for each in comparison.contributions(place)
        ],
        "groups": [
            {
                "group": group,
                "runs": [
                    _figures(comparison.groups.loc[group, run.label].to_dict(), _source(run.side))
                    for run in comparison.runs
                ],
            }
            for group in comparison.groups.index
        ],
        "regions": [_region(region, comparison) for region in comparison.ordered(order)],
        "warnings": list(comparison.warnings),
    }


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Rows of a table as plain Python values; what is missing becomes None."""
    return [
        {str(key): _plain(value) for key, value in row.items()}
        for row in table.astype(object).to_dict(orient="records")
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or value != value:  # noqa: PLR0124 - NaN is the value that differs from itself
        return None
    return value.item() if hasattr(value, "item") else value


def _compared(run: "ComparedRun") -> dict[str, Any]:
    source = _source(run.side)
    rates = {"latency_us": run.sample_us, "per_s": run.samples_per_s}
    return {
        "label": run.label,
        "observed": run.observed,
        **asdict(run.side),
        "gap_us": run.gap_us,
        "samples": {**rates, "traffic_bytes": run.sample_bytes},
        "findings": [_finding(finding, source) for finding in run.findings],
    }


def _region(region: "ComparedRegion", comparison: "Comparison") -> dict[str, Any]:
    """A region with a side per engine, and a difference per engine that is held against the reference."""
    sides = []
    for run, side in zip(comparison.runs, region.sides, strict=True):
        document = asdict(side)
        times = {"total_us": document.pop("time_us"), "net_us": document.pop("net_us")}
        sides.append({**document, "time": _time(_source(run.side), **times)})
    differences = [
        {
            "kernels": region.kernel_difference(place),
            "bytes": region.byte_difference(place),
            "time": _difference_time(comparison, place, region.time_difference(place)),
        }
        for place in range(1, len(comparison.runs))
    ]
    names = ("name", "aligned_by", "converts", "nodes")
    return {**{name: getattr(region, name) for name in names}, "sides": sides, "differences": differences}


def _difference_time(comparison: "Comparison", place: int, total_us: float | None) -> dict[str, Any] | None:
    """A difference of times with where they come from, both sources where they are not the same."""
    sources = dict.fromkeys(_source(comparison.runs[each].side) for each in (0, place))
    return None if total_us is None else _time(", ".join(sources), total_us=total_us)


def _graph(excerpt: "Excerpt") -> dict[str, Any]:
    """The part of the ONNX graph that spots are in: nodes and tensors by column, ends as places in the columns."""
    from fusescope.graph.neighbourhood import Place, Wire

    return {"nodes": _columns(excerpt.places, Place), "tensors": _columns(excerpt.wires, Wire)}


def _columns(rows: Sequence[Any], kind: type) -> dict[str, list[Any]]:
    """Values of a data class by column, each field named once."""
    return {item.name: [_plain(getattr(row, item.name)) for row in rows] for item in fields(kind)}


def _source(side: "Side") -> str:
    return side.layer_time.source if side.layer_time else ""


def _time(source: str, **figures: float | None) -> dict[str, Any] | None:
    """A time with where it comes from; None where no clock ran."""
    return {**figures, "source": source} if source else None


def _reason(row: dict[str, Any], source: str) -> dict[str, Any]:
    total = row.pop("time_us", None)
    return {**row, "time": _time(source, total_us=total)}


def _quantize(cost: "QuantizeCost", source: str) -> dict[str, Any]:
    document = asdict(cost)
    verdicts: Mapping[str, int] = document.pop("verdicts")
    keys = ("carrying_us", "alone_us")
    times = {key: document.pop(f"time_{key}") for key in keys} | {
        f"net_{key}": document.pop(f"net_{key}") for key in keys
    }
    return {"sites": document.pop("sites"), **verdicts, **document, "time": _time(source, **times)}


def _finding(finding: "Finding", source: str) -> dict[str, Any]:
    document = asdict(finding)
    total = document.pop("time_us")
    return {**document, "status": finding.status, "time": None if total is None else _time(source, total_us=total)}


def _groups(explanation: "Explanation") -> list[dict[str, Any]]:
    table, sides = explanation.groups, {"baseline": explanation.baseline, "quantized": explanation.quantized}
    rows = []
    for group in table.index:
        row: dict[str, Any] = {"group": group}
        for name, side in sides.items():
            row[name] = None if side is None else _figures(table.loc[group, name].to_dict(), _source(side))
        row["difference"] = _difference(row["baseline"], row["quantized"])
        rows.append(row)
    return rows


def _figures(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    plain = {figure: _plain(row[figure]) for figure in _FIGURES}
    times = {key: _plain(row.get(figure)) for key, figure in _TIMES.items()}
    return {**plain, "time": _time(source, **times)}


def _difference(baseline: Mapping[str, Any] | None, quantized: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the second has more, down to the times; nothing where either is not known."""
    if baseline is None:
        return None
    found: dict[str, Any] = {}
    for key, value in quantized.items():
        before = baseline.get(key)
        if value is None or before is None or isinstance(value, str):
            found[key] = None if value is None or before is None else value
        else:
            found[key] = _difference(before, value) if isinstance(value, dict) else value - before
    return found
