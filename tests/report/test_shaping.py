"""What the report shows, as plain data: names, sentences, steps, modules."""

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.profiler.explanation import Coverage, Explanation, Latency, LayerTime
from fusescope.profiler.tables import LAYER_COLUMNS
from fusescope.report.caveats import cautions, gaps
from fusescope.report.shaping import (
    Tile,
    answer,
    gather,
    module_path,
    modules,
    predicted_against_seen,
    shown_groups,
    tiles,
    top_findings,
)


def _single(pair: Explanation) -> Explanation:
    return replace(
        pair, baseline=None, baseline_layers=None, groups=pd.concat({"quantized": pair.groups["quantized"]}, axis=1)
    )


def _renamed(pair: Explanation, name: str, batch: int = 1) -> Explanation:
    side = pair.quantized
    return replace(
        pair, quantized=replace(side, provenance=replace(side.provenance, name=name, batch=batch, model_sha256=name))
    )


def test_the_answer_names_both_engines_and_the_range(pair: Explanation) -> None:
    """The sentence has the figures of both engines, and the cost of Quantize as a range."""
    assert answer(pair) == (
        "In FP8 the engine runs 6 kernels instead of 3 and moves 5.75 MB instead of 3.80 MB: 1 of 3 convolutions "
        "and gemms read 8-bit tensors. Its Quantizes sit in 3 kernels, 1 of which does nothing else."
    )


def test_the_answer_of_one_run_compares_nothing(pair: Explanation) -> None:
    """Without a baseline there is no 'instead of'."""
    assert "instead" not in answer(_single(pair))
    assert answer(_single(pair)).startswith("In FP8 the engine runs 6 kernels and moves ")


def test_the_answer_begins_with_the_latency(timed: Explanation) -> None:
    """Where one is recorded of both engines; that of one engine alone answers nothing."""
    assert answer(timed).startswith("An inference takes 1.500 ms instead of 1.250 ms, 20.0 % more (recorded). In FP8 ")
    assert answer(_single(timed)).startswith("An inference takes 1.500 ms (recorded). In FP8 ")
    assert timed.baseline is not None
    assert answer(replace(timed, baseline=replace(timed.baseline, latency=None))).startswith("In FP8 ")


def test_the_answer_without_sites_says_so(pair: Explanation) -> None:
    """A model without Quantizes is not said to be in FP8."""
    cost = replace(pair.quantize, sites=0)
    assert answer(replace(_single(pair), quantize=cost)).endswith("no tensor of its graph is quantized.")


def test_only_groups_that_occur_are_shown(pair: Explanation) -> None:
    """A group that neither engine has is left out, and so is one without kernels and bytes."""
    assert shown_groups(pair) == ["conv", "gemm", "epilogue", "pointwise", "quantize"]
    assert shown_groups(_single(pair)) == shown_groups(pair)


def test_the_top_findings_leave_out_the_balance(pair: Explanation) -> None:
    """The first screen shows the balance by itself; the three costliest of the rest stand beside it."""
    assert [finding.key for finding in top_findings(pair)] == ["pointwise", "epilogue-split", "quantize-alone"]


def test_tiles_show_before_after_and_change(pair: Explanation) -> None:
    """A tile has both figures and their difference; of one run only its own."""
    assert tiles(pair.baseline, pair.quantized)[0] == Tile("kernels", "3", "6", "+3")
    assert tiles(None, pair.quantized)[0] == Tile("kernels", "", "6", "")


def test_an_unknown_plan_size_has_no_difference(pair: Explanation) -> None:
    """What is not known is a dash, never a zero."""
    plan = next(tile for tile in tiles(pair.baseline, replace(pair.quantized, plan_bytes=None)) if tile.label == "plan")
    assert (plan.after, plan.change) == ("-", "")


def test_times_are_shown_only_where_a_clock_ran(pair: Explanation) -> None:
    """Without a clock no tile is about time; with one it says whose it is, and that a sum is not the latency."""
    assert not any("lat" in tile.label or " ms" in tile.after for tile in tiles(pair.baseline, pair.quantized))
    assert pair.baseline is not None
    before = replace(pair.baseline, latency=Latency(1.25, "measured"))
    after = replace(pair.quantized, latency=Latency(1.5, "measured"), layer_time=LayerTime(3.0, "measured"))
    assert tiles(before, after)[-2:] == (
        Tile("latency, measured", "1.250 ms", "1.500 ms", "+0.250 ms"),
        Tile("sum of layer times, measured; not the latency", "", "3.000 ms", ""),
    )


def test_a_shared_baseline_is_one_engine(pair: Explanation) -> None:
    """Two variants against one baseline are three engines, and each explanation knows its two."""
    report = gather([pair, _renamed(pair, "int8")])
    assert [engine.label for engine in report.engines] == ["fp16", "fp8", "int8"]
    assert report.pairs == ((0, 1), (0, 2))
    assert [engine.quantize is None for engine in report.engines] == [True, False, False]


def test_engines_with_the_same_name_are_told_apart(pair: Explanation) -> None:
    """A batch is named where batches differ; a number where the names still do not."""
    report = gather([_single(pair), _single(_renamed(pair, "fp8", batch=8)), _single(_renamed(pair, "fp8", batch=8))])
    assert [engine.label for engine in report.engines] == ["fp8, batch 1", "fp8, batch 8", "fp8, batch 8 (2)"]


def test_predicted_against_seen_counts_every_site_once(pair: Explanation) -> None:
    """Rows are predictions, columns verdicts, and the cells add up to the sites."""
    table = predicted_against_seen(pair)
    assert table["fuses"] == {"epilogue": 1, "merged": 0, "alone": 0}
    assert list(table) == ["fuses", "separate", "uncertain"]
    assert sum(sum(row.values()) for row in table.values()) == len(pair.sites)


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        (("/layer1/layer1.0/conv1/Conv", "/elsewhere/Relu"), ("layer1", "layer1.0", "conv1")),
        (("/conv1/Conv",), ("conv1",)),
        (("node_conv2d_12",), ("node_conv2d_12",)),
        (("//",), ("(no ONNX node)",)),
        ((), ("(no ONNX node)",)),
    ],
)
def test_a_module_is_the_path_of_a_node(nodes: tuple[str, ...], path: tuple[str, ...]) -> None:
    """The first node decides; a name without a path stands for itself, no name has a place of its own."""
    assert module_path(nodes) == path


def test_modules_hold_their_own_modules(pair: Explanation) -> None:
    """Bytes and kernels of a module include those inside it; both engines are counted by the same paths."""
    tree = {module.path: module for module in modules(pair.layers, pair.baseline_layers)}
    block = tree["block/block.0"]
    assert (block.bytes, block.baseline_bytes, block.kernels) == (1000 * (1200 + 900 + 1100), 2_000_000, 3)
    assert (block.parent, block.label, block.group) == ("block", "block.0", "conv")
    assert (tree[""].bytes, tree[""].baseline_bytes, tree[""].kernels) == (5_750_000, 3_800_000, 6)


NODE = st.lists(st.text("ab./é<", min_size=0, max_size=4), max_size=4).map("/".join)


@given(st.lists(st.tuples(st.lists(NODE, max_size=2), st.integers(0, 10**9), st.booleans()), max_size=20))
def test_modules_add_up(rows: list[tuple[list[str], int, bool]]) -> None:
    """Whatever the names: the whole is the engine, no module is smaller than the sum of its own, each has a parent."""
    empty = dict.fromkeys(LAYER_COLUMNS, "")
    layers = pd.DataFrame(
        [
            {**empty, "work": (), "onnx_nodes": tuple(nodes), "kernel": kernel, "group": "conv", "traffic_bytes": moved}
            for nodes, moved, kernel in rows
        ],
        columns=list(LAYER_COLUMNS),
    )
    tree = {module.path: module for module in modules(layers, None)}
    assert tree[""].bytes == sum(moved for _, moved, _ in rows)
    assert tree[""].kernels == sum(kernel for _, _, kernel in rows)
    inside = dict.fromkeys(tree, 0)
    for module in tree.values():
        if module.path:
            inside[module.parent] += module.bytes
    assert all(inside[path] <= module.bytes for path, module in tree.items())


def test_weights_and_scales_that_are_not_the_models_are_warned_of(pair: Explanation) -> None:
    """A structure-only model and uncalibrated scales are said on the first screen, once each; else nothing is."""
    assert cautions(pair) == ()
    assert pair.baseline is not None
    seeded = {"weights": "seeded values of a structure-only model, seed 0"}
    told = cautions(
        replace(
            pair,
            baseline=replace(pair.baseline, provenance=replace(pair.baseline.provenance, **seeded)),
            quantized=replace(
                pair.quantized, provenance=replace(pair.quantized.provenance, **seeded, scales="uncalibrated: made up")
            ),
        )
    )
    assert told == (
        "Weights are seeded values of a structure-only model, seed 0.",
        "Activation scales are uncalibrated: made up.",
    )


def test_what_is_not_understood_is_said(pair: Explanation) -> None:
    """Each kind of gap is counted and listed, and the first screen tells of it."""
    coverage = Coverage(7, 5, 5_750_000, 5_000_000, ("odd line", "other"), ("mystery",), ("fp3",), 4, ("/gone",))
    found = gaps(coverage)
    assert found["2 lines of the dump could not be read"] == ("odd line", "other")
    assert list(found)[1:] == [
        "1 layer kind is unknown",
        "1 element type is unknown",
        "1 named ONNX node is not in the graph",
        "4 tensors have no known size and are not in the bytes",
        "2 layers of unknown work, 750.0 kB of traffic",
    ]
    assert "2 lines of the dump" in cautions(replace(pair, coverage=coverage))[0]
    assert gaps(pair.coverage) == {}
