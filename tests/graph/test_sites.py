"""Quantize sites: what makes a quantized tensor and who reads it, on hand-drawn graphs."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from fusescope.graph.model import ModelGraph, graph_of
from fusescope.graph.sites import QuantizeSite, conv_precision, number_format, quantize_sites


def only_site(graph: ModelGraph) -> QuantizeSite:
    """Return the one site of a graph."""
    (site,) = quantize_sites(graph)
    return site


def site_of(graph: ModelGraph, tensor: str) -> QuantizeSite:
    """Return the site on `tensor`."""
    (site,) = (site for site in quantize_sites(graph) if site.tensor == tensor)
    return site


def test_one_site_in_full(net: Any) -> None:
    """conv, Relu, Quantize, two convs: every field of the site."""
    net.input("x")
    net.op("Relu", net.conv("x", name="conv"), name="act")
    value = net.quantize("act")
    graph = net.graph(net.conv(value, name="a", form="fp8"), net.conv(value, name="b", form="fp8"))
    assert only_site(graph) == QuantizeSite(
        tensor="act",
        format="fp8",
        quantize=("act_q",),
        dequantize=("act_dq",),
        producer="conv",
        producer_kind="conv",
        path=("act",),
        readers=("a", "b"),
        high_precision_readers=(),
        branch_readers=(),
        is_graph_output=False,
        shape=(1, 8, 16, 16),
        dtype="float",
    )


@pytest.mark.parametrize(
    "activation",
    ["Relu", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Softplus", "Mish", "Identity"],
)
def test_producer_is_found_through_an_activation(net: Any, activation: str) -> None:
    """An activation of one tensor belongs to the conv before it."""
    net.input("x")
    net.op(activation, net.conv("x", name="conv"), name="act")
    net.conv(net.quantize("act"), name="next", form="fp8")
    site = only_site(net.graph("next"))
    assert (site.producer, site.path, site.branch_readers) == ("conv", ("act",), ())
    assert site.high_precision_readers == ()


def spelled(net: Any, form: str) -> list[str]:
    """Draw an activation of "conv" that ends in "act", out of simple operations; return its nodes."""
    first = len(net.nodes)
    two, half = net.constant("two", 2.0), net.constant("half", 0.5)
    match form:
        case "silu":
            net.op("Mul", "conv", net.op("Sigmoid", "conv", name="s"), name="act")
        case "hardswish":
            net.op("Mul", net.op("HardSigmoid", "conv", name="s"), "conv", name="act")
        case "mish":
            net.op("Mul", "conv", net.op("Tanh", net.op("Softplus", "conv", name="p"), name="t"), name="act")
        case "gelu":
            erf = net.op("Erf", net.op("Div", "conv", two, name="d"), name="e")
            product = net.op("Mul", "conv", net.op("Add", erf, two, name="p"), name="m")
            net.op("Mul", product, half, name="act")
        case "gelu by tanh":
            cube = net.op("Mul", net.op("Pow", "conv", two, name="c"), half, name="c2")
            inner = net.op("Tanh", net.op("Mul", net.op("Add", "conv", cube, name="i"), half, name="i2"), name="t")
            gate = net.op("Add", inner, two, name="g")
            net.op("Mul", net.op("Mul", "conv", half, name="h"), gate, name="act")
        case "batch norm and relu6":
            for name in ("gain", "shift", "mean", "var"):
                net.constant(name, np.ones(8))
            net.op("BatchNormalization", "conv", "gain", "shift", "mean", "var", name="bn")
            net.op("Clip", "bn", net.constant("zero", 0.0), net.constant("six", 6.0), name="act")
        case "bias and scale":
            net.op("Mul", two, net.op("Add", "conv", half, name="b"), name="act")
        case "prelu, flattened":
            net.op("Flatten", net.op("PRelu", "conv", half, name="p"), name="act")
    return [node.name for node in net.nodes[first:]]


@pytest.mark.parametrize(
    "form",
    [
        "silu",
        "hardswish",
        "mish",
        "gelu",
        "gelu by tanh",
        "batch norm and relu6",
        "bias and scale",
        "prelu, flattened",
    ],
)
def test_producer_is_found_through_what_exporters_spell_out(net: Any, form: str) -> None:
    """An activation made of many nodes is one activation; its own reads of the conv are no other readers."""
    net.input("x")
    net.conv("x", name="conv")
    nodes = spelled(net, form)
    net.op("Relu", net.quantize("act"), name="y")
    site = only_site(net.graph("y"))
    assert (site.producer, site.producer_kind) == ("conv", "conv")
    assert set(site.path) == set(nodes)
    assert (site.high_precision_readers, site.branch_readers) == ((), ())


def test_a_gate_from_another_branch_is_no_activation(net: Any) -> None:
    """Squeeze-and-excitation multiplies by something computed from the whole tensor: a product of its own."""
    net.input("x")
    net.conv("x", name="conv")
    net.op("GlobalAveragePool", "conv", name="pool")
    gate = net.op("Sigmoid", net.conv("pool", name="squeeze", shape=(8, 8, 1, 1)), name="gate")
    net.op("Mul", "conv", gate, name="scaled")
    net.conv(net.quantize("scaled"), name="next", form="fp8")
    site = only_site(net.graph("next"))
    assert (site.producer, site.producer_kind) == ("scaled", "mul")


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        ("MaxPool", {"kernel_shape": [2, 2]}, "pool"),
        ("GlobalAveragePool", {}, "pool"),
        ("Softmax", {}, "norm"),
        ("ReduceMax", {}, "reduce"),
        ("Abs", {}, "abs"),
    ],
)
def test_producers_without_epilogue(net: Any, kind: str, attributes: dict[str, Any], expected: str) -> None:
    """Other producers go by their kind, or by their operation in lower case."""
    net.input("x")
    net.op(kind, net.conv("x", name="conv"), name="made", **attributes)
    net.op("Relu", net.quantize("made"), name="y")
    site = only_site(net.graph("y"))
    assert (site.producer, site.producer_kind) == ("made", expected)


def test_graph_input_and_graph_output(net: Any) -> None:
    """A quantized input has no producer; an output of the graph is known as such, also behind an Identity."""
    net.input("x")
    net.conv(net.quantize("x"), name="conv", form="fp8")
    net.op("Identity", "conv", name="out")
    net.conv(net.quantize("conv"), name="next", form="fp8")
    graph = net.graph("out", "next")
    first, second = quantize_sites(graph)
    assert (first.tensor, first.producer, first.producer_kind) == ("x", None, "graph input")
    assert [site.is_graph_output for site in (first, second)] == [False, True]


def test_high_precision_readers_of_the_same_value(net: Any) -> None:
    """A reader behind a Cast needs the tensor too; one that only asks for its shape does not."""
    net.input("x")
    net.conv("x", name="conv")
    net.op("Cast", "conv", name="half", to=TensorProto.FLOAT16)
    net.op("Relu", "half", name="other")
    net.op("Shape", "conv", name="shape")
    net.op("Reshape", "x", "shape", name="reshaped")
    net.conv(net.quantize("conv"), name="next", form="fp8")
    net.op("Tanh", "conv", name="direct")
    graph = net.graph("next", "reshaped", "direct")
    assert only_site(graph).high_precision_readers == ("other", "direct")


def test_readers_before_the_activation_are_on_a_branch(net: Any) -> None:
    """Who reads the conv before its activation does not read the quantized value, but keeps the conv from it."""
    net.input("x")
    net.op("Relu", net.conv("x", name="conv"), name="act")
    net.op("Tanh", "conv", name="other")
    net.conv(net.quantize("act"), name="next", form="fp8")
    site = only_site(net.graph("next", "other"))
    assert (site.high_precision_readers, site.branch_readers) == ((), ("other",))


def test_weights_are_no_sites(net: Any) -> None:
    """A weight that is quantized in the graph, constant Quantize and all, is no activation."""
    net.input("x")
    weight = net.quantize(net.constant("w", np.ones((8, 8, 3, 3))))
    net.op("Conv", net.quantize("x"), weight, name="conv", pads=[1] * 4)
    graph = net.graph("conv")
    assert only_site(graph).tensor == "x"
    assert conv_precision(graph, graph.nodes["conv"]) == "fp8"


def test_several_quantizes_of_a_tensor(net: Any) -> None:
    """Quantizes of one tensor to one format are one site; another format is another site."""
    net.input("x")
    one, two = net.quantize("x", name="one"), net.quantize("x", name="two")
    other = net.quantize("x", "int8", name="other")
    outputs = [net.conv(value, name=f"c_{value}", form="fp8") for value in (one, two)]
    graph = net.graph(*outputs, net.conv(other, name="c", form="int8"))
    fp8, int8 = quantize_sites(graph)
    assert (fp8.format, fp8.quantize, fp8.dequantize) == ("fp8", ("one_q", "two_q"), ("one_dq", "two_dq"))
    assert fp8.readers == ("c_one_dq", "c_two_dq")
    assert (int8.format, int8.quantize, int8.readers) == ("int8", ("other_q",), ("c",))


def test_requantized_tensor(net: Any) -> None:
    """A Quantize straight behind a Dequantize is a site whose producer is that Dequantize."""
    net.input("x")
    value = net.quantize("x")
    net.conv(net.quantize(value, name="again"), name="conv", form="fp8")
    graph = net.graph("conv")
    site = site_of(graph, value)
    assert (site.producer, site.producer_kind) == (value, "dequantize")
    assert site_of(graph, "x").readers == ("again_q",)


def test_data_movement_in_8_bits(net: Any) -> None:
    """A max pool between Quantize and Dequantize moves codes: the reader is the conv behind it."""
    net.input("x")
    value = net.quantize("x", "int8")
    net.nodes.insert(1, helper.make_node("MaxPool", ["x_q"], ["pooled"], name="pooled", kernel_shape=[2, 2]))
    net.nodes[2].input[0] = "pooled"
    site = only_site(net.graph(net.conv(value, name="conv", form="int8")))
    assert (site.dequantize, site.readers) == (("x_dq",), ("conv",))


def test_modelopt_operations(net: Any) -> None:
    """The custom Quantize and Dequantize that ModelOpt exports from torch count as what they are."""
    net.input("x")
    net.constant("scale", 0.5)
    net.constant("w", np.ones((8, 8, 1, 1)))
    for tensor in ("x", "w"):
        codes = net.op("TRT_FP8QuantizeLinear", tensor, "scale", name=f"{tensor}_q", domain="trt")
        net.op("TRT_FP8DequantizeLinear", codes, "scale", name=f"{tensor}_dq", domain="trt")
    net.op("Conv", "x_dq", "w_dq", name="conv")
    graph = graph_of(helper.make_model(helper.make_graph(net.nodes, "g", net.inputs, [], net.initializers.values())))
    assert (only_site(graph).format, only_site(graph).readers) == ("fp8", ("conv",))
    assert conv_precision(graph, graph.nodes["conv"]) == "fp8"


def test_codes_whose_type_the_file_has_wrong(net: Any) -> None:
    """ModelOpt's torch exporter leaves codes declared as uint8 behind; a Dequantize reads what its Quantize wrote."""
    net.input("x")
    value = net.quantize("x")
    del net.nodes[-1].input[2]
    for node in net.nodes:
        node.domain = "trt"
    net.op("Relu", value, name="read")
    proto = helper.make_model(helper.make_graph(net.nodes, "g", net.inputs, [], net.initializers.values()))
    proto.graph.value_info.append(helper.make_tensor_value_info("x_q", TensorProto.UINT8, [1, 8, 16, 16]))
    graph = graph_of(proto)
    assert graph.tensors["x_q"].dtype == "uint8"
    assert only_site(graph).format == number_format(graph, graph.nodes["x_dq"]) == "fp8"


@pytest.mark.parametrize(
    ("data", "weight", "expected"),
    [("fp8", "fp8", "fp8"), ("int8", "int8", "int8"), ("fp8", "int8", None), ("fp8", "", None), ("", "fp8", None)],
)
def test_conv_precision(net: Any, data: str, weight: str, expected: str | None) -> None:
    """A conv runs in 8 bits if both operands were dequantized from the same format."""
    net.input("x")
    graph = net.graph(net.conv(net.quantize("x", data) if data else "x", name="conv", form=weight))
    assert conv_precision(graph, graph.nodes["conv"]) == expected


def block(net: Any, skip: str, *, name: str, stride: int = 1) -> str:
    """Draw a residual block: two convs and a skip, which has a conv of its own if the block has a stride."""
    first = net.op("Relu", net.conv(skip, name=f"{name}_a", strides=[stride, stride]), name=f"{name}_r")
    second = net.conv(first, name=f"{name}_b")
    if stride > 1:
        skip = net.conv(skip, name=f"{name}_down", shape=(8, 8, 1, 1), strides=[stride, stride])
    net.op("Add", second, skip, name=f"{name}_sum")
    return str(net.op("Relu", f"{name}_sum", name=name))


def kind(net: Any, tensor: str) -> str:
    """Return the kind of producer of `tensor`, which is quantized for it."""
    net.op("Relu", net.quantize(tensor), name="end")
    return only_site(net.graph("end")).producer_kind


@pytest.mark.parametrize("stride", [1, 2])
def test_residual_sum(net: Any, stride: int) -> None:
    """A block's branch and its skip make a residual sum, be the skip the input or a downsampling conv of it."""
    net.input("x")
    assert kind(net, block(net, block(net, "x", name="first"), name="second", stride=stride)) == "residual sum"


def test_residual_sum_without_activation(net: Any) -> None:
    """Blocks that add without an activation (MobileNet, transformers) are not mistaken for a chain of branches."""
    tensor = net.input("x")
    for index in range(3):
        tensor = net.op("Add", tensor, net.conv(tensor, name=f"c{index}"), name=f"s{index}")
    assert kind(net, tensor) == "residual sum"


def test_residual_sum_around_squeeze_and_excitation(net: Any) -> None:
    """A gate inside the block does not hide that branch and skip start at one tensor."""
    net.input("x")
    net.conv("x", name="a")
    gate = net.op("Sigmoid", net.op("GlobalAveragePool", "a", name="pool"), name="gate")
    net.conv(net.op("Mul", "a", gate, name="scaled"), name="b")
    assert kind(net, net.op("Add", "b", "x", name="sum")) == "residual sum"


def test_fuse_sum_of_three(net: Any) -> None:
    """A chain of Adds over three branches is one fuse sum."""
    net.input("x")
    branches = [block(net, "x", name=name) for name in "abc"]
    inner = net.op("Add", branches[0], branches[1], name="inner")
    assert kind(net, net.op("Add", inner, branches[2], name="outer")) == "fuse sum"


def test_fuse_sum_over_resize(net: Any) -> None:
    """A branch that is resized to the other's resolution makes a fuse sum."""
    net.input("x")
    fine = block(net, "x", name="fine")
    coarse = block(net, net.conv("x", name="down", strides=[2, 2]), name="coarse")
    net.constant("scales", [1, 1, 2, 2])
    up = net.op("Resize", net.conv(coarse, name="fit"), "", "scales", name="up", mode="nearest")
    assert kind(net, net.op("Add", fine, up, name="sum")) == "fuse sum"


def test_fuse_sum_over_a_strided_conv_of_another_branch(net: Any) -> None:
    """A branch that is strided down to the other's resolution makes a fuse sum."""
    net.input("x")
    fine = block(net, "x", name="fine")
    coarse = block(net, net.conv("x", name="down", strides=[2, 2]), name="coarse")
    assert kind(net, net.op("Add", coarse, net.conv(fine, name="fit", strides=[2, 2]), name="sum")) == "fuse sum"


def test_other_sums(net: Any) -> None:
    """Two inputs of one size that have nothing in common are just summed; so is a tensor with its pool."""
    net.input("x")
    net.input("w")
    assert kind(net, net.op("Add", "x", "w", name="sum")) == "sum"
    net = type(net)()
    net.input("x")
    net.op("AveragePool", "x", name="pool", kernel_shape=[3, 3], pads=[1] * 4)
    assert kind(net, net.op("Add", "x", "pool", name="sum")) == "sum"


def test_hourglass_skip_is_a_fuse_sum(net: Any) -> None:
    """A branch that went down and was resized up again has another resolution than the skip beside it."""
    net.input("x")
    net.conv("x", name="down", strides=[2, 2])
    net.op("Resize", "down", "", net.constant("scales", [1, 1, 2, 2]), name="up", mode="nearest")
    assert kind(net, net.op("Add", "up", "x", name="sum")) == "fuse sum"


def test_branches_are_counted_through_casts(net: Any) -> None:
    """A chain of Adds stays one sum where an exporter put a Cast or Identity between them."""
    net.input("x")
    one, two, three = (block(net, "x", name=name) for name in "abc")
    inner = net.op("Identity", net.op("Add", one, two, name="inner"), name="same")
    assert kind(net, net.op("Add", inner, three, name="outer")) == "fuse sum"
