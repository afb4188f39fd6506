"""Reading the one-line engine dump: what is written is read back, and nothing else is made up."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.layers import Engine, Layer, Tensor
from fusescope.profiler.traffic import traffic

CONV = (
    "Name: /conv1/Conv_myl0_4, LayerType: correlation, Inputs: [ { Name: x.1_2_myl0, Dimensions: [1,4,8,8], "
    "Strides: [256,1,32,4], StrideOrder: [3,0,2,1], Datatype: FP8, Format: (NHWC) Channel major format }], "
    "Constants: [ { Name: w, Dimensions: [64,4,3,3], Strides: [36,1,12,4], StrideOrder: [3,0,2,1], Datatype: FP8, "
    "Format: (NHWC) Channel major format }, { Name: one, Dimensions: [], Strides: [], StrideOrder: [], "
    "Datatype: Float, Format: (Linear) Row major linear format }], Outputs: [ { Name: y, Dimensions: [1,64,8,8], "
    "Strides: [4096,1,512,64], StrideOrder: [3,0,2,1], Datatype: Float, Format: (NHWC) Channel major format }], "
    "TacticName: __myelin_CASK_STUB, StreamId: 2, Metadata: [ONNX Layer: /conv1/Conv]\x1f[ONNX Layer: /act1/Relu]"
)
SIGNAL = (
    "Name: entry^bb^signal^4_myl0_0, LayerType: signal, Inputs: [], Constants: [], Outputs: [], TacticName: , "
    "StreamId: 0, EventId: 87, Metadata: "
)
WAIT = SIGNAL.replace("signal", "wait").replace("StreamId: 0", "StreamId: 7")
END = """
I/O Tensors:
 Name: input, IOMode: Input, DataType: Half, Dimensions: [1,3,8,8], Location: Device, IsShapeInferenceIO: false
 Name: output, IOMode: Output, DataType: Float, Dimensions: [1,10], Location: Device, IsShapeInferenceIO: false

Engine Metadata:
 Multi-Device: Disabled
"""


def dump(*lines: str) -> str:
    """A whole dump with these layer lines."""
    return "\n".join(["Layers:", *lines, END])


def only(line: str) -> Layer:
    """The layer of a dump of one line."""
    (layer,) = read_oneline(dump(line)).layers
    return layer


def test_a_convolution_is_read_whole() -> None:
    """Name, kind, tensors, constants, strides, tactic, stream and ONNX nodes of a line stand where they belong."""
    layer = only(CONV)
    assert (layer.name, layer.kind, layer.tactic) == ("/conv1/Conv_myl0_4", "correlation", "__myelin_CASK_STUB")
    assert (layer.index, layer.stream, layer.event) == (0, 2, None)
    nhwc = "(NHWC) Channel major format"
    assert layer.inputs == (Tensor("x.1_2_myl0", (1, 4, 8, 8), "FP8", nhwc, (256, 1, 32, 4)),)
    assert [tensor.name for tensor in layer.constants] == ["w", "one"]
    assert layer.outputs[0].shape == (1, 64, 8, 8)
    assert layer.onnx_nodes == ("/conv1/Conv", "/act1/Relu")
    assert layer.notes == ()


def test_sizes_follow_from_dimensions_and_dtype() -> None:
    """Bytes are elements times the dtype's size; a scalar has one element."""
    layer = only(CONV)
    assert [tensor.bytes for tensor in layer.reads] == [1 * 4 * 8 * 8, 64 * 4 * 3 * 3, 4]
    assert [tensor.bytes for tensor in layer.outputs] == [4 * 64 * 8 * 8]


def test_signals_and_waits_keep_their_stream_and_event() -> None:
    """Layers without tensors are layers; what they synchronize is kept."""
    signal, wait = read_oneline(dump(SIGNAL, WAIT)).layers
    assert (signal.kind, signal.stream, signal.event) == ("signal", 0, 87)
    assert (wait.kind, wait.stream, wait.event) == ("wait", 7, 87)
    assert signal.reads == signal.outputs == signal.onnx_nodes == ()


def test_the_engines_own_inputs_and_outputs_are_read() -> None:
    """The section of I/O tensors becomes the engine's inputs and outputs."""
    engine = read_oneline(dump(SIGNAL))
    assert engine.inputs == (Tensor("input", (1, 3, 8, 8), "Half"),)
    assert engine.outputs == (Tensor("output", (1, 10), "Float"),)


OLD = (
    "Name: conv.weight + QuantizeLinear_7 + Conv_9, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, "
    "Dimensions: [1,3,8,8], Format/Datatype: Channel major FP16 format where channel % 8 == 0 }], "
    "Outputs: [ { Name: y, Dimensions: [-1,16,8,8], Format/Datatype: N/A due to dynamic shapes }], "
    'ParameterType: Convolution, Kernel: [3,3], Weights: {"Type": "Int8", "Count": 432}, '
    'Bias: {"Type": "Float", "Count": 0}, HasBias: 0, TacticValue: 0x0'
)
BINDINGS = "\n".join(["", "Bindings:", "x", "y"])


def test_a_layer_of_tensorrt_8() -> None:
    """Type and format in one sentence, weights as a number of a type, no stream and no metadata."""
    engine = read_oneline(f"Layers:\n{OLD}\n{BINDINGS}")
    (layer,) = engine.layers
    assert (layer.name, layer.kind) == ("conv.weight + QuantizeLinear_7 + Conv_9", "CaskConvolution")
    assert layer.inputs == (
        Tensor("x", (1, 3, 8, 8), "FP16", "Channel major where channel % 8 == 0", channel_multiple=8),
    )
    assert layer.outputs == (Tensor("y", (-1, 16, 8, 8), "unknown", "N/A due to dynamic shapes"),)
    assert layer.constants == (Tensor("Weights", (432,), "Int8"),)
    assert layer.attributes["Kernel"] == "[3,3]"
    assert layer.attributes["TacticValue"] == "0x0"
    assert (engine.inputs, engine.outputs) == (layer.inputs, layer.outputs)


def test_a_layer_of_tensorrt_10() -> None:
    """A bare type in the place of the sentence, and what is written in lower case is an attribute too."""
    line = OLD.replace("Channel major FP16 format where channel % 8 == 0", "Half").replace("HasBias", "weights")
    (layer,) = read_oneline(f"Layers:\n{line}, StreamId: 1, Metadata: [ONNX Layer: Conv_9]\n{BINDINGS}").layers
    assert layer.inputs == (Tensor("x", (1, 3, 8, 8), "Half"),)
    assert (layer.stream, layer.onnx_nodes, layer.attributes["weights"]) == (1, ("Conv_9",), "0")


def test_names_only() -> None:
    """Without detailed verbosity a line is the name of a layer."""
    engine = read_oneline(f"Layers:\nConv-1 + ReLU-2\n(Unnamed Layer* 32) [Shuffle]\n{BINDINGS}")
    assert engine.layers == (Layer(0, "Conv-1 + ReLU-2", ""), Layer(1, "(Unnamed Layer* 32) [Shuffle]", ""))


def test_metadata_without_separators() -> None:
    """A terminal swallows the control bytes between nodes."""
    assert only(f"{SIGNAL}[ONNX Layer: a][ONNX Layer: b[0]]").onnx_nodes == ("a", "b[0]")


@pytest.mark.parametrize("separator", ["\x1f", "\x1e"])
def test_both_separators_of_metadata_are_understood(separator: str) -> None:
    """0x1F stands between nodes of a generated kernel, 0x1E between those of a classic fusion."""
    line = SIGNAL + separator.join(["[ONNX Layer: a]", "[ONNX Layer: b]"])
    assert only(line).onnx_nodes == ("a", "b")


def test_a_note_behind_a_node_is_kept() -> None:
    """A 1x1 conv that runs as a gemm says so behind its node's name."""
    layer = only(SIGNAL + "[ONNX Layer: /c/Conv]__gemm_from_conv1x1\x1f[ONNX Layer: /r/Relu]")
    assert layer.onnx_nodes == ("/c/Conv", "/r/Relu")
    assert layer.notes == ("__gemm_from_conv1x1",)


@pytest.mark.parametrize("name", ["a, b", "a }, b", "{x}", "s[0]", "[ONNX Layer: n]", "größe", "a: b", "x]", "[", " "])
def test_unusual_names_are_read(name: str) -> None:
    """Nothing is quoted in a dump, and still blanks, commas, brackets and braces in names are no trouble."""
    line = CONV.replace("x.1_2_myl0", name).replace("Name: /conv1/Conv_myl0_4", f"Name: {name}")
    layer = only(line)
    assert layer.name == layer.inputs[0].name == name
    node = only(SIGNAL + f"[ONNX Layer: {name}]\x1f[ONNX Layer: other]")
    assert node.onnx_nodes == (name, "other")


def test_unknown_keys_are_kept_as_written() -> None:
    """A key that a later TensorRT adds is an attribute of the layer."""
    line = SIGNAL.replace(", Metadata", ", ParameterType: Convolution, Kernel: [5,5], Metadata")
    assert only(line).attributes == {"ParameterType": "Convolution", "Kernel": "[5,5]"}


def test_a_line_that_is_not_understood_is_shown_and_counted() -> None:
    """Layers around a broken line are read; the line is kept with its number."""
    engine = read_oneline(dump(SIGNAL, "Name: half a line, LayerType: kg", CONV))
    assert [layer.kind for layer in engine.layers] == ["signal", "correlation"]
    assert [layer.index for layer in engine.layers] == [0, 1]
    assert [(line.number, line.text) for line in engine.unread] == [(3, "Name: half a line, LayerType: kg")]


def test_a_blank_line_among_the_layers_does_not_hide_those_behind_it() -> None:
    """A layer whose name holds line breaks is unread, and the layers after it are not lost."""
    engine = read_oneline(dump(SIGNAL.replace("entry", "two\n\nlines"), CONV))
    assert [layer.kind for layer in engine.layers] == ["correlation"]
    assert [line.number for line in engine.unread] == [2, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an engine dump"),
        ("Name: x", "not an engine dump: it begins with 'Name: x'"),
        (dump(), "no layer that can be read"),
        (dump("Name: this"), "line 2 reads 'Name: this'"),
        (f"Layers:\n{SIGNAL}\n{CONV}", "cut short"),
        (f"Layers:\n{SIGNAL}\n{CONV[:50]}", "cut short"),
    ],
)
def test_what_is_no_dump_is_refused_in_one_line(text: str, message: str) -> None:
    """Text of another kind, without one readable layer, or without its end is the user's to mend."""
    with pytest.raises(UserError, match=message) as caught:
        read_oneline(text)
    assert "\n" not in str(caught.value)


NAMES = st.text(st.characters(exclude_characters="\n\x1e\x1f[]{},"), min_size=1, max_size=12)
SHAPES = st.lists(st.integers(-1, 4096), max_size=5).map(tuple)
TENSORS = st.builds(
    Tensor,
    name=NAMES,
    shape=SHAPES,
    dtype_text=st.sampled_from(["Half", "Float", "FP8", "Int8", "Int64", "Bool", "Float9E9"]),
    layout=st.sampled_from(["(NHWC) Channel major format", "(Linear) Row major linear format", ""]),
    strides=SHAPES,
)
LAYERS = st.builds(
    Layer,
    index=st.just(0),
    name=NAMES,
    kind=st.sampled_from(["kgen", "correlation", "signal", "runtime_fusion", "NewKind"]),
    inputs=st.lists(TENSORS, max_size=3).map(tuple),
    constants=st.lists(TENSORS, max_size=3).map(tuple),
    outputs=st.lists(TENSORS, max_size=3).map(tuple),
    tactic=st.sampled_from(["", "__myelin_CASK_STUB", "sm90_xmma_fprop_e4m3"]),
    stream=st.integers(0, 9),
    event=st.none() | st.integers(0, 200),
    onnx_nodes=st.lists(NAMES, max_size=3, unique=True).map(tuple),
    attributes=st.dictionaries(st.sampled_from(["Origin", "TacticValue"]), st.sampled_from(["QDQ", "0x3ea"])),
)
ENGINES = st.lists(LAYERS, min_size=1, max_size=5).map(
    lambda layers: tuple(replace(layer, index=index) for index, layer in enumerate(layers))
)


def written_tensors(tensors: tuple[Tensor, ...]) -> str:
    """Tensors in the dump's form."""

    def one(tensor: Tensor) -> str:
        strides = f"Strides: [{','.join(map(str, tensor.strides))}], StrideOrder: [0], " if tensor.strides else ""
        shape = ",".join(map(str, tensor.shape))
        return (
            f" {{ Name: {tensor.name}, Dimensions: [{shape}], {strides}"
            f"Datatype: {tensor.dtype_text}, Format: {tensor.layout} }}"
        )

    return "[" + ",".join(map(one, tensors)) + "]"


def written(layer: Layer) -> str:
    """A layer in the dump's form."""
    event = "" if layer.event is None else f", EventId: {layer.event}"
    attributes = "".join(f", {key}: {value}" for key, value in layer.attributes.items())
    nodes = "\x1f".join(f"[ONNX Layer: {node}]" for node in layer.onnx_nodes)
    return (
        f"Name: {layer.name}, LayerType: {layer.kind}, Inputs: {written_tensors(layer.inputs)}, "
        f"Constants: {written_tensors(layer.constants)}, Outputs: {written_tensors(layer.outputs)}{attributes}, "
        f"TacticName: {layer.tactic}, StreamId: {layer.stream}{event}, Metadata: {nodes}"
    )


@given(ENGINES)
def test_what_is_written_is_read_back(layers: tuple[Layer, ...]) -> None:
    """Random layers, written in the dump's form, are read back equal, and none is unread."""
    assert read_oneline(dump(*map(written, layers))) == Engine(
        layers,
        inputs=(Tensor("input", (1, 3, 8, 8), "Half"),),
        outputs=(Tensor("output", (1, 10), "Float"),),
    )


@given(ENGINES)
def test_the_bytes_of_an_engine_are_the_sum_over_its_layers(layers: tuple[Layer, ...]) -> None:
    """Traffic of a layer is that of its reads and of its writes, and an unsized tensor is counted, not dropped."""
    for layer in read_oneline(dump(*map(written, layers))).layers:
        moved = traffic(layer)
        assert moved.total_bytes == moved.read_bytes + moved.write_bytes
        distinct = {(tensor.name, tensor.shape, "read"): tensor for tensor in layer.reads}
        distinct |= {(tensor.name, tensor.shape, "written"): tensor for tensor in layer.outputs}
        assert moved.unsized == sum(tensor.bytes is None for tensor in distinct.values())
        assert moved.total_bytes == sum(tensor.bytes or 0 for tensor in distinct.values())


@given(st.text() | st.lists(st.sampled_from([*CONV.split(" "), *"[]{},: \x1f\n-09²"])).map(" ".join))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    """No text raises anything but a UserError."""
    for candidate in (text, dump(text), dump(SIGNAL, text)):
        try:
            engine = read_oneline(candidate)
        except UserError:
            continue
        assert len(engine.layers) + len(engine.unread) > 0


@given(st.integers(0, len(dump(CONV, SIGNAL))), st.randoms(use_true_random=False))
def test_a_damaged_dump_is_read_or_refused(length: int, random_: random.Random) -> None:
    """A dump that is cut anywhere, or has a character replaced, raises nothing but a UserError."""
    whole = dump(CONV, SIGNAL)
    position = random_.randrange(len(whole))
    changed = whole[:position] + random_.choice("[]{},:-9²\n\x1f") + whole[position + 1 :]
    for candidate in (whole[:length], changed):
        try:
            engine = read_oneline(candidate)
        except UserError:
            continue
        assert len(engine.layers) + len(engine.unread) >= 1


@pytest.mark.parametrize("number", ["9" * 5000, "1-2", "--1", "²", "1,,2"])
def test_a_number_that_is_none_makes_the_line_unread(number: str) -> None:
    """What looks like digits and cannot be a size leaves the line unread."""
    engine = read_oneline(dump(SIGNAL, CONV.replace("[1,4,8,8]", f"[{number}]")))
    assert len(engine.unread) == 1
    stream = read_oneline(dump(SIGNAL, CONV.replace("StreamId: 2", f"StreamId: {number}")))
    assert len(stream.unread) == 1


HOSTILE = [
    ", Dimensions: [1], Datatype: a, Format: ",
    " { Name: a",
    ", Dimensions: [1",
    "[ONNX Layer: ",
    "]",
    ", IOMode: Input, DataType: a",
    ", A: ",
    " }]",
    ", LayerType: ",
    "], Constants: [",
]


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("place", ["line", "inputs", "metadata", "io"])
def test_a_hostile_megabyte_is_read_in_linear_time(part: str, place: str) -> None:
    """A line of 1 MB made to mislead the patterns takes no more than moments."""
    bulk = part * ((1 << 20) // len(part)) + "{"
    text = {
        "line": dump(SIGNAL, bulk),
        "inputs": dump(SIGNAL, CONV.replace("x.1_2_myl0", bulk)),
        "metadata": dump(SIGNAL, CONV + bulk),
        "io": dump(SIGNAL) + "\n Name: " + bulk,
    }[place]
    start = time.process_time()
    assert read_oneline(text).layers
    assert time.process_time() - start < 2  # quadratic would take minutes
