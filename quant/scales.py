"""8-bit formats, and the scales and codes of weights in them.

Symmetric quantization: `code = round(clip(value / scale))` and `value ~ code * scale`, with
`scale = amax / largest code`. The scale is rounded to the dtype it is stored in before the codes are
computed, so that the codes are right for the scale that the engine reads.
"""

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fusescope.graph.errors import UserError

Array = NDArray[np.generic]
Granularity = Literal["per-channel", "per-tensor"]


@dataclass(frozen=True, slots=True)
class Format:
    """An 8-bit number format of Q/DQ nodes."""

    name: str
    """What `--format` calls it."""
    dtype: np.dtype[np.generic]
    """The numpy dtype of its codes."""
    largest: float
    """The largest finite code; codes are clipped to `[-largest, largest]`."""
    opset: int
    """The oldest ONNX opset whose QuantizeLinear and per-axis DequantizeLinear know the format."""
    ir_version: int
    """The oldest ONNX IR version that has the data type."""


FORMATS = {
    # OCP 8-bit floating point (OFP8) E4M3: no infinity, largest value 448. ONNX has it since IR 9, opset 19.
    "fp8": Format("fp8", np.dtype(ml_dtypes.float8_e4m3fn), 448.0, opset=19, ir_version=9),
    # -128 is not used: TensorRT's INT8 is symmetric. `axis` came with opset 13.
    "int8": Format("int8", np.dtype(np.int8), 127.0, opset=13, ir_version=7),
}
"""The formats by name. ModelOpt's ONNX quantizer scales FP8 by amax * 448 / 127**2; here it is amax / 448."""

_REFUSED = {
    "nvfp4": "NVFP4 is for gemms: TensorRT has no NVFP4 convolution",
    "mxfp8": "MXFP8 is for gemms: TensorRT has no MXFP8 convolution",
    "int4": "INT4 is for the weights of gemms: TensorRT has no INT4 convolution",
}
"""Formats that are asked for and not had, with the reason; see `format_named`."""


def format_named(name: str) -> Format:
    """Return the format of a name.

    Raises:
        UserError: There is no such format, or TensorRT has no convolution in it.
    """
    if name in FORMATS:
        return FORMATS[name]
    what = f"{name!r} is no number format"
    if name.lower() in _REFUSED:
        source = "Model-Optimizer, examples/torch_onnx/README: its recipe gives convolutions FP8 or INT8 instead"
        what = f"{_REFUSED[name.lower()]} ({source})"
    raise UserError(what, where="format", remedy=f"use {' or '.join(FORMATS)}")


def amax_of(weight: Array, axis: int | None) -> NDArray[np.float64]:
    """Find the largest magnitude of a weight tensor.

    Args:
        weight: A tensor of any shape.
        axis: The axis of the output channels, or None for one value of the whole tensor.

    Returns:
        Float64, of shape `(channels,)`, or `()` without an axis.
    """
    magnitude = np.abs(weight.astype(np.float64))
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    result: NDArray[np.float64] = np.asarray(magnitude.max(axis=others, initial=0.0))
    return result


def scales_of(amax: NDArray[np.float64], form: Format, dtype: DTypeLike, *, tensor: str) -> Array:
    """Turn magnitudes into scales, `amax / form.largest`, rounded to the dtype they are stored in.

    A channel that is all zeros gets the scale 1: its codes are zeros and come back as exact zeros.

    Args:
        amax: Magnitudes, each finite and not negative.
        form: The number format.
        dtype: The dtype of the scales, which is that of the tensor they scale.
        tensor: The tensor's name, for errors.

    Raises:
        UserError: A magnitude is not finite, or its scale underflows to zero or overflows in `dtype`.
    """
    if not np.isfinite(amax).all():
        raise UserError("holds NaN or infinity", where=f"tensor {tensor!r}", remedy="keep its readers with --keep")
    with np.errstate(over="ignore", under="ignore"):  # looked for just below
        scale = np.where(amax == 0.0, 1.0, amax / form.largest).astype(dtype)
    wide = scale.astype(np.float64)
    if not np.isfinite(wide).all() or (wide == 0.0).any():
        bad = float(amax[~np.isfinite(wide) | (wide == 0.0)].flat[0])
        way = f"{'underflows to zero' if bad < 1.0 else 'overflows'} in {np.dtype(dtype).name}"
        raise UserError(
            f"the {form.name} scale {bad / form.largest:.3g} (amax {bad:.3g}) {way}",
            where=f"tensor {tensor!r}",
            remedy="keep the convolutions that read it with --keep, or quantize the float32 model",
        )
    return np.asarray(scale)


def encode(weight: Array, scale: Array, form: Format, axis: int | None) -> Array:
    """Compute the 8-bit codes of a weight tensor.

    Rounds half to even and saturates, as ONNX and TensorRT do (a bare ml_dtypes cast gives NaN above 464).

    Args:
        weight: A tensor of any shape.
        scale: Shape `(channels,)`, or `()` without an axis; none of it zero.
        form: The number format.
        axis: The axis of the output channels, or None.

    Returns:
        Codes of dtype `form.dtype` and of the shape of `weight`.
    """
    wide = scale.astype(np.float64)
    if axis is not None:
        wide = wide.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    value = np.clip(weight.astype(np.float64) / wide, -form.largest, form.largest)
    if np.issubdtype(form.dtype, np.integer):
        value = np.rint(value)
    return value.astype(form.dtype)
