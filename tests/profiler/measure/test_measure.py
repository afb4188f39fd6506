"""Measuring, on a simulated device whose true times are known."""

from collections.abc import Sequence

import numpy as np
import pytest

from fusescope.profiler.measure.device import CaptureError, Launch
from fusescope.profiler.measure.statistics import coefficient_of_variation, ratio, spread
from fusescope.profiler.measure.timer import Plan, measure


class Simulated:
    """A GPU whose kernels take a known time, on a clock that drifts and with noise.

    Args:
        drift: Relative growth of all times per second of GPU time.
        noise: Relative standard deviation of a time.
        seed: Of the noise.
    """

    stream = 7

    def __init__(self, drift: float = 0.0, noise: float = 0.0, seed: int = 3) -> None:
        self.now_ms = 0.0
        self.drift = drift
        self.noise = noise
        self.open_graphs = 0
        self.launched: list[str] = []
        self._rng = np.random.default_rng(seed)
        self._pending_ms = 0.0

    def kernel(self, name: str, true_ms: float, *, capturable: bool = True) -> Launch:
        """A launch that takes `true_ms` at the start of the clock."""

        def launch(stream: int) -> None:
            assert stream == self.stream
            if self._capturing and not capturable:
                raise RuntimeError("it allocates memory")
            self.launched.append(name)
            self._pending_ms += true_ms

        return launch

    _capturing = False

    def capture(self, launch: Launch) -> "Simulated._Graph":
        """Record the launch; a graph costs what its kernels do."""
        self._capturing = True
        try:
            launch(self.stream)
        except RuntimeError as error:
            raise CaptureError(str(error)) from error
        finally:
            self._capturing = False
        self._pending_ms = 0.0
        self.open_graphs += 1
        return Simulated._Graph(self, launch)

    def time(self, launch: Launch, repetitions: int) -> Sequence[float]:
        """Advance the clock by what was launched, at the speed of the moment."""
        times = []
        for _ in range(repetitions):
            launch(self.stream)
            factor = (1 + self.drift * self.now_ms / 1e3) * (1 + self.noise * self._rng.standard_normal())
            times.append(self._pending_ms * factor)
            self.now_ms += times[-1]
            self._pending_ms = 0.0
        return times

    class _Graph:
        def __init__(self, device: "Simulated", launch: Launch) -> None:
            self._device, self._launch = device, launch

        def __call__(self, stream: int) -> None:
            self._launch(stream)

        def close(self) -> None:
            self._device.open_graphs -= 1


def test_the_true_time() -> None:
    """Without noise every sample is the kernel's time, and the rounds and blocks are those that were asked for."""
    device = Simulated()
    timed = measure(device, {"conv": device.kernel("conv", 2.0)}, Plan(rounds=5, block_ms=20))["conv"]
    assert [len(block) for block in timed.blocks_ms] == [10] * 5
    assert set(timed.samples_ms) == {2.0}
    assert (timed.graph, timed.why_no_graph, timed.warm) == (True, "", True)
    assert device.open_graphs == 0


def test_a_launch_that_cannot_be_captured_is_enqueued() -> None:
    """It is measured all the same, and says why."""
    device = Simulated()
    timed = measure(device, {"a": device.kernel("a", 1.0, capturable=False)}, Plan(rounds=2))["a"]
    assert (timed.graph, timed.why_no_graph) == (False, "it allocates memory")
    assert measure(device, {"a": device.kernel("a", 1.0)}, Plan(rounds=2, graphs=False))["a"].why_no_graph == ""


def test_drift_meets_both_sides_alike() -> None:
    """A clock that slows by a quarter while it measures hides 5 % in the medians, and not in the ratio."""
    device = Simulated(drift=0.2, noise=0.01)
    launches = {"slow": device.kernel("slow", 1.05), "fast": device.kernel("fast", 1.0)}
    timed = measure(device, launches, Plan(rounds=30))
    assert np.ptp(timed["fast"].round_medians_ms) > 0.1
    found = ratio(timed["slow"], timed["fast"])
    assert found.low < 1.05 < found.high
    assert found.is_told_apart
    assert found.high - found.low < 0.02


def test_the_order_changes_from_round_to_round() -> None:
    """Neither candidate is always first."""
    device = Simulated()
    launches = {name: device.kernel(name, 20.0) for name in "ab"}
    measure(device, launches, Plan(rounds=20, warmup_ms=0))
    blocks = device.launched[-40 * 2 :: 2]  # a block is one repetition and the one before it
    firsts = blocks[::2]
    assert 3 < firsts.count("a") < 17


def test_a_kernel_against_itself() -> None:
    """Of 100 intervals of 95 %, about five leave 1 out by chance: never as many as 13."""
    apart = 0
    for seed in range(100):
        device = Simulated(noise=0.05, seed=seed)
        launch = device.kernel("a", 1.0)
        timed = measure(device, {"a": launch, "b": launch}, Plan(rounds=30, seed=seed, warmup_ms=0))
        apart += ratio(timed["a"], timed["b"], resamples=1000).is_told_apart
    assert 0 < apart < 13


def test_a_candidate_that_never_settles_is_not_warm() -> None:
    """Its times are still given; the measurement says that it was not warm."""
    device = Simulated(noise=0.1)
    timed = measure(device, {"a": device.kernel("a", 30.0)}, Plan(rounds=2, warmup_ms=50, stable=1e-6))["a"]
    assert not timed.warm
    assert len(timed.blocks_ms) == 2


def test_conditions_are_noted_after_every_round() -> None:
    """The observer is called as often as there are rounds."""
    calls: list[float] = []
    device = Simulated()
    measure(device, {"a": device.kernel("a", 1.0)}, Plan(rounds=4), observe=lambda: calls.append(device.now_ms))
    assert len(calls) == 4
    assert calls == sorted(calls)


def test_spread_against_numpy() -> None:
    """Each figure is numpy's."""
    samples = np.random.default_rng(1).gamma(4.0, size=501)
    found = spread(samples)
    assert found.median_ms == pytest.approx(np.median(samples))
    assert (found.p90_ms, found.p99_ms) == pytest.approx((np.percentile(samples, 90), np.percentile(samples, 99)))
    assert (found.min_ms, found.max_ms, found.samples) == (samples.min(), samples.max(), 501)
    assert coefficient_of_variation(samples) == pytest.approx(np.std(samples) / np.mean(samples))


@pytest.mark.gpu
def test_cuda_times_a_copy() -> None:
    """On a real GPU: a memset of 256 MiB takes a time that a bandwidth of 0.1 to 20 TB/s explains."""
    from cuda.bindings import runtime

    from fusescope.profiler.measure.cuda import CudaDevice

    device = CudaDevice()
    size = 256 << 20
    error, buffer = runtime.cudaMalloc(size)
    assert error == runtime.cudaError_t.cudaSuccess
    timed = measure(device, {"memset": lambda stream: runtime.cudaMemsetAsync(buffer, 0, size, stream)}, Plan(rounds=3))
    runtime.cudaFree(buffer)
    assert 0.1e12 < size / (np.median(timed["memset"].samples_ms) / 1e3) < 20e12
