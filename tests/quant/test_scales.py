"""Formats, scales and codes, against their definitions."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fusescope.graph.errors import UserError
from fusescope.quant.scales import FORMATS, amax_of, encode, scales_of

WEIGHTS = hnp.arrays(np.float32, (3, 2, 2), elements=st.floats(-1e4, 1e4, width=32))


def test_the_largest_codes_are_those_of_the_dtypes() -> None:
    """FP8 E4M3 ends at 448 and the symmetric INT8 at 127, as numpy's descriptions of the dtypes say."""
    assert FORMATS["fp8"].largest == float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    assert FORMATS["int8"].largest == np.iinfo(np.int8).max


def test_amax_per_channel_and_per_tensor() -> None:
    """The magnitude is taken along the output channels, whatever their axis, or over everything."""
    weight = np.array([[[1, -5]], [[2, 0.5]]], np.float32)
    assert amax_of(weight, 0).tolist() == [5, 2]
    assert amax_of(weight, 2).tolist() == [2, 5]
    assert amax_of(weight, None).tolist() == 5


def test_codes_use_the_rounded_scale() -> None:
    """The codes belong to the float16 scale that is stored: dividing by the exact one gives others."""
    weight = np.array([[0.0123, 0.0077, -0.0031]], np.float16)
    scale = scales_of(amax_of(weight, 0), FORMATS["int8"], np.float16, tensor="w")
    assert scale.dtype == np.float16
    stored = float(scale[0])
    assert encode(weight, scale, FORMATS["int8"], 0).tolist() == [
        [round(min(float(value) / stored, 127)) for value in weight[0]]
    ]


def test_int8_rounds_half_to_even() -> None:
    """ONNX and TensorRT round 0.5, 1.5 and 2.5 to 0, 2 and 2."""
    codes = encode(np.array([0.5, 1.5, 2.5, -2.5], np.float32), np.float32(1), FORMATS["int8"], None)
    assert codes.tolist() == [0, 2, 2, -2]


def test_fp8_saturates() -> None:
    """A value above 448 becomes 448, where a bare cast of ml_dtypes gives NaN."""
    value = np.array([470.0, -1e6, 17.0], np.float32)
    assert np.isnan(value.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)[0])
    codes = encode(value, np.float32(1), FORMATS["fp8"], None)
    assert codes.astype(np.float32).tolist() == [448.0, -448.0, 16.0]  # 17 lies between 16 and 18: ties to even


def test_a_channel_of_zeros_comes_back_as_zeros() -> None:
    """Its scale is 1, which divides nothing by zero, and the other channels are not touched by it."""
    weight = np.array([[0, 0], [1, 2]], np.float32)
    scale = scales_of(amax_of(weight, 0), FORMATS["fp8"], np.float32, tensor="w")
    assert scale.tolist() == [1.0, np.float32(2 / 448)]
    assert encode(weight, scale, FORMATS["fp8"], 0)[0].astype(np.float32).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("amax", "what"),
    [(1e-6, "underflows to zero in float16"), (1e8, "overflows in float16"), (np.nan, "NaN"), (np.inf, "NaN")],
)
def test_scales_that_float16_cannot_hold_are_refused_by_name(amax: float, what: str) -> None:
    """The error names the tensor and says what happens to its scale."""
    with pytest.raises(UserError, match=rf"tensor 'layer\.weight': .*{what}"):
        scales_of(np.array([1.0, amax]), FORMATS["fp8"], np.float16, tensor="layer.weight")


@given(weight=WEIGHTS, name=st.sampled_from(sorted(FORMATS)), axis=st.sampled_from([None, 0, 1, 2]))
def test_decoding_is_within_half_a_step(weight: np.ndarray, name: str, axis: int | None) -> None:
    """Any weight comes back within half of its format's step: a scale in INT8, 1/16 of the value in FP8.

    FP8 E4M3 has 3 bits of mantissa and its smallest step is 2**-9.
    """
    weight = np.where(np.abs(weight) < 1e-30, 0, weight).astype(np.float32)  # smaller scales are subnormal
    form = FORMATS[name]
    scale = scales_of(amax_of(weight, axis), form, np.float32, tensor="w")
    step = scale.astype(np.float64)
    if axis is not None:
        step = np.expand_dims(step, tuple(i for i in range(3) if i != axis))
    error = np.abs(encode(weight, scale, form, axis).astype(np.float64) * step - weight)
    bound = step / 2 if name == "int8" else np.maximum(np.abs(weight) / 16, step * 2.0**-10)
    assert (error <= bound * (1 + 1e-5)).all()
