"""Node names: unique, stable, without control characters."""

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from fusescope.graph.model import graph_of
from fusescope.graph.names import Renamed, all_nodes, name_nodes


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Make a model of nodes alone."""
    return helper.make_model(helper.make_graph(nodes, "g", [], []))


def relus(*names: str) -> onnx.ModelProto:
    """Make a model of one Relu for each name, in order."""
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"], name=name) for i, name in enumerate(names)]
    return model(nodes)


@pytest.mark.parametrize(
    ("given_names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["", ""], ["Relu_y0", "Relu_y1"]),
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["Relu_y1", ""], ["Relu_y1", "Relu_y1_2"]),
        (["a\x1fb", "a_b"], ["a_b_2", "a_b"]),
        (["name with blank/é"], ["name with blank/é"]),
    ],
)
def test_names(given_names: list[str], expected: list[str]) -> None:
    """A good name stays with its first node; others are made from the operation and output, or numbered."""
    proto = relus(*given_names)
    name_nodes(proto)
    assert [node.name for node in proto.graph.node] == expected


def test_what_was_renamed_is_recorded() -> None:
    """Each change is told with the old name, the new one and the place in the file."""
    assert name_nodes(relus("a", "", "a")) == (Renamed("", "Relu_y1", 1), Renamed("a", "a_2", 2))


def test_bodies_are_named_too() -> None:
    """Nodes in the body of an If share the names' space, and are counted after their node."""
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["z"], name="a")], "body", [], [])
    proto = model(
        [
            helper.make_node("If", ["c"], ["y"], name="a", then_branch=body, else_branch=body),
            helper.make_node("Relu", ["y"], ["w"]),
        ]
    )
    assert name_nodes(proto) == (Renamed("a", "a_2", 1), Renamed("a", "a_3", 2), Renamed("", "Relu_w", 3))
    assert [node.name for node in proto.graph.node] == ["a", "Relu_w"]


@given(st.lists(st.text(st.sampled_from("ab_2\x1f\n"), max_size=4), max_size=12))
def test_names_are_unique_stable_and_clean(given_names: list[str]) -> None:
    """Whatever the names: afterwards they are unique and printable, the same each time, and final."""
    proto, again = relus(*given_names), relus(*given_names)
    renamed = name_nodes(proto)
    names = [node.name for node in all_nodes(proto.graph.node)]
    assert len(set(names)) == len(names)
    assert all(name and min(name) >= " " for name in names)
    assert graph_of(again).renamed == renamed
    assert list(graph_of(again).nodes) == names
    assert name_nodes(proto) == ()
