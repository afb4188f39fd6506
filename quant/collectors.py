"""Histograms of magnitudes, and the thresholds that they give: percentile, mean squared error, entropy."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fusescope.quant.scales import Array, Format

Floats = NDArray[np.float64]

BINS = 4096
"""Bins of a histogram: thirty-two for each positive code of INT8."""

CANDIDATES = 128
"""Thresholds that the searches try, evenly spaced up to the largest magnitude."""

_FINEST = 128
"""Bins below the least of them: with fewer than there are codes, rounding would not show in a histogram."""


class Histogram:
    """Counts of the magnitudes of one tensor, of fixed size: its range doubles when a larger value comes.

    Zeros are counted apart: behind a Relu they are the half of the values, and each code has them exactly.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.limit = 0.0
        self.largest = 0.0
        self.has_nan = False

    def add(self, values: Array) -> None:
        """Count values of any shape. Infinite ones raise `largest`; NaN is noted; neither is counted."""
        magnitude = np.abs(values.astype(np.float32, copy=False)).ravel()
        top = float(magnitude.max(initial=0.0))
        if not np.isfinite(top):
            self.has_nan |= bool(np.isnan(magnitude).any())
            self.largest = max(self.largest, float(np.nanmax(magnitude, initial=0.0)))
            magnitude = magnitude[np.isfinite(magnitude)]
            top = float(magnitude.max(initial=0.0))
        self.largest = max(self.largest, top)
        self._widen(top)
        others = magnitude[magnitude > 0]
        self.zeros += magnitude.size - others.size
        if others.size:
            places = np.minimum((others / np.float32(self.limit) * BINS).astype(np.int64), BINS - 1)
            self.counts += np.bincount(places, minlength=BINS)

    @property
    def centers(self) -> Floats:
        """The magnitude in the middle of each bin."""
        return np.asarray((np.arange(BINS) + 0.5) * (self.limit / BINS), np.float64)

    def _widen(self, top: float) -> None:
        if not self.limit:
            self.limit = top
        while self.limit and top > self.limit:
            halves = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([halves, np.zeros(BINS // 2, np.int64)])
            self.limit *= 2


def percentile_amax(histogram: Histogram, percentile: float) -> float:
    """The magnitude that `percentile` percent of the values do not exceed: the upper edge of its bin."""
    counted = histogram.zeros + np.cumsum(histogram.counts)
    shares = counted / counted[-1]
    place = int(np.searchsorted(shares, percentile / 100))
    return min((place + 1) * histogram.limit / BINS, histogram.largest)


def mse_amax(histogram: Histogram, form: Format) -> float:
    """The threshold with the least squared error between the values and their 8-bit codes."""

    def error(amax: float) -> float:
        centers = histogram.centers
        return float(histogram.counts @ (centers - _rounded(centers, amax, form)) ** 2)

    return _best(histogram, error)


def entropy_amax(histogram: Histogram, form: Format) -> float:
    """The threshold whose codes keep most information: least Kullback-Leibler divergence.

    As in S. Migacz, 8-bit Inference with TensorRT (GTC 2017): values above the threshold count for the last bin below
    it; the values of one code are spread evenly over its bins that are not empty.
    """

    def divergence(amax: float) -> float:
        inside = max(1, int(np.ceil(amax / histogram.limit * BINS)))
        kept = histogram.counts[:inside].astype(np.float64)
        reference = kept.copy()
        reference[-1] += histogram.counts[inside:].sum()
        codes = np.unique(_rounded(histogram.centers[:inside], amax, form), return_inverse=True)[1]
        filled = np.bincount(codes, weights=kept > 0)
        sums = np.bincount(codes, weights=kept)
        spread = np.where(kept > 0, sums[codes] / np.maximum(filled[codes], 1), 0.0)
        # A bin that is empty but for what was clipped into it has no code of its own: the smallest share there is.
        spread = np.where((reference > 0) & (spread == 0), np.finfo(np.float64).tiny, spread)
        p, q = reference / reference.sum(), spread / spread.sum()
        some = p > 0
        return float(p[some] @ (np.log(p[some]) - np.log(q[some])))

    return _best(histogram, divergence)


THRESHOLDS: Mapping[str, Callable[..., float]] = {"mse": mse_amax, "entropy": entropy_amax}
"""Method to the search for its threshold in a histogram."""


def _best(histogram: Histogram, cost: Callable[[float], float]) -> float:
    tried = histogram.largest * np.arange(1, CANDIDATES + 1) / CANDIDATES
    tried = tried[tried >= histogram.limit * _FINEST / BINS]
    costs = [cost(float(amax)) for amax in tried]
    return float(tried[int(np.argmin(costs))])


def _rounded(values: Floats, amax: float, form: Format) -> Floats:
    """Values as their 8-bit codes give them back."""
    scale = amax / form.largest
    codes = np.clip(values / scale, -form.largest, form.largest)
    codes = np.rint(codes) if np.issubdtype(form.dtype, np.integer) else codes.astype(form.dtype).astype(np.float64)
    return np.asarray(codes * scale, np.float64)
