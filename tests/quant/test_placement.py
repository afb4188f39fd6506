"""Placements on a small residual network whose right answers are drawn by hand, and on HRNet-W18.

In the network `ar` is read by two convolutions, `sr` by the first convolution and by the residual Add, `fr` by the
second convolution only; the stem and the classifier keep high precision.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from fusescope.cli.quantize import OPS
from fusescope.cli.quantize import PLACEMENTS as OFFERED
from fusescope.cli.quantize import SHAPE_CLASSES as OFFERED_SHAPES
from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.graph.ops import WEIGHTED
from fusescope.graph.rules import predictions
from fusescope.graph.sites import quantize_sites
from fusescope.quant.insert import QuantizedModel, quantize
from fusescope.quant.placement import PLACEMENTS, calibration_tensors
from fusescope.quant.weighted import SHAPE_CLASSES

SAMPLES = Path(__file__).parents[2] / "samples"
MakeNet = Callable[..., onnx.ModelProto]


def readers_of(model: QuantizedModel) -> dict[str, list[str]]:
    """Each quantized tensor, and the nodes that read behind its Dequantize."""
    nodes = model.proto.graph.node
    pairs = {node.output[0]: node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    values = {node.output[0]: pairs[node.input[0]] for node in nodes if node.input[0] in pairs}
    found: dict[str, list[str]] = {tensor: [] for tensor in pairs.values()}
    for node in nodes:
        for tensor in node.input:
            if tensor in values:
                found[values[tensor]].append(node.name)
    return found


def expected_of(model: QuantizedModel) -> Counter[str]:
    """Count what the rules of full TensorRT expect of the Quantize sites."""
    graph = graph_of(model.proto)
    return Counter(each.prediction for each in predictions(graph, quantize_sites(graph)))


def test_the_command_offers_what_there_is() -> None:
    """The names that the command line has typed in are those of the code."""
    assert tuple(PLACEMENTS) == OFFERED
    assert tuple(SHAPE_CLASSES) == OFFERED_SHAPES
    assert set(OPS) == WEIGHTED


def test_what_calibration_must_look_at(residual_net: MakeNet) -> None:
    """The inputs of convolutions and gemms and the operands of sums; no weights and no biases."""
    assert calibration_tensors(graph_of(residual_net())) == ("x", "sr", "fr", "d", "ar", "l", "r", "t")


def test_conv_inputs(residual_net: MakeNet) -> None:
    """Only convolutions read in 8 bits."""
    assert readers_of(quantize(residual_net())) == {"sr": ["first"], "fr": ["second"], "ar": ["left", "right"]}


def test_shared_skips(residual_net: MakeNet) -> None:
    """The Add reads the skip through the Dequantize that the first convolution reads, and the sum then fuses."""
    model = quantize(residual_net(), placement="shared-skips")
    assert readers_of(model) == {"sr": ["first", "sum"], "fr": ["second"], "ar": ["left", "right"]}
    assert expected_of(quantize(residual_net())) == {"fuses": 1, "separate": 2}
    assert expected_of(model) == {"fuses": 2, "uncertain": 1}
    graph = graph_of(model.proto)
    told = {
        site.tensor: each
        for site, each in zip(quantize_sites(graph), predictions(graph, quantize_sites(graph)), strict=True)
    }
    assert (told["ar"].prediction, told["ar"].reason) == ("fuses", "residual sum with a quantized skip")


def test_shared_skips_leaves_what_is_kept(residual_net: MakeNet) -> None:
    """Operations that are kept, and convolutions that are, go on reading the tensor itself."""
    model = quantize(residual_net(), placement="shared-skips", keep_ops=["Add"])
    assert readers_of(model)["sr"] == ["first"]
    model = quantize(residual_net(), placement="shared-skips", keep=["left"])
    assert readers_of(model)["ar"] == ["right"]
    assert model.kept["left"] == "--keep left"


def test_fusable_only_by_the_rules(residual_net: MakeNet) -> None:
    """`fr` alone is expected to fuse: it is an 8-bit convolution's output that only a convolution reads."""
    model = quantize(residual_net(), placement="fusable-only")
    assert model.tensors == ("fr",)
    assert model.quantized == ("second",)
    assert (
        model.kept["first"]
        == "the rules expect its input's Quantize to be separate: conv output with a high-precision reader"
    )
    assert model.kept["left"] == (
        "the rules expect its input's Quantize to be separate: residual sum over a high-precision operand"
    )


def test_fusable_only_by_a_run(residual_net: MakeNet) -> None:
    """What stands alone in a run, and what it did not judge, is left out."""
    model = quantize(residual_net(), placement="fusable-only", verdicts={"sr": "merged", "fr": "alone"})
    assert model.tensors == ("sr",)
    assert model.kept["second"] == "its input's Quantize is alone in the run"
    assert model.kept["left"] == "its input's Quantize is not in the run"
    with pytest.raises(UserError, match="the run judged no tensor of this model"):
        quantize(residual_net(), placement="fusable-only", verdicts={"other": "fused"})


def test_explicit(residual_net: MakeNet) -> None:
    """Listed tensors, by name or pattern; one that no convolution reads is read in 8 bits by whatever reads it."""
    model = quantize(residual_net(), placement="explicit", tensors=["fr", "d"])
    assert readers_of(model) == {"fr": ["second"], "d": ["sum"]}
    assert model.kept["first"] == "its input is not listed"
    assert quantize(residual_net(), placement="explicit", tensors=["?r"]).tensors == ("sr", "fr", "ar")
    with pytest.raises(UserError, match=re.escape("'sx' matches no activation tensor; tensors are called such as x")):
        quantize(residual_net(), placement="explicit", tensors=["sx"])


def test_a_tensor_with_no_range_is_left_out_everywhere(residual_net: MakeNet) -> None:
    """A range of zero keeps the tensor's readers in high precision, in each placement."""
    amax = {"sr": 0.0, "fr": 1.0, "ar": 1.0}
    for options in ({"placement": "shared-skips"}, {"placement": "explicit", "tensors": ["sr", "fr", "ar"]}):
        model = quantize(residual_net(), amax=amax, **options)  # type: ignore[arg-type]
        assert model.tensors == ("fr", "ar")
        assert model.kept["first"] == "the range of its input is 0.0"


def test_hrnet_w18() -> None:
    """What the rules expect of full TensorRT with each placement: sharing the skips would fuse 112 Quantizes more."""
    source = onnx.load(SAMPLES / "hrnet_w18.onnx")
    published, skips, fusable = (
        quantize(source, placement=placement) for placement in ("conv-inputs", "shared-skips", "fusable-only")
    )
    assert expected_of(published) == {"fuses": 137, "separate": 142, "uncertain": 1}
    assert expected_of(skips) == {"fuses": 249, "separate": 30, "uncertain": 1}
    assert published.quantized == skips.quantized
    assert set(published.tensors) == set(skips.tensors)
    assert len(fusable.tensors) == 137
