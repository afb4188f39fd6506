"""Models as functions: any number of images, exact arithmetic, one-line errors."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from fusescope.graph.errors import UserError
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize
from fusescope.quant.ort import onnx_runner, session, signature

pytest.importorskip("onnxruntime")

Make = Callable[..., onnx.ModelProto]
Floats = NDArray[np.float32]


@pytest.fixture(name="images")
def _images() -> Floats:
    return np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype(np.float32)


def batch_of(proto: onnx.ModelProto, batch: int | str) -> onnx.ModelProto:
    """Copy a model with another batch size."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in (*copy.graph.input, *copy.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        if isinstance(batch, int):
            dim.dim_value = batch
        else:
            dim.dim_param = batch
    return copy


def test_any_batch_gives_the_same(residual_net: Make, images: Floats) -> None:
    """Five images through a model of batch 1, of 2 (the last one padded), of 8, and of any."""
    net = residual_net()
    one_by_one = np.concatenate([onnx_runner(net)({"x": images[place : place + 1]}) for place in range(5)])
    for batch in (1, 2, 8, "N"):
        found = onnx_runner(batch_of(net, batch))({"x": images})
        assert found.shape == (5, 10)
        assert found == pytest.approx(one_by_one, rel=1e-5, abs=1e-6)


def test_fp8_is_exact(images: Floats) -> None:
    """A Relu before a Quantize to FP8 stays, which ONNX Runtime's optimizer takes away: against numpy."""
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[N,3,16,16] x) => (float[N,3,16,16] y) {'
    text += "r = Relu (x) q = QuantizeLinear (r, s, z) y = DequantizeLinear (q, s, z) }"
    proto = onnx.parser.parse_model(text)
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    proto.graph.initializer.extend([numpy_helper.from_array(np.float32(0.01), "s"), numpy_helper.from_array(zero, "z")])
    codes = np.clip(np.maximum(images, 0) / np.float32(0.01), 0, 448).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(onnx_runner(proto)({"x": images}), codes.astype(np.float32) * np.float32(0.01))


def test_half_precision_takes_floats(residual_net: Make, images: Floats) -> None:
    """A float16 model is given float32 images and returns float16, close to the float32 model's."""
    net = residual_net()
    found = onnx_runner(to_half(net))({"x": images})
    assert found.dtype == np.float16
    assert found.astype(np.float32) == pytest.approx(onnx_runner(net)({"x": images}), abs=0.01)


def test_a_quantized_model_runs_as_numpy_says(residual_net: Make, images: Floats) -> None:
    """More tensors can be asked for: the dequantized one is the clipped and rounded one."""
    quantized = quantize(residual_net(), format="int8").proto
    found = session(quantized, outputs=["sr", "sr_dequantized"], threads=1).run(None, {"x": images[:1]})
    scale = next(numpy_helper.to_array(each) for each in quantized.graph.initializer if each.name == "sr_scale")
    assert found[2] == pytest.approx(np.clip(np.rint(found[1] / scale), -127, 127) * scale, abs=1e-6)


def test_a_model_too_large_for_memory(residual_net: Make, images: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a protobuf cannot hold the weights, they go to ONNX Runtime in a file beside the model."""
    net = residual_net()
    expected = onnx_runner(net)({"x": images})
    serialize, refused = onnx.ModelProto.SerializeToString, []

    def refuse_once(proto: onnx.ModelProto) -> bytes:
        if not refused:
            refused.append(proto)
            raise ValueError("exceeds 2 GiB")
        return bytes(serialize(proto))

    monkeypatch.setattr(onnx.ModelProto, "SerializeToString", refuse_once)
    assert np.array_equal(onnx_runner(net)({"x": images}), expected)
    assert refused


def test_the_signature() -> None:
    """Initializers that old models list as inputs are none; free extents keep their names."""
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float16[N,3,?] x, int64[2] i, float[1] w) => (int64[2] y)'
    proto = onnx.parser.parse_model(text + "{ y = Identity (i) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    x, i = signature(proto)
    assert (x.name, x.shape, x.dtype) == ("x", ("N", 3, None), np.float16)
    assert (i.name, i.shape, i.dtype) == ("i", (2,), np.int64)


def test_what_does_not_fit_is_one_line(residual_net: Make, images: Floats) -> None:
    """Other names, integers for floats, and operations that ONNX Runtime lacks."""
    run = onnx_runner(residual_net())
    with pytest.raises(UserError, match="the model: takes an input 'x', and is given 'pixels'"):
        run({"pixels": images})
    with pytest.raises(UserError, match="takes float32 as its input 'x', and is given uint8"):
        run({"x": images.astype(np.uint8)})
    text = '<ir_version: 9, opset_import: ["" : 19, "mine" : 1]> g (float[1] x) => (float[1] y) { y = mine.Op (x) }'
    with pytest.raises(UserError, match="mine: ONNX Runtime cannot run it on the CPU"):
        session(onnx.parser.parse_model(text), name="mine")


NO_INPUT = '<ir_version: 9, opset_import: ["" : 19]> g () => (float[1] y) { y = Constant <value_floats = [1.0]> () }'
NO_TENSOR = '<ir_version: 9, opset_import: ["" : 19]> g (seq(float[1]) s) => (int64 y) { y = SequenceLength (s) }'
NO_OUTPUT = '<ir_version: 9, opset_import: ["" : 19]> g (float[N,2] x) => () { y = Relu (x) }'


def test_models_that_take_or_give_nothing() -> None:
    """A model without inputs, with one that is no tensor, and without outputs cannot be run on images."""
    with pytest.raises(UserError, match="the model takes no input; "):
        onnx_runner(onnx.parser.parse_model(NO_INPUT))
    with pytest.raises(UserError, match="the model's input 's' is no tensor; "):
        onnx_runner(onnx.parser.parse_model(NO_TENSOR))
    with pytest.raises(UserError, match="net: has no output; "):
        onnx_runner(onnx.parser.parse_model(NO_OUTPUT), name="net")


def test_inputs_that_a_model_cannot_compute_with() -> None:
    """A size that fits the signature and not the graph is refused with the shapes and ONNX Runtime's words."""
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[N,C] x, float[N,D] z) => (float[N,C] y) { y = Add (x, z)}'
    run = onnx_runner(onnx.parser.parse_model(text), name="net")
    with pytest.raises(UserError, match=r"net: ONNX Runtime cannot run it on the CPU \(.*z \[2, 4\]"):
        run({"x": np.zeros((2, 3), np.float32), "z": np.zeros((2, 4), np.float32)})
