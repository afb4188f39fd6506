"""Models that other tools wrote: each is quantized and computes the same within the rounding of 8 bits.

Original and quantized model run in ONNX Runtime without its optimizer. Ranges are read from the original on the same
input, so that what differs is 8-bit rounding: the noise is well below the signal, and not zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.model import graph_of
from fusescope.quant.insert import QuantizedModel, quantize
from fusescope.quant.placement import calibration_tensors

onnxruntime = pytest.importorskip("onnxruntime")

MakeNet = Callable[..., onnx.ModelProto]
Arrays = dict[str, np.ndarray]

LEAST_DB = {"fp8": 20.0, "int8": 25.0}
"""FP8 E4M3 errs by at most 1/16 of a value, some 30 dB down per tensor; INT8 by 1/254 of the range."""


def run(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray], outputs: list[str]) -> Arrays:
    """Run a model in ONNX Runtime, unoptimized."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    there = {value.name for value in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in there)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options)
    return dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


def decibels(signal: np.ndarray, other: np.ndarray) -> float:
    """Return how far the difference to `signal` is below it."""
    noise = other.astype(np.float64) - signal
    return float(10 * np.log10((signal.astype(np.float64) ** 2).sum() / (noise**2).sum()))


def assert_nearly_the_same(proto: onnx.ModelProto, inputs: Arrays, format_: str, **options: Any) -> QuantizedModel:
    """Quantize a model with its own ranges, run both and compare their outputs; return the quantized one."""
    ranges = run(proto, inputs, list(calibration_tensors(graph_of(proto))))
    amax = {name: float(np.abs(values).max()) for name, values in ranges.items()}
    model = quantize(proto, format=format_, amax=amax, **options)
    onnx.checker.check_model(model.proto, full_check=True)
    outputs = [value.name for value in proto.graph.output]
    before, after = (run(each, inputs, outputs) for each in (proto, model.proto))
    for name in outputs:
        assert before[name].shape == after[name].shape
        assert LEAST_DB[format_] < decibels(before[name], after[name]) < 70
    return model


@dataclass(frozen=True)
class Case:
    """A small model in ONNX text."""

    text: str
    """Signature and nodes."""
    weights: Mapping[str, tuple[int, ...]]
    """Shapes of the initializers, which are seeded."""
    inputs: Mapping[str, tuple[int, ...]]
    """Shapes of what it is run on."""
    quantized: tuple[str, ...]
    """The nodes that must be quantized."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """The nodes that must not, with the reason."""
    ops: tuple[str, ...] = ("Conv",)
    """The operations to quantize."""
    opset: int = 19
    """Version of the operator set."""

    def proto(self) -> onnx.ModelProto:
        """Make the model."""
        proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {self.opset}]> net {self.text}')
        rng = np.random.default_rng(3)
        for name, shape in self.weights.items():
            values = rng.standard_normal(shape) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
            proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        return proto

    def feed(self) -> Arrays:
        """Make its inputs."""
        rng = np.random.default_rng(4)
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.inputs.items()}


IMAGE = {"x": (1, 8, 9, 9)}
CASES = {
    "unnamed nodes": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { h = Conv (x, w) r = Relu (h) y = Conv (r, v) }",
        {"w": (8, 8, 1, 1), "v": (8, 8, 1, 1)},
        IMAGE,
        ("Conv_h", "Conv_y"),
    ),
    "dynamic batch and sizes": Case(
        "(float[N,8,H,W] x) => (float[N,8,H,W] y) { [a] h = Conv <pads = [1,1,1,1]> (x, w) [r] y = Relu (h) }",
        {"w": (8, 8, 3, 3)},
        {"x": (3, 8, 7, 5)},
        ("a",),
    ),
    "several inputs": Case(
        "(float[1,8,9,9] x, float[1,4,9,9] z) => (float[1,8,9,9] y) {"
        "[a] h = Conv (x, w) [b] g = Conv (z, v) [s] y = Add (h, g) }",
        {"w": (8, 8, 1, 1), "v": (8, 4, 1, 1)},
        {"x": (1, 8, 9, 9), "z": (1, 4, 9, 9)},
        ("a", "b"),
    ),
    "grouped and depthwise": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [a] h = Conv <group = 2> (x, w) [b] y = Conv <group = 8> (h, v) }",
        {"w": (8, 4, 1, 1), "v": (8, 1, 1, 1)},
        IMAGE,
        ("a", "b"),
    ),
    "shared weights": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [a] h = Conv (x, w) [r] r = Relu (h) [b] y = Conv (r, w) }",
        {"w": (8, 8, 1, 1)},
        IMAGE,
        ("a", "b"),
    ),
    "weights shared across axes": Case(
        "(float[4,8] x) => (float[4,8] y) { [a] h = MatMul (x, w) [r] r = Relu (h) [b] y = Gemm <transB = 1> (r, w) }",
        {"w": (8, 8)},
        {"x": (4, 8)},
        ("a", "b"),
        ops=("Gemm", "MatMul"),
    ),
    "weights behind Identity, Cast, Transpose": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [i] wi = Identity (w) [c1] half = Cast <to = 10> (wi)"
        "[c2] wc = Cast <to = 1> (half) [a] h = Conv (x, wc)"
        "[t] vt = Transpose <perm = [1,0,2,3]> (v) [b] y = Conv (h, vt) }",
        {"w": (8, 8, 1, 1), "v": (8, 8, 1, 1)},
        IMAGE,
        ("a", "b"),
    ),
    "an empty bias": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [a] h = Conv (x, w, ) [n] y = BatchNormalization (h, g, b, m, v) }",
        {"w": (8, 8, 1, 1), "g": (8,), "b": (8,), "m": (8,), "v": (8,)},
        IMAGE,
        ("a",),
    ),
    "1-d": Case(
        "(float[1,8,9] x) => (float[1,8,9] y) { [a] y = Conv <pads = [1,1]> (x, w) }",
        {"w": (8, 8, 3)},
        {"x": (1, 8, 9)},
        ("a",),
    ),
    "3-d": Case(
        "(float[1,8,5,5,5] x) => (float[1,8,5,5,5] y) { [a] y = Conv <pads = [1,1,1,1,1,1]> (x, w) }",
        {"w": (8, 8, 3, 3, 3)},
        {"x": (1, 8, 5, 5, 5)},
        ("a",),
    ),
    "ConvTranspose": Case(
        "(float[1,8,9,9] x) => (float[1,6,18,18] y) { [a] y = ConvTranspose <strides = [2,2]> (x, w) }",
        {"w": (8, 6, 2, 2)},
        IMAGE,
        ("a",),
        ops=("ConvTranspose",),
    ),
    "grouped ConvTranspose with BatchNormalization": Case(
        "(float[1,8,9,9] x) => (float[1,6,18,18] y) { [a] h = ConvTranspose <strides = [2,2], group = 2> (x, w)"
        "[n] y = BatchNormalization (h, g, b, m, v) }",
        {"w": (8, 3, 2, 2), "g": (6,), "b": (6,), "m": (6,), "v": (6,)},
        IMAGE,
        ("a",),
        ops=("ConvTranspose",),
    ),
    "MatMul from both sides": Case(
        "(float[2,4,8] x) => (float[2,5,6] y) { [a] h = MatMul (x, w) [b] y = MatMul (v, h) }",
        {"w": (8, 6), "v": (5, 4)},
        {"x": (2, 4, 8)},
        ("a", "b"),
        ops=("MatMul",),
    ),
    "MatMul of two activations": Case(
        "(float[2,4,8] x) => (float[2,4,4] y) { [t] k = Transpose <perm = [0,2,1]> (x) [a] y = MatMul (x, k) }",
        {},
        {"x": (2, 4, 8)},
        ("a",),
        ops=("MatMul",),
    ),
    "MatMul with a vector": Case(
        "(float[4,8] x) => (float[4] y) { [a] y = MatMul (x, w) }",
        {"w": (8,)},
        {"x": (4, 8)},
        ("a",),
        ops=("MatMul",),
    ),
    "Gemm both ways": Case(
        "(float[4,8] x) => (float[4,5] y) { [a] h = Gemm (x, w, b) [c] y = Gemm <transB = 1, alpha = 0.5> (h, v) }",
        {"w": (8, 6), "b": (6,), "v": (5, 6)},
        {"x": (4, 8)},
        ("a", "c"),
        ops=("Gemm",),
    ),
    "computed weights": Case(
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [n] v = Neg (w) [a] h = Conv (x, v) [b] y = Conv (h, w) }",
        {"w": (8, 8, 1, 1)},
        IMAGE,
        ("b",),
        {"a": "its weights are computed"},
    ),
}


@pytest.mark.parametrize("format_", ["fp8", "int8"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_works(case: Case, format_: str) -> None:
    """What must be quantized is, the rest says why not, and the outputs differ by the rounding alone."""
    model = assert_nearly_the_same(case.proto(), case.feed(), format_, ops=case.ops)
    assert model.quantized == case.quantized
    assert model.kept == case.kept


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("store", ["folded", "qdq"])
@pytest.mark.parametrize("name", ["grouped and depthwise", "ConvTranspose", "MatMul from both sides", "Gemm both ways"])
def test_stored_either_way(name: str, store: str, weights: str) -> None:
    """Codes behind a Dequantize, or values behind a pair, give the very same outputs."""
    case = CASES[name]
    model = assert_nearly_the_same(case.proto(), case.feed(), "fp8", ops=case.ops, store=store, weights=weights)
    other = assert_nearly_the_same(case.proto(), case.feed(), "fp8", ops=case.ops, weights=weights)
    outputs = [value.name for value in model.proto.graph.output]
    for name_ in outputs:
        np.testing.assert_array_equal(*(run(each.proto, case.feed(), outputs)[name_] for each in (model, other)))


@pytest.mark.parametrize("opset", range(11, 22))
@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_opsets(residual_net: MakeNet, image: np.ndarray, opset: int, format_: str) -> None:
    """Opset 11 to 21: a residual network with a grouped convolution and a classifier."""
    model = assert_nearly_the_same(residual_net(opset=opset), {"x": image}, format_, placement="shared-skips")
    assert model.quantized == ("first", "second", "left", "right")


def test_weight_scales_per_output_channel() -> None:
    """Each operation has its own axis of output channels: Conv 0, ConvTranspose 1, MatMul last, Gemm by transB."""
    axes = {
        "grouped and depthwise": {"w": 0, "v": 0},
        "ConvTranspose": {"w": 1},
        "MatMul from both sides": {"w": 1, "v": 0},
        "Gemm both ways": {"w": 1, "v": 0},
    }
    for name, expected in axes.items():
        case = CASES[name]
        proto = case.proto()
        weights = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in proto.graph.initializer}
        model = quantize(proto, ops=case.ops)
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.proto.graph.initializer}
        for weight, axis in expected.items():
            others = tuple(at for at in range(weights[weight].ndim) if at != axis)
            amax = np.abs(weights[weight]).max(axis=others)
            np.testing.assert_array_equal(arrays[f"{weight}_scale"], (amax / 448).astype(np.float32))
            node = next(node for node in model.proto.graph.node if node.name == f"{weight}_DequantizeLinear")
            assert [attribute.i for attribute in node.attribute] == [axis]


NORM = Case(
    "(float[1,8,9,9] x) => (float[1,8,9,9] y) { [a] h = Conv (x, w, c)"
    "[n] i = BatchNormalization <epsilon = 0.01> (h, g, b, m, v) [r] r = Relu (i) [d] y = Conv (r, u) }",
    {"w": (8, 8, 1, 1), "u": (8, 8, 1, 1), "c": (8,), "g": (8,), "b": (8,), "m": (8,), "v": (8,)},
    IMAGE,
    ("a", "d"),
)


def test_unfolded_norms_are_folded() -> None:
    """The weight scale is amax/448 of the folded kernel, by plain numpy; the bias is folded too, the node is gone."""
    proto = NORM.proto()
    w, c, g, b, m, v = (
        numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == n)) for n in "wcgbmv"
    )
    factor = g.astype(np.float64) / np.sqrt(v.astype(np.float64) + np.float32(0.01))
    kernel = (w * factor[:, None, None, None]).astype(np.float32)
    model = assert_nearly_the_same(proto, NORM.feed(), "fp8")
    assert model.folded == ("n",)
    nodes = {node.name: node for node in model.proto.graph.node}
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.proto.graph.initializer}
    _, scale = nodes["w_folded_DequantizeLinear"].input
    amax = np.abs(kernel.astype(np.float64)).max(axis=(1, 2, 3))
    np.testing.assert_array_equal(arrays[scale], (amax / 448).astype(np.float32))
    np.testing.assert_allclose(arrays[nodes["a"].input[2]], b + (c - m) * factor, rtol=1e-6)
    assert nodes["a"].output[0] == "i"
    assert "n" not in nodes
    assert not {"w", "c", "g", "b", "m", "v"} & arrays.keys()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = Conv (r, u) }", "y = Conv (r, u) [o] z = Neg (h) }"),  # another reader of the conv's result
        ("(float[1,8,9,9] y)", "(float[1,8,9,9] y, float[1,8,9,9] h)"),  # which is an output of the model
        ("epsilon = 0.01", "training_mode = 1"),
    ],
    ids=["another reader", "an output", "training"],
)
def test_norms_that_cannot_be_folded_stay(before: str, after: str) -> None:
    """BatchNormalization stays where its convolution's result is needed, or its statistics are not constant."""
    proto = Case(NORM.text.replace(before, after), NORM.weights, NORM.inputs, NORM.quantized).proto()
    model = quantize(proto)
    assert model.folded == ()
    assert model.quantized == ("a", "d")


@pytest.mark.parametrize("variance", [np.full(8, -1, np.float32), np.ones(3, np.float32)], ids=["negative", "short"])
def test_norms_that_are_damaged_stay(variance: np.ndarray) -> None:
    """A BatchNormalization that computes nothing sensible is none to fold: nothing is warned of, nothing breaks."""
    proto = NORM.proto()
    next(tensor for tensor in proto.graph.initializer if tensor.name == "v").CopyFrom(
        numpy_helper.from_array(variance, "v")
    )
    assert quantize(proto).folded == ()


def test_an_overridable_initializer() -> None:
    """Weights that old tools list among the inputs are weights, and the inputs go with them."""
    case = CASES["shared weights"]
    proto = case.proto()
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 8, 1, 1]))
    model = assert_nearly_the_same(proto, case.feed(), "int8")
    assert [value.name for value in model.proto.graph.input] == ["x"]


def test_local_functions_are_inlined() -> None:
    """A convolution in a local function is quantized like any other."""
    text = """
        <ir_version: 9, opset_import: ["" : 19, "ours" : 1]>
        net (float[1,8,9,9] x, float[8,8,1,1] w) => (float[1,8,9,9] y) { h = ours.block (x, w) y = Relu (h) }
        <domain: "ours", opset_import: ["" : 19]> block (a, k) => (b) { c = Conv (a, k) b = Relu (c) }
    """
    proto = onnx.parser.parse_model(text)
    values = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    del proto.graph.input[1]
    model = quantize(proto)
    assert len(model.quantized) == 1
    feed = {"x": np.random.default_rng(1).standard_normal((1, 8, 9, 9)).astype(np.float32)}
    inlined = onnx.inliner.inline_local_functions(proto)
    assert assert_nearly_the_same(inlined, feed, "fp8").quantized == model.quantized


BODIES = """
    <ir_version: 9, opset_import: ["" : 19]>
    net (float[1,8,9,9] x, bool c) => (float[1,8,9,9] y) {
        [a] h = Conv (x, w)
        [r] r = Relu (h)
        [choose] i = If (c) <then_branch = then () => (float[1,8,9,9] t) { [in] t = Conv (r, w) },
                             else_branch = other () => (float[1,8,9,9] e) { [copy] e = Identity (r) }>
        [b] g = Conv (r, w)
        [s] y = Add (g, i)
    }
"""


def test_bodies_read_what_they_read() -> None:
    """Convolutions in an If are kept and said so, and still read tensors from outside, whichever way it goes."""
    proto = onnx.parser.parse_model(BODIES)
    values = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    x = np.random.default_rng(1).standard_normal((1, 8, 9, 9)).astype(np.float32)
    for choice in (True, False):
        for placement in ("conv-inputs", "shared-skips"):
            feed = {"x": x, "c": np.array(choice)}
            model = assert_nearly_the_same(proto, feed, "fp8", placement=placement)
            assert model.quantized == ("a", "b")
            assert model.kept == {"in": "in the body of an If, Loop or Scan"}


LOOP = """
    <ir_version: 9, opset_import: ["" : 19]>
    net (float[1,8,9,9] x, int64 n, bool c) => (float[1,8,9,9] y) {
        [a] h = Conv (x, w)
        [repeat] y = Loop (n, c, h) <body = again (int64 i, bool k, float[1,8,9,9] v) => (bool o, float[1,8,9,9] u)
            { [go] o = Identity (k) [in] u = Conv (v, w) }>
    }
"""


def test_loops_keep_their_weights() -> None:
    """A weight that a loop's body reads from outside stays in high precision beside its 8-bit codes."""
    proto = onnx.parser.parse_model(LOOP)
    values = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(np.float32) / 3
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    x = np.random.default_rng(1).standard_normal((1, 8, 9, 9)).astype(np.float32)
    model = assert_nearly_the_same(proto, {"x": x, "n": np.array(3), "c": np.array(True)}, "int8")
    assert (model.quantized, model.kept) == (("a",), {"in": "in the body of an If, Loop or Scan"})


def test_old_operators_in_bodies() -> None:
    """Raising the opset converts what is in a body too: the axes of Squeeze became an input in opset 13."""
    text = BODIES.replace(": 19", ": 11").replace("t = Conv (r, w)", "q = Conv (r, w) t = Squeeze <axes = [0]> (q)")
    proto = onnx.parser.parse_model(text.replace("(float[1,8,9,9] t)", "(float[8,9,9] t)"))
    values = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    x = np.random.default_rng(1).standard_normal((1, 8, 9, 9)).astype(np.float32)
    model = assert_nearly_the_same(proto, {"x": x, "c": np.array(True)}, "fp8")
    assert model.proto.opset_import[0].version == 19


def test_external_data(tmp_path: Path) -> None:
    """Weights in a file beside the model are the same weights."""
    case = CASES["grouped and depthwise"]
    onnx.save(case.proto(), tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    outside = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    model = quantize(outside, folder=tmp_path)
    inside = quantize(case.proto())
    outputs = (run(each.proto, case.feed(), ["y"])["y"] for each in (model, inside))
    np.testing.assert_array_equal(*outputs)
