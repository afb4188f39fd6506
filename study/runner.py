"""Running a study: which of its engines are there already, building the rest side by side, explaining them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx

from fusescope.graph.batch import with_batch
from fusescope.graph.errors import UserError
from fusescope.graph.external import load_with_weights
from fusescope.graph.structure import fill, is_structure_only
from fusescope.profiler.build import build, prepare
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.gpus import Gpu, gpu_named
from fusescope.profiler.run import RECORD, Run, read_run
from fusescope.profiler.runtimes import CompileOptions
from fusescope.profiler.trials import with_trials
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize
from fusescope.study.config import StudyConfig, Variant
from fusescope.study.plan import Job

RUNS = "runs"
_BYTES_PER_BUILD = 3 << 30
"""Memory to allow for one compiler: HRNet-W18's takes 1.2 GiB at its peak."""
_MEMORY = Path("/proc/meminfo")
"""Where Linux says how much memory is available."""

Progress = Callable[[str, str], None]
"""Called with an engine's name and its state: ``kept``, ``waiting``, ``compiling``, ``done`` or ``failed``."""


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


class Models:
    """The study's models, each made once: the given one with its weights, and one per variant."""

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._quantized: dict[str, onnx.ModelProto] = {}

    @cached_property
    def baseline(self) -> onnx.ModelProto:
        """The given model with its weights, or with seeded values if it is structure-only."""
        proto = load_with_weights(self._config.model)
        filled = fill(proto) if is_structure_only(proto) else proto
        return to_half(filled) if self._config.dtype else filled

    def of(self, variant: Variant | None) -> onnx.ModelProto:
        """The model of a variant; the baseline for None."""
        if variant is None:
            return self.baseline
        if variant.name not in self._quantized:
            recipe = variant.model_dump(exclude={"name"})
            self._quantized[variant.name] = quantize(self.baseline, **recipe).proto
        return self._quantized[variant.name]


def run_study(
    config: StudyConfig,
    jobs: tuple[Job, ...],
    folder: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> StudyResult:
    """Build what is missing and explain every variant against the baseline of its batch.

    Args:
        config: What to do.
        jobs: Its engines, from `plan`.
        folder: The study's folder. Runs in it that were made by the same request are kept.
        force: Build all runs again.
        progress: Told of every change of state.

    Raises:
        UserError: No engine could be built.
    """
    gpu = gpu_named(config.gpu) if config.gpu else None
    tell = progress or (lambda _name, _state: None)
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[int, str], Run] = {}
    failures: list[Failure] = []
    for job, outcome in _built(config, jobs, folder / RUNS, force=force, tell=tell):
        if isinstance(outcome, Run):
            runs[job.batch, job.name] = outcome
        else:
            failures.append(Failure(job.batch, job.name, str(outcome)))
    if not runs:
        raise UserError(f"no engine could be built: {failures[0].error}", where=config.title)
    return StudyResult(
        explanations=with_trials(tuple(_explanations(jobs, runs, gpu))),
        runs=tuple(run.folder for run in runs.values()),
        failures=tuple(failures),
    )


def _built(
    config: StudyConfig, jobs: tuple[Job, ...], folder: Path, *, force: bool, tell: Progress
) -> Iterator[tuple[Job, Run | UserError]]:
    """Every job with its run, or with the reason why there is none, in the order of the jobs."""
    models = Models(config)
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
                model = with_batch(models.of(job.variant), job.batch)
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
