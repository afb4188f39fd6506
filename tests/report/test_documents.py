"""The JSON documents: their keys, and that what they hold adds up."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusescope.graph.rules import PREDICTIONS
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report.documents import explanation_document, header, records, sites_document, study_document
from fusescope.study.runner import StudyResult


@pytest.fixture(params=["by hand", pytest.param("compiled", marks=pytest.mark.compiles)])
def explanation(request: pytest.FixtureRequest, pair: Explanation) -> Explanation:
    """The pair drawn by hand, and one that was compiled."""
    if request.param == "by hand":
        return pair
    result: StudyResult = request.getfixturevalue("tiny_study")[1]
    return result.explanations[0]


def values(document: Any) -> Iterator[Any]:
    """Every value in a document, at any depth."""
    if isinstance(document, Mapping):
        for value in document.values():
            yield from values(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from values(value)
    else:
        yield document


def test_the_keys(explanation: Explanation) -> None:
    """The keys that scripts rely on are there (DESIGN section 6), and the document names itself."""
    document = explanation_document(explanation)
    assert (document["schema"], document["version"]) == ("fusescope.explanation", 1)
    assert document.keys() >= {"baseline", "quantized", "groups", "quantize", "reasons", "findings", "coverage"}
    for side in ("baseline", "quantized"):
        keys = {"layers", "kernels", "plan_bytes", "traffic_bytes", "latency", "layer_time", "provenance"}
        assert document[side].keys() >= keys
    for row in document["groups"]:
        assert row.keys() == {"group", "baseline", "quantized", "difference"}
        assert row["quantized"].keys() == {"layers", "kernels", "bytes", "floor_us", "time"}
    keys = {"sites", "kernels_carrying", "kernels_alone", "bytes_carrying", "bytes_alone", "predicted", "time"}
    assert document["quantize"].keys() >= {*keys, *VERDICTS}
    assert all(row.keys() >= {"reason", "sites", "time"} for row in document["reasons"])
    for finding in document["findings"]:
        assert finding.keys() >= {"key", "title", "kernels", "bytes", "time", "layers", "nodes", "remedy", "status"}


def test_the_groups_add_up(explanation: Explanation) -> None:
    """Layers, kernels and bytes of the groups are those of the engine, on each side, and the differences fit."""
    document = explanation_document(explanation)
    for side in ("baseline", "quantized"):
        for figure, total in (("layers", "layers"), ("kernels", "kernels"), ("bytes", "traffic_bytes")):
            assert sum(row[side][figure] for row in document["groups"]) == document[side][total]
    for row in document["groups"]:
        for figure in ("layers", "kernels", "bytes"):
            assert row["difference"][figure] == row["quantized"][figure] - row["baseline"][figure]


def test_the_sites_add_up(explanation: Explanation) -> None:
    """Verdicts, predictions, reasons and the rows of sites all add up to the number of sites."""
    document = explanation_document(explanation)
    cost = document["quantize"]
    assert sum(cost[verdict] for verdict in VERDICTS) == cost["sites"] == len(document["sites"])
    assert cost["predicted"].keys() == set(PREDICTIONS)
    assert sum(cost["predicted"].values()) == cost["sites"]
    assert sum(row["sites"] for row in document["reasons"]) == cost["sites"]
    for verdict in VERDICTS:
        assert sum(row[verdict] for row in document["reasons"]) == cost[verdict]
        assert sum(site["verdict"] == verdict for site in document["sites"]) == cost[verdict]


def test_the_layers_add_up(explanation: Explanation) -> None:
    """The rows of layers are the engine: their kernels and bytes are the totals, on each side."""
    document = explanation_document(explanation)
    for rows, side in (("layers", "quantized"), ("baseline_layers", "baseline")):
        assert len(document[rows]) == document[side]["layers"]
        assert sum(row["kernel"] for row in document[rows]) == document[side]["kernels"]
        assert sum(row["traffic_bytes"] for row in document[rows]) == document[side]["traffic_bytes"]
    carrying = [row for row in document["layers"] if row["carries_quantize"]]
    assert len(carrying) == document["quantize"]["kernels_carrying"]
    assert sum(row["traffic_bytes"] for row in carrying) == document["quantize"]["bytes_carrying"]


@pytest.mark.compiles
def test_the_reasons_add_up(tiny_study: tuple[Path, StudyResult]) -> None:
    """Kernels and bytes of the reasons are those of all kernels that carry a Quantize, and of those that only do so."""
    for explanation in tiny_study[1].explanations:
        document = explanation_document(explanation)
        for figure, total in (("kernels", "kernels_carrying"), ("kernels_alone",) * 2, ("bytes", "bytes_carrying")):
            assert sum(row[figure] for row in document["reasons"]) == document["quantize"][total]


def test_without_a_clock_there_is_no_time(explanation: Explanation) -> None:
    """Every time is null: nothing ran."""
    document = explanation_document(explanation)
    assert {document[side][key] for side in ("baseline", "quantized") for key in ("latency", "layer_time")} == {None}
    rows = [row[side] for row in document["groups"] for side in ("baseline", "quantized", "difference")]
    rows += [*document["reasons"], *document["findings"], document["quantize"]]
    assert {row["time"] for row in rows} == {None}


def test_it_is_json(explanation: Explanation) -> None:
    """Only what JSON has is in a document: no NaN, no numpy; what is read back is what was written."""
    document = explanation_document(explanation)
    assert {type(value) for value in values(document)} <= {str, int, float, bool, type(None)}
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["layers"] == json.loads(json.dumps(document["layers"]))


def test_without_a_baseline(pair: Explanation) -> None:
    """One engine alone is `quantized`; what needs two is null."""
    alone = replace(pair, baseline=None, baseline_layers=None, groups=pair.groups[["quantized"]])
    document = explanation_document(alone)
    assert document["baseline"] is None
    assert document["baseline_layers"] is None
    assert all(row["baseline"] is None and row["difference"] is None for row in document["groups"])
    assert sum(row["quantized"]["kernels"] for row in document["groups"]) == document["quantized"]["kernels"]


def test_floors(pair: Explanation) -> None:
    """A floor that is not known is null, and so is its difference."""
    groups = pair.groups.copy()
    groups[("quantized", "floor_us")] = 1.5
    rows = explanation_document(replace(pair, groups=groups, gpu="B200"))["groups"]
    assert {row["quantized"]["floor_us"] for row in rows} == {1.5}
    assert {row["difference"]["floor_us"] for row in rows} == {None}


def test_records() -> None:
    """What is missing becomes None, numpy values become Python's, tuples become lists, at any depth."""
    table = pd.DataFrame(
        {
            "count": np.array([1, 2]),
            "share": [0.5, float("nan")],
            "missing": [None, pd.NA],
            "shape": [(1, np.int64(2)), (float("nan"),)],
            "flag": np.array([True, False]),
        }
    )
    rows = records(table)
    assert rows == [
        {"count": 1, "share": 0.5, "missing": None, "shape": [1, 2], "flag": True},
        {"count": 2, "share": None, "missing": None, "shape": [None], "flag": False},
    ]
    assert {type(value) for value in values(rows)} == {int, float, bool, type(None)}
    assert not records(table[:0])


def test_the_study(pair: Explanation) -> None:
    """An explanation per batch and variant, each with the keys of its own document, and the paths written."""
    failure = {"batch": 8, "variant": "int8", "error": "why"}
    document = study_document("Title", [pair], [failure], [Path("a/report.html")])
    assert document.keys() == {"schema", "version", "title", "explanations", "accuracy", "failures", "written"}
    (explanation,) = document["explanations"]
    assert (explanation["batch"], explanation["variant"]) == (1, "fp8")
    assert explanation.items() >= explanation_document(pair).items()
    assert document["accuracy"] is None
    assert document["failures"] == [failure]
    assert document["written"] == ["a/report.html"]


def test_no_sites() -> None:
    """A model without Quantizes has a document too."""
    assert sites_document("net", [], []) == {**header("sites"), "model": "net", "sites": []}
