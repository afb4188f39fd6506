"""Sums: the skip of a residual block, and branches of different resolution."""

from fusescope.graph.patterns.builder import CHANNELS, KERNEL_1X1, PIXELS, Net
from fusescope.graph.patterns.pattern import FUSIONS, PLACEMENT, Pattern, pattern

_COARSE = (1, CHANNELS, PIXELS // 2, PIXELS // 2)
_FINE = (1, CHANNELS, PIXELS * 2, PIXELS * 2)

_PLAIN_SKIP = f"A float16 operand of the Add keeps conv and Add in float16, and the Quantize apart ({PLACEMENT})."
_QUANTIZED_SKIP = f"Conv, Add, activation and Quantize fuse when the skip is quantized ({PLACEMENT})."
_SECOND_READER = f"Conv and Quantize fused write 8 bits only ({PLACEMENT}), so they do not where float16 is needed too."
_ACTIVATED = f"A conv takes up an Add right behind it ({FUSIONS}); here an activation stands between."


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
    """Does the Quantize behind a residual sum fuse when the skip is quantized, but a float16 conv reads the sum too?"""
    x = net.input()
    relu = net.relu(net.op("Add", net.conv8(x, "first"), net.quantized(x), name="sum"))
    return net.conv8(relu, "second"), net.conv(relu, "reader", KERNEL_1X1)


@pattern("residual", "relu", documented=_QUANTIZED_SKIP)
def residual_add_quantized_skip_chain(net: Net) -> str:
    """Does the Quantize behind a residual sum fuse when the next block's skip reads the sum through it as well?"""
    x = net.input()
    relu = net.relu(net.op("Add", net.conv8(x, "first"), net.quantized(x), name="sum"))
    return net.op("Add", net.conv8(relu, "second"), net.quantized(relu), name="next_sum")


@pattern(
    "residual",
    "first",
    "relu",
    documented=f"Conv and Quantize fuse; the Add is a kernel of its own, with Dequantizes and Quantize ({PLACEMENT}).",
)
def residual_add_both_quantized(net: Net) -> str:
    """Does it help to quantize the conv's result as well as the skip before a residual Add?"""
    x = net.input()
    total = net.op("Add", net.quantized(net.conv8(x, "first")), net.quantized(x), name="sum")
    return net.conv8(net.relu(total), "second")


@pattern("residual", "sum", documented=_PLAIN_SKIP)
def residual_add_fp16_skip_relu_before(net: Net) -> str:
    """Does the Quantize behind a residual Add fuse when the Relu comes before the Add and the skip is in float16?"""
    x = net.input()
    return net.conv8(net.op("Add", net.relu(net.conv8(x, "first")), x, name="sum"), "second")


@pattern("residual", "sum", documented=_ACTIVATED)
def residual_add_quantized_skip_relu_before(net: Net) -> str:
    """Does the Quantize behind a residual Add fuse when the Relu comes before the Add and the skip is quantized?"""
    x = net.input()
    total = net.op("Add", net.relu(net.conv8(x, "first")), net.quantized(x), name="sum")
    return net.conv8(total, "second")


@pattern("residual", "sum", documented=_PLAIN_SKIP)
def residual_silu(net: Net) -> str:
    """Does the Quantize behind a residual Add fuse when a folded BatchNormalization and SiLU come before the Add?"""
    x = net.input()
    return net.conv8(net.op("Add", net.silu(net.conv8(x, "first")), x, name="sum"), "second")


@pattern("fuse sum", "relu", documented=_PLAIN_SKIP)
def fuse_sum_strided(net: Net) -> str:
    """Does the Quantize behind the sum of a strided conv and a float16 branch fuse?"""
    return net.conv8(net.relu(_down(net, net.input())), "last")


@pattern("fuse sum", "relu", documented=_QUANTIZED_SKIP)
def fuse_sum_strided_quantized_branch(net: Net) -> str:
    """Does the Quantize behind the sum of a strided conv and a branch fuse when the branch is quantized?"""
    return net.conv8(net.relu(_down(net, net.quantized(net.input()))), "last")


@pattern("fuse sum", "relu", documented=_SECOND_READER)
def fuse_sum_strided_second_reader(net: Net) -> str:
    """Does the Quantize behind a fuse sum fuse when the skip of the next block reads the sum in float16?"""
    relu = net.relu(_down(net, net.input()))
    return net.op("Add", net.conv8(relu, "last"), relu, name="next_sum")


@pattern("fuse sum", "relu", documented=_PLAIN_SKIP)
def fuse_sum_nearest(net: Net) -> str:
    """Does the Quantize behind the sum of a branch upsampled to the nearest and a float16 branch fuse?"""
    return net.conv8(net.relu(_up(net, net.input(), "nearest")), "last")


@pattern("fuse sum", "relu", documented=_PLAIN_SKIP)
def fuse_sum_linear(net: Net) -> str:
    """Does the Quantize behind the sum of a linearly upsampled branch and a float16 branch fuse?"""
    return net.conv8(net.relu(_up(net, net.input(), "linear")), "last")


@pattern("fuse sum", "relu", documented=_PLAIN_SKIP)
def fuse_sum_three_branches(net: Net) -> str:
    """Does the Quantize behind the sum of a strided, an upsampled and a float16 branch fuse?"""
    return net.conv8(net.relu(_up(net, _down(net, net.input()), "nearest")), "last")


def _down(net: Net, branch: str) -> str:
    """Add a branch of twice the resolution, through a strided conv."""
    fine = net.conv8(net.input("fine", _FINE), "down", strides=(2, 2))
    return net.op("Add", fine, branch, name="down_sum")


def _up(net: Net, branch: str, mode: str) -> str:
    """Add a branch of half the resolution, through a conv and a Resize."""
    coarse = net.conv8(net.input("coarse", _COARSE), "up", KERNEL_1X1)
    return net.op("Add", branch, net.resize(coarse, mode), name="up_sum")


PATTERNS: tuple[Pattern, ...] = (
    residual_add_fp16_skip,
    residual_add_quantized_skip,
    residual_add_fp16_skip_second_reader,
    residual_add_quantized_skip_second_reader,
    residual_add_quantized_skip_chain,
    residual_add_both_quantized,
    residual_add_fp16_skip_relu_before,
    residual_add_quantized_skip_relu_before,
    residual_silu,
    fuse_sum_strided,
    fuse_sum_strided_quantized_branch,
    fuse_sum_strided_second_reader,
    fuse_sum_nearest,
    fuse_sum_linear,
    fuse_sum_three_branches,
)
