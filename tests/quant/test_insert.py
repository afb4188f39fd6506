"""Q/DQ insertion on a small residual network whose right answers are drawn by hand, and on HRNet-W18."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.structure import fill, is_structure_only, strip
from fusescope.quant.insert import QuantizedModel, quantize

SAMPLES = Path(__file__).parents[2] / "samples"
MakeNet = Callable[..., onnx.ModelProto]


def nodes_of(model: QuantizedModel) -> dict[str, onnx.NodeProto]:
    """Index the nodes by name."""
    return {node.name: node for node in model.proto.graph.node}


def arrays_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Read the initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def producers_of(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Index the nodes by output."""
    return {output: node for node in proto.graph.node for output in node.output}


def metadata_of(proto: onnx.ModelProto) -> dict[str, str]:
    """Read the metadata."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def test_one_pair_per_tensor_shared_by_its_readers(residual_net: MakeNet) -> None:
    """Each tensor that convolutions read has one Q and one DQ; both branches read `ar` through the same one."""
    model = quantize(residual_net())
    graph = model.proto.graph
    quantizes = [node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert quantizes == ["sr", "fr", "ar"]
    assert model.tensors == ("sr", "fr", "ar")
    assert model.quantized == ("first", "second", "left", "right")
    nodes = nodes_of(model)
    assert nodes["left"].input[0] == nodes["right"].input[0]


def test_a_dequantize_stands_directly_before_both_inputs(residual_net: MakeNet) -> None:
    """Data and weights come from a DequantizeLinear, which reads a QuantizeLinear or stored codes."""
    model = quantize(residual_net())
    producers, arrays = producers_of(model.proto), arrays_of(model.proto)
    for name in model.quantized:
        data, weight, _ = nodes_of(model)[name].input
        assert producers[data].op_type == producers[weight].op_type == "DequantizeLinear"
        assert producers[producers[data].input[0]].op_type == "QuantizeLinear"
        assert arrays[producers[weight].input[0]].dtype == ml_dtypes.float8_e4m3fn


def test_readers_in_high_precision_are_left_alone(residual_net: MakeNet) -> None:
    """The Add reads the skip itself, and stem and classifier are as they were."""
    before = {node.name: node for node in residual_net().graph.node}
    after = nodes_of(quantize(residual_net()))
    for name in set(before) - {"first", "second", "left", "right"}:
        assert after[name] == before[name]


def test_the_stem_is_kept_and_says_why(residual_net: MakeNet) -> None:
    """Three input channels: high precision, with the reason in the result and in the file."""
    model = quantize(residual_net())
    assert model.kept == {"stem": "it reads 3 channels"}
    assert json.loads(metadata_of(model.proto)["fusescope.recipe"]) == {
        "format": "fp8",
        "placement": "conv-inputs",
        "weights": "per-channel",
        "kept": {"stem": "it reads 3 channels"},
    }


@pytest.mark.parametrize(("format_", "largest"), [("fp8", 448), ("int8", 127)])
@pytest.mark.parametrize("granularity", ["per-channel", "per-tensor"])
@pytest.mark.parametrize(("dtype", "kind"), [("float", np.float32), ("float16", np.float16)])
def test_weight_scales_are_amax_over_the_largest_code(
    residual_net: MakeNet, format_: str, largest: int, granularity: str, dtype: str, kind: type
) -> None:
    """Scales have the model's dtype and equal amax/448 or amax/127, per output channel or per tensor."""
    source = residual_net(dtype)
    weights = arrays_of(source)
    model = quantize(source, format=format_, weights=granularity)
    arrays, producers = arrays_of(model.proto), producers_of(model.proto)
    for name in ("first", "second", "left", "right"):
        dequantize = producers[nodes_of(model)[name].input[1]]
        magnitude = np.abs(weights[f"{name}_w"].astype(np.float64))
        axes = (1, 2, 3) if granularity == "per-channel" else None
        scale = arrays[dequantize.input[1]]
        assert scale.dtype == kind
        np.testing.assert_array_equal(scale, (magnitude.max(axis=axes) / largest).astype(kind))
        axis = [attribute.i for attribute in dequantize.attribute if attribute.name == "axis"]
        assert axis == ([0] if granularity == "per-channel" else [])


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(("format_", "least_db"), [("fp8", 20), ("int8", 25)])
def test_the_calibrated_model_computes_nearly_the_same(
    residual_net: MakeNet, image: np.ndarray, run: Callable, dtype: str, format_: str, least_db: float
) -> None:
    """With ranges read from the network itself, the 8-bit noise stays well below the output.

    FP8 E4M3 has 3 bits of mantissa, so a rounding errs by at most 1/16 of the value: noise some 30 dB down per tensor.
    """
    source = residual_net(dtype)
    seen = run(source, image, ["sr", "fr", "ar", "y"])
    model = quantize(source, format=format_, amax={name: float(np.abs(seen[name]).max()) for name in seen})
    noise = run(model.proto, image, ["y"])["y"] - seen["y"]
    decibels = 10 * np.log10((seen["y"] ** 2).sum() / (noise**2).sum())
    assert least_db < decibels < 60  # above 60 nothing would have been rounded


def test_activation_scales_are_those_given(residual_net: MakeNet) -> None:
    """Scale = amax/448, shared by Q and DQ, and the metadata do not call the model uncalibrated."""
    amax = {"sr": 3.0, "fr": 4.0, "ar": 5.0}
    model = quantize(residual_net(), amax=amax)
    arrays, producers = arrays_of(model.proto), producers_of(model.proto)
    for name, largest in amax.items():
        quantizer = next(node for node in model.proto.graph.node if node.input[0] == name and "Quant" in node.op_type)
        dequantizer = next(node for node in producers.values() if quantizer.output[0] in node.input)
        assert arrays[quantizer.input[1]] == np.float32(largest / 448)
        assert list(quantizer.input[1:]) == list(dequantizer.input[1:])
    assert not model.uncalibrated
    assert metadata_of(model.proto)["fusescope.scales"].startswith("given")


def test_without_ranges_the_model_says_uncalibrated(residual_net: MakeNet) -> None:
    """Placeholders differ from tensor to tensor, are the same every time, and are marked as such."""
    model = quantize(residual_net())
    arrays = arrays_of(model.proto)
    scales = {float(arrays[f"{tensor}_scale"]) for tensor in model.tensors}
    assert len(scales) == 3
    assert model.uncalibrated
    assert metadata_of(model.proto)["fusescope.scales"].startswith("uncalibrated")
    assert quantize(residual_net()).proto.SerializeToString(deterministic=True) == model.proto.SerializeToString(
        deterministic=True
    )


def test_ranges_must_cover_every_tensor(residual_net: MakeNet) -> None:
    """A tensor without a range is named, with the convolution that reads it."""
    with pytest.raises(UserError, match="node 'second': no range is given for tensor 'fr'"):
        quantize(residual_net(), amax={"sr": 1.0, "ar": 1.0})


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_tensors_with_no_usable_range_stay_in_high_precision(residual_net: MakeNet, bad: float) -> None:
    """Their readers are kept, with the range as the reason; all others are quantized."""
    model = quantize(residual_net(), amax={"sr": bad, "fr": 1.0, "ar": 1.0})
    assert model.kept["first"] == f"the range of its input is {bad}"
    assert model.quantized == ("second", "left", "right")


def test_keep_patterns(residual_net: MakeNet) -> None:
    """Patterns keep convolutions by name; a tensor that only kept ones read gets no pair."""
    model = quantize(residual_net(), keep=["f*t", "right"])
    assert model.kept == {"stem": "it reads 3 channels", "first": "--keep f*t", "right": "--keep right"}
    assert model.tensors == ("fr", "ar")


def test_a_pattern_that_matches_nothing_names_the_nearest(residual_net: MakeNet) -> None:
    """A misspelt pattern is an error, not a silent nothing."""
    with pytest.raises(UserError, match="'secnod' matches no convolution; convolutions are called such as second"):
        quantize(residual_net(), keep=["secnod"])


def test_an_operation_to_keep_that_is_not_there(residual_net: MakeNet) -> None:
    """A misspelt operation is an error too: it would keep nothing."""
    with pytest.raises(UserError, match="--keep-op 'add' is no operation of the model; did you mean Add"):
        quantize(residual_net(), placement="shared-skips", keep_ops=["add"])


def test_nothing_left_is_an_error(residual_net: MakeNet) -> None:
    """A model that would come back unchanged is refused."""
    first = r"no convolution that can be quantized \(the first, stem: it reads 3 channels\); check the model and the"
    with pytest.raises(UserError, match=first):
        quantize(residual_net(), keep=["first", "left", "second"], keep_shapes=["stem", "grouped"])
    with pytest.raises(UserError, match=r"no convolution or gemm .*; it has Conv, Gemm: pass --op for what to"):
        quantize(residual_net(), ops=["MatMul"])


def test_a_quantized_model_is_refused(residual_net: MakeNet) -> None:
    """Quantizing twice names a node that says that it was done already."""
    with pytest.raises(UserError, match="node 'sr_QuantizeLinear': is quantized already"):
        quantize(quantize(residual_net()).proto)


@pytest.mark.parametrize(
    ("dtype", "format_", "opset", "becomes"),
    [("float", "int8", 11, 13), ("float", "int8", 17, 17), ("float16", "int8", 17, 19), ("float", "fp8", 13, 19)],
)
def test_the_opset_is_raised_only_as_far_as_needed(
    residual_net: MakeNet, image: np.ndarray, run: Callable, dtype: str, format_: str, opset: int, becomes: int
) -> None:
    """INT8 per channel needs 13, FP8 and float16 scales need 19; the model still computes the same."""
    source = residual_net(dtype, opset)
    model = quantize(source, format=format_)
    assert model.proto.opset_import[0].version == becomes
    onnx.checker.check_model(model.proto, full_check=True)
    assert {node.name for node in source.graph.node} <= set(nodes_of(model))
    newest = quantize(residual_net(dtype, 19), format=format_)
    np.testing.assert_array_equal(*(run(each.proto, image, ["y"])["y"] for each in (model, newest)))


def test_the_input_is_not_changed(residual_net: MakeNet) -> None:
    """`quantize` works on a copy."""
    source = residual_net(opset=13)
    before = source.SerializeToString(deterministic=True)
    quantize(source)
    assert source.SerializeToString(deterministic=True) == before


def test_a_structure_only_model_stays_one(residual_net: MakeNet) -> None:
    """The result has no weights, and filled it has the nodes of the quantized whole model."""
    model = quantize(strip(residual_net()))
    assert is_structure_only(model.proto)
    whole = quantize(residual_net())
    assert (model.quantized, model.kept, model.tensors) == (whole.quantized, whole.kept, whole.tensors)
    assert [(node.name, node.op_type, list(node.input)) for node in fill(model.proto).graph.node] == [
        (node.name, node.op_type, list(node.input)) for node in whole.proto.graph.node
    ]
    onnx.checker.check_model(model.proto, full_check=True)


def test_external_weights(residual_net: MakeNet, tmp_path: Path) -> None:
    """Weights beside the model are read; a missing file is named."""
    source = residual_net()
    onnx.save(source, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    outside = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    inside = arrays_of(quantize(residual_net()).proto)
    for name, array in arrays_of(quantize(outside, folder=tmp_path).proto).items():
        assert array.tobytes() == inside.pop(name).tobytes()
    assert not inside
    (tmp_path / "net.bin").unlink()
    with pytest.raises(UserError, match=r"net\.onnx: its external data cannot be read \(.*net\.bin"):
        quantize(outside, folder=tmp_path, name="net.onnx")


def weightless(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """Make a model from ONNX text, with seeded weights of the given shapes."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> net {text}')
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return proto


def test_shared_weights_are_stored_once() -> None:
    """Two convolutions with one weight read one DequantizeLinear."""
    text = "(float[1,8,4,4] x) => (float[1,8,4,4] y) { [a] h = Conv (x, w) [b] y = Conv (h, w) }"
    model = quantize(weightless(text, w=(8, 8, 1, 1)))
    nodes = nodes_of(model)
    assert nodes["a"].input[1] == nodes["b"].input[1]
    assert [tensor.name for tensor in model.proto.graph.initializer if len(tensor.dims) == 4] == ["w_quantized"]


def test_a_weight_with_another_reader_stays() -> None:
    """The float weight is dropped only if nothing reads it any more."""
    text = "(float[1,8,4,4] x) => (float[1,8,4,4] y) { [a] h = Conv (x, w) [m] n = ReduceMax (w) [b] y = Add (h, n) }"
    names = {tensor.name for tensor in quantize(weightless(text, w=(8, 8, 1, 1))).proto.graph.initializer}
    assert {"w", "w_quantized"} <= names


def test_weights_behind_constant_and_identity() -> None:
    """They are found, and the nodes that carried them go; computed weights keep their convolution."""
    proto = weightless(
        "(float[1,8,4,4] x) => (float[1,8,4,4] y) {"
        "[i] v = Identity (w) [a] h = Conv (x, v) [n] u = Neg (w2) [b] y = Conv (h, u) }",
        w=(8, 8, 1, 1),
        w2=(8, 8, 1, 1),
    )
    model = quantize(proto)
    assert model.kept == {"b": "its weights are computed"}
    assert "i" not in nodes_of(model)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    proto.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["v"], name="i", value=weight))
    assert arrays_of(quantize(proto).proto)["v_quantized"].tobytes() == (
        arrays_of(model.proto)["v_quantized"].tobytes()
    )


def test_convolutions_in_bodies_are_kept(residual_net: MakeNet) -> None:
    """A convolution inside an If is listed with the reason, and left as it is."""
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Conv", ["sr", "first_w"], ["inner"], name="in")], "body", [], [output])
    proto = residual_net()
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    proto.graph.node.append(helper.make_node("If", ["c"], ["z"], name="if", then_branch=body, else_branch=body))
    model = quantize(proto)
    assert model.kept["in"] == "in the body of an If, Loop or Scan"
    assert nodes_of(model)["if"].attribute[0].g.node[0].input[0] == "sr"
    assert "first_w" in arrays_of(model.proto)


def test_an_opset_that_cannot_be_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ONNX's converter refuses is one line with the opset that is needed."""
    proto = weightless("(float[1,8,4,4] x) => (float[1,8,4,4] y) { [a] y = Conv (x, w) }", w=(8, 8, 1, 1))
    proto.opset_import[0].version = 13

    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", refuse)
    with pytest.raises(UserError, match="the model: fp8 needs ONNX opset 19, and converting from 13 failed"):
        quantize(proto)


def test_bfloat16_scales_are_bfloat16() -> None:
    """Scales have the dtype of the tensors that they scale, bfloat16 too, next to operators that nobody knows."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22, "custom" : 1]> net (bfloat16[1,8,4,4] x) => (bfloat16[1,8,4,4] y)'
        "{ [a] h = Conv (x, w) [b] y = custom.Twist (h) }"
    )
    weight = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(ml_dtypes.bfloat16)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    arrays = arrays_of(quantize(proto).proto)
    assert arrays["w_scale"].dtype == arrays["x_scale"].dtype == ml_dtypes.bfloat16


def test_a_dead_channel_is_counted(residual_net: MakeNet) -> None:
    """A channel of zeros is quantized harmlessly and reported with its tensor."""
    proto = residual_net()
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "first_w")
    values = numpy_helper.to_array(weight).copy()
    values[[2, 5]] = 0
    weight.CopyFrom(numpy_helper.from_array(values, "first_w"))
    assert quantize(proto).zero_channels == {"first_w": 2}


def test_an_underflowing_scale_is_refused(residual_net: MakeNet) -> None:
    """A channel too small for float16 scales names its weight tensor."""
    proto = residual_net("float16")
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "left_w")
    weight.CopyFrom(numpy_helper.from_array(np.full((16, 8, 1, 1), 1e-6, np.float16), "left_w"))
    with pytest.raises(UserError, match=r"tensor 'left_w': the fp8 scale .* underflows to zero in float16"):
        quantize(proto)


def test_new_names_are_unique_and_printable() -> None:
    """A name in use gets a number, and a control character (which separates names in engines) is replaced."""
    text = "(float[1,8,4,4] x) => (float[1,8,4,4] y) { [x_QuantizeLinear] h = Relu (x) [a] y = Conv (x, w) }"
    proto = weightless(text, w=(8, 8, 1, 1))
    assert "x_QuantizeLinear_2" in nodes_of(quantize(proto))
    proto = weightless(text, w=(8, 8, 1, 1))
    for names in (proto.graph.node[0].input, proto.graph.node[1].input):
        names[0] = "x\x1fz"
    proto.graph.input[0].name = "x\x1fz"
    assert {"x_z_QuantizeLinear", "x_z_DequantizeLinear"} <= set(nodes_of(quantize(proto)))


@given(data=st.data())
def test_any_network_of_convolutions(data: st.DataObject) -> None:
    """On random graphs there is one Q per tensor that convolutions read, and every convolution reads a DQ."""
    tensors, nodes, read = ["x"], [], set()
    for i in range(data.draw(st.integers(1, 12))):
        op = data.draw(st.sampled_from(["Conv", "Conv", "Relu", "Add"]))
        sources = [data.draw(st.sampled_from(tensors)) for _ in range(2 if op == "Add" else 1)]
        if op == "Conv":
            read.add(sources[0])
            sources.append(data.draw(st.sampled_from(["w", "v"])))
        name = data.draw(st.sampled_from(["", "n", f"node {i}"]))
        nodes.append(helper.make_node(op, sources, [f"t{i}"], name=name))
        tensors.append(f"t{i}")
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 8, 4, 4])
    proto = weightless("(float[1,8,4,4] x) => () { [e] y = Relu (x) }", w=(8, 8, 1, 1), v=(8, 8, 1, 1))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(helper.make_value_info(tensors[-1], kind))
    if not read:
        with pytest.raises(UserError, match="no convolution"):
            quantize(proto)
        return
    result = quantize(proto).proto
    quantizes = [node.input[0] for node in result.graph.node if node.op_type == "QuantizeLinear"]
    assert sorted(quantizes) == sorted(read)
    producers = producers_of(result)
    for node in result.graph.node:
        if node.op_type == "Conv":
            assert [producers[name].op_type for name in node.input] == ["DequantizeLinear"] * 2


def test_hrnet_w18_as_published() -> None:
    """324 of 325 convolutions, 280 pairs, and each weight scale is amax/448 of its output channel."""
    source = fill(onnx.load(SAMPLES / "hrnet_w18.onnx"))
    weights = arrays_of(source)
    readers = {node.name: node.input[1] for node in source.graph.node if node.op_type == "Conv"}
    model = quantize(source)
    assert (len(readers), len(model.quantized), list(model.kept)) == (325, 324, ["/conv1/Conv"])
    assert sum(node.op_type == "QuantizeLinear" for node in model.proto.graph.node) == 280
    assert len(model.tensors) == len(set(model.tensors)) == 280
    arrays, producers, nodes = arrays_of(model.proto), producers_of(model.proto), nodes_of(model)
    for name in model.quantized:
        _, scale, *_ = producers[nodes[name].input[1]].input
        expected = np.abs(weights[readers[name]].astype(np.float64)).max(axis=(1, 2, 3)) / 448
        np.testing.assert_array_equal(arrays[scale], expected.astype(np.float16))
