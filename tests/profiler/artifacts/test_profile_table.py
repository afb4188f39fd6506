"""Printed profiles in both layouts: rows and totals are those that stand there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.profile_table import read_table

NAME_LAST = [
    "=== Profile (1000 iterations ) ===",
    "   Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer",
    "      31.40       0.0314       0.0310      30.0   __mye59_0_myl0_0",
    "      62.80       0.0628       0.0620      60.0   Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...]}",
    "      10.46       0.0105       0.0100      10.0   3 4 5",
    "     104.66       0.1047       0.1030     100.0   Total",
]
NAME_FIRST = [
    "=== Profile (781 iterations ) ===",
    "                                                   Layer   Time (ms)   Avg. Time (ms)   Time %",
    "  Reformatting CopyNode for Input Tensor 0 to Conv 15 16       30.57           0.0391     33.3",
    "                      Conv_15 + Relu_16 || Conv_17 1 2 3       61.14           0.0783     66.7",
    "                                                   Total       91.71           0.1174    100.0",
]
WITH_MEDIAN = [
    "=== Profile (2147 iterations ) ===",
    "                  Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %",
    "  /conv1/Conv + /relu/1       59.71           0.0278             0.0276      1.9",
    "                  Total       59.71           0.0278             0.0276    100.0",
]


def test_the_name_last() -> None:
    """From TensorRT 8.6.1 on; averages come from the totals, which have more digits."""
    profile, warnings = read_table(NAME_LAST, "log")
    assert [(each.name, each.average_ms, each.median_ms) for each in profile.layers] == [
        ("__mye59_0_myl0_0", pytest.approx(0.0314), 0.0310),
        ("Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...]}", pytest.approx(0.0628), 0.0620),
        ("3 4 5", pytest.approx(0.01046), 0.0100),
    ]
    assert profile.iterations == 1000
    assert profile.total_ms == pytest.approx(0.10466)
    assert not profile.complete
    assert warnings == []


def test_the_name_first() -> None:
    """Up to 8.2; names end with numbers of their own, so columns are counted from the right."""
    profile, warnings = read_table(NAME_FIRST, "log")
    assert [each.name for each in profile.layers] == [
        "Reformatting CopyNode for Input Tensor 0 to Conv 15 16",
        "Conv_15 + Relu_16 || Conv_17 1 2 3",
    ]
    assert profile.total_ms == pytest.approx(91.71 / 781)
    assert [each.median_ms for each in profile.layers] == [None, None]
    assert warnings == []


def test_the_name_first_with_medians() -> None:
    """8.4 to 8.6.0 print a median too."""
    profile, _ = read_table(WITH_MEDIAN, "log")
    (layer,) = profile.layers
    assert (layer.name, layer.median_ms) == ("/conv1/Conv + /relu/1", 0.0276)


def test_a_layer_called_total() -> None:
    """Only the last row is the total; a layer may be called so."""
    rows = [*NAME_LAST[:2], NAME_LAST[2].replace("__mye59_0_myl0_0", "Total"), *NAME_LAST[3:]]
    assert read_table(rows, "log")[0].layers[0].name == "Total"


NAMES = (
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")) | st.just(" "), min_size=1).map(str.strip).filter(bool)
)


@given(st.lists(st.tuples(NAMES, st.integers(0, 10**6)), min_size=1, max_size=10), st.booleans(), st.booleans())
def test_any_name_survives(rows: list[tuple[str, int]], first: bool, median: bool) -> None:
    """Whatever a name holds, both layouts give it back."""
    total = sum(time for _, time in rows)
    table = [*rows, ("Total", total)]
    if first:
        middle = "{:15.4f}   " if median else ""
        lines = ["   Layer   Time (ms)   Avg. Time (ms)   " + ("Median Time (ms)   " if median else "") + "Time %"]
        lines += [f"  {n:>60}{t / 100:12.2f}{t / 200:17.4f}{middle.format(0)}{0:9.1f}" for n, t in table]
    else:
        lines = [NAME_LAST[1]]
        lines += [f"{t / 100:11.2f}{t / 200:13.4f}{0:13.4f}{0:10.1f}   {n}" for n, t in table]
    profile, warnings = read_table(["=== Profile (2 iterations ) ===", *lines], "log")
    assert [(each.name, each.average_ms) for each in profile.layers] == [
        (name, pytest.approx(time / 200)) for name, time in rows
    ]
    assert warnings == []


def test_a_missing_row_is_noticed() -> None:
    """Rows that somebody cut out show against the total."""
    (warning,) = read_table([*NAME_LAST[:3], *NAME_LAST[4:]], "log")[1]
    assert "add up to 41.86 ms, its total says 104.66 ms" in warning


def test_a_cut_table_is_noticed() -> None:
    """Without its total a table may lack rows."""
    (warning,) = read_table(NAME_LAST[:4], "log")[1]
    assert "no row of totals" in warning
    for end in range(3):
        with pytest.raises(UserError):
            read_table(NAME_LAST[:end] or [""], "log")


def test_a_foreign_line_is_noticed() -> None:
    """A message of another thread between rows is no row, and is said."""
    (warning,) = read_table([*NAME_LAST[:3], "Hello there", *NAME_LAST[3:]], "log")[1]
    assert warning == "1 line of the printed profile cannot be read, such as 'Hello there'"


@pytest.mark.parametrize("bad", ["-31.40", "nan", "-nan", "inf"])
@pytest.mark.parametrize("table", [NAME_LAST, NAME_FIRST])
def test_a_time_that_is_none_is_refused(bad: str, table: list[str]) -> None:
    """A negative time, or what is no number, is never summed."""
    rows = [table[0], table[1], table[2].replace("31.40", bad).replace("30.57", bad), *table[3:]]
    with pytest.raises(UserError, match="no time"):
        read_table(rows, "log")


def test_no_inference() -> None:
    """A table of no inferences averages nothing."""
    with pytest.raises(UserError, match="nothing was timed"):
        read_table(["=== Profile (0 iterations ) ===", *NAME_LAST[1:]], "log")


def test_one_inference_is_said() -> None:
    """There is no spread then."""
    assert read_table(["=== Profile (1 iterations ) ===", *NAME_LAST[1:]], "log")[1][0].startswith("one inference")
