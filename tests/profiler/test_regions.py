"""Regions of several engines: what aligns them, one rule per test, on engines drawn by hand."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.profiler.attribution import EngineView
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.regions import Region, align

H = "Half[1,8,8,8]"
Q = "FP8[1,8,8,8]"
NET = """net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    [c1] a = Conv <pads = [1,1,1,1]> (x, w)
    [r1] r = Relu (a)
    [c2] y = Conv <pads = [1,1,1,1]> (r, w)
}"""


def layers_of(regions: tuple[Region, ...]) -> list[tuple[tuple[int, ...], ...]]:
    """Indices by engine, region by region."""
    return [region.layers for region in regions]


def test_nodes_align_what_is_split(draw: SimpleNamespace) -> None:
    """One kernel for conv and activation against two: one region, since they compute the same nodes."""
    fused = draw.engine(
        draw.layer("correlation", "one", f"x:{H}", f"r:{H}", nodes="c1 r1"),
        draw.layer("correlation", "two", f"r:{H}", f"y:{H}", nodes="c2"),
    )
    split = draw.engine(
        draw.layer("correlation", "one", f"x:{H}", f"a:{H}", nodes="c1"),
        draw.layer("pointwise", "act", f"a:{H}", f"r:{H}", nodes="r1"),
        draw.layer("correlation", "two", f"r:{H}", f"y:{H}", nodes="c2"),
    )
    graph = draw.graph(NET, w=(8, 8, 3, 3))
    regions = align([EngineView(fused, graph), EngineView(split, graph)])
    assert layers_of(regions) == [((0,), (0, 1)), ((1,), (2,))]
    assert {region.aligned_by for region in regions} == {"nodes"}


def named(draw: SimpleNamespace, *layers: Layer) -> EngineView:
    """A recording without its model."""
    return EngineView(draw.engine(*layers), None)


def test_conversions_align_by_place(draw: SimpleNamespace) -> None:
    """A Quantize before the first conv is one region of both engines; that between the convs is of one only."""
    first = named(
        draw,
        draw.layer("Reformat", "QuantizeLinear_1", f"x:{H}", f"q:{Q}", nodes="QuantizeLinear_1"),
        draw.layer("conv", "/c1/Conv", f"q:{Q}", f"a:{H}", nodes="/c1/Conv"),
        draw.layer("Reformat", "QuantizeLinear_2", f"a:{H}", f"b:{Q}", nodes="QuantizeLinear_2"),
        draw.layer("conv", "/c2/Conv", f"b:{Q}", f"y:{H}", nodes="/c2/Conv"),
    )
    second = named(
        draw,
        draw.layer("Reformat", "QuantizeLinear_7", f"x:{H}", f"q:{Q}", nodes="QuantizeLinear_7"),
        draw.layer("conv", "/c1/Conv", f"q:{Q}", f"a:{Q}", nodes="/c1/Conv"),
        draw.layer("conv", "/c2/Conv", f"a:{Q}", f"y:{H}", nodes="/c2/Conv"),
    )
    found = {region.layers: region for region in align([first, second])}
    assert set(found) == {((0,), (0,)), ((1,), (1,)), ((2,), ()), ((3,), (2,))}
    shared, alone = found[(0,), (0,)], found[(2,), ()]
    assert (shared.converts, shared.aligned_by, alone.converts, alone.aligned_by) == (
        "quantize",
        "place",
        "quantize",
        "",
    )
    regions = align([first, second])
    assert [[regions[place].layers for place in ends] for ends in (alone.before, alone.behind)] == [
        [((1,), (1,))],
        [((3,), (2,))],
    ]


@pytest.mark.parametrize("known", [True, False])
def test_shapes_align_what_names_do_not(draw: SimpleNamespace, known: bool) -> None:
    """Convs under other names align by their shapes, in order; where shapes are not known they stay apart."""
    inner, outer = ("Half[1,16,4,4]", H) if known else ("Half[-1,16,4,4]", "Half[-1,8,8,8]")
    sides = [
        named(
            draw,
            *(
                draw.layer(
                    "conv", f"{name}_{place}", f"{place}:{read}", f"{place + 1}:{written}", nodes=f"{name}_{place}"
                )
                for place, (read, written) in enumerate([(outer, inner), (inner, inner), (inner, inner)])
            ),
        )
        for name in ("conv2d", "convolution")
    ]
    regions = align(sides)
    assert {region.aligned_by for region in regions} == ({"shapes"} if known else {""})
    assert len(regions) == (3 if known else 6)
    if known:
        assert layers_of(regions) == [((0,), (0,)), ((1,), (1,)), ((2,), (2,))]


def test_a_layer_joins_the_conv_that_takes_it_in_elsewhere(draw: SimpleNamespace) -> None:
    """A pool that one engine runs inside its convolution and the other behind it, under a name of its own."""
    inside = named(draw, draw.layer("conv", "c", f"x:{H}", "p:Half[1,8,4,4]", nodes="/c1/Conv MaxPool_9"))
    beside = named(
        draw,
        draw.layer("conv", "c", f"x:{H}", f"a:{H}", nodes="/c1/Conv"),
        draw.layer("pooling", "p", f"a:{H}", "p:Half[1,8,4,4]", nodes="MaxPool_12"),
    )
    assert layers_of(align([inside, beside])) == [((0,), (0, 1))]
    assert layers_of(align([beside, inside])) == [((0, 1), (0,))]


def test_what_lies_between_the_same_regions_is_one(draw: SimpleNamespace) -> None:
    """Where neither names nor shapes help: everything before a shared conv."""
    last = draw.layer("conv", "last", f"m:{H}", f"y:{H}", nodes="/last/Conv")
    one = named(draw, draw.layer("conv", "a", "x:Half[1,3,16,16]", f"m:{H}", nodes="stem/conv"), last)
    two = named(
        draw,
        draw.layer("conv", "b", "x:Half[1,3,16,16]", "n:Half[1,8,16,16]", nodes="features_0/convolution"),
        draw.layer("pooling", "p", "n:Half[1,8,16,16]", f"m:{H}", nodes="features_1/maxpool"),
        last,
    )
    regions = align([one, two])
    assert layers_of(regions) == [((0,), (0, 1)), ((1,), (2,))]
    assert [region.aligned_by for region in regions] == ["place", "names"]


def test_a_third_engine_aligns_with_the_second(draw: SimpleNamespace) -> None:
    """What the reference does not have may still be the same in the others."""
    first = named(draw, draw.layer("conv", "c", f"x:{H}", f"y:{H}", nodes="/c1/Conv"))
    others = [
        named(
            draw,
            draw.layer("conv", "c", f"x:{H}", f"a:{H}", nodes="/c1/Conv"),
            draw.layer("softmax", "s", f"a:{H}", f"y:{H}", nodes="/head/Softmax"),
        )
        for _ in range(2)
    ]
    assert layers_of(align([first, *others])) == [((0,), (0,), (0,)), ((), (1,), (1,))]


LAYER = st.tuples(
    st.sampled_from(["conv", "Reformat", "pooling", "NoOp", "signal", "kgen", "PluginV2", "unheard"]),
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from([H, Q, "Half[-1,8]", "Half[1,8,4,4]"]),
    st.sampled_from(["", "/c1/Conv", "/c2/Conv", "Conv_3", "MaxPool_4", "/c1/Conv MaxPool_4", "QuantizeLinear_2"]),
)
ENGINES = st.lists(st.lists(LAYER, min_size=1, max_size=8), min_size=2, max_size=3)


@given(ENGINES)
def test_every_layer_is_in_one_region(draw: SimpleNamespace, drawn: list[list[tuple[str, ...]]]) -> None:
    """Whatever the engines are: nothing is lost, nothing is in two regions."""
    engines: list[Engine] = [
        draw.engine(
            *(
                draw.layer(kind, kind, f"{read}:{H}", f"{write}:{type_}", nodes=nodes)
                for kind, read, write, type_, nodes in rows
            )
        )
        for rows in drawn
    ]
    regions = align([EngineView(engine, None) for engine in engines])
    for side, engine in enumerate(engines):
        assert sorted(index for region in regions for index in region.layers[side]) == list(range(len(engine.layers)))
    assert all(any(region.layers) for region in regions)
    assert all(bool(region.aligned_by) == (sum(map(bool, region.layers)) > 1) for region in regions)
