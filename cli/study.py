"""``fusescope study``."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusescope.cli.options import FILE, dumps, force_option, json_option, print_json, say

if TYPE_CHECKING:
    from fusescope.study.runner import Progress

MARK = "study.toml"


@click.command()
@click.argument("config", type=FILE)
@click.option("-o", "--output", type=FILE, help="Folder of the study; studies/NAME by default.")
@force_option
@json_option
def command(config: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Do all that CONFIG, a TOML file, asks for: calibrate, quantize, compile, explain and evaluate every variant.

    Writes report.html, study.md and study.json into the study's folder. A study that was stopped goes on where it was:
    engines that were built by the same request are kept. With --force all are built again.
    """
    from dataclasses import asdict

    from fusescope.graph.external import load_with_weights
    from fusescope.graph.files import write_text
    from fusescope.report.accuracy import evaluation_document, print_accuracy
    from fusescope.report.documents import study_document
    from fusescope.report.html import render_html
    from fusescope.report.markdown import render_markdown
    from fusescope.report.shaping import baselines
    from fusescope.report.terminal import print_comparison, print_explanation
    from fusescope.study.config import read_config
    from fusescope.study.data import StudyData
    from fusescope.study.plan import plan
    from fusescope.study.runner import run_study

    asked = read_config(config)
    folder = output or Path("studies") / config.stem
    images = None if asked.data is None else StudyData(asked.data, load_with_weights(asked.model), folder)
    jobs = plan(asked, "" if images is None else images.request)
    _claim(folder, config, force=force)
    with _progress() as progress:
        result = run_study(asked, jobs, folder, force=force, progress=progress, data=images)
    data, report, text = folder / "study.json", folder / "report.html", folder / "study.md"
    written = [data, *([report, text] if result.explanations else [])]
    failures = [asdict(failure) for failure in result.failures]
    lines = [f"{failure.variant}, batch {failure.batch}: {failure.error}" for failure in result.failures]
    accuracy = None if result.accuracy is None else evaluation_document(result.accuracy)
    document = study_document(asked.title, result.explanations, failures, [*written, *result.runs], accuracy)
    write_text(data, dumps(document))
    if result.explanations:
        write_text(report, render_html(result.explanations, title=asked.title, evaluation=result.accuracy))
        again = shlex.join(("fusescope", "study", str(config), "-o", str(folder)))
        written_study = render_markdown(
            result.explanations, title=asked.title, command=again, failures=lines, evaluation=result.accuracy
        )
        write_text(text, written_study)
    if as_json:
        print_json(document)
    elif result.explanations:
        print_comparison(result.explanations)
        for explanation in result.explanations:
            print_explanation(explanation)
        if result.accuracy is not None:
            print_accuracy(result.accuracy, baselines(result.explanations))
    for line in lines:
        say(f"error: {line}")
    say(f"wrote {', '.join(map(str, written))}")
    if result.failures:
        raise SystemExit(1)


def _claim(folder: Path, config: Path, *, force: bool) -> None:
    """Make the study's folder, or take it up again; refuse a folder that holds something else."""
    from fusescope.graph.errors import UserError
    from fusescope.graph.files import write_text

    foreign = folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / MARK).is_file()
    if foreign and not force:
        raise UserError("exists and is no study", where=folder, remedy="choose another folder with -o, or pass --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made ({error.strerror})", where=folder, remedy="choose another with -o") from error
    write_text(folder / MARK, config.read_text(encoding="utf-8"))


@contextmanager
def _progress() -> Iterator["Progress"]:
    """Show the state of every engine on stderr: live on a terminal, a line for each change otherwise."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name, state: say(f"{name}: {state}")
        return
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.fields[engine]}"),
        TextColumn("{task.fields[state]}"),
    )
    with Bars(*columns, TimeElapsedColumn(), console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, state: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task("", start=False, total=1, engine=name, state=state)
            if state in {"compiling", "calibrating", "evaluating"}:
                bars.start_task(tasks[name])
            finished = state in {"done", "failed", "kept"}
            bars.update(tasks[name], state=state, completed=1 if finished else 0)

        yield progress
