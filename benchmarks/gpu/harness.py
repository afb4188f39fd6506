"""Is the measurement harness right? Four questions with known answers, asked of a real GPU in one run.

    python benchmarks/gpu/harness.py

needs torch (built for CUDA), triton and the extra `gpu`. It prints what was found, and ends with 1 if an answer is
wrong:

1. The median of a kernel agrees with `triton.testing.do_bench` within 3 %.
2. Replaying a CUDA graph of small kernels takes less time than enqueueing them.
3. A kernel against itself: 1.00 is inside the 95 % interval of the ratio (in 20 measurements, in at least 17).
4. A planted difference of 5 % (21 products against 20) is found: its interval holds 1.05 and leaves 1 out.
"""

import sys
from collections.abc import Callable

import torch
import triton.testing

from fusescope.profiler.measure.conditions import Watcher
from fusescope.profiler.measure.cuda import CudaDevice
from fusescope.profiler.measure.device import Launch
from fusescope.profiler.measure.statistics import coefficient_of_variation, ratio
from fusescope.profiler.measure.timer import Plan, measure

Work = Callable[[], object]
TRIALS = 20


def on_stream(work: Work) -> Launch:
    """Torch work as a launch."""

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            work()

    return launch


def product(size: int, times: int = 1) -> Work:
    """Matrix products in fp16, one after the other."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        for _ in range(times):
            torch.mm(left, right, out=out)

    return work


def addition(elements: int, times: int = 1) -> Work:
    """Additions of two fp16 vectors, one after the other."""
    left, right = (torch.randn(elements, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        for _ in range(times):
            torch.add(left, right, out=out)

    return work


def agrees_with_triton(device: CudaDevice) -> bool:
    """Question 1."""
    right = True
    for name, work in {"product of 4096": product(4096), "addition of 2^28": addition(1 << 28)}.items():
        ours = float(torch.tensor(measure(device, {name: on_stream(work)}, Plan())[name].samples_ms).median())
        theirs = triton.testing.do_bench(work, warmup=200, rep=600, return_mode="median")
        print(f"1. {name}: {ours:.4f} ms, do_bench {theirs:.4f} ms, ratio {ours / theirs:.3f}")
        right &= abs(ours / theirs - 1) <= 0.03
    return right


def graph_beats_enqueue(device: CudaDevice) -> bool:
    """Question 2."""
    launch = on_stream(addition(4096, times=100))
    plain = measure(device, {"enqueue": launch}, Plan(graphs=False))["enqueue"]
    replayed = measure(device, {"graph": launch}, Plan())["graph"]
    both = [float(torch.tensor(timed.samples_ms).median()) for timed in (replayed, plain)]
    print(
        f"2. 100 small kernels: graph {both[0]:.4f} ms (captured: {replayed.graph} {replayed.why_no_graph}), "
        f"enqueue {both[1]:.4f} ms (enqueue-bound: {plain.enqueue_bound})"
    )
    return replayed.graph and both[0] < both[1]


def equal_is_equal(device: CudaDevice) -> bool:
    """Question 3."""
    launch = on_stream(product(2048, times=20))
    inside, widths = 0, []
    for trial in range(TRIALS):
        timed = measure(device, {"a": launch, "b": launch}, Plan(seed=trial))
        found = ratio(timed["a"], timed["b"])
        inside += not found.is_told_apart
        widths.append(found.high - found.low)
    noise = coefficient_of_variation(timed["a"].samples_ms)
    print(
        f"3. a kernel against itself: 1.00 inside {inside} of {TRIALS} intervals, median width "
        f"{sorted(widths)[TRIALS // 2]:.4f}; last ratio {found.value:.4f} [{found.low:.4f}, {found.high:.4f}], "
        f"coefficient of variation {noise:.4f}"
    )
    return inside >= 17


def finds_five_percent(device: CudaDevice) -> bool:
    """Question 4."""
    launches = {"21": on_stream(product(2048, times=21)), "20": on_stream(product(2048, times=20))}
    timed = measure(device, launches, Plan())
    found = ratio(timed["21"], timed["20"])
    print(f"4. 21 products against 20: {found.value:.4f} [{found.low:.4f}, {found.high:.4f}], warm: {timed['20'].warm}")
    return found.is_told_apart and found.low <= 1.06 and found.high >= 1.04


def main() -> int:
    """Ask all questions."""
    torch.manual_seed(0)
    device = CudaDevice()
    watcher = Watcher(device.pci_bus_id())
    watcher.observe()
    answers = []
    for question in (agrees_with_triton, graph_beats_enqueue, equal_is_equal, finds_five_percent):
        answers.append(question(device))
        watcher.observe()
    conditions = watcher.conditions()
    watcher.close()
    print(
        f"on {conditions.gpu}, driver {conditions.driver}, MIG {conditions.mig}, "
        f"top clock {conditions.max_sm_clock_mhz} MHz"
    )
    for shot in conditions.snapshots:
        print(f"   {shot}")
    print("\n".join(conditions.warnings()) or "no warnings")
    return 0 if all(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
