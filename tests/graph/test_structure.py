"""Structure-only models: what is taken out, what stays, and what filling puts back."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fusescope.graph.errors import UserError
from fusescope.graph.structure import WEIGHTS, fill, filled_mark, is_structure_only, strip


def outline(proto: onnx.ModelProto) -> object:
    """Describe all but the values: nodes with attributes, tensors, opsets, inputs and outputs."""
    graph = proto.graph
    return (
        [(n.name, n.op_type, list(n.input), list(n.output), [a.name for a in n.attribute]) for n in graph.node],
        sorted((t.name, t.data_type, tuple(t.dims)) for t in graph.initializer),
        [str(value) for value in (*graph.input, *graph.output)],
        [str(entry) for entry in proto.opset_import],
    )


def weights(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the values of the initializers, as float64."""
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}


def quantized_net(net: Any) -> onnx.ModelProto:
    """Draw a net with a weight in each of float32, FP8 and INT8, and parameters that belong to the structure."""
    net.input("x", 1, 8, 16, 16)
    net.conv("x", name="plain", shape=(16, 8, 3, 3))
    net.nodes[-1].input.append(net.constant("plain_b", np.linspace(1, 2, 16)))
    codes = numpy_helper.from_array(np.full((16, 16, 3, 3), 3, ml_dtypes.float8_e4m3fn), "fp8_w")
    net.initializers["fp8_w"] = codes
    net.constant("fp8_s", np.linspace(0.1, 0.2, 16))
    weight = net.op("DequantizeLinear", "fp8_w", "fp8_s", name="fp8_wdq", axis=0)
    net.op("Conv", net.quantize("plain", "fp8"), weight, name="fp8", pads=[1] * 4)
    net.constant("int8_w", np.full((8, 16, 1, 1), 3), np.int8)
    weight = net.op("DequantizeLinear", "int8_w", net.constant("int8_s", 0.25), name="int8_wdq")
    net.op("Conv", net.quantize("fp8", "int8"), weight, name="int8")
    net.constant("scales", [1, 1, 2, 2])
    net.op("Resize", "int8", "", "scales", name="bigger", mode="nearest")
    net.op("Reshape", "bigger", net.constant("shape", [1, -1], np.int64), name="y")
    proto: onnx.ModelProto = net.proto("y")
    return proto


def test_weights_go_and_structure_stays(net: Any) -> None:
    """Weights and biases are gone, scales, zero points, sizes and shapes are untouched; the checker passes."""
    proto = quantized_net(net)
    stripped = strip(proto)
    onnx.checker.check_model(stripped, full_check=True)
    kept = {name: value for name, value in weights(stripped).items() if not name.startswith("fusescope.")}
    whole = weights(proto)
    assert kept.keys() == {"fp8_s", "int8_s", "scale", "zero_fp8", "zero_int8", "scales", "shape"}
    assert all((kept[name] == whole[name]).all() for name in kept)
    assert is_structure_only(stripped)
    assert not is_structure_only(proto)


def test_fill_restores_everything_but_the_values(net: Any) -> None:
    """Nodes, names, shapes, dtypes, attributes and opset come back; the mark says where the values are from."""
    proto = quantized_net(net)
    filled = fill(strip(proto), seed=7)
    onnx.checker.check_model(filled, full_check=True)
    assert outline(filled) == outline(proto)
    assert not is_structure_only(filled)
    marks = {entry.key: entry.value for entry in filled.metadata_props}
    assert marks == {WEIGHTS: filled_mark(7)}
    assert "structure-only" in filled_mark(7)


def test_stripping_again_gives_the_same_file(net: Any) -> None:
    """strip and fill are inverse on structures: strip(fill(s)) is s."""
    stripped = strip(quantized_net(net))
    assert strip(fill(stripped)).SerializeToString(deterministic=True) == stripped.SerializeToString(deterministic=True)


def test_values_depend_on_seed_and_name_only(net: Any, new_net: Any) -> None:
    """The same seed gives the same values in whatever order tensors come; another seed or name gives others."""
    for name in ("a", "b"):
        net.input(f"x{name}")
        net.conv(f"x{name}", name=name)
    backwards = new_net()
    for name in ("b", "a"):
        backwards.input(f"x{name}")
        backwards.conv(f"x{name}", name=name)
    first = weights(fill(strip(net.proto("a", "b"))))
    assert {n: v.tolist() for n, v in first.items()} == {
        n: v.tolist() for n, v in weights(fill(strip(backwards.proto("a", "b")))).items()
    }
    assert (first["a_w"] != first["b_w"]).any()
    assert (first["a_w"] != weights(fill(strip(net.proto("a", "b")), seed=1))["a_w"]).any()


def test_kernels_keep_the_variance(net: Any) -> None:
    """Conv and Gemm weights are normal with variance 2 / fan-in; biases are small and not zero."""
    net.input("x", 1, 64, 8, 8)
    net.conv("x", name="conv", shape=(256, 64, 3, 3))
    net.nodes[-1].input.append(net.constant("conv_b", np.zeros(256)))
    net.op("Flatten", net.op("GlobalAveragePool", "conv", name="pool"), name="flat")
    net.op("Gemm", "flat", net.constant("straight", np.ones((256, 128))), name="g1")
    net.op("Gemm", "g1", net.constant("turned", np.ones((512, 128))), name="g2", transB=1)
    values = weights(fill(strip(net.proto("g2"))))
    for name, fan_in in {"conv_w": 64 * 9, "straight": 256, "turned": 128}.items():
        assert values[name].std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.05), name
        assert abs(values[name].mean()) < 3 * values[name].std() / np.sqrt(values[name].size), name
    assert 0.05 < values["conv_b"].std() < 0.2
    assert (values["conv_b"] != 0).all()


def test_quantized_weights_use_their_codes(net: Any) -> None:
    """FP8 and INT8 weights spread over the range of their format, without saturating most of it."""
    values = weights(fill(strip(quantized_net(net))))
    for name, largest in {"fp8_w": 448, "int8_w": 127}.items():
        assert largest / 2 < np.abs(values[name]).max() <= largest, name
        assert largest / 5 < values[name].std() < largest / 3, name


def test_batch_norm_and_integers_are_valid(net: Any) -> None:
    """A variance is positive, near 1; a large table of indices is filled with an index that exists."""
    net.input("x")
    for name in ("gain", "shift", "mean", "var"):
        net.constant(name, np.ones(8))
    net.op("BatchNormalization", "x", "gain", "shift", "mean", "var", name="bn")
    net.op("Gather", "bn", net.constant("table", np.full(5000, 3), np.int64), name="y", axis=1)
    values = weights(fill(strip(net.proto("y"))))
    assert (values["var"] > 0.5).all()
    assert values["gain"].mean() == pytest.approx(1, abs=0.1)
    assert abs(values["mean"]).max() < 0.5
    assert (values["table"] == 0).all()


def test_a_deep_residual_net_stays_finite(net: Any) -> None:
    """Filled values keep 40 residual blocks within half precision, as onnx's own evaluator computes them."""
    tensor = net.input("x", 1, 8, 6, 6)
    for block in range(40):
        first = net.op("Relu", net.conv(tensor, name=f"a{block}"), name=f"ar{block}")
        second = net.conv(first, name=f"b{block}")
        tensor = net.op("Relu", net.op("Add", second, tensor, name=f"s{block}"), name=f"x{block}")
    filled = fill(strip(net.proto(tensor)))
    data = np.random.default_rng(0).standard_normal((1, 8, 6, 6)).astype(np.float32)
    (result,) = ReferenceEvaluator(filled).run(None, {"x": data})
    assert 0.01 < np.asarray(result).std() < 1000


def test_constants_and_bodies(net: Any) -> None:
    """Weights in Constant nodes and in the bodies of an If are taken out and put back too."""
    big = np.ones((1, 8, 16, 16), np.float32)
    inner = numpy_helper.from_array(big, "inner")
    branches = {}
    for branch in ("then", "else"):
        inner.name = f"inner_{branch}"
        branches[f"{branch}_branch"] = helper.make_graph(
            [helper.make_node("Add", ["x", inner.name], [f"z_{branch}"], name=f"{branch}_add")],
            branch,
            [],
            [helper.make_tensor_value_info(f"z_{branch}", TensorProto.FLOAT, big.shape)],
            [inner],
        )
    net.input("x", *big.shape)
    net.op("Constant", name="held", value=numpy_helper.from_array(big))
    net.op("ReduceMax", "x", name="max", keepdims=0)
    net.op("Greater", "max", net.constant("limit", 0.0), name="c")
    net.op("If", "c", name="y", **branches)
    net.op("Add", "y", "held", name="out")
    proto = net.proto("out")
    stripped = strip(proto)
    onnx.checker.check_model(stripped)
    assert len(stripped.SerializeToString()) < big.nbytes < len(proto.SerializeToString()) / 3
    filled = fill(stripped)
    onnx.checker.check_model(filled)
    assert outline(filled) == outline(proto)
    filled_bodies = [tensor for a in filled.graph.node[3].attribute for tensor in a.g.initializer]
    assert sorted(tensor.name for tensor in filled_bodies) == ["inner_else", "inner_then"]
    assert all(numpy_helper.to_array(tensor).std() > 0 for tensor in filled_bodies)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "BFLOAT16", "FLOAT16", "INT8", "UINT8"])
@pytest.mark.parametrize("opset", [19, 20])
def test_dtypes_that_constant_of_shape_lacks(kind: str, opset: int) -> None:
    """Before opset 20 ConstantOfShape makes no 8-bit floats; the stripped model is valid all the same."""
    element_type = getattr(TensorProto, kind)
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [40, 2])],
        [numpy_helper.from_array(np.ones((40, 2), dtype), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    stripped = strip(proto)
    onnx.checker.check_model(stripped, full_check=True)
    assert [node.op_type for node in stripped.graph.node].count("ConstantOfShape") == 1
    assert outline(fill(stripped)) == outline(proto)
    assert len(np.unique(weights(fill(stripped))["w"])) > 10


def test_exporter_texts_are_gone(net: Any) -> None:
    """Doc strings, paths and metadata of an exporter do not survive; fusescope's own notes do."""
    proto = quantized_net(net)
    secret = "/home/someone/secret.py"
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = secret
    proto.producer_name = proto.domain = secret
    proto.graph.node[1].metadata_props.add(key="trace", value=secret)
    proto.graph.input[0].doc_string = proto.graph.initializer[0].doc_string = secret
    proto.metadata_props.add(key="note", value=secret)
    proto.metadata_props.add(key="fusescope.recipe", value="{}")
    stripped = strip(proto)
    assert secret.encode() not in stripped.SerializeToString()
    assert {e.key: e.value for e in stripped.metadata_props} == {
        "fusescope.recipe": "{}",
        "fusescope.structure_only": "true",
    }


def test_missing_external_data(tmp_path: Path, net: Any) -> None:
    """Weights in a file that is missing are no obstacle; a scale in one is, unless the file is there."""
    proto = quantized_net(net)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    external = onnx.load(path, load_external_data=False)
    with pytest.raises(UserError, match=r"is part of the structure, but its file 'm\.bin' is missing"):
        strip(external)
    expected = strip(quantized_net(type(net)())).SerializeToString(deterministic=True)
    assert strip(external, folder=tmp_path).SerializeToString(deterministic=True) == expected

    net = type(net)()
    net.input("x")
    net.conv("x", name="conv")
    onnx.save(net.proto("conv"), path, save_as_external_data=True, location="gone.bin", size_threshold=0)
    (tmp_path / "gone.bin").unlink()
    assert outline(fill(strip(onnx.load(path, load_external_data=False)))) == outline(net.proto("conv"))


def test_weights_that_cannot_be_taken_out(net: Any) -> None:
    """Weights in an attribute of another operation would leak: the model is refused with the node named."""
    net.input("x")
    node = helper.make_node(
        "Plugin", ["x"], ["y"], name="p", domain="mine", table=numpy_helper.from_array(np.ones(2000, np.float32))
    )
    proto = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(UserError, match="node 'p' holds them in its attribute 'table'"):
        strip(proto)


def test_filling_a_model_with_weights_is_a_mistake(net: Any) -> None:
    """Weights are never replaced by seeded ones silently."""
    net.input("x")
    net.conv("x", name="conv")
    with pytest.raises(ValueError, match="only a structure-only model"):
        fill(net.proto("conv"))


def test_transposed_convs_keep_the_variance(net: Any) -> None:
    """Each output of a transposed conv with stride sums only the taps that fall on it."""
    net.input("x", 1, 64, 8, 8)
    weight = net.constant("w", np.ones((64, 128, 4, 4)))
    net.op("ConvTranspose", "x", weight, name="y", strides=[2, 2])
    values = weights(fill(strip(net.proto("y"))))["w"]
    assert values.std() == pytest.approx(np.sqrt(2 / (64 * 4 * 4 / 4)), rel=0.05)


@pytest.mark.parametrize("name", ["hrnet_w18", "resnet50", "efficientnet_b0"])
def test_samples_are_small_valid_models(name: str) -> None:
    """The samples have no weights, pass the checker and are well under 1 MB."""
    path = Path(__file__).parents[2] / "samples" / f"{name}.onnx"
    assert path.stat().st_size < 500_000
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert is_structure_only(proto)
