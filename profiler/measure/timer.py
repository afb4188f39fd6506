"""Timing launches side by side.

All candidates are warmed up, then measured in rounds. In every round each candidate runs one block of repetitions, in
an order that is drawn anew, so that a clock that drifts or another process that comes and goes meets all of them alike;
and a ratio is taken within rounds, where both sides saw the same conditions.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusescope.profiler.measure.device import CaptureError, Device, Launch, Replay

Floats = NDArray[np.float64]

_SHORTEST_MS = 0.001
"""What runs shorter is counted as this long: CUDA's events resolve about half of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often to measure."""

    rounds: int = 30
    """Rounds; each gives one block of every candidate."""

    block_ms: float = 20.0
    """Length of a block in milliseconds of the candidate's own time; at least one repetition."""

    warmup_ms: float = 200.0
    """Least time to warm up; then until two blocks in a row agree within `stable`, or ten times as long."""

    stable: float = 0.01
    """Relative difference of the medians of two blocks under which a candidate is warm."""

    graphs: bool = True
    """Whether to capture launches into CUDA graphs where they can be."""

    seed: int = 0
    """Of the order within rounds."""


@dataclass(frozen=True)
class Timed:
    """What was measured of one candidate."""

    blocks_ms: tuple[Floats, ...]
    """Per round the time of each repetition in milliseconds."""

    graph: bool
    """Whether a CUDA graph was replayed."""

    why_no_graph: str
    """Why none was; empty where one was, or none was wanted."""

    warm: bool
    """Whether two blocks in a row agreed before the rounds began."""

    enqueue_ms: float
    """Median host time of one enqueue in milliseconds."""

    @property
    def samples_ms(self) -> Floats:
        """All repetitions of all rounds."""
        return np.concatenate(self.blocks_ms)

    @property
    def round_medians_ms(self) -> Floats:
        """Median of each round."""
        return np.array([np.median(block) for block in self.blocks_ms])

    @property
    def enqueue_bound(self) -> bool:
        """Whether enqueueing takes more than 0.8 of the GPU's time, trtexec's limit: the GPU may have waited."""
        return self.enqueue_ms > 0.8 * float(np.median(self.samples_ms))


def measure(
    device: Device, launches: Mapping[str, Launch], plan: Plan, *, observe: Callable[[], None] | None = None
) -> dict[str, Timed]:
    """Time launches against each other.

    Args:
        device: Where they run.
        launches: Candidates by name.
        plan: How long and how often.
        observe: Called after every round, to note the conditions.

    Returns:
        What was measured, by name.
    """
    candidates = {name: _Candidate(device, launch, graphs=plan.graphs) for name, launch in launches.items()}
    try:
        for candidate in candidates.values():
            candidate.warm_up(plan)
        order = np.random.default_rng(plan.seed)
        names = list(candidates)
        for _ in range(plan.rounds):
            for place in order.permutation(len(names)):
                candidates[names[place]].run_block()
            if observe is not None:
                observe()
        return {name: candidate.result() for name, candidate in candidates.items()}
    finally:
        for candidate in candidates.values():
            candidate.close()


class _Candidate:
    """One launch, captured if it can be, with its blocks so far."""

    def __init__(self, device: Device, launch: Launch, *, graphs: bool) -> None:
        self._device = device
        self._launch = launch
        self._replay: Replay | None = None
        self._why_no_graph = ""
        self._repetitions = 1
        self._warm = False
        self._blocks: list[Floats] = []
        self._enqueues_ms: list[float] = []
        device.time(launch, 1)  # lazy loading and allocation are over before a capture begins
        if graphs:
            try:
                self._replay = device.capture(launch)
            except CaptureError as error:
                self._why_no_graph = str(error)

    def warm_up(self, plan: Plan) -> None:
        """Run until the time of a block is steady, and find out how many repetitions a block takes."""
        spent, last = 0.0, 0.0
        while spent < 10 * plan.warmup_ms:
            block = self._time()
            median = float(np.median(block))
            spent += float(block.sum())
            self._warm = spent >= plan.warmup_ms and abs(median - last) <= plan.stable * median
            if self._warm:
                break
            last = median
            self._repetitions = max(1, round(plan.block_ms / max(median, _SHORTEST_MS)))
        self._enqueues_ms.clear()

    def run_block(self) -> None:
        """Measure one block."""
        self._blocks.append(self._time())

    def result(self) -> Timed:
        """What was measured."""
        return Timed(
            blocks_ms=tuple(self._blocks),
            graph=self._replay is not None,
            why_no_graph=self._why_no_graph,
            warm=self._warm,
            enqueue_ms=float(np.median(self._enqueues_ms)),
        )

    def close(self) -> None:
        """Free the graph."""
        if self._replay is not None:
            self._replay.close()

    def _time(self) -> Floats:
        # One more than wanted: the first finds an idle GPU, so that its time holds the enqueue too.
        return np.asarray(self._device.time(self._timed_launch, self._repetitions + 1), np.float64)[1:]

    def _timed_launch(self, stream: int) -> None:
        begin = time.perf_counter()
        (self._replay or self._launch)(stream)
        self._enqueues_ms.append(1e3 * (time.perf_counter() - begin))
