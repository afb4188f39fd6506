"""What lies between a baseline and the engine that is held against it, in steps that add up to the difference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusescope.graph.units import count, megabytes, microseconds
from fusescope.profiler.explanation import Explanation, Side
from fusescope.profiler.kinds import GROUPS

_NOTHING_US = 1e-3
"""A time that is less is what rounding leaves."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the waterfall from the baseline to the quantized engine."""

    label: str
    """What changed."""

    group: str
    """Key of `GROUPS`: the colour."""

    kernels: int
    """Kernels more (or, negative, fewer)."""

    bytes: int
    """Bytes of traffic more (or fewer)."""

    time_us: float | None = None
    """Microseconds of layer time more (or fewer); None unless a clock ran on both engines."""


def waterfall(explanation: Explanation) -> tuple[Step, ...]:
    """A step for each group that changed; none without a baseline.

    Convolutions stand together with the epilogues that were split off them: alone, either would mislead. Time that
    profiles have for no layer is a step of its own.
    """
    if explanation.baseline is None:
        return ()
    figures = ["kernels", "bytes", "time_us"]
    change = explanation.groups["quantized"][figures] - explanation.groups["baseline"][figures]
    together = change.rename(index={"epilogue": "conv"}).groupby(level=0).sum()
    has_epilogues = bool(explanation.groups.loc["epilogue", ("quantized", "kernels")])
    whole = _difference(layers_us(explanation.baseline), layers_us(explanation.quantized))
    steps = [
        Step(
            "conv with its epilogues" if group == "conv" and has_epilogues else _label(group),
            group,
            int(together.loc[group, "kernels"]),
            int(together.loc[group, "bytes"]),
            None if whole is None else float(together.loc[group, "time_us"]),
        )
        for group in GROUPS
        if group in together.index
    ]
    rest = 0.0 if whole is None else whole - sum(step.time_us or 0 for step in steps)
    if abs(rest) > _NOTHING_US:
        steps.append(Step("no layer's time", "other", 0, 0, rest))
    return tuple(step for step in steps if step.kernels or step.bytes or step.time_us)


def layers_us(side: Side) -> float | None:
    """Sum of an engine's profile, in microseconds; None where no clock ran."""
    return None if side.layer_time is None else 1e3 * side.layer_time.total_ms


def in_all(steps: Sequence[Step]) -> Step:
    """The steps as one."""
    times = [step.time_us for step in steps if step.time_us is not None]
    kernels, moved = sum(step.kernels for step in steps), sum(step.bytes for step in steps)
    return Step("in all", "other", kernels, moved, sum(times) if times else None)


def step_figures(step: Step) -> tuple[str, ...]:
    """Kernels, bytes and, where a clock ran, time of a step, with their signs."""
    times = () if step.time_us is None else (microseconds(step.time_us, signed=True),)
    return count(step.kernels, signed=True), megabytes(step.bytes, signed=True), *times


def told(steps: Iterable[Step]) -> str:
    """A waterfall in words, for those who do not see it."""
    figures = ((step.label, *step_figures(step)) for step in steps)
    return "; ".join(f"{label} {kernels} kernels, {', '.join(rest)}" for label, kernels, *rest in figures)


def _label(group: str) -> str:
    return "quantize, nothing else" if group == "quantize" else group


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
