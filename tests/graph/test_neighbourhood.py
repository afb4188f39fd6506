"""Neighbourhoods: who is in the drawing of a spot, and what lies between, on graphs drawn by hand."""

from typing import TYPE_CHECKING

import pytest

from fusescope.graph.model import ModelGraph
from fusescope.graph.neighbourhood import LARGEST, Neighbourhood, excerpt, node_neighbourhood, site_neighbourhood
from fusescope.graph.sites import quantize_sites

if TYPE_CHECKING:
    from tests.graph.conftest import Net


def around(graph: ModelGraph, tensor: str) -> Neighbourhood:
    """The neighbourhood of the site of a tensor."""
    (site,) = (site for site in quantize_sites(graph) if site.tensor == tensor)
    return site_neighbourhood(graph, site)


@pytest.fixture
def residual(net: "Net") -> ModelGraph:
    """A residual sum that the next conv reads in 8 bits and the next sum as it is.

    It is made of a skip that others read too, and of a conv with an activation.
    """
    x = net.input("x")
    skip = net.op("Relu", net.conv(x, name="stem"), name="skip")
    branch = net.op("Relu", net.conv(net.quantize(skip), name="c1", form="fp8"), name="r1")
    total = net.op("Relu", net.op("Add", branch, skip, name="sum"), name="act")
    second = net.conv(net.quantize(total), name="c2", form="fp8")
    return net.graph(net.op("Add", second, total, name="next"))


def test_a_sum_with_its_second_reader(residual: ModelGraph) -> None:
    """Branches, sum, activation, both Quantize and Dequantize, the 8-bit reader and the one in high precision."""
    found = around(residual, "act")
    assert found == Neighbourhood(("skip", "c1", "r1", "sum", "act", "act_q", "act_dq", "c2", "next"), 0)


def test_what_lies_behind_a_shared_operand_is_left_out(residual: ModelGraph) -> None:
    """The skip is shown, the conv behind it is not: it is the spot of another tensor."""
    assert "stem" not in around(residual, "act").nodes
    assert around(residual, "skip").nodes == ("stem", "skip", "skip_q", "skip_dq", "c1", "sum")


def test_the_excerpt_has_every_node_and_tensor_once(residual: ModelGraph) -> None:
    """Its wires join the places as the graph does, with dtypes; weights are in none of them."""
    parts = [around(residual, "act"), around(residual, "skip")]
    cut = excerpt(residual, parts)
    names = [place.name for place in cut.places]
    assert names == ["stem", "skip", "skip_q", "skip_dq", "c1", "r1", "sum", "act", "act_q", "act_dq", "c2", "next"]
    wires = {wire.tensor: wire for wire in cut.wires}
    assert len(wires) == len(cut.wires)
    ends = {
        tensor: (None if wire.source is None else names[wire.source], [names[place] for place in wire.targets])
        for tensor, wire in wires.items()
    }
    assert ends["x"] == (None, ["stem"])
    assert ends["skip"] == ("skip", ["skip_q", "sum"])
    assert ends["act"] == ("act", ["act_q", "next"])
    assert ends["next"] == ("next", [])
    assert (wires["act"].dtype, wires["act_q"].dtype) == ("float", "float8e4m3fn")
    assert wires["act"].shape == (1, 8, 16, 16)
    assert not set(wires) & residual.constants


def test_convs_say_their_precision(residual: ModelGraph) -> None:
    """A conv that reads data and weight through Dequantizes is marked; the stem is not."""
    cut = excerpt(residual, [around(residual, "act"), around(residual, "skip")])
    assert {place.name: place.precision for place in cut.places if place.op == "Conv"} == {
        "stem": "",
        "c1": "fp8",
        "c2": "fp8",
    }


def test_a_fuse_sum_with_all_its_branches(net: "Net") -> None:
    """Chained Adds are one sum: all branches are shown, the resize and the conv before it too."""
    high, low = net.input("high", 1, 8, 16, 16), net.input("low", 1, 8, 8, 8)
    net.constant("no_roi", [])
    net.constant("scales", [1, 1, 2, 2])
    up = net.op("Resize", net.conv(low, name="lower"), "no_roi", "scales", name="up")
    first = net.op("Add", net.conv(high, name="one"), up, name="first")
    total = net.op("Add", first, net.conv(high, name="two"), name="total")
    graph = net.graph(net.conv(net.quantize(total), name="reader", form="fp8"))
    assert set(around(graph, "total").nodes) == {
        *("lower", "up", "one", "first", "two", "total"),
        *("total_q", "total_dq", "reader"),
    }


def test_readers_behind_casts_copies_and_8_bit_pools(net: "Net") -> None:
    """What only passes a value on is shown with the reader behind it."""
    x = net.op("Relu", net.conv(net.input("x"), name="c0"), name="x_act")
    cast = net.op("Cast", x, name="cast", to=10)
    high = net.op("Sqrt", cast, name="high")
    pooled = net.op("MaxPool", net.quantize(x), name="pooled", kernel_shape=[2, 2])
    graph = net.graph(net.conv(pooled, name="reader", form="fp8"), high)
    assert set(around(graph, "x_act").nodes) == {"c0", "x_act", "x_act_q", "x_act_dq", "cast", "high", "pooled"}


def test_a_graph_input(net: "Net") -> None:
    """A site without a producer begins with its Quantize."""
    graph = net.graph(net.conv(net.quantize(net.input("x")), name="c", form="fp8"))
    assert around(graph, "x") == Neighbourhood(("x_q", "x_dq", "c"), 0)


def test_a_node(net: "Net") -> None:
    """Around a node: what it reads from, and its readers behind the activation and the Quantize."""
    first = net.conv(net.input("x"), name="first")
    middle = net.conv(net.quantize(first), name="middle", form="fp8")
    act = net.op("Relu", middle, name="act")
    graph = net.graph(net.conv(net.quantize(act), name="last", form="fp8"), net.op("Sqrt", act, name="other"))
    found = node_neighbourhood(graph, "middle")
    assert found == Neighbourhood(("first_dq", "middle", "act", "act_q", "act_dq", "last", "other"), 0)


def test_no_more_than_can_be_read(net: "Net") -> None:
    """Of a hundred readers those that found room are shown, the rest is counted."""
    x = net.op("Relu", net.conv(net.input("x"), name="c"), name="act")
    outputs = [net.op("Sqrt", x, name=f"reader{place}") for place in range(100)]
    graph = net.graph(net.conv(net.quantize(x), name="last", form="fp8"), *outputs)
    found = around(graph, "act")
    assert len(found.nodes) == LARGEST
    shown = sum(name.startswith("reader") or name == "last" for name in found.nodes)
    assert found.omitted == 101 - shown
    assert {"c", "act", "act_q"} <= set(found.nodes)
