"""Sums: the skip of a residual block, and branches of different resolution."""

from fusescope.graph.patterns.builder import CHANNELS, KERNEL_1X1, PIXELS, Net
from fusescope.graph.patterns.pattern import PLACEMENT, Pattern, pattern

_PLAIN_SKIP = f"A float16 skip keeps conv and Add in float16, and the Quantize behind them apart ({PLACEMENT})."
_QUANTIZED_SKIP = f"Conv, Add, activation and Quantize fuse when the skip is quantized ({PLACEMENT})."
_SECOND_READER = f"The sum is needed in float16, so the Quantize makes a second copy of it ({PLACEMENT})."
_ACTIVATED = f"Only a conv's own result is added in its kernel; here an activation comes between ({PLACEMENT})."

HALF = (1, CHANNELS, PIXELS // 2, PIXELS // 2)
"""A branch of half the resolution."""


@pattern("residual", "relu", documented=_PLAIN_SKIP)
def residual_add_fp16_skip(net: Net) -> str:
    """Does the Quantize behind a residual Add and Relu fuse when the skip is read in float16?"""
    x = net.input()
    return net.conv8(net.relu(net.op("Add", net.conv8(x, "first"), x, name="sum")), "second")


@pattern("residual", "relu", documented=_QUANTIZED_SKIP)
def residual_add_quantized_skip(net: Net) -> str:
    """Does the Quantize behind a residual Add and Relu fuse when the skip is read through Quantize and Dequantize?"""
    x = net.input()
    total = net.op("Add", net.conv8(x, "first"), net.quantized(x), name="sum")
    return net.conv8(net.relu(total), "second")


@pattern("residual", "relu", documented=_SECOND_READER)
def residual_add_fp16_skip_second_reader(net: Net) -> str:
    """Does the Quantize behind a residual sum fuse when the next block's skip reads the sum in float16?"""
    x = net.input()
    relu = net.relu(net.op("Add", net.conv8(x, "first"), x, name="sum"))
    return net.op("Add", net.conv8(relu, "second"), relu, name="next_sum")


@pattern("residual", "relu", documented=_SECOND_READER)
def residual_add_quantized_skip_second_reader(net: Net) -> tuple[str, str]:
    """Does the Quantize fuse when the skip is quantized, but a float16 conv reads the sum too?"""
    x = net.input()
    relu = net.relu(net.op("Add", net.conv8(x, "first"), net.quantized(x), name="sum"))
    return net.conv8(relu, "second"), net.conv(relu, "reader", KERNEL_1X1)


PATTERNS: tuple[Pattern, ...] = (
    residual_add_fp16_skip,
    residual_add_quantized_skip,
    residual_add_fp16_skip_second_reader,
    residual_add_quantized_skip_second_reader,
)
