"""The steps from one engine to the other: in kernels, bytes and, where a clock ran on both, time."""

from dataclasses import replace

import pytest

from fusescope.profiler.explanation import Explanation, LayerTime
from fusescope.report.waterfall import Step, in_all, layers_us, told, waterfall


def test_the_waterfall_leads_from_one_engine_to_the_other(pair: Explanation) -> None:
    """Each step is the change of a group, convs together with their epilogues; together they are the difference."""
    steps = waterfall(pair)
    assert steps == (
        Step("conv with its epilogues", "conv", 1, 1000 * (1500 + 1200 + 900 - 1500 - 2000)),
        Step("pointwise", "pointwise", 1, 1_100_000),
        Step("quantize, nothing else", "quantize", 1, 750_000),
    )
    assert pair.baseline is not None
    assert sum(step.kernels for step in steps) == pair.quantized.kernels - pair.baseline.kernels
    assert sum(step.bytes for step in steps) == pair.quantized.traffic_bytes - pair.baseline.traffic_bytes


def test_one_run_has_no_waterfall(pair: Explanation) -> None:
    """There is nothing to start from."""
    assert waterfall(replace(pair, baseline=None)) == ()


def test_steps_of_time_add_up_to_the_profiles(timed: Explanation) -> None:
    """Each group's difference; what the profiles have for no layer is a step of its own."""
    steps = waterfall(timed)
    assert timed.baseline is not None
    whole = (layers_us(timed.quantized) or 0) - (layers_us(timed.baseline) or 0)
    assert in_all(steps).time_us == pytest.approx(whole)
    assert [step.label for step in steps] == ["conv with its epilogues", "pointwise", "quantize, nothing else"]
    assert timed.quantized.layer_time is not None
    more = LayerTime(timed.quantized.layer_time.total_ms + 0.025, "recorded")
    (*_, rest) = waterfall(replace(timed, quantized=replace(timed.quantized, layer_time=more)))
    assert (rest.label, rest.kernels, rest.bytes) == ("no layer's time", 0, 0)
    assert rest.time_us == pytest.approx(25)


def test_one_clock_is_not_enough(timed: Explanation) -> None:
    """Without times of the baseline no step has one."""
    assert timed.baseline is not None
    half = replace(timed, baseline=replace(timed.baseline, layer_time=None))
    assert {step.time_us for step in waterfall(half)} == {None}


def test_told(pair: Explanation, timed: Explanation) -> None:
    """For those who do not see the figure, with the same numbers."""
    assert told(waterfall(pair)).startswith("conv with its epilogues +1 kernels, +100.0 kB; pointwise +1 kernels, ")
    assert told(waterfall(timed)[:1]) == "conv with its epilogues +1 kernels, +100.0 kB, +1.00 us"
