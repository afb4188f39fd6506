"""Reading a model as a graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fusescope.graph.errors import UserError
from fusescope.graph.model import TensorInfo, check_proto, graph_of, load_proto, read_graph


def test_nodes_and_tensors(net: Any) -> None:
    """A small graph is read with its edges, dtypes, shapes and attributes."""
    net.input("x", 1, 8, 16, 16)
    net.conv("x", name="conv", strides=[2, 2])
    net.op("LeakyRelu", "conv", name="act", alpha=0.25)
    graph = net.graph("act")
    assert list(graph.nodes) == ["conv", "act"]
    assert (graph.opset, graph.inputs, graph.outputs) == (19, ("x",), ("act",))
    assert graph.tensors["conv"] == TensorInfo("conv", "float", (1, 8, 8, 8))
    assert graph.tensors["conv_w"] == TensorInfo("conv_w", "float", (8, 8, 3, 3))
    assert graph.nodes["conv"].integers("strides") == (2, 2)
    assert graph.nodes["act"].attributes == {"alpha": 0.25}
    assert graph.producer("x") is None
    assert graph.producer("conv") is graph.nodes["conv"]
    assert graph.readers("conv") == (graph.nodes["act"],)
    assert graph.constants == {"conv_w"}


def test_digraph_has_every_edge(net: Any) -> None:
    """networkx sees nodes and tensors as two kinds, joined along the data."""
    net.input("x")
    net.op("Add", "x", net.op("Relu", "x", name="r"), name="y")
    assert set(net.graph("y").digraph.edges) == {
        (("tensor", "x"), ("node", "r")),
        (("node", "r"), ("tensor", "r")),
        (("tensor", "x"), ("node", "y")),
        (("tensor", "r"), ("node", "y")),
        (("node", "y"), ("tensor", "y")),
    }


def test_constants_are_found_through_nodes(net: Any) -> None:
    """What is computed from constants alone is constant; random numbers and activations are not."""
    net.input("x")
    shape = net.constant("shape", [8], np.int64)
    net.op("ConstantOfShape", shape, name="zeros")
    net.op("Constant", name="one", value_float=1.0)
    net.op("Add", "zeros", "one", name="bias")
    net.op("RandomNormalLike", "bias", name="noise")
    net.op("Add", "x", net.op("Add", "bias", "noise", name="noisy"), name="y")
    assert net.graph("y").constants == {"shape", "zeros", "one", "bias"}


def test_bodies_read_outer_tensors() -> None:
    """The If node reads what its branches, and branches in them, take from outside; each tensor once."""
    leaf = helper.make_graph(
        [helper.make_node("Add", ["x", "local"], ["z"]), helper.make_node("Relu", ["deep"], ["local2"])],
        "leaf",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
    )
    inner = helper.make_node("If", ["c"], ["i"], then_branch=leaf, else_branch=leaf)
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["local"]), inner],
        "branch",
        [],
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, [1])],
    )
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch)
    graph = graph_of(helper.make_model(helper.make_graph([node], "g", [], [])))
    assert graph.nodes["if"].subgraph_reads == ("x", "c", "deep")
    assert graph.readers("deep") == (graph.nodes["if"],)
    assert graph.nodes["if"].reads == ("c", "x", "deep")


def test_nodes_out_of_order_are_sorted() -> None:
    """A file whose nodes are not in topological order is read in one that is."""
    nodes = [
        helper.make_node("Relu", ["b"], ["c"], name="third"),
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    graph = graph_of(helper.make_model(helper.make_graph(nodes, "g", [], [])))
    assert list(graph.nodes) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ([("a", "b", "one"), ("b", "a", "two")], "the nodes form a cycle: one -> two"),
        ([("x", "a", "one"), ("x", "a", "two")], "tensor 'a' is written by both 'one' and 'two'"),
    ],
)
def test_impossible_graphs_are_refused(nodes: list[tuple[str, str, str]], complaint: str) -> None:
    """A cycle or a tensor written twice is the user's to mend, with the nodes named."""
    made = [helper.make_node("Relu", [read], [written], name=name) for read, written, name in nodes]
    with pytest.raises(UserError, match=complaint):
        graph_of(helper.make_model(helper.make_graph(made, "g", [], [])), name="bad.onnx")


def test_optional_inputs_and_initializers_as_inputs(net: Any) -> None:
    """An input left out is no tensor; an initializer that is listed as input (IR 3) is no input."""
    net.input("x")
    net.constant("high", 6.0)
    net.op("Clip", "x", "", "high", name="y")
    proto = net.proto("y")
    proto.graph.input.append(helper.make_tensor_value_info("high", TensorProto.FLOAT, []))
    graph = graph_of(proto)
    assert graph.inputs == ("x",)
    assert "" not in graph.tensors
    assert graph.nodes["y"].reads == ("x", "high")


def test_shapes_are_a_help_only(net: Any) -> None:
    """Where ONNX's inference gives up, over a missing opset here, the model is read with what it declares."""
    net.input("x", 1, 8, 16, 16)
    net.op("Relu", net.op("Relu", "x", name="r"), name="y")
    proto = net.proto("y")
    del proto.opset_import[:]
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.shape_inference.infer_shapes(proto)
    graph = graph_of(proto)
    assert graph.tensors["x"].shape == (1, 8, 16, 16)
    assert graph.tensors["r"] == TensorInfo("r")


def test_weights_in_a_missing_file(tmp_path: Path, net: Any) -> None:
    """A model whose external data is missing has its graph, shapes and check all the same."""
    net.input("x")
    net.conv("x", name="conv")
    path = tmp_path / "model.onnx"
    onnx.save(net.proto("conv"), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    graph = read_graph(path)
    assert graph.tensors["conv"].shape == (1, 8, 16, 16)
    assert graph.constants == {"conv_w"}
    check_proto(load_proto(path), path)


def test_the_model_is_not_changed(net: Any) -> None:
    """Making a graph leaves the proto as it was, unnamed nodes too."""
    net.input("x")
    net.conv("x", name="conv", shape=(8, 8, 5, 5))
    proto = net.proto("conv")
    proto.graph.node[0].name = ""
    before = proto.SerializeToString(deterministic=True)
    assert list(graph_of(proto).nodes) == ["Conv_conv"]
    assert proto.SerializeToString(deterministic=True) == before


def test_large_constants_of_all_kinds_keep_their_shape() -> None:
    """Initializers, Constant nodes and initializers of bodies that are large are still described."""
    big = np.zeros(5000, np.float32)
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [5000])],
        [onnx.numpy_helper.from_array(big, "inner")],
    )
    nodes = [
        helper.make_node("Constant", [], ["held"], value=onnx.numpy_helper.from_array(big)),
        helper.make_node("Add", ["held", "stored"], ["x"]),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5000])],
            [onnx.numpy_helper.from_array(big, "stored")],
        )
    )
    graph = graph_of(proto)
    assert graph.constants >= {"held", "stored", "x"}
    assert graph.tensors["x"] == TensorInfo("x", "float", (5000,))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 this is a zip file", "is not an ONNX file, or was cut short"),
        (onnx.ModelProto(ir_version=9).SerializeToString(), "holds no ONNX graph"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, complaint: str) -> None:
    """What is no ONNX model is refused in one line that names the file."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        load_proto(path)
    assert str(path) in str(caught.value)


def test_truncated_file(tmp_path: Path, net: Any) -> None:
    """A file cut anywhere in its graph is refused."""
    net.input("x")
    net.conv("x", name="conv")
    content = net.proto("conv").SerializeToString()
    path = tmp_path / "model.onnx"
    for kept in (10, len(content) // 2, len(content) - 12):
        path.write_bytes(content[:kept])
        with pytest.raises(UserError, match=r"cut short|holds no ONNX graph"):
            load_proto(path)


@pytest.mark.parametrize(("name", "complaint"), [("", "is a folder"), ("none.onnx", "No such file")])
def test_paths_that_are_no_files(tmp_path: Path, name: str, complaint: str) -> None:
    """A folder or a missing file is refused."""
    with pytest.raises(UserError, match=complaint):
        load_proto(tmp_path / name)


def test_checker_names_the_node(net: Any) -> None:
    """What the ONNX checker finds is told in one line with the file and the node."""
    net.input("x")
    net.op("Relu", "x", name="act")
    proto = net.proto("act")
    proto.graph.node[0].attribute.append(helper.make_attribute("slope", 1.0))
    with pytest.raises(UserError, match=r"^m\.onnx: .*slope.*Name: act") as caught:
        check_proto(proto, "m.onnx")
    assert "\n" not in str(caught.value)
