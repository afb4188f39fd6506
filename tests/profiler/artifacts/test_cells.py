"""The table that NVIDIA's cookbook prints of an exported profile."""

from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.cells import read, recognise
from fusescope.profiler.timing import LayerTime

EXAMPLES = Path(__file__).parent / "examples"
TABLE = (EXAMPLES / "cells.txt").read_text(encoding="utf-8")


def test_rows_and_what_is_missing() -> None:
    """The slowest layers, and that there are others, by how much."""
    assert recognise(TABLE)
    (section,) = read(TABLE, "file")
    assert section.profile is not None
    assert section.profile.layers == (LayerTime("Conv_1 | Conv_2", 0.4525, 0.45), LayerTime("Relu_3", 0.36, 0.35))
    assert (section.profile.iterations, section.profile.ordered, section.profile.complete) == (100, False, False)
    assert section.warnings == ("the table lists the slowest layers only: 1 layer, 0.09 of 0.9025 ms, are not in it",)


def test_a_row_that_lost_its_line() -> None:
    """What stands behind the rule in its line is a row still."""
    (section,) = read(TABLE.replace("---\n   Conv_1", "---Conv_1"), "file")
    assert section.profile is not None
    assert section.profile.total_ms == 0.4525 + 0.36


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("total (all", "sum (all", "cut short"),
        ("0.4525 |", "-0.4525 |", "averageMs of Conv_1 | Conv_2 is -0.4525, which is no time"),
        ("0.36 |", "nan |", "which is no time"),
        ("count = 100", "count = 0", "counts 0 inferences"),
        ("     50.0", "", "cut short"),
        ("Iteration", "Iter", "no table"),
    ],
)
def test_bad_tables_are_refused(old: str, new: str, error: str) -> None:
    """With the reason."""
    with pytest.raises(UserError, match=error.replace("|", r"\|")):
        read(TABLE.replace(old, new), "file")


def test_cut_anywhere() -> None:
    """Wherever it ends too early: an error, never a part of the rows."""
    for end in range(TABLE.index("total (all layers)") + len("total (all layers)")):
        with pytest.raises(UserError):
            read(TABLE[:end], "file")
