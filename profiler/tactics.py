"""What the names of kernels tell of the units that they multiply with."""

import re

from fusescope.profiler.layers import Engine

# Instructions of tensor cores by architecture: HMMA and IMMA, s1688, h16816, i16832, tensor16x8x16, tensorop, GMMA with
# its warp groups. TF32 exists on tensor cores only. Ordinary units: FFMA, SIMT, cuDNN's s and DP4A kernels, Winograd in
# fp32, matrix times vector. A name may speak of both, as a gather before tensor cores does: then those decide.
_TENSOR_CORES = re.compile(
    r"tensor\d+x\d|tensorop|[hiqg]mma(?![a-z])|(?<![a-z])[hsi](?:884|1688|8816|8832|16816|16832)|tf32|warpgroup",
    re.IGNORECASE,
)
_ORDINARY = re.compile(
    r"ffma|simt|(?<![a-z0-9])[shd]cudnn|int8x4|(?<![a-z])[shd]gemm|gemvx?(?![a-z])|wngd|fused_conv_act_fp32",
    re.IGNORECASE,
)
_MADE_FOR = re.compile(r"(?:volta|turing|ampere|ada|hopper|blackwell|sm(?:[789]\d|1\d\d))(?![a-z0-9])", re.IGNORECASE)

_FIRST_WITH = 70
"""Compute capability of the first GPUs with tensor cores."""


def on_tensor_cores(tactic: str) -> bool | None:
    """Whether a kernel multiplies on tensor cores, by its name; None where the name does not tell."""
    if _TENSOR_CORES.search(tactic):
        return True
    return False if _ORDINARY.search(tactic) else None


def has_tensor_cores(target: str, engine: Engine) -> bool:
    """Whether an engine is for a GPU with tensor cores, by its target or else by a kernel that is made for such a one.

    Args:
        target: What it was built for, such as ``sm120``; empty if not known.
        engine: The engine.
    """
    if target:
        return int(target.removeprefix("sm") or 0) >= _FIRST_WITH
    return any(_MADE_FOR.match(layer.tactic) or _TENSOR_CORES.search(layer.tactic) for layer in engine.layers)
