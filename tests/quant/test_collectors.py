"""Histograms and the thresholds that they give: against numpy on the values themselves."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fusescope.quant.collectors import BINS, Histogram, entropy_amax, mse_amax, percentile_amax
from fusescope.quant.scales import FORMATS

Floats = NDArray[np.float32]

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
BATCHES = st.lists(arrays(np.float32, st.integers(1, 30), elements=FINITE), min_size=1, max_size=5)


def histogram_of(*batches: Floats) -> Histogram:
    """Count some batches."""
    histogram = Histogram()
    for batch in batches:
        histogram.add(batch)
    return histogram


@given(BATCHES)
def test_nothing_is_lost(batches: list[Floats]) -> None:
    """Every value is counted once, in the bin that holds it or, by rounding, in the next one; the largest is exact."""
    histogram = histogram_of(*batches)
    magnitudes = np.abs(np.concatenate(batches)).astype(np.float64)
    assert histogram.largest == magnitudes.max()
    assert histogram.zeros == (magnitudes == 0).sum()
    assert histogram.counts.sum() + histogram.zeros == magnitudes.size
    if histogram.largest:
        assert histogram.largest <= histogram.limit < 2 * histogram.largest
        below = np.cumsum(histogram.counts) + histogram.zeros
        width = histogram.limit / BINS
        for edge in (0, BINS // 4, BINS // 2, BINS - 1):
            at_most = (magnitudes < width * (edge + 1) * (1 - 1e-6)).sum()
            at_least = (magnitudes <= width * (edge + 1) * (1 + 1e-6)).sum()
            assert at_most <= below[edge] <= at_least


@given(BATCHES, st.floats(1, 100))
def test_percentile(batches: list[Floats], percentile: float) -> None:
    """As numpy finds it among the values, zeros too, within the width of a bin."""
    histogram = histogram_of(*batches)
    if histogram.largest:
        magnitudes = np.abs(np.concatenate(batches)).astype(np.float64)
        expected = float(np.percentile(magnitudes, percentile, method="inverted_cdf"))
        assert abs(percentile_amax(histogram, percentile) - expected) <= 1.01 * histogram.limit / BINS


@pytest.fixture(name="values", params=["normal", "laplace", "relu", "uniform", "outlier"])
def _values(request: pytest.FixtureRequest) -> Floats:
    """Distributions as activations have them."""
    random = np.random.default_rng(0)
    normal = random.standard_normal(20_000)
    made = {
        "normal": normal,
        "laplace": random.laplace(size=20_000),
        "relu": np.maximum(normal, 0),
        "uniform": random.uniform(-3, 3, 20_000),
        "outlier": np.append(normal, 60.0),
    }
    return made[request.param].astype(np.float32)


def squared_error(values: Floats, amax: float, format_name: str) -> float:
    """Quantize the values themselves, and sum what it costs."""
    wide = values.astype(np.float64)
    if format_name == "int8":
        scale = amax / 127
        back = np.clip(np.rint(wide / scale), -127, 127) * scale
    else:
        scale = amax / 448
        back = np.clip(wide / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    return float(((wide - back) ** 2).sum())


@pytest.mark.parametrize("format_name", ["int8", "fp8"])
def test_mse_is_the_best_there_is(values: Floats, format_name: str) -> None:
    """No other threshold has an error that is more than 2 % less."""
    found = mse_amax(histogram_of(*np.array_split(values, 7)), FORMATS[format_name])
    largest = np.abs(values).max()
    best = min(squared_error(values, amax, format_name) for amax in np.linspace(largest / 30, largest, 300))
    assert squared_error(values, found, format_name) <= 1.02 * best


@pytest.mark.parametrize("format_name", ["int8", "fp8"])
@pytest.mark.parametrize("search", [mse_amax, entropy_amax])
def test_thresholds_scale_with_the_values(values: Floats, search: Callable[..., float], format_name: str) -> None:
    """A tensor in another unit has the same threshold in that unit."""
    once, four_times = (search(histogram_of(each), FORMATS[format_name]) for each in (values, 4 * values))
    assert four_times == pytest.approx(4 * once)


def test_entropy_clips_what_is_rare() -> None:
    """In INT8 a lonely outlier is clipped, and what is spread evenly is kept whole; FP8's codes reach it anyway."""
    random = np.random.default_rng(1)
    even = random.uniform(-3, 3, 20_000).astype(np.float32)
    assert entropy_amax(histogram_of(even), FORMATS["int8"]) == pytest.approx(3, rel=0.02)
    rare = np.append(random.standard_normal(200_000), 60.0).astype(np.float32)
    assert entropy_amax(histogram_of(rare), FORMATS["int8"]) < 6
    assert entropy_amax(histogram_of(rare), FORMATS["fp8"]) == 60


def test_entropy_ignores_zeros() -> None:
    """Behind a Relu half of the values are zeros, which every code has: the threshold is that of the others."""
    positive = np.abs(np.random.default_rng(2).standard_normal(20_000)).astype(np.float32)
    with_zeros = np.append(positive, np.zeros(20_000, np.float32))
    for name in ("int8", "fp8"):
        assert entropy_amax(histogram_of(positive), FORMATS[name]) == entropy_amax(
            histogram_of(with_zeros), FORMATS[name]
        )


def test_what_is_not_finite_is_noted() -> None:
    """NaN and infinity are seen, and the other values are counted."""
    histogram = histogram_of(np.array([1, math.nan, -2], np.float32))
    assert histogram.has_nan
    assert histogram.counts.sum() == 2
    assert histogram.largest == 2
    histogram.add(np.array([-math.inf, 1], np.float32))
    assert math.isinf(histogram.largest)
    assert histogram.counts.sum() == 3
    assert not histogram_of(np.zeros(3, np.float32)).limit
