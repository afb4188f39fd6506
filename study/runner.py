"""Running a study: which of its engines are there already, building the rest side by side, explaining them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from fusescope.graph.batch import with_batch
from fusescope.graph.errors import UserError
from fusescope.graph.external import load_with_weights
from fusescope.graph.structure import fill, is_structure_only
from fusescope.profiler.build import build, prepare
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import AccuracyChange, Explanation
from fusescope.profiler.gpus import Gpu, gpu_named
from fusescope.profiler.run import RECORD, Run, read_run
from fusescope.profiler.runtimes import CompileOptions
from fusescope.profiler.trials import with_trials
from fusescope.quant.evaluate import Evaluation
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize
from fusescope.quant.overlap import record_calibration
from fusescope.study.config import StudyConfig, Variant
from fusescope.study.data import StudyData
from fusescope.study.plan import Job, Planner
from fusescope.study.remedies import Remedy, remedies

RUNS = "runs"
_BYTES_PER_BUILD = 3 << 30
"""Memory to allow for one compiler: HRNet-W18's takes 1.2 GiB at its peak."""
_MEMORY = Path("/proc/meminfo")
"""Where Linux says how much memory is available."""

GIVEN = "the original"
"""What the model is called as it was given, where the baseline is another one."""

CALIBRATION, EVALUATION = "calibration", "accuracy"
"""What a study tells the state of, beside its engines."""

Progress = Callable[[str, str], None]
"""Called with an engine's name and its state: ``kept``, ``waiting``, ``compiling``, ``done`` or ``failed``; with
`CALIBRATION` or `EVALUATION` and ``calibrating`` or ``evaluating``, then ``done``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that could not be built."""

    batch: int
    """Batch size."""

    variant: str
    """Name of the engine."""

    error: str
    """Why, in one line."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study found."""

    explanations: tuple[Explanation, ...]
    """One per batch and variant whose engines could be built, in the order of the configuration."""

    runs: tuple[Path, ...]
    """Folders of all runs."""

    failures: tuple[Failure, ...]
    """Engines that could not be built."""

    accuracy: Evaluation | None = None
    """Accuracy of the models of all engines, run in ONNX Runtime; None without images."""


class Models:
    """The study's models, each made once: the given one with its weights, and one per variant.

    Args:
        config: The study.
        data: Its images; None for placeholder scales.
        tell: Told of calibrations.
    """

    def __init__(self, config: StudyConfig, data: StudyData | None = None, tell: Progress | None = None) -> None:
        self._config = config
        self._data = data
        self._tell = tell
        self._quantized: dict[str, onnx.ModelProto] = {}

    @cached_property
    def baseline(self) -> onnx.ModelProto:
        """The given model with its weights, or with seeded values if it is structure-only."""
        proto = load_with_weights(self._config.model)
        filled = fill(proto) if is_structure_only(proto) else proto
        return to_half(filled) if self._config.dtype else filled

    def of(self, job: Job) -> onnx.ModelProto:
        """The model of an engine, with the batch that it was given with."""
        variant = job.variant
        if variant is None:
            return self.baseline
        if variant.name not in self._quantized:
            calibrated = {} if self._data is None else self._calibrated(self._data, variant)
            made = quantize(self.baseline, **variant.options(), **calibrated, verdicts=job.verdicts).proto
            if self._data is not None:
                record_calibration(made, self._data.calibration.describe())
            self._quantized[variant.name] = made
        return self._quantized[variant.name]

    def _calibrated(self, data: StudyData, variant: Variant) -> dict[str, Any]:
        if self._tell is not None:
            self._tell(CALIBRATION, "calibrating")
        ranges = data.ranges(variant)
        if self._tell is not None:
            self._tell(CALIBRATION, "done")
        return {"amax": ranges.by_tensor(), "source": ranges.source()}


def run_study(
    config: StudyConfig,
    jobs: tuple[Job, ...],
    folder: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    data: StudyData | None = None,
) -> StudyResult:
    """Build what is missing, explain every variant against the baseline of its batch, and evaluate all.

    Args:
        config: What to do.
        jobs: Its engines, from `plan`.
        folder: The study's folder. Runs in it that were made by the same request are kept.
        force: Build all runs again.
        progress: Told of every change of state.
        data: Its images; None for placeholder scales and no accuracy.

    Raises:
        UserError: No engine could be built.
    """
    gpu = gpu_named(config.gpu) if config.gpu else None
    tell = progress or (lambda _name, _state: None)
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    models = Models(config, data, tell)
    work = _Work(config, models, folder / RUNS, force, tell)
    work.build(jobs)
    explanations = tuple(_explanations(jobs, work.runs, gpu))
    tried: tuple[Remedy, ...] = ()
    if config.remedies:
        first = [each for each in explanations if each.quantized.provenance.batch == config.batches[0]]
        tried = remedies(first, config.variant)
        planner = Planner(config, "" if data is None else data.request)
        extra = tuple(planner.job(batch, each.variant, each.verdicts) for batch in config.batches for each in tried)
        jobs += extra
        work.build(extra)
        explanations = tuple(_explanations(jobs, work.runs, gpu))
    if not work.runs:
        raise UserError(f"no engine could be built: {work.failures[0].error}", where=config.title)
    accuracy = None if data is None or not config.evaluates else _accuracy(config, data, jobs, models, tell)
    built_for = {(each.of, each.variant.name): each.findings for each in tried}
    return StudyResult(
        explanations=with_trials(explanations, built_for=built_for, accuracy=_changes(accuracy)),
        runs=tuple(run.folder for run in work.runs.values()),
        failures=tuple(work.failures),
        accuracy=accuracy,
    )


@dataclass(frozen=True)
class _Work:
    """The engines of a study as they are built."""

    config: StudyConfig
    models: Models
    folder: Path
    force: bool
    tell: Progress
    runs: dict[tuple[int, str], Run] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def build(self, jobs: tuple[Job, ...]) -> None:
        """Build what is missing."""
        for job, outcome in _built(self.config, self.models, jobs, self.folder, force=self.force, tell=self.tell):
            if isinstance(outcome, Run):
                self.runs[job.batch, job.name] = outcome
            else:
                self.failures.append(Failure(job.batch, job.name, str(outcome)))


def _accuracy(
    config: StudyConfig, data: StudyData, jobs: tuple[Job, ...], models: Models, tell: Progress
) -> Evaluation:
    """Evaluate the model of each engine once, whatever its batches, against the model as it was given."""
    tell(EVALUATION, "evaluating")
    given = GIVEN if config.dtype else next(job.name for job in jobs if job.variant is None)
    asked: dict[str, tuple[str, onnx.ModelProto]] = {}
    for job in jobs:
        if job.name == given or job.name in asked:
            continue
        try:
            asked[job.name] = (job.request, models.of(job))
        except UserError:  # it is among the failures already
            continue
    found = data.accuracy(asked, reference_name=given)
    tell(EVALUATION, "done")
    return found


def _changes(accuracy: Evaluation | None) -> dict[tuple[str, str], AccuracyChange]:
    """For every two engines, by how much the second's model differs from the first's."""
    changes = {}
    for pair in () if accuracy is None else accuracy.pairs:
        changes[pair.first, pair.second] = AccuracyChange(pair.points, pair.low, pair.high, pair.images)
        changes[pair.second, pair.first] = AccuracyChange(-pair.points, -pair.high, -pair.low, pair.images)
    return changes


def _built(
    config: StudyConfig, models: Models, jobs: tuple[Job, ...], folder: Path, *, force: bool, tell: Progress
) -> Iterator[tuple[Job, Run | UserError]]:
    """Every job with its run, or with the reason why there is none, in the order of the jobs."""
    outcomes: list[tuple[Job, Run | UserError | Future[Run]]] = []
    pool = ThreadPoolExecutor(max_workers=_workers())
    try:
        for job in jobs:
            kept = None if force else _kept(folder / job.folder_name, job, config.title)
            if kept is not None:
                tell(job.folder_name, "kept")
                outcomes.append((job, kept))
                continue
            tell(job.folder_name, "waiting")
            try:
                model = with_batch(models.of(job), job.batch)
                outcomes.append((job, pool.submit(_compile, config, job, model, folder, tell)))
            except UserError as error:
                tell(job.folder_name, "failed")
                outcomes.append((job, error))
        for job, outcome in outcomes:
            yield job, _settled(outcome)
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted: end after the engines that are being built


def _settled(outcome: Run | UserError | Future[Run]) -> Run | UserError:
    if not isinstance(outcome, Future):
        return outcome
    try:
        return outcome.result()
    except UserError as error:
        return error


def _compile(config: StudyConfig, job: Job, model: onnx.ModelProto, folder: Path, tell: Progress) -> Run:
    tell(job.folder_name, "compiling")
    settings = config.build
    options = CompileOptions(
        target=settings.target,
        opt_level=settings.opt_level,
        aux_streams=settings.aux_streams,
        avg_timing_iterations=settings.avg_timing_iterations,
        workspace_bytes=None if settings.workspace_mib is None else settings.workspace_mib << 20,
    )
    try:
        run = build(
            prepare(model, config.title),
            folder / job.folder_name,
            runtime=settings.runtime,
            options=options,
            name=job.name,
            request=job.request,
            timeout_s=settings.timeout_s,
        )
    except UserError:
        tell(job.folder_name, "failed")
        raise
    tell(job.folder_name, "done")
    return run


def _kept(folder: Path, job: Job, title: str) -> Run | None:
    """The run that is there from the same request, under the study's present title."""
    if not (folder / RECORD).is_file():
        return None
    try:
        run = read_run(folder)
        _ = run.graph  # read now, since a damaged run is built again
    except UserError:
        return None
    if run.provenance.request != job.request:
        return None
    return replace(run, provenance=replace(run.provenance, model_name=title))


def _explanations(jobs: tuple[Job, ...], runs: dict[tuple[int, str], Run], gpu: Gpu | None) -> Iterator[Explanation]:
    baselines = {job.batch: runs.get((job.batch, job.name)) for job in jobs if job.variant is None}
    for job in jobs:
        run = runs.get((job.batch, job.name))
        if job.variant is not None and run is not None:
            yield explain(run, baselines[job.batch], gpu=gpu)


def _workers() -> int:
    """How many compilers to run at once."""
    cores = os.cpu_count() or 1
    if not _MEMORY.is_file():  # not Linux
        return min(cores, 2)
    available_kib = int(_MEMORY.read_text(encoding="ascii").partition("MemAvailable:")[2].split()[0])
    return max(1, min(cores, (available_kib << 10) // _BYTES_PER_BUILD))
