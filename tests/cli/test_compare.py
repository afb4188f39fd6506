"""``fusescope compare``: recordings and engines held against each other, on a terminal, in Markdown and as JSON."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RECORDED_MS

Call = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture(name="pair")
def _pair(call: Call, recorded: Path, tmp_path: Path) -> tuple[str, str]:
    """A recording as a run, and the same engine with a first layer that took 0.5 ms more."""
    assert call("import", recorded, "-o", "first").status == 0
    slower = tmp_path / "slower"
    shutil.copytree(recorded, slower)
    profile = json.loads((slower / "net.profile.json").read_text("utf-8"))
    profile[1]["averageMs"] += 0.5
    profile[1]["timeMs"] += 5.0
    (slower / "net.profile.json").write_text(json.dumps(profile), encoding="utf-8")
    assert call("import", slower, "-o", "second", "--name", "slower").status == 0
    return "first", "second"


class TestRecordings:
    """Two recordings of one engine that differ in one layer's time."""

    def test_the_terminal(self, call: Call, pair: tuple[str, str]) -> None:
        """Figures of both, what the difference is made of, groups, and a row per region."""
        called = call("compare", *pair)
        assert (called.status, called.err) == (0, "")
        lines = called.out.splitlines()
        assert lines[1] == "slower against net"
        (layers,) = (line for line in lines if line.startswith("sum of layer times"))
        assert layers.split()[-4:] == ["875", "us", "1,375", "us"]
        assert "What the difference of slower is made of" in called.out
        assert "Regions, by how much its time differs" in called.out
        (whole,) = (line for line in lines if line.startswith("in all") and "875 us" in line)
        assert "+500 us" in whole

    def test_json(self, call: Call, pair: tuple[str, str]) -> None:
        """Regions, groups and contributions each add up to what was recorded."""
        document = json.loads(call("compare", *pair, "--json").out)
        assert document["schema"] == "fusescope.comparison"
        totals = [1e3 * sum(RECORDED_MS), 1e3 * sum(RECORDED_MS) + 500]
        for place, total in enumerate(totals):
            assert sum(row["sides"][place]["time"]["total_us"] for row in document["regions"]) == pytest.approx(total)
            assert sum(row["runs"][place]["time"]["total_us"] for row in document["groups"]) == pytest.approx(total)
        differing = [row for row in document["regions"] if row["differences"][0]["time"]["total_us"]]
        assert [row["converts"] for row in differing] == ["quantize"]
        assert differing == document["regions"][:1]
        assert sum(each["time"]["total_us"] for each in document["contributions"]) == pytest.approx(500)
        assert {each["time"]["source"] for each in document["contributions"]} == {"recorded"}

    def test_markdown(self, call: Call, refused: Refused, pair: tuple[str, str], tmp_path: Path) -> None:
        """It is written beside what is printed, and replaced with --force only."""
        assert call("compare", *pair, "--markdown", "c.md").err == "wrote c.md\n"
        text = (tmp_path / "c.md").read_text(encoding="utf-8")
        assert text.startswith("# slower against net\n")
        assert "## Regions, by how much its time differs" in text
        assert "+500 us" in text
        assert "already exists" in refused("compare", *pair, "--markdown", "c.md")
        assert call("compare", *pair, "--markdown", "c.md", "--force").status == 0

    def test_orders(self, call: Call, pair: tuple[str, str]) -> None:
        """In the model's order the Quantize stands before the conv that reads it."""
        rows = json.loads(call("compare", *pair, "--sort", "model", "--json").out)["regions"]
        assert [row["converts"] for row in rows][:2] == ["quantize", ""]
        assert call("compare", *pair, "--sort", "size").status == 2

    def test_several(self, call: Call, pair: tuple[str, str]) -> None:
        """Any number; runs of one name are numbered."""
        document = json.loads(call("compare", *pair, pair[0], "--json").out)
        assert [run["label"] for run in document["runs"]] == ["net (1)", "slower", "net (2)"]
        assert {len(row["differences"]) for row in document["regions"]} == {2}


class TestRefusals:
    """What cannot be compared."""

    def test_one_run(self, refused: Refused, pair: tuple[str, str]) -> None:
        """There is nothing to hold it against."""
        assert "one run cannot be compared" in refused("compare", pair[0])

    def test_no_run(self, call: Call, refused: Refused, tmp_path: Path, pair: tuple[str, str]) -> None:
        """Folders that are none are named; no folder is wrong usage."""
        (tmp_path / "empty").mkdir()
        assert "empty" in refused("compare", pair[0], "empty")
        assert call("compare").status == 2


@pytest.mark.compiles
def test_engines_without_a_clock(call: Call, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Compiled engines compare by kernels and bytes: as many as `explain` counts, and no word of time."""
    folder, _ = request.getfixturevalue("tiny_study")
    runs = folder / "out" / "runs"
    document = json.loads(call("compare", runs / "b1-fp16", runs / "b1-fp8", "--json").out)
    explained = json.loads(call("explain", runs / "b1-fp8", "--baseline", runs / "b1-fp16", "--json").out)
    for place, side in enumerate(("baseline", "quantized")):
        assert sum(row["sides"][place]["kernels"] for row in document["regions"]) == explained[side]["kernels"]
        assert sum(row["sides"][place]["bytes"] for row in document["regions"]) == explained[side]["traffic_bytes"]
    assert {row["differences"][0]["time"] for row in document["regions"]} == {None}
    told = call("compare", runs / "b1-fp16", runs / "b1-fp8", "--markdown", tmp_path / "c.md").out
    assert " us" not in told
    assert "No clock ran" in (tmp_path / "c.md").read_text(encoding="utf-8")
