"""Tables for other tools: read back, they are the tables."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.profiler.explanation import Explanation, Trial
from fusescope.profiler.tables import LAYER_COLUMNS, SITE_COLUMNS
from fusescope.report.documents import explanation_document, records
from fusescope.report.export import csv_files, model_explorer_files
from fusescope.report.palette import VERDICT_COLORS
from fusescope.study.runner import StudyResult

FILES = ("layers", "baseline_layers", "sites", "blocks", "groups", "reasons", "findings", "columns")
LISTS = {
    "layers": ("shape", "quantizes", "work", "onnx_nodes", "members"),
    "baseline_layers": ("shape", "quantizes", "work", "onnx_nodes", "members"),
    "sites": ("readers", "high_precision_readers", "kernels", "lost_readers"),
    "blocks": ("convs", "kernels", "baseline_kernels", "quantize_kernels", "fed_verdicts"),
    "findings": ("layers", "nodes", "trials"),
}
MISSING = ("flops", "time_us", "time_median_us", "net_us", "baseline_time_us", "floor_us")
"""Columns of numbers, in which an empty cell is a number that is missing."""

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'quoted")


def read(name: str, text: str) -> list[dict[str, Any]]:
    """Read a table with pandas, and undo what its documentation says: lists are JSON, an apostrophe guards a text."""
    table = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values={key: [""] for key in MISSING})
    for column in table:
        if column in LISTS.get(name, ()):
            table[column] = [json.loads(cell) for cell in table[column]]
        elif pd.api.types.is_string_dtype(table[column]):
            table[column] = table[column].str.replace(r"^'", "", regex=True)
    return records(table)


class TestCsv:
    """`csv_files`."""

    def test_the_files(self, pair: Explanation) -> None:
        """A file per table and one that says what their columns mean, with one header line each."""
        files = csv_files(pair)
        assert files.keys() == {f"{name}.csv" for name in FILES}
        meanings = read("columns", files["columns.csv"])
        for name in FILES[:-1]:
            header = next(csv.reader(io.StringIO(files[f"{name}.csv"])))
            assert header == [row["column"] for row in meanings if row["table"] == name]
        assert all(row["meaning"] for row in meanings)

    def test_layers_sites_and_blocks(self, pair: Explanation) -> None:
        """Read back with pandas they equal the tables, lists and booleans too, under the documented names."""
        files = csv_files(pair)
        tables = {
            "layers": pair.layers,
            "baseline_layers": pair.baseline_layers,
            "sites": pair.sites,
            "blocks": pair.blocks,
        }
        for name, table in tables.items():
            assert isinstance(table, pd.DataFrame)
            assert read(name, files[f"{name}.csv"]) == records(table)
        assert files["layers.csv"].startswith(",".join(f'"{column}"' for column in LAYER_COLUMNS))
        assert files["sites.csv"].startswith(",".join(f'"{column}"' for column in SITE_COLUMNS))

    def test_groups_reasons_and_findings(self, pair: Explanation) -> None:
        """They equal the rows of the JSON document."""
        tried = replace(pair.findings[2], trials=(Trial("x", -1, -5),))
        pair = replace(pair, findings=(tried, *pair.findings))
        files, document = csv_files(pair), json.loads(json.dumps(explanation_document(pair)))
        groups = read("groups", files["groups.csv"])
        for row, expected in zip(groups, document["groups"], strict=True):
            assert row["group"] == expected["group"]
            for side in ("baseline", "quantized"):
                assert [row[f"{side}_{figure}"] for figure in ("layers", "kernels", "bytes")] == [
                    expected[side][figure] for figure in ("layers", "kernels", "bytes")
                ]
        for row, expected in zip(read("reasons", files["reasons.csv"]), document["reasons"], strict=True):
            assert row.pop("time_us") is expected.pop("time") is None
            assert row == expected
        for found, expected in zip(read("findings", files["findings.csv"]), document["findings"], strict=True):
            assert found.pop("time_us") is expected["time"] is None
            assert found == {key: expected[key] for key in found}
        trial = {"variant": "x", "kernels": -1, "bytes": -5, "accuracy": None, "same_as": None}
        assert read("findings", files["findings.csv"])[0]["trials"] == [trial]

    def test_without_a_baseline(self, pair: Explanation) -> None:
        """Its layers and what aligns them are a header alone, and the groups have one side."""
        alone = replace(pair, baseline=None, baseline_layers=None, blocks=None, groups=pair.groups[["quantized"]])
        files = csv_files(alone)
        assert files["baseline_layers.csv"].count("\n") == files["blocks.csv"].count("\n") == 1
        assert "baseline_kernels" not in files["groups.csv"]
        assert '"groups","baseline' not in files["columns.csv"]

    @pytest.mark.parametrize("formula", FORMULAS)
    def test_formulas(self, pair: Explanation, formula: str) -> None:
        """No cell of text begins as a formula does, and the name is read back."""
        text = csv_files(replace(pair, layers=pair.layers.assign(name=formula)))["layers.csv"]
        cells = [row["name"] for row in csv.DictReader(io.StringIO(text, newline=""))]
        assert cells == [f"'{formula}"] * len(pair.layers)

    @given(name=st.text(st.characters(exclude_characters="\0"), max_size=20))
    def test_any_name(self, name: str) -> None:
        """Whatever a name is, alone or in a list, it is read back; what is no text is replaced."""
        finding = [{"name": name, "nodes": (name, "b")}]
        text = _one_table(finding)
        ((cell, nodes),) = list(csv.reader(io.StringIO(text, newline="")))[1:]
        readable = name.encode("utf-8", "replace").decode()
        guarded = readable.startswith(("=", "+", "-", "@", "\t", "\r", "'"))
        assert cell == ("'" if guarded else "") + readable
        assert json.loads(nodes) == [readable, "b"]

    def test_what_is_missing_is_empty(self, pair: Explanation) -> None:
        """A figure that is not known is an empty cell, no zero."""
        text = csv_files(replace(pair, layers=pair.layers.assign(flops=None)))["layers.csv"]
        assert {row["flops"] for row in csv.DictReader(io.StringIO(text))} == {""}


def _one_table(rows: list[dict[str, Any]]) -> str:
    from fusescope.report.export import _csv

    return _csv(list(rows[0]), rows)


GRAPH_FIELDS = {
    "name", "results", "thresholds", "gradient", "hideInAggregatedStatsTable", "hideInChildrenStatsTable",
    "hideAggregatedStats", "showExpandedSummaryOnGroupNode", "showLabelCountColumnsInChildrenStatsTable",
}  # fmt: skip
"""Fields of its ``GraphNodeData``; those of a result are value, bgColor and textColor."""


class TestModelExplorer:
    """`model_explorer_files`: the node data of ai-edge-model-explorer 0.1.34."""

    def test_the_format(self, pair: Explanation) -> None:
        """Only fields that it has; a gradient has the stops 0 and 1; colours are hexadecimal."""
        for name, text in model_explorer_files(pair).items():
            document = json.loads(text)
            assert document.keys() <= GRAPH_FIELDS, name
            assert all(each.keys() <= {"value", "bgColor", "textColor"} for each in document["results"].values())
            assert [stop["stop"] for stop in document.get("gradient", [])] in ([], [0, 1])

    def test_each_kernel_counts_once(self, pair: Explanation) -> None:
        """At the first node that it computes; what is no kernel does not count. As drawn by hand."""
        files = {name: json.loads(text)["results"] for name, text in model_explorer_files(pair).items()}
        kernels = {node: each["value"] for node, each in files["kernels.json"].items()}
        assert kernels == {
            "/stem/Conv": 1,
            "/stem/Relu_output_0_QuantizeLinear": 1,
            "/block/block.0/b/Conv": 2,
            "/block/block.0/Add": 1,
            "/head/fc/Gemm": 1,
        }
        assert files["traffic_bytes.json"]["/block/block.0/b/Conv"]["value"] == 2_100_000

    @pytest.mark.compiles
    def test_a_compiled_engine(self, tiny_study: tuple[Path, StudyResult]) -> None:
        """Nodes are those of the run's model; sums are those of the engine; each Quantize has its verdict's colour."""
        folder, result = tiny_study
        explanation = result.explanations[0]
        run = folder / "out" / "runs" / f"b1-{explanation.quantized.provenance.name}"
        nodes = {node.name: node.op_type for node in onnx.load(run / "model.onnx").graph.node}
        files = {name: json.loads(text)["results"] for name, text in model_explorer_files(explanation).items()}
        assert all(results.keys() <= nodes.keys() for results in files.values())
        assert sum(each["value"] for each in files["kernels.json"].values()) == explanation.quantized.kernels
        assert (
            sum(each["value"] for each in files["traffic_bytes.json"].values()) == explanation.quantized.traffic_bytes
        )
        verdicts = files["verdict.json"]
        assert {nodes[node] for node in verdicts} == {"QuantizeLinear"}
        assert Counter(each["value"] for each in verdicts.values()) == Counter(explanation.sites["verdict"])
        assert all(each["bgColor"] == VERDICT_COLORS[each["value"]] for each in verdicts.values())
