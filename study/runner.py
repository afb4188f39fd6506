"""Running a study: which engines it needs, which of them are there already, and building the rest side by side."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from fusescope import __version__
from fusescope.graph.batch import with_batch
from fusescope.graph.errors import UserError
from fusescope.graph.structure import fill, is_structure_only
from fusescope.profiler.build import build, load_with_weights, prepare
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.gpus import Gpu, gpu_named
from fusescope.profiler.run import RECORD, Run, read_run
from fusescope.profiler.runtimes import CompileOptions
from fusescope.profiler.trials import with_trials
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize
from fusescope.study.config import StudyConfig, Variant

RUNS = "runs"
_BYTES_PER_BUILD = 3 << 30
"""Memory to allow for one compiler: HRNet-W18's takes 1.2 GiB at its peak."""

Progress = Callable[[str, str], None]
"""Called with an engine's name and its state: ``kept``, ``waiting``, ``compiling``, ``done`` or ``failed``."""


@dataclass(frozen=True, slots=True)
class Job:
    """One engine that a study needs."""

    batch: int
    """Batch size."""

    variant: Variant | None
    """How the model is quantized; None for the baseline."""

    name: str
    """What the engine is called in reports: the variant's name, or the baseline's element type."""

    request: str
    """Hash of all that determines the engine."""

    @property
    def folder_name(self) -> str:
        """Folder of the run, below `RUNS`."""
        return f"b{self.batch}-{self.name}"


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
    config: StudyConfig, folder: Path, *, force: bool = False, progress: Progress | None = None
) -> StudyResult:
    """Build what is missing and explain every variant against the baseline of its batch.

    Args:
        config: What to do.
        folder: The study's folder. Runs in it that were made by the same request are kept.
        force: Build all runs again.
        progress: Told of every change of state.

    Raises:
        UserError: The GPU is unknown, or no engine could be built.
    """
    gpu = gpu_named(config.gpu) if config.gpu else None
    tell = progress or (lambda _name, _state: None)
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    jobs = plan(config)
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


def plan(config: StudyConfig) -> tuple[Job, ...]:
    """The engines that a study needs: for every batch the baseline, then each variant."""
    source = hashlib.sha256(config.model.read_bytes()).hexdigest()
    settings = config.build.model_dump(exclude={"timeout_s"})
    compiler = _compiler_version()
    baseline = config.dtype or _element_type(config.model)

    def job(batch: int, variant: Variant | None) -> Job:
        recipe = None if variant is None else variant.model_dump()
        asked = [source, config.dtype, batch, recipe, settings, compiler, __version__]
        request = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return Job(batch, variant, baseline if variant is None else variant.name, request)

    return tuple(job(batch, variant) for batch in config.batches for variant in (None, *config.variant))


def _built(
    config: StudyConfig, jobs: tuple[Job, ...], folder: Path, *, force: bool, tell: Progress
) -> Iterator[tuple[Job, Run | UserError]]:
    """Every job with its run, or with the reason why there is none, in the order of the jobs."""
    models = Models(config)
    outcomes: list[tuple[Job, Run | UserError | Future[Run]]] = []
    with ThreadPoolExecutor(max_workers=_workers()) as pool:
        for job in jobs:
            kept = None if force else _kept(folder / job.folder_name, job)
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


def _kept(folder: Path, job: Job) -> Run | None:
    if not (folder / RECORD).is_file():
        return None
    try:
        run = read_run(folder)
    except UserError:
        return None  # a damaged run is built again
    return run if run.provenance.request == job.request else None


def _explanations(jobs: tuple[Job, ...], runs: dict[tuple[int, str], Run], gpu: Gpu | None) -> Iterator[Explanation]:
    baselines = {job.batch: runs.get((job.batch, job.name)) for job in jobs if job.variant is None}
    for job in jobs:
        run = runs.get((job.batch, job.name))
        if job.variant is not None and run is not None:
            yield explain(run, baselines[job.batch], gpu=gpu)


def _workers() -> int:
    cores = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows has no sysconf
        return min(cores, 2)
    return max(1, min(cores, memory // _BYTES_PER_BUILD))


def _compiler_version() -> str:
    try:
        return importlib.metadata.version("tensorrt-rtx-cu13")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _element_type(model: Path) -> str:
    """``fp16``, ``bf16`` or ``fp32``: the element type of the model's convolution results."""
    from fusescope.graph.model import read_graph
    from fusescope.graph.ops import WEIGHTED
    from fusescope.profiler.dtypes import dtype_named

    graph = read_graph(model)
    words = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes.values() if node.op in WEIGHTED]
    dtype = dtype_named(next(filter(None, words), ""))
    return dtype.name if dtype else "baseline"
