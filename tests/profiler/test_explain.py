"""The explanation as a whole: what it says, that its parts add up, and that it says nothing about speed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.model import ModelGraph
from fusescope.graph.neighbourhood import LARGEST
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.blocks import BLOCK_COLUMNS
from fusescope.profiler.explain import explain
from fusescope.profiler.gpus import GPUS, gpu_named
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.layers import Engine, Layer, UnreadLine
from fusescope.profiler.run import Provenance, Run
from fusescope.profiler.tables import LAYER_COLUMNS, SITE_COLUMNS, group_table, layer_table, reason_table
from fusescope.profiler.verdicts import VERDICTS, verdicts

SHAPE = "[1,8,8,8]"
NET = """net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    QDQ x fp8
    QDQ w fp8
    [c1] a = Conv <pads = [1,1,1,1]> (x_d, w_d, b)
    [r1] r = Relu (a)
    [add] s = Add (r, x)
    QDQ s fp8
    [c2] y = Conv <pads = [1,1,1,1]> (s_d, w_d, b)
}"""
PLAIN = """net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    [c1] a = Conv <pads = [1,1,1,1]> (x, w, b)
    [r1] r = Relu (a)
    [add] s = Add (r, x)
    [c2] y = Conv <pads = [1,1,1,1]> (s, w, b)
}"""
PROVENANCE = Provenance(
    name="fp8",
    runtime="tensorrt-rtx",
    runtime_version="1.7.1",
    target="sm120",
    how="compiled ahead of time on a CPU",
    model_name="net.onnx",
    model_sha256="",
    weights="as given",
    scales="as given",
    recipe={},
    request="",
    batch=1,
    options={},
    plan_bytes=2000,
    parse_s=None,
    build_s=None,
    created="",
    fusescope_version="0.1.0",
)


@pytest.fixture(scope="module")
def net(draw: SimpleNamespace) -> ModelGraph:
    """Two 8-bit convs with a sum between them."""
    graph: ModelGraph = draw.graph(NET, w=(8, 8, 3, 3), b=(8,))
    return graph


def run_of(engine: Engine, graph: ModelGraph, **provenance: Any) -> Run:
    """A run that lies in no folder."""
    run = Run(replace(PROVENANCE, **provenance), engine, Path("nowhere"))
    run.__dict__["graph"] = graph  # where the cached property keeps it
    return run


@pytest.fixture(scope="module")
def quantized(draw: SimpleNamespace, net: ModelGraph) -> Run:
    """Four kernels on two streams, a signal and a wait."""
    layers = [
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="x_q"),
        draw.layer(
            "correlation", "c1_myl0_1", f"q:FP8{SHAPE}", f"r:Half{SHAPE}", constants="w:FP8[8,8,3,3]", nodes="c1 r1"
        ),
        draw.layer("signal", "signal", event=1),
        draw.layer("wait", "wait", event=1, stream=1),
        draw.layer(
            "kgen",
            "__myl_AddMulCast_myl0_4",
            f"r:Half{SHAPE} x:Half{SHAPE}",
            f"s:FP8{SHAPE}",
            nodes="add s_q",
            stream=1,
        ),
        draw.layer(
            "correlation",
            "c2_myl0_5",
            f"s:FP8{SHAPE}",
            f"y:Half{SHAPE}",
            constants="w:FP8[8,8,3,3]",
            nodes="c2",
            stream=1,
        ),
    ]
    return run_of(draw.engine(*layers), net)


@pytest.fixture(scope="module")
def baseline(draw: SimpleNamespace) -> Run:
    """The unquantized model in two kernels."""
    weights = "w:Half[8,8,3,3]"
    layers = [
        draw.layer(
            "runtime_fusion",
            "__myl_CorrAddReluAdd_myl0_0",
            f"x:Half{SHAPE}",
            f"s:Half{SHAPE}",
            constants=weights,
            nodes="c1 r1 add",
        ),
        draw.layer("correlation", "c2_myl0_1", f"s:Half{SHAPE}", f"y:Half{SHAPE}", constants=weights, nodes="c2"),
    ]
    graph = draw.graph(PLAIN, w=(8, 8, 3, 3), b=(8,))
    return run_of(draw.engine(*layers), graph, name="fp16", plan_bytes=1000)


def test_two_engines_are_set_side_by_side(quantized: Run, baseline: Run) -> None:
    """Layers, kernels, bytes, convs in 8 bits, streams and the longest chain of both, counted by hand."""
    explanation = explain(quantized, baseline)
    before, after = explanation.baseline, explanation.quantized
    assert before is not None
    assert (before.layers, before.kernels, before.streams, before.chain_kernels) == (2, 2, 1, 2)
    assert (after.layers, after.kernels, after.streams, after.chain_kernels) == (6, 4, 2, 4)
    assert (before.weighted_in_8_bits, before.weighted) == (0, 2)
    assert (after.weighted_in_8_bits, after.weighted) == (2, 2)
    elements, weights = 512, 576
    assert before.traffic_bytes == 2 * (2 * elements + 2 * elements + 2 * weights)
    assert before.conv_write_bytes == 2 * 2 * elements
    assert after.traffic_bytes == elements * ((2 + 1) + (1 + 2) + (2 + 2 + 1) + (1 + 2)) + 2 * weights
    assert after.conv_write_bytes == 2 * 2 * elements
    assert (before.plan_bytes, after.plan_bytes) == (1000, 2000)
    assert explanation.groups["quantized"]["kernels"].to_dict() == {
        **dict.fromkeys(GROUPS, 0),
        "conv": 2,
        "pointwise": 1,
        "quantize": 1,
    }
    assert explanation.groups["quantized"].loc["sync", "layers"] == 2
    assert {finding.key for finding in explanation.findings} >= {"growth", "left-convolution", "quantize-alone"}


def test_the_cost_of_quantizing_is_an_interval(quantized: Run) -> None:
    """At least the kernels that do nothing else, at most all that carry a Quantize."""
    cost = explain(quantized).quantize
    assert cost.sites == 2
    assert {verdict: count for verdict, count in cost.verdicts.items() if count} == {"alone": 1, "merged": 1}
    assert (cost.kernels_alone, cost.kernels_carrying) == (1, 2)
    assert cost.bytes_alone == 512 * 3
    assert cost.bytes_carrying == 512 * (3 + 5)
    assert cost.bytes_own == cost.bytes_alone  # the merged kernel writes nothing but FP8


def test_one_engine_alone_is_explained_too(quantized: Run) -> None:
    """There is no baseline, and none is made up."""
    explanation = explain(quantized)
    assert explanation.baseline is explanation.baseline_layers is explanation.blocks is None
    assert all(spot.baseline_kernels == () for spot in explanation.spots)
    assert list(explanation.groups.columns.get_level_values(0).unique()) == ["quantized"]
    assert "growth" not in {finding.key for finding in explanation.findings}


def test_what_was_observed_and_what_is_expected_are_two_sentences(quantized: Run, baseline: Run) -> None:
    """One says what was compiled, the other what documents expect of another compiler."""
    explanation = explain(quantized)
    assert explanation.observed == "observed: compiled by TensorRT-RTX 1.7.1 for sm120, ahead of time on a CPU"
    assert explanation.expected.startswith("expected of full TensorRT (rules, not built), of 2 Quantize sites: ")
    assert explain(baseline).expected == ""
    assert explain(baseline).quantize.sites == 0
    other = replace(quantized, provenance=replace(PROVENANCE, runtime="another"))
    other.__dict__["graph"] = quantized.graph
    assert "compiled by another 1.7.1" in explain(other).observed


def test_without_a_clock_there_is_no_word_about_speed(
    words_about_speed: Callable[[Any], list[str]], quantized: Run, baseline: Run
) -> None:
    """No time, and no sentence about it: kernels and bytes are facts, speed was not measured."""
    explanation = explain(quantized, baseline)
    for side in (explanation.baseline, explanation.quantized):
        assert side is not None
        assert side.latency is side.layer_time is None
    assert words_about_speed(explanation) == []
    assert words_about_speed(replace(explanation, gpu="runs faster"))


def test_coverage_tells_what_is_not_understood(draw: SimpleNamespace, net: ModelGraph) -> None:
    """Unread lines, unknown kinds and element types, unsized tensors and foreign nodes are listed, and counted in."""
    layers = [
        draw.layer("kgen", "__myl_Relu_myl0_0", f"a:Half{SHAPE}", f"r:Half{SHAPE}", nodes="r1 somebody_else"),
        draw.layer("hologram", "h", "a:Float9E9[8]", "b:Half[-1,8]"),
        draw.layer("Myelin", "{ForeignNode[a...b]}", "b:Half[4]", "c:Half[4]"),
    ]
    engine = replace(draw.engine(*layers), unread=(UnreadLine(7, "what is this"),))
    coverage = explain(run_of(engine, net)).coverage
    assert (coverage.layers, coverage.attributed_layers) == (3, 1)
    assert (coverage.traffic_bytes, coverage.attributed_bytes) == (2 * 1024 + 16, 2 * 1024)
    assert coverage.unread_lines == ("what is this",)
    assert coverage.unknown_kinds == ("hologram",)
    assert coverage.unknown_dtypes == ("Float9E9",)
    assert coverage.unsized_tensors == 2
    assert coverage.foreign_nodes == ("somebody_else",)


def test_floors_are_given_for_a_gpu_that_is_named(quantized: Run, baseline: Run) -> None:
    """Per group and side; without a GPU there are none. The floor of 8-bit convs is no higher than that of fp16."""
    assert explain(quantized, baseline).groups["quantized"]["floor_us"].isna().all()
    explanation = explain(quantized, baseline, gpu=gpu_named("L4"))
    assert explanation.gpu == "L4"
    floors = {side: explanation.groups[side]["floor_us"] for side in ("baseline", "quantized")}
    operations = 2 * 2 * 512 * 72
    assert floors["baseline"]["conv"] == pytest.approx(operations / GPUS["L4"].fp16_tflops / 1e6)
    assert floors["quantized"]["conv"] == pytest.approx(operations / 242 / 1e6)
    assert floors["quantized"]["sync"] == 0


def test_every_column_is_documented(quantized: Run) -> None:
    """The tables have the columns that their documentation lists, in that order."""
    explanation = explain(quantized)
    assert list(explanation.layers.columns) == list(LAYER_COLUMNS)
    assert list(explanation.sites.columns) == list(SITE_COLUMNS)
    blocks = explain(quantized, quantized).blocks
    assert blocks is not None
    assert list(blocks.columns) == list(BLOCK_COLUMNS)
    assert list(explanation.groups["quantized"].index) == list(GROUPS)


def test_a_kernel_with_sites_of_two_reasons_is_counted_once(draw: SimpleNamespace) -> None:
    """Kernels and bytes by reason add up to those of the carrying kernels."""
    graph = draw.graph(
        """n (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
        [add] s = Add (x, x2)
        QDQ x fp8
        QDQ s fp8
        QDQ w fp8
        [c1] a = Conv <pads = [1,1,1,1]> (x_d, w_d)
        [c2] b = Conv <pads = [1,1,1,1]> (s_d, w_d)
        [last] y = Add (a, b)
        }""",
        x2=(1, 8, 8, 8),
        w=(8, 8, 3, 3),
    )
    both = draw.layer(
        "kgen", "__myl_AddMulCastMulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE} s:FP8{SHAPE}", nodes="add x_q s_q"
    )
    view = EngineView(draw.engine(both), graph)
    layers = layer_table(view)
    explanation = explain(run_of(view.engine, graph))
    judged = verdicts(view, [verdict.site for verdict in explanation.judged])
    table = reason_table(judged, ("one", "two"), layers)
    assert table["sites"].to_dict() == {"one": 1, "two": 1}
    assert table["kernels"].to_dict() == {"one": 1, "two": 0}
    assert table["bytes"].sum() == 512 * (2 + 1 + 1)
    assert explanation.quantize.kernels_carrying == 1


def test_sites_without_any_kernel_still_have_a_reason(draw: SimpleNamespace, net: ModelGraph) -> None:
    """An engine that lost every Quantize has reasons with no kernels."""
    lost = [
        draw.layer("correlation", f"{name}_myl0_0", f"x:Half{SHAPE}", f"y:Half{SHAPE}", nodes=name)
        for name in ("c1", "c2")
    ]
    explanation = explain(run_of(draw.engine(*lost), net))
    assert explanation.quantize.verdicts["lost"] == explanation.quantize.sites == 2
    assert explanation.reasons["kernels"].sum() == explanation.reasons["bytes"].sum() == 0
    assert explanation.reasons["lost"].sum() == 2


NODES = st.sampled_from(["x_q", "x_dq", "w_dq", "c1", "r1", "add", "s_q", "s_dq", "c2", "foreign"])
TENSOR = st.builds(
    "{}:{}[{}]".format,
    st.sampled_from(["x", "q", "a", "r", "s"]),
    st.sampled_from(["Half", "Float", "FP8", "Unheard"]),
    st.sampled_from(["1,8,8,8", "1,4,8,8", "1,2,8,8", "-1,8", ""]),
)
TENSORS = st.lists(TENSOR, max_size=3).map(" ".join)
KINDS = st.sampled_from(["kgen", "correlation", "gemm", "Myelin", "runtime_fusion", "maxpool", "new"])
NUMBERS = st.integers(0, 2)
SYNC = st.tuples(st.sampled_from(["signal", "wait"]), st.just(""), st.just(""), st.just(""), st.just([]), NUMBERS)
WORK = st.tuples(KINDS, TENSORS, TENSORS, TENSORS, st.lists(NODES, max_size=5, unique=True), NUMBERS)
ROWS = st.lists(SYNC | WORK, min_size=1, max_size=8)


@given(ROWS, ROWS)
def test_the_parts_of_any_explanation_add_up(
    draw: SimpleNamespace, net: ModelGraph, rows: list[Any], baseline_rows: list[Any]
) -> None:
    """Random engines against each other: nothing crashes, nothing is lost, nothing is counted twice."""
    run, base = (run_of(draw.engine(*map(random_layer(draw), some)), net) for some in (rows, baseline_rows))
    explanation = explain(run, base, gpu=gpu_named("L4"))
    side, groups, cost = explanation.quantized, explanation.groups["quantized"], explanation.quantize
    assert groups["layers"].sum() == side.layers == len(rows)
    assert groups["kernels"].sum() == side.kernels
    assert groups["bytes"].sum() == side.traffic_bytes
    assert list(cost.verdicts) == list(VERDICTS)
    assert sum(cost.verdicts.values()) == sum(cost.predicted.values()) == cost.sites == len(explanation.sites)
    assert cost.kernels_alone <= cost.kernels_carrying <= side.kernels
    assert cost.bytes_alone <= cost.bytes_own <= cost.bytes_carrying <= side.traffic_bytes
    assert explanation.reasons["sites"].sum() == cost.sites
    assert explanation.reasons[list(VERDICTS)].sum().sum() == cost.sites
    assert explanation.reasons["kernels"].sum() == cost.kernels_carrying
    assert explanation.reasons["kernels_alone"].sum() == cost.kernels_alone
    assert explanation.reasons["bytes"].sum() == cost.bytes_carrying
    assert side.chain_kernels <= side.kernels
    assert explanation.coverage.attributed_bytes <= explanation.coverage.traffic_bytes == side.traffic_bytes
    assert (groups["floor_us"] >= 0).all()
    blocks, before = explanation.blocks, explanation.baseline
    assert blocks is not None
    assert before is not None
    assert blocks["bytes"].sum() + explanation.layers["quantize_bytes"].sum() == side.traffic_bytes
    assert blocks["baseline_bytes"].sum() == before.traffic_bytes
    assert sum(map(len, blocks["kernels"])) == side.kernels
    assert sum(map(len, blocks["baseline_kernels"])) == before.kernels
    assert {spot.name for spot in explanation.spots} >= set(explanation.sites["tensor"])
    for spot in explanation.spots:
        assert set(spot.kernels) <= set(explanation.layers.index[explanation.layers["kernel"]])
        assert 0 < len(spot.places) <= LARGEST
    for finding in explanation.findings:
        assert set(finding.layers) <= set(range(len(rows)))
        assert finding.bytes >= 0


def random_layer(draw: SimpleNamespace) -> Any:
    """A function that draws a row of `ROWS`."""

    def layer(row: Any) -> Layer:
        kind, reads, writes, constants, nodes, number = row
        drawn: Layer = draw.layer(
            kind,
            "__myl_MulCast_myl0_0",
            reads,
            writes,
            constants=constants,
            nodes=" ".join(nodes),
            stream=number,
            event=number if kind in {"signal", "wait"} else None,
        )
        return drawn

    return layer


def test_the_group_table_of_an_empty_engine_is_all_zero(draw: SimpleNamespace, net: ModelGraph) -> None:
    """Every group has its row."""
    view = EngineView(draw.engine(), net)
    table = group_table(view, layer_table(view), None)
    assert table[["layers", "kernels", "bytes"]].sum().sum() == 0
    assert list(table.index) == list(GROUPS)
