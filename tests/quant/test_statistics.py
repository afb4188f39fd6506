"""Intervals and tests, against published examples, SciPy, and simulated models whose accuracy is known."""

from math import comb, inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.quant.statistics import (
    FEWEST_DISCORDANT,
    LEVEL,
    POWER,
    images_needed,
    mcnemar,
    paired_difference,
    wilson,
)

COUNTS = st.tuples(*[st.integers(0, 400)] * 3).filter(any)
"""Images that only the first, only the second, and both or none get right."""


@pytest.mark.parametrize(
    ("count", "images", "expected"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_wilson_as_published(count: int, images: int, expected: tuple[float, float]) -> None:
    """The four examples of R. G. Newcombe, Stat. Med. 17 (1998) 857, table I, method 3."""
    assert wilson(count, images) == pytest.approx(expected, abs=5e-5)


def test_wilson_is_that_of_scipy() -> None:
    """SciPy's interval is the same one, for shares at and near both ends too."""
    stats = pytest.importorskip("scipy.stats")
    for count, images in [(0, 1), (1, 1), (0, 1500), (1170, 1500), (1499, 1500), (1500, 1500), (49_000, 50_000)]:
        theirs = stats.binomtest(count, images).proportion_ci(LEVEL, method="wilson")
        assert wilson(count, images) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "images", "expected"), [(1, 7, 21, (0.026, 0.517)), (6, 16, 161, (0.0054, 0.1240))]
)
def test_tango_as_published(first: int, second: int, images: int, expected: tuple[float, float]) -> None:
    """Airway reactivity of 21 children (Fagerland, Lydersen, Laake 2014, table V) and response of 161 patients.

    The second is in Fagerland, Lydersen and Laake, Statistical Analysis of Contingency Tables (2017), chapter 8.
    """
    digits = 5 * 10.0 ** -(len(str(expected[0])) - 1)
    assert paired_difference(first, second, images) == pytest.approx(expected, abs=digits)


def test_tango_by_its_definition() -> None:
    """Without discordant images the score equation is z**2 = n d / (1 - d), which a pencil solves."""
    edge = 1.959963984540054**2 / (100 + 1.959963984540054**2)
    assert paired_difference(0, 0, 100) == pytest.approx((-edge, edge), abs=1e-12)


@given(COUNTS)
def test_intervals_hold_what_was_seen(counts: tuple[int, int, int]) -> None:
    """The seen difference lies within, the interval within what is possible; swapping the models mirrors it."""
    first, second, rest = counts
    images = first + second + rest
    low, high = paired_difference(first, second, images)
    assert -1 <= low <= nextafter((second - first) / images, inf)
    assert nextafter((second - first) / images, -inf) <= high <= 1
    assert paired_difference(second, first, images) == pytest.approx((-high, -low), abs=1e-9)


@given(st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_mcnemar_by_counting(counts: tuple[int, int]) -> None:
    """The p is the share of all ways to toss the discordant images that are as uneven as what was seen."""
    first, second = counts
    tosses = first + second
    uneven = abs(first - second)
    ways = sum(comb(tosses, heads) for heads in range(tosses + 1) if abs(tosses - 2 * heads) >= uneven)
    assert mcnemar(first, second) == pytest.approx(ways / 2**tosses, rel=1e-12)


def test_mcnemar_as_published() -> None:
    """The examples above: 0.070 and 0.0525 (exact conditional test); without discordant images nothing is shown."""
    assert mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar(6, 16) == pytest.approx(0.052479, abs=5e-7)
    assert mcnemar(0, 0) == 1
    assert mcnemar(0, 5) == pytest.approx(2 / 32)


def test_mcnemar_is_that_of_scipy() -> None:
    """SciPy's binomial test agrees, also where the p is that of many images."""
    stats = pytest.importorskip("scipy.stats")
    for first, second in [(30, 41), (3, 60), (2_000, 2_150), (0, 900)]:
        assert mcnemar(first, second) == pytest.approx(stats.binomtest(first, first + second).pvalue, rel=1e-8)


def simulated(images: int, first: float, second: float, tries: int) -> list[tuple[int, int]]:
    """Draw discordant counts of two models whose true shares of them are known."""
    rng = np.random.default_rng(20261204)
    drawn = rng.multinomial(images, [first, second, 1 - first - second], tries)
    return [(int(one), int(other)) for one, other, _ in drawn]


@pytest.mark.parametrize(
    ("images", "first", "second"),
    [(1500, 0.024, 0.017), (1500, 0.01, 0.01), (450, 0.004, 0.0), (200, 0.05, 0.02), (40, 0.1, 0.1)],
)
def test_the_interval_covers_as_often_as_it_says(images: int, first: float, second: float) -> None:
    """In 95 % of tries it holds the true difference: 2000 tries tell that to about a point (two standard errors)."""
    drawn = simulated(images, first, second, tries=2000)
    limits = {counts: paired_difference(*counts, images) for counts in set(drawn)}
    covered = sum(limits[counts][0] <= second - first <= limits[counts][1] for counts in drawn)
    assert covered / len(drawn) >= LEVEL - 0.01


def test_the_images_needed_are_enough() -> None:
    """With as many images as are said to be needed, the exact test shows the difference in about 80 % of tries."""
    needed = images_needed(36, 25, 1500)
    assert needed is not None
    drawn = simulated(needed, 36 / 1500, 25 / 1500, tries=1000)
    shown = {counts: mcnemar(*counts) < 1 - LEVEL for counts in set(drawn)}
    assert sum(shown[counts] for counts in drawn) / len(drawn) == pytest.approx(POWER, abs=0.03)


def test_a_handful_of_images_is_never_enough() -> None:
    """One discordant image of one: six can show it, and five cannot, whatever they say."""
    assert images_needed(1, 0, 1) == FEWEST_DISCORDANT
    assert mcnemar(FEWEST_DISCORDANT, 0) < 1 - LEVEL <= mcnemar(FEWEST_DISCORDANT - 1, 0)


def test_what_is_shown_is_not_zero() -> None:
    """Where the exact test shows a difference, its interval does not hold zero: a report cannot contradict itself."""
    for discordant in range(1, 120):
        for first in range(discordant // 2 + 1):
            low, _ = paired_difference(first, discordant - first, 2 * discordant)
            assert low > 0 or mcnemar(first, discordant - first) >= 1 - LEVEL


def test_no_difference_needs_no_number() -> None:
    """Where the models are right equally often there is nothing to show."""
    assert images_needed(0, 0, 10) is None
    assert images_needed(7, 7, 10) is None
