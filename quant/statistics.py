"""How sure an accuracy is: intervals of shares, and tests of two models on the same images.

Two models that saw the same images differ only on those that exactly one of them gets right, the discordant ones. The
others say nothing about the difference, and two separate intervals would hide it.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

LEVEL = 0.95
"""Confidence of the intervals, two-sided. A p below ``1 - LEVEL`` counts as shown."""

POWER = 0.8
"""How often a difference should be found where it is said how many images that takes."""

FEWEST_DISCORDANT = 6
"""With fewer discordant images no outcome is shown by McNemar's exact test: five the same way have the p 2 / 2**5."""

Interval = tuple[float, float]

_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_Z_POWER = NormalDist().inv_cdf(POWER)
_HALVINGS = 60
"""Steps of a bisection: more than a float has bits."""


def wilson(count: int, images: int) -> Interval:
    """Return the interval of a share, Wilson's score interval.

    E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209; recommended by R. G. Newcombe, Stat. Med. 17 (1998) 857.

    Args:
        count: Images with the property.
        images: All images, at least one.

    Returns:
        The least and the largest share, each from 0 to 1.
    """
    share, weight = count / images, _Z**2 / images
    middle = share + weight / 2
    reach = _Z * math.sqrt(share * (1 - share) / images + weight / (4 * images))
    low, high = (middle - reach) / (1 + weight), (middle + reach) / (1 + weight)
    return (0.0 if count == 0 else low, 1.0 if count == images else high)


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the exact two-sided p of McNemar's test that two models are right equally often.

    Each discordant image is a fair coin if they are: the p is that of a count this far from half or farther
    (Q. McNemar, Psychometrika 12 (1947) 153, in its binomial form). It is 1 without discordant images.

    Args:
        first_only: Images that only the first model gets right.
        second_only: Images that only the second model gets right.
    """
    discordant, fewer = first_only + second_only, min(first_only, second_only)
    ways, tail = 1, 0
    for chosen in range(fewer + 1):
        tail += ways
        ways = ways * (discordant - chosen) // (chosen + 1)
    return min(1.0, 2 * tail / (1 << discordant))


def paired_difference(first_only: int, second_only: int, images: int) -> Interval:
    """Return the interval of the difference of two shares of the same images, Tango's score interval.

    T. Tango, Stat. Med. 17 (1998) 891; recommended by Fagerland, Lydersen and Laake, Stat. Med. 33 (2014) 2850. It
    holds for few images, and without discordant ones too.

    Args:
        first_only: Images that only the first model gets right.
        second_only: Images that only the second model gets right.
        images: All images, at least one.

    Returns:
        The least and the largest share of the second model less that of the first, each from -1 to 1.
    """

    def score(difference: float) -> float:
        """How many standard errors the counts lie above what this true difference lets expect."""
        excess = second_only - first_only - images * difference
        share = _first_only_share(first_only, second_only, images, difference)
        variance = images * (2 * share + difference * (1 - difference))
        return excess / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, excess) if excess else 0.0

    seen = (second_only - first_only) / images
    return _edge(lambda there: score(there) <= _Z, -1.0, seen), _edge(lambda there: score(there) >= -_Z, 1.0, seen)


def _first_only_share(first_only: int, second_only: int, images: int, difference: float) -> float:
    """Return the likeliest share of images that only the first gets right, given the true difference."""
    linear = (2 * images + first_only - second_only) * difference - first_only - second_only
    constant = -first_only * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear**2 - 8 * images * constant))
    return max(0.0, (root - linear) / (4 * images))


def _edge(inside: Callable[[float], bool], outer: float, inner: float) -> float:
    """Find where an interval that holds `inner` ends on the way to `outer`."""
    if inside(outer):
        return outer
    for _ in range(_HALVINGS):
        middle = (outer + inner) / 2
        outer, inner = (outer, middle) if inside(middle) else (middle, inner)
    return inner


def images_needed(first_only: int, second_only: int, images: int) -> int | None:
    """Return how many images it takes to show a difference as large as the one seen, in `POWER` of all tries.

    R. J. Connor, Biometrics 43 (1987) 207: McNemar's test at the level of the intervals, with the shares of
    discordant images as they were seen. At least as many as hold `FEWEST_DISCORDANT` of them.

    Returns:
        None if no difference was seen.
    """
    if first_only == second_only:
        return None
    discordant, difference = (first_only + second_only) / images, abs(first_only - second_only) / images
    errors = _Z * math.sqrt(discordant) + _Z_POWER * math.sqrt(discordant - difference**2)
    return math.ceil(max((errors / difference) ** 2, FEWEST_DISCORDANT / discordant))
