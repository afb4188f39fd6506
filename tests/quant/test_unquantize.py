"""Q/DQ nodes taken out of models, those of other tools too, and placed anew."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.structure import is_structure_only, strip
from fusescope.quant.insert import quantize
from fusescope.quant.unquantize import unquantized

MakeNet = Callable[..., onnx.ModelProto]
Run = Callable[..., dict[str, np.ndarray]]

AMAX = {"sr": 3.0, "fr": 4.0, "ar": 5.0}


def arrays_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Read the initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def scaled(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Multiply every scale of a model."""
    for tensor in proto.graph.initializer:
        if tensor.name.endswith("_scale"):
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array((values * factor).astype(values.dtype), tensor.name))
    return proto


def test_the_model_is_as_it_was(residual_net: MakeNet) -> None:
    """With weights behind pairs nothing is lost: nodes and weights are those of the model before it was quantized."""
    before = residual_net()
    taken = unquantized(quantize(before, amax=AMAX, store="qdq").proto)
    assert list(taken.proto.graph.node) == list(before.graph.node)
    assert arrays_of(taken.proto).keys() == arrays_of(before).keys()
    for name, values in arrays_of(before).items():
        np.testing.assert_array_equal(arrays_of(taken.proto)[name], values)
    assert taken.dequantized == ()
    assert not taken.proto.metadata_props


@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_ranges_come_back_from_scales(residual_net: MakeNet, format_: str) -> None:
    """Magnitudes are those that the scales were made of, and the reads those that the pairs had."""
    taken = unquantized(quantize(residual_net(), amax=AMAX, format=format_).proto)
    assert taken.amax == pytest.approx(AMAX, rel=1e-6)
    assert taken.reads == {"sr": (("first", 0),), "fr": (("second", 0),), "ar": (("left", 0), ("right", 0))}
    assert taken.source.startswith("given")
    assert taken.largest_code is None


def test_weights_that_were_only_there_in_8_bits(residual_net: MakeNet) -> None:
    """Folded weights get their codes' values under their old names, and that is said."""
    model = quantize(residual_net(), amax=AMAX).proto
    arrays = arrays_of(model)
    taken = unquantized(model)
    assert taken.dequantized == ("first_w", "second_w", "left_w", "right_w")
    expected = arrays["first_w_quantized"].astype(np.float64) * arrays["first_w_scale"].reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(arrays_of(taken.proto)["first_w"], expected.astype(np.float32))
    again = quantize(model, replace_pairs=True)
    assert again.notes == ("stored in 8 bits only, so that their values are those of the codes: 4 weights",)


@pytest.mark.parametrize("store", ["folded", "qdq"])
@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_placing_anew_needs_no_data(
    residual_net: MakeNet, image: np.ndarray, run: Run, format_: str, store: str
) -> None:
    """Replaced by another placement, a model computes what it would have if it had been placed so at once."""
    first = quantize(residual_net(), amax=AMAX, format=format_, store=store).proto
    again = quantize(first, replace_pairs=True, placement="shared-skips", format=format_)
    at_once = quantize(residual_net(), amax=AMAX, placement="shared-skips", format=format_)
    assert again.tensors == at_once.tensors
    assert not again.uncalibrated
    outputs = [run(each.proto, image, ["y"])["y"] for each in (again, at_once)]
    np.testing.assert_allclose(*outputs, atol=1e-5)


def test_placeholders_stay_placeholders(residual_net: MakeNet) -> None:
    """A model that was never calibrated does not pass for calibrated when it is placed anew."""
    first = quantize(residual_net()).proto
    again = quantize(first, replace_pairs=True, placement="shared-skips")
    assert again.uncalibrated
    metadata = {entry.key: entry.value for entry in again.proto.metadata_props}
    assert metadata["fusescope.scales"].startswith("uncalibrated")
    calibrated = quantize(quantize(residual_net(), amax=AMAX).proto, replace_pairs=True).proto
    metadata = {entry.key: entry.value for entry in calibrated.metadata_props}
    assert metadata["fusescope.scales"] == (
        "recovered from the scales that the model held (given: one amax per tensor)"
    )


def test_a_quantized_model_is_refused_unless_asked(residual_net: MakeNet) -> None:
    """The error names a node and the option; placement `modelopt` wants Q/DQ nodes."""
    with pytest.raises(UserError, match=r"node 'sr_QuantizeLinear': is quantized already .* pass --replace"):
        quantize(quantize(residual_net()).proto)
    with pytest.raises(UserError, match="the model: has no Q/DQ nodes to take over"):
        quantize(residual_net(), placement="modelopt")


@pytest.mark.parametrize("store", ["folded", "qdq"])
def test_the_scales_of_modelopts_onnx_quantizer(residual_net: MakeNet, store: str) -> None:
    """Its FP8 scales are amax * 448 / 127**2, of weights and activations: no weight uses a code above 36.0."""
    factor = 448**2 / 127**2  # 12.44: how much larger than amax / 448
    proto = residual_net()
    model = scaled(quantize(proto, amax=AMAX, store="qdq").proto, factor)
    if store == "folded":  # as its dq_only=True does
        arrays, nodes = arrays_of(model), {node.name: node for node in model.graph.node}
        for name in ("first_w", "second_w", "left_w", "right_w"):
            scale = arrays[f"{name}_scale"].reshape(-1, 1, 1, 1)
            codes = (arrays[name] / scale).astype(arrays["fp8_zero_point"].dtype)
            model.graph.initializer.append(numpy_helper.from_array(codes, f"{name}_codes"))
            nodes[f"{name}_DequantizeLinear"].input[0] = f"{name}_codes"
            model.graph.node.remove(nodes[f"{name}_QuantizeLinear"])
    taken = unquantized(model)
    assert taken.amax == pytest.approx(AMAX, rel=1e-5)
    assert taken.largest_code == pytest.approx(36.0, abs=0.01)
    again = quantize(model, placement="modelopt")
    assert again.tensors == ("sr", "fr", "ar")
    arrays = arrays_of(again.proto)
    for name, amax in AMAX.items():
        assert arrays[f"{name}_scale"] == pytest.approx(amax / 448, rel=1e-5)
    assert any("no FP8 weight uses a code above 36" in note for note in again.notes)


def test_positions_are_taken_over(residual_net: MakeNet) -> None:
    """Placement `modelopt` keeps who reads through which pair, a skip too, and leaves out what had none."""
    first = quantize(residual_net(), amax=AMAX, placement="shared-skips", keep=["left"]).proto
    again = quantize(first, placement="modelopt", weights="per-tensor")
    assert again.quantized == ("first", "second", "right")
    assert again.kept["left"] == "no Q/DQ pair stood before it"
    add = next(node for node in again.proto.graph.node if node.name == "sum")
    assert list(add.input) == ["d", "sr_dequantized"]


def test_a_structure_only_model(residual_net: MakeNet) -> None:
    """It is placed anew like any other, and stays one."""
    again = quantize(strip(quantize(residual_net()).proto), replace_pairs=True, placement="shared-skips")
    assert is_structure_only(again.proto)
    assert again.tensors == ("sr", "fr", "ar")


def other_tools(nodes: str, **constants: Any) -> onnx.ModelProto:
    """Make a model with Q/DQ nodes that are not ours."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "trt" : 1]> net {nodes}')
    for name, values in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    return proto


def test_asymmetric_codes() -> None:
    """uint8 with a zero point, as ONNX Runtime's quantizer writes it: the larger end of the range counts."""
    model = other_tools(
        "(float[1,4] x) => (float[1,4] y) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Relu (d) }",
        s=np.float32(0.5),
        z=np.uint8(100),
    )
    taken = unquantized(model)
    assert taken.amax == {"x": 77.5}  # codes reach from -100 to 155 steps of 0.5
    assert [node.op_type for node in taken.proto.graph.node] == ["Relu"]
    assert not taken.proto.graph.initializer


def test_modelopts_torch_operations() -> None:
    """TRT_FP8 nodes of domain trt go, and so does the domain."""
    model = other_tools(
        "(float[1,4] x) => (float[1,4] y) { q = trt.TRT_FP8QuantizeLinear (x, s)"
        "d = trt.TRT_FP8DequantizeLinear (q, s) y = Relu (d) }",
        s=np.float32(0.5),
    )
    taken = unquantized(model)
    assert taken.amax == {"x": 224.0}
    assert [entry.domain for entry in taken.proto.opset_import] == [""]


def test_codes_that_pass_through_a_pool() -> None:
    """Where codes are pooled before the Dequantize, the pool works on values, and its result is the tensor."""
    model = other_tools(
        "(float[1,4,4,4] x) => (float[1,4,2,2] y) { q = QuantizeLinear (x, s, z)"
        "p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (q) d = DequantizeLinear (p, s, z) y = Relu (d) }",
        s=np.float32(0.5),
        z=np.int8(0),
    )
    taken = unquantized(model)
    assert taken.amax == {"p": 63.5}
    assert [(node.op_type, node.input[0]) for node in taken.proto.graph.node] == [("MaxPool", "x"), ("Relu", "p")]
    onnx.checker.check_model(taken.proto, full_check=True)


def test_a_pair_that_also_casts() -> None:
    """float32 in, float16 out: a Cast stays in the place of the pair."""
    model = other_tools(
        "(float[1,4] x) => (float16[1,4] y) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, t, z)"
        "y = Relu (d) }",
        s=np.float32(0.5),
        t=np.float16(0.5),
        z=np.int8(0),
    )
    taken = unquantized(model)
    assert [(node.op_type, node.output[0]) for node in taken.proto.graph.node] == [("Cast", "d"), ("Relu", "y")]
    assert taken.amax == {"d": 63.5}
    onnx.checker.check_model(taken.proto, full_check=True)


def test_an_output_behind_a_pair_keeps_its_name() -> None:
    """A model's output that a Dequantize writes is still there."""
    model = other_tools(
        "(float[1,4] x) => (float[1,4] d) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) }",
        s=np.float32(0.5),
        z=np.int8(0),
    )
    taken = unquantized(model)
    assert [(node.op_type, *node.input, *node.output) for node in taken.proto.graph.node] == [("Identity", "x", "d")]
    onnx.checker.check_model(taken.proto, full_check=True)


def test_blocked_weights() -> None:
    """One scale per block of two rows: each element is its code times its block's scale."""
    model = other_tools(
        "(float[1,4] x) => (float[1,2] y) { w = DequantizeLinear <axis = 0, block_size = 2> (c, s) y = MatMul (x, w) }",
        c=np.arange(8, dtype=np.int8).reshape(4, 2),
        s=np.array([[1, 10], [100, 1000]], np.float32),
    )
    taken = unquantized(model)
    (values,) = arrays_of(taken.proto).values()
    assert values.tolist() == [[0, 10], [2, 30], [400, 5000], [600, 7000]]


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        (
            "(float[1,4] x, float t) => (float[1,4] y) { q = QuantizeLinear (x, t, z) d = DequantizeLinear (q, t, z)"
            "y = Relu (d) }",
            "its scale is computed",
        ),
        (
            "(float[1,4] x, bool c) => (float[1,4] y) { y = If (c) <then_branch = a () => (float[1,4] u)"
            "{ q = QuantizeLinear (x, s, z) u = DequantizeLinear (q, s, z) }, else_branch = b () => (float[1,4] v)"
            "{ v = Relu (x) }> }",
            "is in the body of an If, Loop or Scan",
        ),
        ("(float[1,4] x) => (int8[1,4] q) { q = QuantizeLinear (x, s, z) }", "is an output of the model in 8 bits"),
    ],
    ids=["computed scale", "in a body", "8-bit output"],
)
def test_what_cannot_be_taken_out(nodes: str, what: str) -> None:
    """It is refused with the node or tensor, and what to give instead."""
    model = other_tools(nodes, s=np.float32(0.5), z=np.int8(0))
    with pytest.raises(UserError, match=f"{what}; give the high-precision model that it was made from"):
        unquantized(model)


def test_four_bits_of_activations() -> None:
    """Codes of fewer than 8 bits say nothing that 8 bits could use."""
    model = other_tools(
        "(float[1,4] x) => (float[1,4] y) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Relu (d) }",
        s=np.float32(0.5),
    )
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.INT4, [], [0]))
    with pytest.raises(UserError, match="its codes are int4"):
        unquantized(model)
