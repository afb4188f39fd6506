"""Times of an engine: what a clock said of its layers and of whole inferences, each with where it comes from.

The two are never mixed: the profiler adds to every layer, so the sum of layer times is not the latency.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Source = Literal["measured", "recorded"]
"""``measured`` by fusescope on a GPU, or ``recorded``: read from someone's file."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One entry of a layer profile, in the order of the profile."""

    name: str
    """The layer's name as the profiler gives it. Names may repeat."""

    average_ms: float
    """Mean time per inference in milliseconds; zero for what runs no kernel."""

    median_ms: float | None = None
    """Median over iterations; None if the recording has none."""

    samples_ms: tuple[float, ...] = ()
    """The time of each iteration, in order; empty if the recording holds totals only."""


@dataclass(frozen=True)
class LayerProfile:
    """What a profiler said of every layer of one engine."""

    layers: tuple[LayerTime, ...]
    """Entries in the order of the profile, which is that of execution."""

    iterations: int | None
    """Inferences that were averaged; None if not said. A single one has no spread."""

    source: Source
    """How it was obtained."""

    origin: str
    """The file, or the place in it, that it was read from; what measured it otherwise."""

    ordered: bool = True
    """Whether the order of the entries is that of execution: not where a mapping by name was recorded."""

    complete: bool = True
    """Whether layers that took no time have entries too: printed tables leave them out."""

    @cached_property
    def total_ms(self) -> float:
        """Sum of the layers' averages per inference. It is not the latency."""
        return sum(layer.average_ms for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of times in milliseconds, as far as it is known."""

    median_ms: float | None = None
    """Median."""

    mean_ms: float | None = None
    """Mean."""

    min_ms: float | None = None
    """Smallest."""

    max_ms: float | None = None
    """Largest."""

    p90_ms: float | None = None
    """90th percentile."""

    p95_ms: float | None = None
    """95th percentile."""

    p99_ms: float | None = None
    """99th percentile."""

    samples: int | None = None
    """Inferences behind it; None if not said."""

    variation: float | None = None
    """Coefficient of variation: standard deviation over mean, such as 0.02."""


@dataclass(frozen=True)
class Latency:
    """Times of whole inferences, without a profiler on the layers."""

    compute: Spread
    """GPU time of one inference, between events around the enqueue."""

    total: Spread | None
    """With the copies of inputs and outputs, as trtexec's ``Latency``; None if not said."""

    enqueue: Spread | None
    """Host time of the enqueue call; None if not said."""

    throughput_qps: float | None
    """Inferences per second; None if not said. Several streams or overlapped copies raise it above 1 / latency."""

    source: Source
    """How it was obtained."""

    origin: str
    """The file, or the place in it, that it was read from; what measured it otherwise."""
