"""An explanation for other tools: its tables as CSV, and node data for Google's Model Explorer."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from fusescope.profiler.blocks import BLOCK_COLUMNS
from fusescope.profiler.explanation import Explanation, Finding
from fusescope.profiler.tables import GROUP_FIGURES, LAYER_COLUMNS, SITE_COLUMNS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report.documents import records
from fusescope.report.palette import VERDICT_COLORS, VERMILLION

Rows = Iterable[Mapping[str, Any]]

REASON_COLUMNS: Mapping[str, str] = {
    "reason": "why a Quantize is where it is, in the words of the documented rules",
    "sites": "Quantize sites with that reason",
    **{verdict: f"those of which is true: {meaning}" for verdict, meaning in VERDICTS.items()},
    "kernels": "kernels that write their 8-bit tensors, each under one reason",
    "kernels_alone": "those that do nothing else",
    "bytes": "traffic of these kernels",
    "quantize_bytes": "bytes of it that are there for the Quantizes alone",
    "time_us": "their time, in microseconds; empty where no clock ran",
}
"""Column of the table of reasons to its meaning."""

FINDING_COLUMNS: Mapping[str, str] = {
    "key": "stable name of the kind of finding",
    "title": "what was found",
    "detail": "what it means, and why it is so",
    "kernels": "kernels that it is about",
    "bytes": "bytes that it costs, as the detail explains",
    "time_us": "time of the layers that it is about, in microseconds; empty where no clock ran",
    "layers": "evidence: places of layers in execution order",
    "nodes": "evidence: ONNX nodes or tensors",
    "remedy": "what to do; empty if nothing is known to help",
    "status": "proved; tried, did not help here; or documented, not tried",
    "source": "where the rule or the remedy comes from",
    "trials": "engines in which it was tried: variant, the difference in kernels, bytes and accuracy",
}
"""Column of the table of findings to its meaning."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'")
"""How a text begins that a spreadsheet runs as a formula (OWASP, CSV Injection), and what keeps it from doing so."""


def csv_files(explanation: Explanation) -> dict[str, str]:
    """Every table of an explanation as CSV, by file name.

    One header line; text in quotes; lists and trials as JSON; what is missing is empty. A text that begins with
    ``=``, ``+``, ``-``, ``@``, a tab, a carriage return or an apostrophe has one apostrophe before it, so that no
    spreadsheet takes it for a formula. ``columns.csv`` says what each column means.
    """
    baseline, blocks = explanation.baseline_layers, explanation.blocks
    tables: dict[str, tuple[Mapping[str, str], Rows]] = {
        "layers": (LAYER_COLUMNS, records(explanation.layers)),
        "baseline_layers": (LAYER_COLUMNS, [] if baseline is None else records(baseline)),
        "sites": (SITE_COLUMNS, records(explanation.sites)),
        "blocks": (BLOCK_COLUMNS, [] if blocks is None else records(blocks)),
        "groups": (_group_columns(explanation.groups), _group_rows(explanation.groups)),
        "reasons": (REASON_COLUMNS, records(explanation.reasons.reset_index())),
        "findings": (FINDING_COLUMNS, [_finding_row(finding) for finding in explanation.findings]),
    }
    meanings = [
        {"table": name, "column": column, "meaning": meaning}
        for name, (columns, _) in tables.items()
        for column, meaning in columns.items()
    ]
    written = {f"{name}.csv": _csv(list(columns), rows) for name, (columns, rows) in tables.items()}
    return {**written, "columns.csv": _csv(["table", "column", "meaning"], meanings)}


def model_explorer_files(explanation: Explanation) -> dict[str, str]:
    """Node data for Model Explorer, by file name: for the ONNX nodes of the run's ``model.onnx``.

    A file of node data holds one value per node, so there is one for the verdicts, on the QuantizeLinear nodes, one
    for traffic and one for kernels. A kernel is counted once, at the first node that it computes, or names if it
    computes none: sums over a module add up.

    The format is that of ai-edge-model-explorer 0.1.34 (``GraphNodeData`` in its ``node_data_builder``, described in
    https://github.com/google-ai-edge/model-explorer/wiki/2.-User-Guide under "Custom node data").
    """
    engine = explanation.quantized.provenance.name
    verdicts = {
        node: {"value": verdict.verdict, "bgColor": VERDICT_COLORS[verdict.verdict]}
        for verdict in explanation.judged
        for node in verdict.site.quantize
    }
    kernels, traffic = Counter[str](), Counter[str]()
    columns = (explanation.layers[name] for name in ("kernel", "work", "onnx_nodes", "traffic_bytes"))
    for is_kernel, work, named, moved in zip(*columns, strict=True):
        if is_kernel and (work or named):
            node = (work or named)[0]
            kernels[node] += 1
            traffic[node] += int(moved)
    documents = {
        "verdict.json": {
            "name": f"verdict of the Quantize, {engine}",
            "results": verdicts,
            "showExpandedSummaryOnGroupNode": True,
            "showLabelCountColumnsInChildrenStatsTable": True,
        },
        "traffic_bytes.json": _shaded(f"traffic in bytes, {engine}", traffic),
        "kernels.json": _shaded(f"kernels, {engine}", kernels),
    }
    return {name: json.dumps(document, indent=1) + "\n" for name, document in documents.items()}


def _shaded(name: str, values: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "results": {node: {"value": value} for node, value in values.items()},
        "gradient": [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": VERMILLION}],
    }


def _group_columns(groups: pd.DataFrame) -> dict[str, str]:
    return {"group": "the heaviest work of its layers"} | {
        "_".join(column): f"{GROUP_FIGURES[column[1]]}, {column[0]}" for column in groups.columns
    }


def _group_rows(groups: pd.DataFrame) -> list[dict[str, Any]]:
    flat = groups.set_axis(["_".join(column) for column in groups.columns], axis=1)
    return records(flat.rename_axis("group").reset_index())


def _finding_row(finding: Finding) -> dict[str, Any]:
    trials = [asdict(each) for each in finding.trials]
    return {column: trials if column == "trials" else getattr(finding, column) for column in FINDING_COLUMNS}


def _csv(columns: Sequence[str], rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace").decode("utf-8")  # a dump may hold bytes that are no text


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
