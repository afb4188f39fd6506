"""What the documented rules predict, one hand-drawn graph for each rule."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.model import ModelGraph, graph_of, load_proto
from fusescope.graph.reader_rules import READER_RULES, node_findings
from fusescope.graph.rules import (
    PREDICTIONS,
    RULES,
    Prediction,
    grouped_fp8_convs,
    predict,
    predictions,
)
from fusescope.graph.sites import quantize_sites

SAMPLES = Path(__file__).parents[2] / "samples"


def predicted(graph: ModelGraph, tensor: str, **where: str) -> Prediction:
    """Return the prediction for the site on `tensor`."""
    (site,) = (site for site in quantize_sites(graph) if site.tensor == tensor)
    return predict(graph, site, **where)


def conv8(net: Any, tensor: str, *, name: str, form: str = "fp8", **options: Any) -> str:
    """Draw an 8-bit conv that reads `tensor` through a Quantize and Dequantize of its own."""
    return str(net.conv(net.quantize(tensor, form), name=name, form=form, **options))


# Each draws a model whose site in question is on the tensor "t", and returns the model's outputs.


def chain(net: Any) -> list[str]:
    """Two 8-bit convs with a Relu between."""
    net.op("Relu", conv8(net, "x", name="first"), name="t")
    return [conv8(net, "t", name="y")]


def chain_of_gemms(net: Any) -> list[str]:
    """Two 8-bit MatMuls with a bias between."""
    weight = net.quantize(net.constant("w", np.ones((16, 16))))
    product = net.op("MatMul", net.quantize("x"), weight, name="product")
    net.op("Add", product, net.constant("bias", np.ones(16)), name="t")
    return [net.op("MatMul", net.quantize("t"), weight, name="y")]


def quantized_skip(net: Any) -> list[str]:
    """A residual sum whose skip is dequantized."""
    net.conv(net.quantize("x"), name="first", form="fp8")
    net.op("Relu", net.op("Add", "first", "x_dq", name="sum"), name="t")
    return [conv8(net, "t", name="y")]


def plain_skip(net: Any) -> list[str]:
    """A residual sum whose skip is in high precision."""
    net.op("Relu", net.op("Add", conv8(net, "x", name="first"), "x", name="sum"), name="t")
    return [conv8(net, "t", name="y")]


def skip_of_unquantized_conv(net: Any) -> list[str]:
    """A dequantized skip added to a conv that is not quantized."""
    net.op("Add", net.conv("x", name="first"), net.quantize("x"), name="t")
    return [conv8(net, "t", name="y")]


def both_operands_quantized(net: Any) -> list[str]:
    """A sum whose operands are both dequantized."""
    first = net.quantize(conv8(net, "x", name="first"))
    net.op("Add", first, "x_dq", name="t")
    return [conv8(net, "t", name="y")]


def sum_read_in_high_precision(net: Any) -> list[str]:
    """A residual sum that is the skip of the next block."""
    net.op("Add", conv8(net, "x", name="first"), "x_dq", name="t")
    return [net.op("Add", conv8(net, "t", name="second"), "t", name="y")]


def other_reader(net: Any) -> list[str]:
    """A conv read by a Tanh too, behind its Relu."""
    net.op("Relu", conv8(net, "x", name="first"), name="t")
    return [conv8(net, "t", name="y"), net.op("Tanh", "t", name="z")]


def reader_before_the_activation(net: Any) -> list[str]:
    """A conv read by a Tanh too, before its Relu."""
    net.op("Relu", conv8(net, "x", name="first"), name="t")
    return [conv8(net, "t", name="y"), net.op("Tanh", "first", name="z")]


def graph_output(net: Any) -> list[str]:
    """A conv that is an output of the model too."""
    conv8(net, "x", name="t")
    return [conv8(net, "t", name="y"), "t"]


def graph_input(net: Any) -> list[str]:
    """An input of the model, quantized."""
    net.input("t")
    return [conv8(net, "t", name="y")]


def pooled(net: Any) -> list[str]:
    """A max pool of an 8-bit conv."""
    net.op("MaxPool", conv8(net, "x", name="first"), name="t", kernel_shape=[2, 2])
    return [conv8(net, "t", name="y")]


def joined(net: Any) -> list[str]:
    """A Concat of an 8-bit conv and the input."""
    net.op("Concat", conv8(net, "x", name="first"), "x", name="t", axis=2)
    return [conv8(net, "t", name="y")]


def normed(net: Any) -> list[str]:
    """A Softmax of an 8-bit conv."""
    net.op("Softmax", conv8(net, "x", name="first"), name="t")
    return [conv8(net, "t", name="y")]


def requantized(net: Any) -> list[str]:
    """A Quantize straight behind a Dequantize."""
    net.nodes.append(helper.make_node("Relu", ["x"], ["x2"], name="x2"))
    net.quantize("x2", name="t0")
    net.nodes[-1].output[0] = "t"
    return [conv8(net, "t", name="y")]


def unquantized_producer(net: Any) -> list[str]:
    """An 8-bit conv behind one in high precision."""
    net.op("Relu", net.conv("x", name="first"), name="t")
    return [conv8(net, "t", name="y")]


def producer_of_another_format(net: Any) -> list[str]:
    """An FP8 conv behind an INT8 conv."""
    conv8(net, "x", name="t", form="int8")
    return [conv8(net, "t", name="y", form="fp8")]


def grouped_producer(net: Any) -> list[str]:
    """An FP8 conv behind a depthwise FP8 conv."""
    conv8(net, "x", name="t", shape=(8, 1, 3, 3), group=8)
    return [conv8(net, "t", name="y")]


def grouped_int8_producer(net: Any) -> list[str]:
    """An INT8 conv behind a depthwise INT8 conv."""
    conv8(net, "x", name="t", form="int8", shape=(8, 1, 3, 3), group=8)
    return [conv8(net, "t", name="y", form="int8")]


def nobody(net: Any) -> list[str]:
    """A Quantize and Dequantize that nothing reads."""
    conv8(net, "x", name="t")
    net.quantize("t")
    return [net.op("Relu", "t", name="y")]


def reader_without_weights_quantized(net: Any) -> list[str]:
    """A conv with only its activation in 8 bits."""
    conv8(net, "x", name="t")
    return [net.conv(net.quantize("t"), name="y")]


def reader_without_kernel(net: Any) -> list[str]:
    """A Softmax of a dequantized tensor."""
    conv8(net, "x", name="t")
    return [net.op("Softmax", net.quantize("t"), name="y")]


def transposed_reader(net: Any) -> list[str]:
    """A transposed conv in FP8."""
    conv8(net, "x", name="t")
    weight = net.quantize(net.constant("w", np.ones((8, 8, 2, 2))))
    return [net.op("ConvTranspose", net.quantize("t"), weight, name="y", strides=[2, 2])]


@pytest.mark.parametrize(
    ("draw", "prediction", "reason"),
    [
        (chain, "fuses", "conv output read in 8 bits only"),
        (chain_of_gemms, "fuses", "gemm output read in 8 bits only"),
        (quantized_skip, "fuses", "residual sum with a quantized skip"),
        (plain_skip, "separate", "residual sum over a high-precision operand"),
        (skip_of_unquantized_conv, "separate", "residual sum over a high-precision operand"),
        (both_operands_quantized, "uncertain", "residual sum of quantized operands"),
        (sum_read_in_high_precision, "separate", "residual sum with a high-precision reader"),
        (other_reader, "separate", "conv output with a high-precision reader"),
        (reader_before_the_activation, "separate", "conv output with a high-precision reader"),
        (graph_output, "separate", "graph output"),
        (graph_input, "separate", "graph input"),
        (pooled, "separate", "pool"),
        (joined, "separate", "concat"),
        (normed, "separate", "norm"),
        (requantized, "separate", "re-quantized"),
        (unquantized_producer, "uncertain", "after an unquantized conv"),
        (producer_of_another_format, "uncertain", "conv output of another format"),
        (grouped_producer, "uncertain", "after a grouped FP8 conv"),
        (grouped_int8_producer, "fuses", "conv output read in 8 bits only"),
        (nobody, "lost", "no reader"),
        (reader_without_weights_quantized, "lost", "only one operand in 8 bits"),
        (reader_without_kernel, "lost", "reader without 8-bit kernel"),
        (transposed_reader, "lost", "FP8 transposed conv"),
    ],
)
def test_rule(net: Any, draw: Callable[[Any], list[str]], prediction: str, reason: str) -> None:
    """Each rule decides on the smallest graph that it is about, and says where it is from."""
    net.input("x")
    found = predicted(net.graph(*draw(net)), "t")
    assert (found.prediction, found.reason) == (prediction, reason)
    assert found.source
    assert found.explanation.endswith(".")
    assert bool(found.remedy) == (prediction != "fuses")


@pytest.mark.parametrize("draw", [chain, quantized_skip, unquantized_producer, other_reader])
def test_rtx_never_fuses(net: Any, draw: Callable[[Any], list[str]]) -> None:
    """TensorRT for RTX writes no 8-bit tensor from a conv, whatever full TensorRT does."""
    net.input("x")
    graph = net.graph(*draw(net))
    assert predicted(graph, "t", runtime="tensorrt-rtx").prediction == "separate"


@pytest.mark.parametrize(
    ("kernel", "target", "prediction"),
    [
        ((4, 8), "sm89", "fuses"),
        ((3, 11), "sm89", "lost"),
        ((7, 7), "sm90", "lost"),
        ((7, 7), "sm120", "lost"),
        ((7, 7), "sm100", "fuses"),
        ((3, 3), "sm86", "lost"),
    ],
)
def test_targets(net: Any, kernel: tuple[int, int], target: str, prediction: str) -> None:
    """FP8 convs of more than 32 taps are lost on the targets that the release notes name, and all without FP8."""
    net.input("x")
    conv8(net, "x", name="t")
    graph = net.graph(conv8(net, "t", name="y", shape=(8, 8, *kernel)))
    found = predicted(graph, "t", target=target)
    assert found.prediction == prediction
    assert found.lost_readers == (("y",) if prediction == "lost" else ())


def test_a_large_kernel_cannot_write_8_bits_either(net: Any) -> None:
    """A conv that falls back to high precision is no 8-bit producer on that target."""
    net.input("x")
    conv8(net, "x", name="t", shape=(8, 8, 7, 7))
    graph = net.graph(conv8(net, "t", name="y"))
    assert predicted(graph, "t", target="sm100").prediction == "fuses"
    assert predicted(graph, "t", target="sm89").reason == "after an unquantized conv"


def test_some_readers_lost(net: Any) -> None:
    """Where one reader runs in 8 bits and another cannot, the site is not lost, and the other is named."""
    net.input("x")
    conv8(net, "x", name="t")
    value = net.quantize("t")
    graph = net.graph(net.conv(value, name="y", form="fp8"), net.conv(value, name="z"))
    found = predicted(graph, "t")
    assert (found.prediction, found.lost_readers) == ("fuses", ("z",))


def test_rtx_loses_8_bits_behind_a_max_pool(net: Any) -> None:
    """A max pool between Dequantize and conv costs the conv its 8 bits on TensorRT for RTX only."""
    net.input("x")
    conv8(net, "x", name="t")
    net.op("MaxPool", net.quantize("t"), name="pool", kernel_shape=[2, 2])
    graph = net.graph(net.conv("pool", name="y", form="fp8"))
    found = {rule.rule.reason for rule in node_findings(graph, "tensorrt-rtx")}
    assert "max pool between Dequantize and conv" in found
    assert node_findings(graph, "tensorrt") == ()


def test_grouped_fp8_convs(net: Any) -> None:
    """Grouped and depthwise FP8 convs are named; those in INT8 or high precision are not."""
    net.input("x")
    conv8(net, "x", name="depthwise", shape=(8, 1, 3, 3), group=8)
    conv8(net, "depthwise", name="grouped", shape=(8, 4, 3, 3), group=2)
    conv8(net, "grouped", name="dense")
    conv8(net, "dense", name="int8", form="int8", shape=(8, 1, 3, 3), group=8)
    net.conv("int8", name="plain", shape=(8, 1, 3, 3), group=8)
    assert grouped_fp8_convs(net.graph("plain")) == ("depthwise", "grouped")


def test_padding_is_found_on_rtx(net: Any) -> None:
    """FP8 convs whose input channels are no multiple of 4 are findings on TensorRT for RTX."""
    net.input("x", 1, 18, 8, 8)
    conv8(net, "x", name="narrow", shape=(8, 18, 3, 3))
    graph = net.graph(conv8(net, "narrow", name="y"))
    (finding,) = node_findings(graph, "tensorrt-rtx")
    assert (finding.node, finding.rule.blocks) == ("narrow", False)
    assert node_findings(graph) == ()


def test_tables_are_well_formed() -> None:
    """Rules have names of their own, a source and a sentence; every prediction is some rule's."""
    names = [rule.name for rule in RULES] + [rule.name for rule in READER_RULES]
    assert len(set(names)) == len(names)
    assert all(rule.source and rule.explanation.endswith(".") for rule in RULES)
    assert all(rule.source and rule.explanation.endswith(".") for rule in READER_RULES)
    assert {rule.prediction for rule in RULES} == set(PREDICTIONS)


def with_conv_inputs_quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize to FP8 what convs of more than three channels read, one pair per tensor, and their weights."""
    shapes = graph_of(proto).tensors
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float16), "s"))
    proto.graph.initializer.append(helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True))
    pairs: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Conv" and shapes[node.input[1]].shape[1] > 3:  # type: ignore[index, operator]
            for position in (0, 1):
                tensor = node.input[position]
                if tensor not in pairs:
                    pairs[tensor] = f"{tensor}_dq"
                    for kind, source, result in (
                        ("Quantize", tensor, f"{tensor}_q"),
                        ("Dequantize", f"{tensor}_q", f"{tensor}_dq"),
                    ):
                        proto.graph.node.append(
                            helper.make_node(f"{kind}Linear", [source, "s", "z"], [result], name=result)
                        )
                node.input[position] = pairs[tensor]
        proto.graph.node.append(node)
    return proto


def test_published_study_of_hrnet() -> None:
    """On HRNet-W18 with the published recipe: 280 sites, 142 apart (138 sums, 4 conv outputs), 137 fuse, 1 open."""
    graph = graph_of(with_conv_inputs_quantized(load_proto(SAMPLES / "hrnet_w18.onnx")))
    sites = quantize_sites(graph)
    found = predictions(graph, sites)
    assert Counter(prediction.prediction for prediction in found) == {"separate": 142, "fuses": 137, "uncertain": 1}
    apart = [site for site, prediction in zip(sites, found, strict=True) if prediction.prediction == "separate"]
    assert Counter("sum" in site.producer_kind for site in apart) == {True: 138, False: 4}
    assert all(
        site.producer_kind == "conv" and site.high_precision_readers
        for site in apart
        if "sum" not in site.producer_kind
    )
    # The published 107 Quantizes that stand alone: consistent with these, by blocks of stages 1 to 4.
    reasons = Counter(prediction.reason for prediction in found)
    assert reasons["residual sum with a high-precision reader"] == 3 + 8 + 48 + 48
    (stem,) = (site for site, prediction in zip(sites, found, strict=True) if prediction.prediction == "uncertain")
    assert graph.tensors[graph.nodes[stem.producer or ""].inputs[1]].shape == (64, 3, 3, 3)
