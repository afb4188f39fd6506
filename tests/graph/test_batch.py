"""Another batch for a model with fixed shapes."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from fusescope.graph.batch import with_batch
from fusescope.graph.errors import UserError

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.onnx"))


def model_of(text: str) -> onnx.ModelProto:
    """Make a model from ONNX text."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> net {text}')


def shapes_of(proto: onnx.ModelProto) -> dict[str, list[int]]:
    """Read the declared shapes of all tensors."""
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    return {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_take_any_batch(path: Path) -> None:
    """Input and output have the new batch, and back at batch 1 the model is declared as before."""
    proto = onnx.load(path)
    eight = with_batch(proto, 8)
    onnx.checker.check_model(eight, full_check=True)
    sample, classes = ([1, 32, 32], 10) if path.stem == "digits" else ([3, 224, 224], 1000)
    shapes = shapes_of(eight)
    assert shapes["input"] == [8, *sample]
    assert shapes[proto.graph.output[0].name] == [8, classes]
    back, before = shapes_of(with_batch(eight, 1)), shapes_of(proto)
    assert {name: back[name] for name in before} == before


def test_the_model_computes_the_same_for_each_sample() -> None:
    """A batch of 3 gives what three runs of batch 1 give, by ONNX's reference evaluator."""
    one = model_of("(float[1,4] x, float[1,4] z) => (float[1,2] y) { s = Add (x, z) y = Gemm <transB = 1> (s, w) }")
    w = np.arange(8, dtype=np.float32).reshape(2, 4)
    one.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x, z = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator(with_batch(one, 3))
    np.testing.assert_allclose(evaluator.run(None, {"x": x, "z": z})[0], (x + z) @ w.T, rtol=1e-5)


def test_a_baked_batch_is_refused_by_the_name_of_its_node() -> None:
    """A Reshape to a constant [1, -1] would mix the samples of a larger batch."""
    text = (
        "(float[1,4,2,2] x) => (float[1,16] y)"
        "{ [shape] s = Constant <value = int64[2] {1, -1}> () [flat] y = Reshape (x, s) }"
    )
    with pytest.raises(UserError, match=r"batch 2: node 'flat' \(Reshape\) holds the batch 1"):
        with_batch(model_of(text), 2)


def test_a_reshape_that_follows_the_batch_is_not_refused() -> None:
    """[0, -1] copies the batch, so it stays right."""
    text = (
        "(float[1,4,2,2] x) => (float[1,16] y)"
        "{ [shape] s = Constant <value = int64[2] {0, -1}> () [flat] y = Reshape (x, s) }"
    )
    assert shapes_of(with_batch(model_of(text), 5))["y"] == [5, 16]


def test_shapes_that_do_not_fit_are_refused() -> None:
    """A Concat with a constant of the old batch is found by shape inference, which names it."""
    text = (
        "(float[2,4] x) => (float[2,5] y)"
        "{ [rest] c = Constant <value = float[2,1] {1.0, 2.0}> () [join] y = Concat <axis = 1> (x, c) }"
    )
    with pytest.raises(UserError, match=r"batch 3: shapes do not fit .*join"):
        with_batch(model_of(text), 3)


def test_a_dynamic_batch_is_fixed() -> None:
    """A symbolic first dimension takes the batch, in the outputs that share the symbol too."""
    model = model_of("(float[n,4] x, float[n,4] z) => (float[n,4] y) { y = Add (x, z) }")
    shapes = shapes_of(with_batch(model, 3))
    assert (shapes["x"], shapes["z"], shapes["y"]) == ([3, 4], [3, 4], [3, 4])


@pytest.mark.parametrize("inputs", ["float[1,4] x, float[2,4] z", "float[n,4] x, float[m,4] z", "float x, float z"])
def test_inputs_without_a_common_batch_are_refused(inputs: str) -> None:
    """Different first dimensions, and missing ones, are listed by input."""
    with pytest.raises(UserError, match=r"no common batch \(x: .*, z: "):
        with_batch(model_of(f"({inputs}) => (float[m,4] y) {{ y = Add (x, z) }}"), 4)
