"""Convs that may not run in 8 bits, or not well: grouped, large, transposed, of odd width, of other weights."""

from fusescope.graph.patterns.builder import CHANNELS, KERNEL_1X1, KERNEL_3X3, PIXELS, Net
from fusescope.graph.patterns.pattern import PLACEMENT, RECOMMENDED, WEIGHTS, Pattern, pattern

_GROUPED = "FP8 has no optimised kernel for grouped convs, INT8 has (TensorRT 10.12 release notes)."
_WIDTH = (
    "8-bit kernels read channels in multiples of 4 bytes; others are padded "
    "(TensorRT for RTX support matrix; full TensorRT documents no limit)."
)


@pattern("grouped", "relu", "depthwise_relu", documented=_GROUPED)
def depthwise_conv(net: Net) -> str:
    """Does a depthwise conv read and write 8 bits?"""
    depthwise = net.conv8(net.conv_relu(), "depthwise", (CHANNELS, 1, 3, 3), group=CHANNELS)
    return net.conv8(net.relu(depthwise, "depthwise_relu"), "last", KERNEL_1X1)


@pattern("grouped", "relu", "grouped_relu", documented=_GROUPED)
def grouped_conv(net: Net) -> str:
    """Does a conv of two groups read and write 8 bits?"""
    grouped = net.conv8(net.conv_relu(), "grouped", (CHANNELS, CHANNELS // 2, 3, 3), group=2)
    return net.conv8(net.relu(grouped, "grouped_relu"), "last", KERNEL_1X1)


@pattern(
    "kernel",
    "relu",
    documented=f"No limit is documented: it fuses as any conv ({PLACEMENT}).",
    granularities=RECOMMENDED,
)
def dilated_conv(net: Net) -> str:
    """Does a dilated conv read 8 bits?"""
    return net.conv8(net.conv_relu(), "last", dilations=(2, 2))


@pattern(
    "kernel",
    "relu",
    documented="SM 8.9, 9.0 and 12.x have no FP8 kernels of more than 32 elements (TensorRT 10.16.1 release notes).",
    granularities=RECOMMENDED,
)
def large_kernel_conv(net: Net) -> str:
    """Does a conv of 7x7, more than 32 kernel elements, read 8 bits?"""
    return net.conv8(net.conv_relu(), "last", (CHANNELS, CHANNELS, 7, 7))


@pattern(
    "kernel",
    "relu",
    "up_relu",
    documented="FP8 has no transposed convs (TensorRT for RTX support matrix); in INT8 they fuse as convs do.",
)
def transposed_conv(net: Net) -> str:
    """Does a transposed conv read and write 8 bits?"""
    weight = net.weight8("up_weight", (CHANNELS, CHANNELS, 2, 2), axis=1)
    bias = net.weight("up_bias", (CHANNELS,))
    up = net.op("ConvTranspose", net.quantized(net.conv_relu()), weight, bias, name="up", strides=(2, 2))
    return net.conv8(net.relu(up, "up_relu"), "last", KERNEL_1X1)


@pattern(
    "channels",
    "x",
    documented="An FP8 stem of three channels may find no kernel on SM 12.0 (Model Optimizer's README).",
    granularities=RECOMMENDED,
)
def channels_3(net: Net) -> str:
    """What becomes of the Quantize of an image, whose three channels fill no 8-bit load?"""
    return net.conv8(net.input("x", (1, 3, PIXELS, PIXELS)), "first", (CHANNELS, 3, 3, 3))


@pattern("channels", "relu", documented=_WIDTH, granularities=RECOMMENDED)
def channels_17(net: Net) -> str:
    """What becomes of the Quantize of an odd number of channels?"""
    return _chain_of(net, 17)


@pattern("channels", "relu", documented=_WIDTH, granularities=RECOMMENDED)
def channels_18(net: Net) -> str:
    """What becomes of the Quantize of an even number of channels that is no multiple of 4?"""
    return _chain_of(net, 18)


@pattern("channels", "relu", documented=_WIDTH, granularities=RECOMMENDED)
def channels_36(net: Net) -> str:
    """What becomes of the Quantize of channels that are a multiple of 4, but not of 16?"""
    return _chain_of(net, 36)


@pattern("channels", "relu", documented=_WIDTH, granularities=RECOMMENDED)
def channels_48(net: Net) -> str:
    """What becomes of the Quantize of channels that are a multiple of 16, but no power of two?"""
    return _chain_of(net, 48)


@pattern(
    "weights", "relu", documented=f"Constant weights are quantized at build time and stored in 8 bits ({WEIGHTS})."
)
def run_time_weights(net: Net) -> str:
    """Does a conv run in 8 bits when the model holds float16 weights with Quantize and Dequantize?"""
    weight = net.run_time_weight8("last_weight", KERNEL_3X3)
    return net.conv(net.quantized(net.conv_relu()), "last", weight=weight)


@pattern(
    "weights",
    "relu",
    documented=f"All inputs of a conv must be quantized for it to run in 8 bits ({PLACEMENT}).",
    granularities=RECOMMENDED,
)
def unquantized_weights(net: Net) -> str:
    """What becomes of the Quantize of a conv whose weights are in float16?"""
    return net.conv(net.quantized(net.conv_relu()), "last")


def _chain_of(net: Net, channels: int) -> str:
    """Draw two convs with a Relu between, all of one width."""
    x = net.input("x", (1, channels, PIXELS, PIXELS))
    kernel = (channels, channels, 3, 3)
    return net.conv8(net.relu(net.conv8(x, "first", kernel)), "last", kernel)


PATTERNS: tuple[Pattern, ...] = (
    depthwise_conv,
    grouped_conv,
    dilated_conv,
    large_kernel_conv,
    transposed_conv,
    channels_3,
    channels_17,
    channels_18,
    channels_36,
    channels_48,
    run_time_weights,
    unquantized_weights,
)
