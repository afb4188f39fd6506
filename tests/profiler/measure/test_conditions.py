"""What the conditions of a measurement warn of."""

from dataclasses import replace

from fusescope.profiler.measure.conditions import Conditions, Snapshot

STEADY = Snapshot(1980, 3201, 45, 310.0, (), 0)
CONDITIONS = Conditions("NVIDIA H200", "580.159", 1980, mig=False, snapshots=(STEADY, STEADY, STEADY))


def test_nothing_to_say() -> None:
    """A steady clock, nothing else on the GPU: no warning. The idle clock before the first round is none either."""
    assert CONDITIONS.warnings() == ()
    idle = replace(STEADY, sm_clock_mhz=345)
    assert replace(CONDITIONS, snapshots=(idle, STEADY, STEADY)).warnings() == ()


def test_every_warning() -> None:
    """A clock that moves, a cause of throttling, another process, a divided GPU."""
    hot = Snapshot(1700, 3201, 88, 700.0, ("hardware thermal slowdown",), 2)
    clock, throttled, others, divided = replace(CONDITIONS, mig=True, snapshots=(STEADY, STEADY, hot)).warnings()
    assert "1700 to 1980 MHz" in clock
    assert "hardware thermal slowdown" in throttled
    assert others == "2 other processes computed on the GPU"
    assert "MIG" in divided


def test_what_is_not_told_is_no_complaint() -> None:
    """A driver that answers nothing gives no warning, and no number."""
    silent = Snapshot(None, None, None, None, None, None)
    assert replace(CONDITIONS, mig=None, snapshots=(silent, silent)).warnings() == ()
