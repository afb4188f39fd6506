"""What a clock said of a run, as reports show it: the latency, the sum of layer times, and what lies between them."""

from dataclasses import dataclass

from fusescope.profiler.explanation import Latency, LayerTime
from fusescope.profiler.join import reconcile
from fusescope.profiler.run import Run
from fusescope.profiler.timing import Latency as Recorded
from fusescope.profiler.timing import LayerTime as Entry


@dataclass(frozen=True)
class Clock:
    """Times of one run; all of it empty where no clock ran."""

    latency: Latency | None = None
    """Of whole inferences."""

    layer_time: LayerTime | None = None
    """The sum of layer times."""

    times: tuple[Entry | None, ...] = ()
    """What the profiler said of each layer of the engine, in order; None for one that it did not name."""

    executed_layers: int | None = None
    """Layers that took any time."""

    overhead_us: float | None = None
    """What the profiler adds to a layer; None where that cannot be told."""

    unmatched: tuple[str, ...] = ()
    """Entries of the profile that match no layer."""

    untimed: tuple[str, ...] = ()
    """Layers that the profile has no entry for."""

    warnings: tuple[str, ...] = ()
    """What a reader must know before believing a time, one sentence each."""

    @property
    def total_us(self) -> float | None:
        """Sum of the profile, in microseconds; None where no profiler ran."""
        return None if self.layer_time is None else 1e3 * self.layer_time.total_ms

    @property
    def net_total_us(self) -> float | None:
        """`total_us` without what the profiler adds; None where that is not known."""
        if self.total_us is None or self.overhead_us is None or self.executed_layers is None:
            return None
        return self.total_us - self.executed_layers * self.overhead_us


NO_CLOCK = Clock()
"""Of a run that nothing timed."""


def clock_of(run: Run) -> Clock:
    """Gather what a clock said of a run.

    Raises:
        UserError: The profile is one of another engine.
    """
    latency = None if run.latency is None else _latency(run.latency)
    joined = run.joined
    if run.profile is None or joined is None:
        return Clock(latency)
    held = reconcile(run.engine, run.profile, run.latency, run.provenance.facts)
    return Clock(
        latency=latency,
        layer_time=LayerTime(held.layer_sum_ms, run.profile.source, run.profile.iterations, run.profile.origin),
        times=joined.times,
        executed_layers=held.executed_layers,
        overhead_us=held.overhead_us,
        unmatched=tuple(entry.name for entry in joined.unmatched_profile),
        untimed=tuple(layer.name for layer in joined.unmatched_layers),
        warnings=(*joined.warnings, *held.warnings),
    )


def _latency(recorded: Recorded) -> Latency | None:
    """As reports show it; None without a median."""
    compute = recorded.compute
    if compute.median_ms is None:
        return None
    return Latency(
        median_ms=compute.median_ms,
        source=recorded.source,
        mean_ms=compute.mean_ms,
        min_ms=compute.min_ms,
        p99_ms=compute.p99_ms,
        samples=compute.samples,
        origin=recorded.origin,
    )
