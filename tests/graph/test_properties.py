"""What holds for any graph, tried on random ones."""

from collections import Counter
from typing import Any

import networkx as nx
import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.model import ModelGraph, graph_of
from fusescope.graph.ops import QUANTIZE
from fusescope.graph.rules import PREDICTIONS, predictions
from fusescope.graph.sites import quantize_sites
from fusescope.graph.structure import fill, strip

OPS = [
    *("Relu", "Sigmoid", "Cast", "Identity", "Add", "Mul", "Sum", "Conv", "MatMul", "Concat", "MaxPool", "Resize"),
    *("Clip", "Split", "Shape", "Constant", "If", "Loop", "Unheard", "QuantizeLinear", "DequantizeLinear"),
]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw graphs of any shape: nodes read any earlier tensors, optional ones or none, and names may be bad."""
    known = ["x", "c", "weight", "scale", "zero"]
    nodes = []
    for index in range(draw(st.integers(0, 14))):
        op = draw(st.sampled_from(OPS))
        inputs = draw(st.lists(st.sampled_from(["", *known[-6:], *known[:5]]), min_size=1, max_size=3))
        outputs = [f"t{index}"] + ([f"u{index}", ""] if op == "Split" else [])
        if op in {"QuantizeLinear", "DequantizeLinear"}:
            inputs = [inputs[0] or "x", "scale", *draw(st.sampled_from([[], [""], ["zero"]]))]
        attributes: dict[str, Any] = {}
        if op in {"If", "Loop"}:
            body = helper.make_graph([helper.make_node("Relu", [inputs[0] or "x"], ["b"])], "body", [], [])
            attributes = {"then_branch": body, "else_branch": body} if op == "If" else {"body": body}
        if op == "Constant":
            inputs, attributes = [], {"value_float": 1.0}
        name = draw(st.sampled_from(["", "same", f"n{index}", "a\x1fb"]))
        nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))
        known += [output for output in outputs if output]
    outputs = draw(st.lists(st.sampled_from(known), max_size=3, unique=True))
    graph = helper.make_graph(
        draw(st.permutations(nodes)),
        "random",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 4, 4]) for name in ("x", "c")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "weight"),
            numpy_helper.from_array(np.array(0.5, np.float32), "scale"),
            helper.make_tensor("zero", TensorProto.INT8, [], [0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


anything = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def depends_on_activation(graph: ModelGraph, tensor: str) -> bool:
    """Whether networkx finds a way to a tensor from an input, or from a node that reads nothing."""
    ancestors = nx.ancestors(graph.digraph, ("tensor", tensor)) | {("tensor", tensor)}
    sources = [name for kind, name in ancestors if kind == "tensor" and graph.producer(name) is None]
    makers = [graph.nodes[name] for kind, name in ancestors if kind == "node"]
    stored = {"weight", "scale", "zero"}
    return any(name not in stored for name in sources) or any(
        not node.reads and node.op != "Constant" for node in makers
    )


@anything
@given(models())
def test_nodes_come_in_topological_order(proto: onnx.ModelProto) -> None:
    """Whatever the order in the file, each node comes after what makes its inputs, and none is lost."""
    graph = graph_of(proto)
    assert len(graph.nodes) == len(proto.graph.node)
    order = {("node", name): place for name, place in graph.positions.items()}
    for name, node in graph.nodes.items():
        for tensor in node.reads:
            producer = graph.producer(tensor)
            assert producer is None or order["node", producer.name] < order["node", name]


@anything
@given(models())
def test_each_quantize_of_an_activation_is_in_one_site(proto: onnx.ModelProto) -> None:
    """Sites hold every Quantize of what is no constant, once; their nodes exist; readers are never Quantizes."""
    graph = graph_of(proto)
    sites = quantize_sites(graph)
    held = Counter(name for site in sites for name in site.quantize)
    expected = {
        node.name
        for node in graph.nodes.values()
        if node.op in QUANTIZE and depends_on_activation(graph, node.inputs[0])
    }
    assert held == Counter(expected)
    for site in sites:
        assert {*site.path, *site.readers, *site.dequantize, *site.branch_readers} <= graph.nodes.keys()
        assert all(graph.nodes[name].op not in QUANTIZE for name in site.high_precision_readers)
        assert (site.producer is None) == (site.producer_kind in {"graph input", "unknown"})


@anything
@given(models(), st.sampled_from(["tensorrt", "tensorrt-rtx"]), st.sampled_from([None, "sm86", "sm89", "sm100"]))
def test_predictions_add_up_to_the_sites(proto: onnx.ModelProto, runtime: str, target: str | None) -> None:
    """Each site has one prediction of the four, with its reason, on every runtime and target."""
    graph = graph_of(proto)
    sites = quantize_sites(graph)
    found = predictions(graph, sites, runtime, target)
    counts = Counter(prediction.prediction for prediction in found)
    assert sum(counts[name] for name in PREDICTIONS) == len(sites) == len(found)
    assert all(prediction.reason and "{" not in prediction.reason for prediction in found)
    lost = [site for site, prediction in zip(sites, found, strict=True) if prediction.prediction == "lost"]
    for site, prediction in zip(sites, found, strict=True):
        assert set(prediction.lost_readers) <= set(site.readers)
        if site.readers:
            assert (set(prediction.lost_readers) == set(site.readers)) == (site in lost)


@anything
@given(models())
def test_strip_and_fill_keep_the_structure(proto: onnx.ModelProto) -> None:
    """Through strip and fill, nodes and initializers stay what they were, but for the weights' values."""
    filled = fill(strip(proto))
    assert list(filled.graph.node) == list(proto.graph.node)
    assert {t.name: (t.data_type, list(t.dims)) for t in filled.graph.initializer} == {
        t.name: (t.data_type, list(t.dims)) for t in proto.graph.initializer
    }
    assert quantize_sites(graph_of(filled)) == quantize_sites(graph_of(proto))
