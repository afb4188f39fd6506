"""Engines held against each other, as plain data: the same behind terminal, Markdown and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fusescope.profiler.explanation import Finding, Side

CHANGES: Mapping[str, str] = {
    "added": "the reference has no layer for it",
    "removed": "only the reference has layers for it",
    "split": "more kernels do what the reference does",
    "fused": "fewer kernels do what the reference does",
    "operations": "its layers compute more or fewer operations of the model than those of the reference",
    "precision": "it reads or writes other element types",
    "format": "it reads or writes other memory formats of the same element types",
}
"""What may differ between a region of an engine and the same region of the reference."""

ORDERS: Mapping[str, str] = {
    "time": "by how much its time differs, most first; by bytes where no clock ran",
    "bytes": "by how many bytes it differs",
    "kernels": "by how many kernels it differs",
    "model": "in the order of the model",
}
"""Orders of the regions."""


PRESENCES: Mapping[str, str] = {
    "both": "both engines have layers for it, or neither has",
    "reference": "only the reference has",
    "engine": "only the engine that is held against it has",
}
"""Which engines have a region."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a region of an engine differs from the same region of the reference."""

    kind: str
    """A key of `CHANGES`."""

    what: str
    """The change in words."""


@dataclass(frozen=True, slots=True)
class RegionSide:
    """A region in one engine."""

    layers: tuple[int, ...]
    """Indices of its layers; empty if the engine has none."""

    kernels: int
    """Those that run on the GPU."""

    bytes: int
    """Bytes that they read and write."""

    time_us: float | None
    """Their time per inference, in microseconds; None where no clock ran."""

    net_us: float | None
    """`time_us` without what the profiler adds; None where that is not known."""

    read_dtypes: tuple[str, ...]
    """Element types of the activations that it reads from other regions."""

    write_dtypes: tuple[str, ...]
    """Element types of the tensors that it writes for other regions."""

    changes: tuple[Change, ...] = ()
    """How it differs from the reference; empty for the reference itself."""


@dataclass(frozen=True, slots=True)
class ComparedRegion:
    """A piece of the model in every engine."""

    name: str
    """What it is called: after a weight or node, or after the regions that it lies between."""

    aligned_by: str
    """A key of `fusescope.profiler.regions.ALIGNED_BY`; empty for a region of one engine."""

    converts: str
    """What its layers do to a tensor, such as ``quantize`` or ``reformat``; empty for layers that compute."""

    nodes: tuple[str, ...]
    """ONNX nodes that its layers compute, as the first engine that has any calls them."""

    sides: tuple[RegionSide, ...]
    """Its layers in each engine, in the order of the engines."""

    def time_difference(self, place: int) -> float | None:
        """Microseconds that the engine at `place` needs more than the reference; None where no clock ran."""
        before, after = self.sides[0].time_us, self.sides[place].time_us
        return None if before is None or after is None else after - before

    def byte_difference(self, place: int) -> int:
        """Bytes that it moves more than the reference."""
        return self.sides[place].bytes - self.sides[0].bytes

    def kernel_difference(self, place: int) -> int:
        """Kernels that it has more than the reference."""
        return self.sides[place].kernels - self.sides[0].kernels

    def presence(self, place: int) -> str:
        """Which of the reference and the engine at `place` have it: a key of `PRESENCES`."""
        before, after = bool(self.sides[0].layers), bool(self.sides[place].layers)
        return "both" if before == after else "reference" if before else "engine"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What regions of one kind add to the difference between an engine and the reference."""

    what: str
    """What their layers do: ``compute``, or what they do to a tensor, such as ``quantize``."""

    presence: str
    """Which engines have them: a key of `PRESENCES`."""

    regions: int
    """How many there are."""

    less: int
    """Those that take less than in the reference: of time, or of bytes where no clock ran."""

    more: int
    """Those that take more."""

    kernels: int
    """Difference in kernels."""

    bytes: int
    """Difference in bytes."""

    time_us: float | None
    """Difference in time, in microseconds; None where no clock ran."""


@dataclass(frozen=True)
class ComparedRun:
    """One of the engines."""

    label: str
    """What it is called here; no two have the same."""

    observed: str
    """How it came to be, in a sentence."""

    side: Side
    """The engine in figures."""

    findings: tuple[Finding, ...]
    """What a person should know about it, most costly first."""

    @property
    def latency_us(self) -> float | None:
        """Median time of an inference, in microseconds; None where no clock ran."""
        return None if self.side.latency is None else 1e3 * self.side.latency.median_ms

    @property
    def layers_us(self) -> float | None:
        """Sum of its layer times, in microseconds; None where no clock ran."""
        return None if self.side.layer_time is None else 1e3 * self.side.layer_time.total_ms

    @property
    def gap_us(self) -> float | None:
        """By how much its layer times add up to more than its latency; None where either is not known."""
        return None if self.layers_us is None or self.latency_us is None else self.layers_us - self.latency_us

    @property
    def sample_us(self) -> float | None:
        """Latency over batch, in microseconds; None where either is not known."""
        batch = self.side.provenance.batch
        return None if self.latency_us is None or not batch else self.latency_us / batch

    @property
    def samples_per_s(self) -> float | None:
        """Batch over latency, one inference after the other; None where either is not known."""
        return None if self.sample_us is None else 1e6 / self.sample_us

    @property
    def sample_bytes(self) -> float | None:
        """Traffic over batch; None where the batch is not known."""
        batch = self.side.provenance.batch
        return self.side.traffic_bytes / batch if batch else None


@dataclass(frozen=True)
class Comparison:
    """Engines held against the first of them, the reference."""

    runs: tuple[ComparedRun, ...]
    """The engines."""

    regions: tuple[ComparedRegion, ...]
    """Every layer of every engine, aligned, in the order of the model; they add up to each engine."""

    groups: pd.DataFrame
    """Group totals of all engines: columns (label, figure), rows by group."""

    warnings: tuple[str, ...]
    """What a reader must know before believing a difference, one sentence each."""

    @property
    def is_timed(self) -> bool:
        """Whether a clock ran on the layers of any two engines that are compared."""
        timed = [run.side.layer_time is not None for run in self.runs]
        return timed[0] and any(timed[1:])

    def ordered(self, order: str) -> tuple[ComparedRegion, ...]:
        """The regions in an order.

        Args:
            order: A key of `ORDERS`.
        """
        if order == "model":
            return self.regions
        keys = ("time", "bytes", "kernels")
        first = (order, *(key for key in keys if key != order))
        return tuple(sorted(self.regions, key=lambda region: [-self._extent(region, key) for key in first]))

    def contributions(self, place: int) -> tuple[Contribution, ...]:
        """What the difference between the engine at `place` and the reference is made of; they add up to it."""
        kinds: dict[tuple[str, str], list[ComparedRegion]] = {}
        for region in self.regions:
            kinds.setdefault((region.converts or "compute", region.presence(place)), []).append(region)
        found = []
        for (what, presence), regions in kinds.items():
            times = [time for region in regions if (time := region.time_difference(place)) is not None]
            moved = [region.byte_difference(place) for region in regions]
            deciding: list[float] = [*times] if times else [*moved]
            found.append(
                Contribution(
                    what=what,
                    presence=presence,
                    regions=len(regions),
                    less=sum(each < 0 for each in deciding),
                    more=sum(each > 0 for each in deciding),
                    kernels=sum(region.kernel_difference(place) for region in regions),
                    bytes=sum(moved),
                    time_us=sum(times) if times else None,
                )
            )
        return tuple(sorted(found, key=lambda each: (-abs(each.time_us or 0.0), -abs(each.bytes))))

    def _extent(self, region: ComparedRegion, key: str) -> float:
        """The largest difference of any engine from the reference in a region."""
        difference = {
            "time": lambda place: region.time_difference(place) or 0.0,
            "bytes": region.byte_difference,
            "kernels": region.kernel_difference,
        }[key]
        return max(abs(difference(place)) for place in range(1, len(self.runs)))
