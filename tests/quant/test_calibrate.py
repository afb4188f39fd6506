"""Ranges of activations: against numpy on the tensors of a model that runs unoptimized."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.graph.structure import strip
from fusescope.quant.calibrate import calibrate, model_hash
from fusescope.quant.data import Batch
from fusescope.quant.half import to_dtype, to_half
from fusescope.quant.insert import quantize
from fusescope.quant.placement import calibration_tensors
from fusescope.quant.recipe import Method

pytest.importorskip("onnxruntime")

Floats = NDArray[np.float32]
Make = Callable[..., onnx.ModelProto]
Run = Callable[..., dict[str, Floats]]

TENSORS = ("x", "sr", "fr", "d", "ar", "l", "r", "t")
"""What the convolutions, sums and the gemm of the residual network read."""


@pytest.fixture(name="images")
def _images() -> Floats:
    """Images of different magnitudes: the largest values are not all in one of them."""
    random = np.random.default_rng(3)
    return (random.standard_normal((5, 3, 16, 16)) * random.uniform(0.5, 2, (5, 1, 1, 1))).astype(np.float32)


def batched(images: Floats, size: int) -> Iterator[Batch]:
    """Give images in batches, as a data set does."""
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield Batch({"x": part}, None, tuple(f"image {start + place}" for place in range(len(part))))


def with_batch(proto: onnx.ModelProto, batch: int | str) -> onnx.ModelProto:
    """Copy a model with another batch size."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in (*copy.graph.input, *copy.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        setattr(dim, "dim_value" if isinstance(batch, int) else "dim_param", batch)
    return copy


@pytest.fixture(name="seen")
def _seen(residual_net: Make, run: Run, images: Floats) -> dict[str, Floats]:
    """Every tensor of the network for every image, from the unoptimized model."""
    each = [run(residual_net(), images[place : place + 1], list(TENSORS[1:])) for place in range(len(images))]
    return {"x": images, **{name: np.concatenate([found[name] for found in each]) for name in TENSORS[1:]}}


def test_what_is_looked_at(residual_net: Make) -> None:
    """All that a placement may quantize."""
    assert set(calibration_tensors(graph_of(residual_net()))) == set(TENSORS)


@pytest.mark.parametrize("batch", [1, 2, "N"])
@pytest.mark.parametrize("given", [1, 2, 5])
def test_max_is_the_largest_magnitude(
    residual_net: Make, images: Floats, seen: dict[str, Floats], batch: int | str, given: int
) -> None:
    """Whatever batch the model is fixed to, and whatever number of images comes at once."""
    done: list[int] = []
    net = with_batch(residual_net(), batch)
    found = calibrate(net, batched(images, given), tensors=TENSORS, progress=done.append)
    assert found.amax == pytest.approx({name: float(np.abs(seen[name]).max()) for name in TENSORS}, rel=1e-5)
    assert not found.unusable
    assert sum(done) == found.images == len(images)
    assert found.method == "max"


def test_percentile(residual_net: Make, images: Floats, seen: dict[str, Floats]) -> None:
    """As numpy finds it in all the values, within a bin of the histogram."""
    found = calibrate(
        with_batch(residual_net(), "N"), batched(images, 2), tensors=TENSORS, method="percentile", percentile=97
    )
    assert found.method == "percentile 97"
    for name in TENSORS:
        magnitudes = np.abs(seen[name])
        expected = np.percentile(magnitudes, 97, method="inverted_cdf")
        assert found.amax[name] == pytest.approx(expected, abs=float(magnitudes.max()) / 1000)


@pytest.mark.parametrize("method", ["mse", "entropy"])
@pytest.mark.parametrize("format_name", ["fp8", "int8"])
def test_fitted_to_a_format(
    residual_net: Make, images: Floats, seen: dict[str, Floats], method: Method, format_name: str
) -> None:
    """The record says which format; no threshold is above the largest magnitude."""
    found = calibrate(residual_net(), batched(images, 5), tensors=TENSORS, method=method, format=format_name)
    assert found.method == f"{method} for {format_name}"
    assert all(0 < found.amax[name] <= np.abs(seen[name]).max() * (1 + 1e-5) for name in TENSORS)


def test_half_precision_is_run_in_single(residual_net: Make, images: Floats) -> None:
    """The ranges of a float16 model are those of its rounded weights, in float32 arithmetic."""
    half = to_half(residual_net())
    found = calibrate(half, batched(images, 1), tensors=TENSORS)
    assert found.amax == calibrate(to_dtype(half, "fp32"), batched(images, 1), tensors=TENSORS).amax


ODD = """
<ir_version: 9, opset_import: ["" : 19]>
odd (float[N,4] x) => (float[N,4] y)
{
    [cut]  dead = Mul (x, zero)
    [log]  bad  = Log (x)
    [inv]  vast = Reciprocal (dead)
    [add]  y    = Sum (dead, bad, vast)
}
"""


@pytest.mark.parametrize("method", ["max", "percentile", "mse", "entropy"])
def test_useless_ranges_are_named(method: Method) -> None:
    """A tensor that is zero throughout, one with NaN in one image, one that is infinite, and a good one."""
    proto = onnx.parser.parse_model(ODD)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    images = np.array([[1, 2, 3, 4], [1, -1, 2, 2], [4, 3, 2, 1]], np.float32)
    found = calibrate(proto, batched(images, 1), tensors=["x", "dead", "bad", "vast"], method=method)
    assert found.unusable == {"dead": "zero", "bad": "NaN", "vast": "infinite"}
    assert set(found.amax) == {"x"}


def test_useless_ranges_leave_readers_as_they_are(residual_net: Make, images: Floats) -> None:
    """A convolution that reads a dead tensor keeps high precision, with the reason; the others are quantized."""
    net = residual_net()
    for tensor in net.graph.initializer:
        if tensor.name in {"first_w", "first_b"}:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    found = calibrate(net, batched(images, 5), tensors=TENSORS)
    assert found.unusable == {"fr": "zero"}
    model = quantize(net, amax=found.by_tensor())
    assert model.kept["second"] == "the range of its input is 0.0"
    assert set(model.tensors) == {"sr", "ar"}


def test_the_scales_of_a_model_are_the_ranges(residual_net: Make, images: Floats) -> None:
    """Each activation scale in the file is amax / 448 of the images, in float32."""
    found = calibrate(residual_net(), batched(images, 5), tensors=TENSORS)
    model = quantize(residual_net(), amax=found.by_tensor(), source=found.source())
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.proto.graph.initializer}
    for name in ("sr", "fr", "ar"):
        assert scales[f"{name}_scale"] == np.float32(found.amax[name] / 448)
    (told,) = [entry.value for entry in model.proto.metadata_props if entry.key == "fusescope.scales"]
    assert told.startswith("calibrated: max over 5 images with ONNX Runtime")
    assert not model.uncalibrated


def test_the_hash_is_that_of_the_computation(residual_net: Make) -> None:
    """Metadata do not change it; a weight, a node's attribute and an input's shape do."""
    net = residual_net()
    before = model_hash(net)
    helper.set_model_props(net, {"note": "same"})
    assert model_hash(net) == before
    others = [residual_net() for _ in range(3)]
    others[0].graph.initializer[0].raw_data = others[0].graph.initializer[0].raw_data[::-1]
    others[1].graph.node[0].attribute[0].ints[0] = 2
    others[2].graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    assert len({before, *map(model_hash, others)}) == 4


def test_what_is_refused(residual_net: Make, images: Floats) -> None:
    """A model without weights, a quantized one, no image, no tensor, and images that the model cannot compute with."""
    with pytest.raises(UserError, match="net: is structure-only: ranges of seeded weights say nothing"):
        calibrate(strip(residual_net()), batched(images, 1), tensors=TENSORS, name="net")
    with pytest.raises(UserError, match="is quantized already"):
        calibrate(quantize(residual_net()).proto, batched(images, 1), tensors=TENSORS)
    with pytest.raises(UserError, match="no image to calibrate with"):
        calibrate(residual_net(), (), tensors=TENSORS)
    with pytest.raises(UserError, match="net: has no convolution, gemm or sum whose inputs could be quantized"):
        calibrate(residual_net(), batched(images, 1), tensors=(), name="net")
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[N,C] x) => (float[N,C] y) { y = Add (x, three) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "three"))
    methods: tuple[Method, ...] = ("max", "mse")
    for method in methods:
        with pytest.raises(UserError, match=r"net: ONNX Runtime cannot run it on the CPU \(.*x \[1, 4\]"):
            calibrate(proto, batched(np.ones((1, 4), np.float32), 1), tensors=("x", "y"), method=method, name="net")
