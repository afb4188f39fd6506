"""What stands between two convs: nothing, an activation, another reader."""

from fusescope.graph.patterns.builder import Net
from fusescope.graph.patterns.pattern import FUSIONS, PLACEMENT, Pattern, pattern

_NAMED = f"The activation becomes part of the conv ({FUSIONS}), and the Quantize behind it too ({PLACEMENT})."
_UNNAMED = f"The catalog of conv fusions names Relu, Clip and Gelu only, so the rule is silent ({FUSIONS})."


@pattern("conv chain", "first", documented=f"Conv and Quantize fuse, and the conv writes 8 bits ({PLACEMENT}).")
def conv_chain(net: Net) -> str:
    """Does a conv write the 8-bit tensor that the next conv reads?"""
    return net.conv8(net.conv8(net.input(), "first"), "second")


@pattern(
    "conv chain",
    "relu",
    documented=f"Convs between Dequantizes and a Quantize fuse with them; of others nothing is said ({FUSIONS}).",
)
def conv_unquantized(net: Net) -> str:
    """Does a conv in float16, such as a stem, write the 8-bit tensor that the next conv reads?"""
    return net.conv8(net.relu(net.conv(net.input(), "first")), "second")


@pattern(
    "conv chain",
    "relu",
    documented=f"Conv and Quantize fused write 8 bits only ({PLACEMENT}), so they do not where float16 is needed too.",
)
def conv_second_reader(net: Net) -> tuple[str, str]:
    """Does a conv write 8 bits when a float16 conv reads its result as well?"""
    relu = net.conv_relu()
    return net.conv8(relu, "second"), net.conv(relu, "reader")


@pattern("activation", "relu", documented=_NAMED)
def conv_relu(net: Net) -> str:
    """Does a conv with Relu write 8 bits?"""
    return net.conv8(net.conv_relu(), "second")


@pattern("activation", "clip", documented=_NAMED)
def conv_clip(net: Net) -> str:
    """Does a conv with Clip, as of Relu6, write 8 bits?"""
    bounds = net.constant("low", 0.0), net.constant("high", 6.0)
    return net.conv8(net.op("Clip", net.conv8(net.input(), "first"), *bounds, name="clip"), "second")


@pattern("activation", "gelu", documented=_NAMED)
def conv_gelu(net: Net) -> str:
    """Does a conv with Gelu write 8 bits?"""
    return net.conv8(net.op("Gelu", net.conv8(net.input(), "first"), name="gelu"), "second")


@pattern("activation", "leaky_relu", documented=_UNNAMED)
def conv_leaky_relu(net: Net) -> str:
    """Does a conv with LeakyRelu write 8 bits?"""
    leaky = net.op("LeakyRelu", net.conv8(net.input(), "first"), name="leaky_relu", alpha=0.1)
    return net.conv8(leaky, "second")


@pattern("activation", "silu", documented=_UNNAMED)
def conv_silu(net: Net) -> str:
    """Does a conv with SiLU, spelled out as Sigmoid and Mul, write 8 bits?"""
    return net.conv8(net.silu(net.conv8(net.input(), "first")), "second")


@pattern("activation", "hard_swish", documented=_UNNAMED)
def conv_hard_swish(net: Net) -> str:
    """Does a conv with HardSwish write 8 bits?"""
    return net.conv8(net.op("HardSwish", net.conv8(net.input(), "first"), name="hard_swish"), "second")


PATTERNS: tuple[Pattern, ...] = (
    conv_chain,
    conv_unquantized,
    conv_second_reader,
    conv_relu,
    conv_clip,
    conv_gelu,
    conv_leaky_relu,
    conv_silu,
    conv_hard_swish,
)
