"""Compiling the pattern suite with one release, in a worker that may crash, hang or be killed."""

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.graph.patterns import Case
from fusescope.graph.rules import Prediction, predictions
from fusescope.graph.sites import quantize_sites
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.build import CompileError, Worker, start_worker
from fusescope.profiler.releases import Release
from fusescope.profiler.releases.signatures import signatures
from fusescope.profiler.runtimes import CompileOptions
from fusescope.profiler.verdicts import Verdict, verdicts
from fusescope.profiler.worker import BUILD_LOG, LAYERS, OUTCOME

_TRIES = 2
_POLL_S = 0.05
_WORDS = 300


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one release made of one case."""

    case: Case
    """The case."""

    verdicts: tuple[Verdict, ...]
    """One per Quantize site; empty if it was not built."""

    predictions: tuple[Prediction, ...]
    """What the documented rules of the release's runtime expect, in the order of the sites."""

    signatures: tuple[tuple[str, ...], ...]
    """What each site is like, most precisely first."""

    kernels: tuple[Attribution, ...]
    """Kernels in execution order; empty if it was not built."""

    failure: str
    """The compiler's words if it was not built; else empty."""


def run_suite(
    release: Release,
    cases: Sequence[Case],
    target: str,
    *,
    overlay: Path | None = None,
    timeout_s: float = 120.0,
    progress: Callable[[int], None] = lambda _done: None,
) -> tuple[CaseResult, ...]:
    """Compile every case with a release and judge its Quantize sites.

    A case that the compiler refuses is a result with its words. A case at which the worker crashes, hangs or is killed
    is tried once more, and is then a result that says so; the other cases go on.

    Args:
        release: The release.
        cases: The cases.
        target: What to compile for.
        overlay: The release's overlay; None for the installed one.
        timeout_s: Seconds that one case may take.
        progress: Told how many cases are done.

    Raises:
        CompileError: The worker does not even begin, or runs another release than the one asked for.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = _write_models(cases, folder)
        failures = _compile_all(release, models, folder, target, overlay, timeout_s, progress)
        return tuple(
            _result(release, case, target, folder / key, failures.get(key, ""))
            for key, case in zip(models, cases, strict=True)
        )


def _write_models(cases: Sequence[Case], folder: Path) -> dict[str, Path]:
    models: dict[str, Path] = {}
    for index, case in enumerate(cases):
        path = folder / f"{index}.onnx"
        path.write_bytes(case.model().SerializeToString(deterministic=True))
        models[f"case{index}"] = path
    return models


def _compile_all(
    release: Release,
    models: dict[str, Path],
    folder: Path,
    target: str,
    overlay: Path | None,
    timeout_s: float,
    progress: Callable[[int], None],
) -> dict[str, str]:
    """Compile until every model has an outcome or was given up; return those given up with the reason."""
    failures: dict[str, str] = {}
    tries: dict[str, int] = {}
    request = {"runtime": release.runtime, "options": asdict(CompileOptions(target=target))}
    while pending := [key for key in models if key not in failures and not (folder / key / OUTCOME).exists()]:
        asked = {**request, "models": {key: str(models[key]) for key in pending}}
        with start_worker(asked, folder / "request.json", folder, overlay) as process:
            try:
                reason = _run_worker(process, folder, pending, timeout_s, progress)
            finally:
                process.kill()
        culprit = next((key for key in pending if not (folder / key / OUTCOME).exists()), None)
        if culprit is None:
            break
        if not (folder / culprit / BUILD_LOG).exists():
            raise CompileError(f"its worker does not begin: {reason}", where=release.name)
        tries[culprit] = tries.get(culprit, 0) + 1
        if tries[culprit] == _TRIES:
            failures[culprit] = f"{reason}, twice"
    return failures


def _run_worker(
    process: Worker, folder: Path, pending: Sequence[str], timeout_s: float, progress: Callable[[int], None]
) -> str:
    """Wait for the worker's end; return why it ended early, or an empty text."""
    done, since = 0, time.monotonic()
    while process.poll() is None:
        now_done = _count_done(folder, pending, done)
        if now_done > done:
            done, since = now_done, time.monotonic()
            progress(done)
        if time.monotonic() - since > timeout_s:
            process.kill()
            process.wait()
            return f"the compiler did not finish within {timeout_s:g} s"
        time.sleep(_POLL_S)
    progress(_count_done(folder, pending, done))
    complaint = (process.stderr.read() if process.stderr else "").strip().splitlines() or ["no message"]
    if process.returncode < 0:
        return f"the compiler was ended by {signal.Signals(-process.returncode).name}"
    return complaint[-1] if process.returncode else ""


def _count_done(folder: Path, pending: Sequence[str], known: int) -> int:
    """How many of the pending cases, which are compiled in order, have an outcome; `known` of them are known to."""
    while known < len(pending) and (folder / pending[known] / OUTCOME).exists():
        known += 1
    return known


def _result(release: Release, case: Case, target: str, folder: Path, failure: str) -> CaseResult:
    if failure:
        return CaseResult(case, (), (), (), (), failure)
    outcome = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    if outcome["version"] != release.version:
        raise CompileError(f"its worker ran version {outcome['version']}", where=release.name)
    if not (folder / LAYERS).exists():
        return CaseResult(case, (), (), (), (), _words(outcome, folder / BUILD_LOG))
    graph = graph_of(case.model(), name=case.name)
    try:
        engine = read_oneline((folder / LAYERS).read_bytes().decode("utf-8", "surrogateescape"), detailed=True)
    except UserError as error:
        return CaseResult(case, (), (), (), (), str(error))
    view = EngineView(engine, graph)
    sites = quantize_sites(graph)
    return CaseResult(
        case=case,
        verdicts=verdicts(view, sites),
        predictions=predictions(graph, sites, release.runtime, target),
        signatures=tuple(signatures(graph, site, release.runtime, target) for site in sites),
        kernels=tuple(attribution for attribution in view.attributions if attribution.is_kernel),
        failure="",
    )


def _words(outcome: dict[str, Any], log: Path) -> str:
    """Why the compiler refused, in its own words."""
    if outcome["parser_errors"]:
        return str(outcome["parser_errors"][0]["message"])
    lines: Iterable[str] = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("[E] ") for line in lines if line.startswith("[E]")]
    return errors[0][:_WORDS] if errors else "the builder returned no plan and no message"
