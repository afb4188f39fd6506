"""How tensors get from conv to conv: joined, split, read by several, in and out of the model."""

from onnx import TensorProto

from fusescope.graph.patterns.builder import CHANNELS, KERNEL_1X1, PIXELS, Net
from fusescope.graph.patterns.pattern import LIMITATIONS, PLACEMENT, PROPAGATION, RECOMMENDED, Pattern, pattern

_WIDE = (CHANNELS, 2 * CHANNELS, 1, 1)
_NARROW = (CHANNELS, CHANNELS // 2, 1, 1)

_MOVED = f"Where it commutes with the data movement, the Quantize moves back to the convs ({PROPAGATION})."
_INPUT = f"A Quantize becomes part of what comes before it ({PROPAGATION}); before an input there is nothing."
_OUTPUT = f"Conv and Quantize fused write 8 bits only ({PLACEMENT}), so they do not where float16 is needed too."
_ONE_CODE = f"The conv writes 8 bits once and all readers read that ({PROPAGATION})."


@pattern("concat", "concat", documented=_MOVED)
def concat_then_quantize(net: Net) -> str:
    """Does the Quantize behind a Concat of two conv branches become part of the convs?"""
    return _joined(net, *_branches(net))


@pattern(
    "concat",
    "left",
    "right",
    "concat",
    documented=f"Rewrites across several Quantizes apply where their scales are equal ({LIMITATIONS}).",
)
def concat_quantized_equal_scales(net: Net) -> str:
    """Do Quantizes before and behind a Concat fuse when all have one scale?"""
    left, right = (net.dequantized(net.codes(branch, largest=4.0)) for branch in _branches(net))
    net.codes(net.op("Concat", left, right, name="concat", axis=1), largest=4.0)
    return net.conv8("concat", "last", _WIDE)


@pattern(
    "concat",
    "left",
    "right",
    "concat",
    documented=f"Rewrites across several Quantizes do not apply where their scales differ ({LIMITATIONS}).",
)
def concat_quantized_different_scales(net: Net) -> str:
    """Do Quantizes before and behind a Concat fuse when each has a scale of its own?"""
    left, right = (net.quantized(branch) for branch in _branches(net))
    return _joined(net, left, right)


@pattern(
    "concat",
    "left",
    "concat",
    documented=f"Without weights, it runs in 8 bits only if all it reads and writes is quantized ({PLACEMENT}).",
)
def concat_one_branch_quantized(net: Net) -> str:
    """What becomes of the Quantizes when only one branch of a Concat is quantized before it?"""
    left, right = _branches(net)
    return _joined(net, net.quantized(left), right)


@pattern("split", "first_half", "second_half", documented=_MOVED)
def split_then_quantize(net: Net) -> tuple[str, str]:
    """Do the Quantizes of the halves of a Split fuse into the conv before it?"""
    first, second = net.split(net.conv_relu(), "first_half", "second_half")
    return net.conv8(first, "left", _NARROW), net.conv8(second, "right", _NARROW)


@pattern(
    "split",
    "relu",
    documented=f"A Dequantize moves on across data movement to the readers ({PROPAGATION}).",
    granularities=RECOMMENDED,
)
def quantize_then_split(net: Net) -> tuple[str, str]:
    """Do convs run in 8 bits when a Split stands between them and their Dequantize?"""
    first, second = net.split(net.quantized(net.conv_relu()), "first_half", "second_half")
    weights = (net.weight8(f"{name}_weight", _NARROW) for name in ("left", "right"))
    left = net.conv(first, "left", _NARROW, weight=next(weights))
    return left, net.conv(second, "right", _NARROW, weight=next(weights))


@pattern("sharing", "relu", documented=_ONE_CODE, granularities=RECOMMENDED)
def two_readers(net: Net) -> tuple[str, str]:
    """Does a conv write 8 bits once for two convs that share its Quantize, each with a Dequantize of its own?"""
    relu = net.conv_relu()
    return net.conv8(relu, "left", KERNEL_1X1), net.conv8(relu, "right", KERNEL_1X1)


@pattern("sharing", "relu", documented=_ONE_CODE, granularities=RECOMMENDED)
def shared_dequantize(net: Net) -> tuple[str, str]:
    """Does a conv write 8 bits once for two convs that share both its Quantize and its Dequantize?"""
    return _read_by_two(net, *[net.quantized(net.conv_relu())] * 2)


@pattern(
    "sharing",
    "relu",
    documented=f"Quantizes of equal scale move back together ({LIMITATIONS}).",
    granularities=RECOMMENDED,
)
def duplicate_quantizes(net: Net) -> tuple[str, str]:
    """Are two Quantizes of one scale on one tensor, as torch exports them, made one?"""
    relu = net.conv_relu()
    return _read_by_two(net, *(net.dequantized(net.codes(relu, name=f"{side}_q", largest=4.0)) for side in "ab"))


@pattern(
    "sharing",
    "relu",
    documented=f"Quantizes move back together only if their scales are equal ({LIMITATIONS}).",
    granularities=RECOMMENDED,
)
def different_quantizes(net: Net) -> tuple[str, str]:
    """What becomes of two Quantizes of different scales on one tensor?"""
    relu = net.conv_relu()
    return _read_by_two(net, *(net.dequantized(net.codes(relu, name=f"{side}_q")) for side in "ab"))


@pattern("boundary", "x", documented=_INPUT, granularities=RECOMMENDED)
def graph_input(net: Net) -> str:
    """What quantizes a float16 input of the model?"""
    return net.conv8(net.input(), "first")


@pattern("boundary", "half", documented=_INPUT, granularities=RECOMMENDED)
def graph_input_float32(net: Net) -> str:
    """Does the kernel that quantizes a float32 input of the model take up the Cast to float16?"""
    x = net.input("x", (1, CHANNELS, PIXELS, PIXELS), TensorProto.FLOAT)
    return net.conv8(net.op("Cast", x, name="half", to=TensorProto.FLOAT16), "first")


@pattern("boundary", "relu", documented=_OUTPUT, granularities=RECOMMENDED)
def graph_output(net: Net) -> tuple[str, str]:
    """Does a conv write 8 bits when its result is an output of the model too?"""
    relu = net.conv_relu()
    return relu, net.conv8(relu, "second")


@pattern("boundary", "relu", documented=_ONE_CODE, granularities=RECOMMENDED)
def graph_output_dequantized(net: Net) -> tuple[str, str]:
    """Does a conv write 8 bits when the model's output is read from behind the Dequantize?"""
    relu = net.conv_relu()
    return net.quantized(relu), net.conv8(relu, "second")


def _branches(net: Net) -> tuple[str, str]:
    """Draw two convs of one input, each with a Relu."""
    x = net.input()
    return net.relu(net.conv8(x, "a", KERNEL_1X1), "left"), net.relu(net.conv8(x, "b", KERNEL_1X1), "right")


def _joined(net: Net, left: str, right: str) -> str:
    return net.conv8(net.op("Concat", left, right, name="concat", axis=1), "last", _WIDE)


def _read_by_two(net: Net, left: str, right: str) -> tuple[str, str]:
    """Draw two 8-bit convs of dequantized tensors."""
    one, other = (net.weight8(f"{name}_weight", KERNEL_1X1) for name in ("left", "right"))
    return net.conv(left, "left", KERNEL_1X1, weight=one), net.conv(right, "right", KERNEL_1X1, weight=other)


PATTERNS: tuple[Pattern, ...] = (
    concat_then_quantize,
    concat_quantized_equal_scales,
    concat_quantized_different_scales,
    concat_one_branch_quantized,
    split_then_quantize,
    quantize_then_split,
    two_readers,
    shared_dequantize,
    duplicate_quantizes,
    different_quantizes,
    graph_input,
    graph_input_float32,
    graph_output,
    graph_output_dequantized,
)
