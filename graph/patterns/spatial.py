"""What changes extents between two convs: pools, Pad, Resize, squeeze-and-excite."""

from fusescope.graph.patterns.builder import CHANNELS, KERNEL_1X1, KERNEL_3X3, Net
from fusescope.graph.patterns.pattern import FUSIONS, PLACEMENT, PROPAGATION, RECOMMENDED, Pattern, pattern

_POOL = {"kernel_shape": (2, 2), "strides": (2, 2)}
_COMMUTES = (
    f"Max pooling commutes: the Quantize moves back into the conv and the pool is one of 8 bits ({PROPAGATION})."
)
_APART = f"A layer without weights takes up a Quantize only behind a Dequantize ({FUSIONS})."


@pattern("pool", "pool", documented=_COMMUTES)
def max_pool_then_quantize(net: Net) -> str:
    """Does the Quantize behind a max pool move back across it into the conv?"""
    return net.conv8(net.op("MaxPool", net.conv_relu(), name="pool", **_POOL), "second")


@pattern("pool", "relu", documented=f"Max pooling commutes: the Dequantize moves on to the conv ({PROPAGATION}).")
def quantize_then_max_pool(net: Net) -> str:
    """Does a conv run in 8 bits when a max pool stands between it and its Dequantize?"""
    pool = net.op("MaxPool", net.quantized(net.conv_relu()), name="pool", **_POOL)
    return net.conv(pool, "second", weight=net.weight8("second_weight", KERNEL_3X3))


@pattern("pool", "pool", documented=_APART)
def average_pool_then_quantize(net: Net) -> str:
    """What becomes of the Quantize behind an average pool that reads float16?"""
    return net.conv8(net.op("AveragePool", net.conv_relu(), name="pool", **_POOL), "second")


@pattern(
    "pool", "relu", "pool", documented=f"An average pool between Dequantize and Quantize fuses with both ({PLACEMENT})."
)
def average_pool_quantized(net: Net) -> str:
    """Does an average pool between Dequantize and Quantize run in 8 bits?"""
    return net.conv8(net.op("AveragePool", net.quantized(net.conv_relu()), name="pool", **_POOL), "second")


@pattern(
    "layout", "pad", documented=f"A Pad becomes part of the conv behind it ({FUSIONS}); nothing is said of a Quantize."
)
def pad_then_quantize(net: Net) -> str:
    """Does the Quantize fuse into the conv before when a Pad stands between them?"""
    return net.conv8(net.pad(net.conv_relu()), "second", pads=(0, 0, 0, 0))


@pattern(
    "layout",
    "relu",
    documented=f"A Pad becomes part of the conv behind it ({FUSIONS}), and zero stays zero in 8 bits.",
    granularities=RECOMMENDED,
)
def quantize_then_pad(net: Net) -> str:
    """Does a conv run in 8 bits when a Pad stands between it and its Dequantize?"""
    pad = net.pad(net.quantized(net.conv_relu()))
    return net.conv(pad, "second", weight=net.weight8("second_weight", KERNEL_3X3), pads=(0, 0, 0, 0))


@pattern("layout", "resize", documented=_APART)
def resize_then_quantize(net: Net) -> str:
    """What becomes of the Quantize behind a Resize to the nearest?"""
    return net.conv8(net.resize(net.conv_relu(), "nearest"), "second")


@pattern("squeeze-excite", "excited", documented=_APART)
def squeeze_excite(net: Net) -> str:
    """What becomes of the Quantize behind the Mul of a squeeze-and-excite block?"""
    silu = net.silu(net.conv8(net.input(), "first"))
    squeezed = net.op("GlobalAveragePool", silu, name="squeeze")
    reduced = net.silu(net.conv(squeezed, "reduce", (CHANNELS // 4, CHANNELS, 1, 1)), "reduce_silu")
    gate = net.op("Sigmoid", net.conv(reduced, "expand", (CHANNELS, CHANNELS // 4, 1, 1)), name="gate")
    return net.conv8(net.op("Mul", silu, gate, name="excited"), "last", KERNEL_1X1)


PATTERNS: tuple[Pattern, ...] = (
    max_pool_then_quantize,
    quantize_then_max_pool,
    average_pool_then_quantize,
    average_pool_quantized,
    pad_then_quantize,
    quantize_then_pad,
    resize_then_quantize,
    squeeze_excite,
)
