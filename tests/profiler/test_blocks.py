"""Blocks and spots: two engines of one small network aligned by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from fusescope.graph.sites import quantize_sites
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.blocks import block_table
from fusescope.profiler.spots import find_spots
from fusescope.profiler.tables import layer_table
from fusescope.profiler.verdicts import verdicts

H = "Half[1,8,8,8]"
Q = "FP8[1,8,8,8]"
ELEMENTS = 512
WEIGHTS = 576

BEFORE = """net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    [c1] a = Conv <pads = [1,1,1,1]> (x, w)
    [add] s = Add (a, x)
    [c2] b = Conv <pads = [1,1,1,1]> (s, w)
    [c3] c = Conv <pads = [1,1,1,1]> (s, w)
    [last] y = Add (b, c)
}"""
AFTER = """net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    QDQ x fp8
    QDQ w fp8
    [c1] a = Conv <pads = [1,1,1,1]> (x_d, w_d)
    [add] s = Add (a, x)
    QDQ s fp8
    [c2] b = Conv <pads = [1,1,1,1]> (s_d, w_d)
    [c3] c = Conv <pads = [1,1,1,1]> (s_d, w_d)
    [last] y = Add (b, c)
}"""


@pytest.fixture(scope="module")
def views(draw: SimpleNamespace) -> tuple[EngineView, EngineView]:
    """The quantized engine, then the baseline, whose convs compute the sums too."""
    w, w8 = "w:Half[8,8,3,3]", "w:FP8[8,8,3,3]"
    before = (
        draw.layer("correlation", "c1_myl0_0", f"x:{H}", f"s:{H}", constants=w, nodes="c1 add"),
        draw.layer("correlation", "c2_myl0_1", f"s:{H}", f"b:{H}", constants=w, nodes="c2"),
        draw.layer("correlation", "c3_myl0_2", f"s:{H} b:{H}", f"y:{H}", constants=w, nodes="c3 last"),
    )
    after = (
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:{H}", f"xq:{Q}", nodes="x_q"),
        draw.layer("correlation", "c1_myl0_1", f"xq:{Q}", f"a:{H}", constants=w8, nodes="c1"),
        draw.layer("kgen", "__myl_AddMulCast_myl0_2", f"a:{H} x:{H}", f"s:{H} sq:{Q}", nodes="add s_q"),
        draw.layer("correlation", "c2_myl0_3", f"sq:{Q}", f"b:{H}", constants=w8, nodes="c2"),
        draw.layer("signal", "signal", event=1),
        draw.layer("correlation", "c3_myl0_5", f"sq:{Q} b:{H}", f"y:{H}", constants=w8, nodes="c3 last"),
    )
    return (
        EngineView(draw.engine(*after), draw.graph(AFTER, w=(8, 8, 3, 3))),
        EngineView(draw.engine(*before), draw.graph(BEFORE, w=(8, 8, 3, 3))),
    )


@pytest.fixture(scope="module")
def blocks(views: tuple[EngineView, EngineView]) -> list[dict[str, Any]]:
    """The block table, row by row."""
    view, baseline = views
    judged = verdicts(view, quantize_sites(view.graph))
    table = block_table(view, baseline, layer_table(view), layer_table(baseline), judged)
    return [{str(key): value for key, value in row.items()} for row in table.to_dict(orient="records")]


def of(blocks: list[dict[str, Any]], conv: str) -> dict[str, Any]:
    """The block that computes a conv."""
    (found,) = (block for block in blocks if conv in block["convs"])
    return found


def test_a_sum_that_left_its_conv_stays_in_the_block(blocks: list[dict[str, Any]]) -> None:
    """The baseline adds inside its conv; the quantized engine in a kernel of its own, which is compared with it."""
    block = of(blocks, "c1")
    assert (block["kernels"], block["baseline_kernels"]) == ((1, 2), (0,))
    assert block["baseline_bytes"] == 2 * (ELEMENTS + WEIGHTS + ELEMENTS)
    conv = ELEMENTS + WEIGHTS + 2 * ELEMENTS
    addition = 2 * (ELEMENTS + ELEMENTS + ELEMENTS)  # its 8-bit output is there for the Quantize alone
    assert block["bytes"] == conv + addition


def test_what_feeds_a_block(blocks: list[dict[str, Any]]) -> None:
    """The first conv is fed by a kernel that only quantizes, the others by one that writes 8 bits besides."""
    first, second, third = (of(blocks, conv) for conv in ("c1", "c2", "c3"))
    assert (first["quantize_kernels"], first["feeding_bytes"]) == ((0,), 3 * ELEMENTS)
    assert (first["fed_verdicts"], first["shared"]) == (("alone",), False)
    for block in (second, third):
        assert (block["quantize_kernels"], block["feeding_bytes"]) == ((2,), ELEMENTS)
        assert (block["fed_verdicts"], block["shared"]) == (("merged",), True)


def test_each_kernel_is_in_one_block(blocks: list[dict[str, Any]]) -> None:
    """Those that only quantize have a block without convs; signals have none."""
    kernels = sorted(index for block in blocks for index in block["kernels"])
    assert kernels == [0, 1, 2, 3, 5]
    (alone,) = (block for block in blocks if 0 in block["kernels"])
    assert (alone["convs"], alone["bytes"], alone["baseline_kernels"]) == ((), 0, ())


def test_the_kernels_of_a_spot(views: tuple[EngineView, EngineView]) -> None:
    """Those that compute, finish or quantize any node of it, in each engine; a finding's node has a spot too."""
    cut, spots = find_spots(*views, quantize_sites(views[0].graph), ["s", "c1", "no such node"])
    found = {spot.name: spot for spot in spots}
    assert list(found) == ["x", "s", "c1"]
    nodes = {name: [cut.places[place].name for place in spot.places] for name, spot in found.items()}
    assert nodes["s"] == ["c1", "add", "s_q", "s_dq", "c2", "c3"]
    assert (found["s"].kernels, found["s"].baseline_kernels) == ((1, 2, 3, 5), (0, 1, 2))
    assert nodes["x"] == ["x_q", "x_dq", "c1", "add"]
    assert (found["x"].kernels, found["x"].baseline_kernels) == ((0, 1, 2), (0,))
    assert nodes["c1"] == ["x_dq", "c1", "add"]


def test_a_spot_without_a_baseline(views: tuple[EngineView, EngineView]) -> None:
    """There are no kernels before."""
    _, spots = find_spots(views[0], None, quantize_sites(views[0].graph), [])
    assert [spot.baseline_kernels for spot in spots] == [(), ()]


def test_the_longest_chain_is_marked(views: tuple[EngineView, EngineView]) -> None:
    """Every kernel of this engine waits for the one before; a signal is no kernel."""
    assert layer_table(views[0])["on_chain"].to_list() == [True, True, True, True, False, True]
