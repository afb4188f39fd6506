"""Layer information as JSON: every schema from TensorRT 8.2 on is read into the one layer model."""

import json
from pathlib import Path
from typing import Any

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.inspector_json import read, recognise
from fusescope.profiler.layers import Engine, Layer, Tensor

NHWC8 = "Channel major FP16 format where channel % 8 == 0"
EXAMPLES = Path(__file__).parent / "examples"
CLASSIC: dict[str, Any] = json.loads((EXAMPLES / "inspector-8.6.json").read_text(encoding="utf-8"))["Layers"][0]
ELEVEN: dict[str, Any] = json.loads((EXAMPLES / "inspector-11.json").read_text(encoding="utf-8"))["Layers"][0]


def engine_of(layers: list[Any], **more: Any) -> Engine:
    """The engine of a document with these layers."""
    (section,) = read(json.dumps({"Layers": layers, **more}), "layers.json")
    assert section.engine is not None
    return section.engine


def test_a_layer_of_tensorrt_8_to_10() -> None:
    """Every key stands where it belongs, and those without a field are kept as they are written."""
    engine = engine_of([CLASSIC], Bindings=["x", "y", "unused"])
    (layer,) = engine.layers
    assert layer == Layer(
        index=0,
        name=CLASSIC["Name"],
        kind="CaskConvolution",
        inputs=(Tensor("x", (1, 3, 8, 8), "FP16", "Channel major where channel % 8 == 0", channel_multiple=8),),
        outputs=(Tensor("y", (1, 16, 8, 8), "FP16", "Row major linear"),),
        constants=(Tensor("Weights", (432,), "Half"),),
        tactic="sm80_xmma_fprop",
        stream=2,
        onnx_nodes=("Conv_9", "Relu_10"),
        attributes={
            "ParameterType": "Convolution",
            "Kernel": "[3,3]",
            "Groups": "1",
            "Weights": '{"Type": "Half", "Count": 432}',
            "TacticValue": "0x5b8bf1b8028629d9",
        },
    )
    assert (engine.inputs, engine.outputs) == (layer.inputs, layer.outputs)


def test_padded_channels_are_bytes() -> None:
    """Three channels in multiples of eight take eight: 8 x 8 pixels of 8 halves."""
    (layer,) = engine_of([CLASSIC]).layers
    assert layer.inputs[0].bytes == 8 * 8 * 8 * 2
    assert layer.outputs[0].bytes == 16 * 8 * 8 * 2


def test_a_layer_of_tensorrt_11() -> None:
    """Type and format are apart, constants are listed, inputs and outputs have shapes of their own."""
    tensors = [
        {"Name": "x", "IOMode": "Input", "DataType": "Half", "Dimensions": [1, 1, 28, 28], "ProfileInfo": []},
        {"Name": "z", "IOMode": "Output", "DataType": "Int64", "Dimensions": [-1], "IsShapeInferenceIO": False},
    ]
    engine = engine_of([ELEVEN], **{"I/O Tensors": tensors})
    (layer,) = engine.layers
    nhwc = "(NHWC) Channel major format"
    assert layer.inputs == (Tensor("relu.1_2_myl0", (1, 1, 28, 28), "Float", nhwc, (784, 1, 28, 1)),)
    assert layer.constants == (Tensor("w", (), "FP8", "(Linear) Row major linear format"),)
    assert layer.onnx_nodes == ("node_conv2d", "node_relu")
    assert engine.inputs == (Tensor("x", (1, 1, 28, 28), "Half"),)
    assert engine.outputs == (Tensor("z", (-1,), "Int64"),)


def test_names_only() -> None:
    """Without detailed verbosity an entry is a name: a layer of which nothing else is known."""
    engine = engine_of(["Conv-1 + ReLU-2", "MaxPool-3"], Bindings=["in", "out"])
    assert engine.layers == (Layer(0, "Conv-1 + ReLU-2", ""), Layer(1, "MaxPool-3", ""))
    assert engine.inputs == engine.outputs == ()


def test_control_bytes_stand_raw_in_strings() -> None:
    """TensorRT 8.6 EA wrote separators unescaped, which is no JSON."""
    text = json.dumps({"Layers": [CLASSIC]}).replace("\\u001e", "\x1e")
    (section,) = read(text, "layers.json")
    assert section.engine is not None
    assert section.engine.layers[0].onnx_nodes == ("Conv_9", "Relu_10")


@pytest.mark.parametrize("key", ["layers", "LayerInfo", None])
def test_other_wrappings(key: str | None) -> None:
    """Programs keep the list under another key, or alone."""
    document = [CLASSIC] if key is None else {key: [CLASSIC]}
    text = json.dumps(document)
    assert recognise(text)
    (section,) = read(text, "layers.json")
    assert section.engine is not None
    assert [layer.kind for layer in section.engine.layers] == ["CaskConvolution"]


@pytest.mark.parametrize(
    "damage",
    [
        {"Name": 7},
        {"Inputs": "x"},
        {"Inputs": [{"Name": "x", "Dimensions": [1.5], "Format/Datatype": "Half"}]},
        {"Outputs": [{"Name": "x", "Dimensions": [10**9, 10**9], "Format/Datatype": "Half"}]},
        {"StreamId": -1},
        {"Metadata": None},
    ],
)
def test_entries_that_cannot_be_read_are_listed(damage: dict[str, Any]) -> None:
    """They are not dropped, and the others are read."""
    engine = engine_of([CLASSIC, {**CLASSIC, **damage}, 5])
    assert [layer.index for layer in engine.layers] == [0]
    assert [line.number for line in engine.unread] == [2, 3]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"Layers": []}', "holds no layers"),
        ('{"Layers": [5]}', "holds no layer that can be read"),
        ('{"Layers": ["a", ', "cut short"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_files_are_refused(text: str, error: str) -> None:
    """With the reason."""
    with pytest.raises(UserError, match=error):
        read(text, "layers.json")
