"""Figures draw the data that they are handed, and no name is read as markup."""

from dataclasses import replace
from typing import Any

import pytest

from fusescope.profiler.explanation import Explanation
from fusescope.report.figures import (
    engines_figure,
    groups_figure,
    modules_figure,
    reasons_figure,
    waterfall_figure,
)
from fusescope.report.palette import GROUP_COLORS
from fusescope.report.shaping import gather, modules
from fusescope.report.waterfall import waterfall


def _bars(figure: dict[str, Any], axis: str) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace.get("xaxis", "x") == axis]


def test_the_waterfall_ends_where_the_quantized_engine_starts(pair: Explanation) -> None:
    """Each bar begins where the one above ended; the last step ends at the quantized engine."""
    bars = _bars(waterfall_figure(pair, waterfall(pair)), "x")[0]
    assert list(bars["y"]) == [
        "baseline",
        "conv with its epilogues",
        "pointwise",
        "quantize, nothing else",
        "quantized",
    ]
    assert list(bars["x"]) == [3, 1, 1, 1, 6]
    assert list(bars["base"]) == [0, 3, 4, 5, 0]
    assert list(bars["text"]) == ["3", "+1", "+1", "+1", "6"]


def test_the_cost_of_quantize_is_drawn_as_a_range(pair: Explanation) -> None:
    """From the kernels that do nothing else to all that carry one."""
    _, least, rest = _bars(waterfall_figure(pair, waterfall(pair)), "x")
    assert list(least["x"]) == [1]
    assert (list(rest["base"]), list(rest["x"]), list(rest["text"])) == ([1], [2], ["1 to 3"])


def test_where_a_clock_ran_time_is_drawn(timed: Explanation) -> None:
    """In microseconds in the place of kernels, in all three figures of bars; the bytes stay beside it."""
    steps = _bars(waterfall_figure(timed, waterfall(timed)), "x")
    assert list(steps[0]["x"]) == pytest.approx([38, 1, 11, 7.5, 57.5])
    assert list(steps[0]["text"]) == ["38.0 us", "+1.00 us", "+11.0 us", "+7.50 us", "57.5 us"]
    assert list(steps[-1]["text"]) == ["7.50 us to 27.5 us"]
    for drawn, total in ((groups_figure(timed), 57.5), (engines_figure(gather([timed]).engines), 57.5)):
        assert drawn["layout"]["xaxis"]["title"]["text"] == "time, µs"
        assert drawn["layout"]["xaxis2"]["title"]["text"] == "traffic, MB"
        assert sum(bars["x"][-1] for bars in _bars(drawn, "x") if bars["name"] != "baseline") == pytest.approx(
            total if "barmode" in drawn["layout"] and drawn["layout"]["barmode"] == "stack" else 7.5
        )


def test_groups_stand_side_by_side_in_their_colour(pair: Explanation) -> None:
    """Both engines have a bar for each group, in the group's colour."""
    kernels = _bars(groups_figure(pair), "x")
    assert [bars["name"] for bars in kernels] == ["baseline", "quantized"]
    assert list(kernels[0]["x"]) == [2, 1, 0, 0, 0]
    assert list(kernels[1]["x"]) == [2, 1, 1, 1, 1]
    shown = ("conv", "gemm", "epilogue", "pointwise", "quantize")
    assert list(kernels[0]["marker"]["color"]) == [GROUP_COLORS[group] for group in shown]


@pytest.mark.parametrize(("axis", "totals"), [("x", [3, 6]), ("x2", [3.8, 5.75])])
def test_groups_of_an_engine_add_up(pair: Explanation, axis: str, totals: list[float]) -> None:
    """The stacked bar of an engine is as long as the engine has kernels, or moves MB."""
    stacks = [list(bars["x"]) for bars in _bars(engines_figure(gather([pair]).engines), axis)]
    assert [sum(parts) for parts in zip(*stacks, strict=True)] == pytest.approx(totals)


def test_the_treemap_is_as_large_as_the_engine(pair: Explanation) -> None:
    """The whole is the engine's traffic, and every other tile is in a tile that is there."""
    (trace,) = modules_figure(modules(pair.layers, pair.baseline_layers))["data"]
    values = dict(zip(trace["ids"], trace["values"], strict=True))
    assert values["/"] == 5_750_000
    assert [parent for parent in trace["parents"] if parent not in values] == [""]


def test_the_treemap_of_one_run_is_coloured_by_group(pair: Explanation) -> None:
    """Without a baseline there is no change to show."""
    (trace,) = modules_figure(modules(pair.layers, None))["data"]
    colors = dict(zip(trace["ids"], trace["marker"]["colors"], strict=True))
    assert colors["head"] == GROUP_COLORS["gemm"]


def test_an_empty_engine_draws_no_tile(pair: Explanation) -> None:
    """No bytes, no tile, no error."""
    assert modules_figure(modules(pair.layers.iloc[:0], None))["data"][0]["ids"] == []


def test_names_are_no_markup(pair: Explanation) -> None:
    """Plotly reads tags in text: a name with a tag, an entity or quotes shows as it is written."""
    name = "<b>&lt;\"'"
    layers = pair.layers.assign(work=[(f"/{name}/Conv",)] * len(pair.layers))
    (trace,) = modules_figure(modules(layers, None))["data"]
    assert list(trace["labels"]) == ["whole network", "&lt;b&gt;&amp;lt;\"'"]
    reasons = pair.reasons.rename(index={"stem": "<i>stem</i>"})
    assert "&lt;i&gt;stem&lt;/i&gt;" in reasons_figure(replace(pair, reasons=reasons))["data"][0]["y"]


def test_a_long_name_is_cut_in_the_middle(pair: Explanation) -> None:
    """Neither end of a long name is lost, and the figure keeps its room."""
    engine = gather([pair]).engines[0]
    names = engines_figure([replace(engine, label="a" * 2000 + "z" * 3000)])["layout"]["yaxis"]["ticktext"]
    assert list(names) == ["a" * 24 + "…" + "z" * 24]
