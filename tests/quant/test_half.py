"""float32 models to float16."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.quant.half import to_half

MakeNet = Callable[..., onnx.ModelProto]
Run = Callable[..., dict[str, np.ndarray]]


def model_of(text: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """Make a model from ONNX text and initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> net {text}')
    proto.graph.initializer.extend(weights)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def dtypes_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Infer the element types of all tensors."""
    graph = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {value.name: value.type.tensor_type.elem_type for value in values}


def test_every_tensor_of_a_network_is_half(residual_net: MakeNet, image: np.ndarray, run: Run) -> None:
    """Input, weights, activations and output are float16, and the output is float32's within float16 rounding."""
    half = to_half(residual_net())
    onnx.checker.check_model(half, full_check=True)
    assert set(dtypes_of(half).values()) == {TensorProto.FLOAT16}
    assert {tensor.data_type for tensor in half.graph.initializer} == {TensorProto.FLOAT16}
    single = run(residual_net(), image, ["y"])["y"]
    np.testing.assert_allclose(run(half, image, ["y"])["y"], single, atol=5e-3)


def test_the_scales_of_resize_stay_single(image: np.ndarray, run: Run) -> None:
    """Resize takes its scales in float32 only, so they get a copy of their own, even if others read them in float16."""
    text = (
        "(float[1,3,16,16] x) => (float[1,3,32,32] y, float[4] z)"
        '{ [up] y = Resize <mode = "nearest"> (x, , s) [other] z = Mul (s, s) }'
    )
    half = to_half(model_of(text, numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")))
    onnx.checker.check_model(half, full_check=True)
    types = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert types == {"s": TensorProto.FLOAT16, "s_float32": TensorProto.FLOAT}
    got = run(half, image, ["y", "z"])
    np.testing.assert_array_equal(
        got["y"], image.astype(np.float16).repeat(2, axis=2).repeat(2, axis=3).astype(np.float32)
    )
    assert got["z"].tolist() == [1, 1, 4, 4]


def test_computed_values_are_cast_where_only_single_will_do() -> None:
    """Range knows no float16: casts stand before its inputs and after its output."""
    text = "(float x) => (float[n] y) { [twice] l = Add (x, x) [count] r = Range (x, l, x) [out] y = Neg (r) }"
    half = to_half(model_of(text))
    onnx.checker.check_model(half, full_check=True)
    types = dtypes_of(half)
    assert types["r"] == types["y"] == types["l"] == TensorProto.FLOAT16
    count = next(node for node in half.graph.node if node.name == "count")
    assert {types[name] for name in (*count.input, *count.output)} == {TensorProto.FLOAT}


def test_constants_and_casts_in_attributes() -> None:
    """Constant in its three float forms, ConstantOfShape and Cast give float16, integers stay."""
    text = (
        "(int64[2] n) => (float[2] y) { [k] a = Constant <value_float = 1.5> ()"
        "[l] b = Constant <value_floats = [1.0, 2.0]> () [m] c = Constant <value = float[2] {3.0, 4.0}> ()"
        "[c] d = Cast <to = 1> (n) [i] e = Cast <to = 7> (d) [o] f = Cast <to = 1> (e)"
        "[s] y = Sum (a, b, c, d, f) }"
    )
    half = to_half(model_of(text))
    onnx.checker.check_model(half, full_check=True)
    types = dtypes_of(half)
    assert {types[name] for name in "abcdfy"} == {TensorProto.FLOAT16}
    assert types["e"] == types["n"] == TensorProto.INT64


def test_a_weight_that_overflows_is_named() -> None:
    """70000 is beyond float16; infinity itself is not an overflow."""
    text = "(float[1] x) => (float[1] y) { [a] y = Add (x, w) }"
    with pytest.raises(UserError, match="w: holds 70000, which overflows float16"):
        to_half(model_of(text, numpy_helper.from_array(np.array([70000], np.float32), "w")))
    half = to_half(model_of(text, numpy_helper.from_array(np.array([-np.inf], np.float32), "w")))
    assert np.isneginf(numpy_helper.to_array(half.graph.initializer[0])).all()


def test_bodies_are_refused() -> None:
    """An If is refused by the name of its node, not converted by half."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
    )
    proto = model_of("(float[1] x, bool c) => (float[1] y) { [a] y = Neg (x) }")
    proto.graph.node[0].CopyFrom(
        helper.make_node("If", ["c"], ["y"], name="choose", then_branch=body, else_branch=body)
    )
    with pytest.raises(UserError, match="node 'choose'"):
        to_half(proto)
