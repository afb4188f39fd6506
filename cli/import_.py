"""``fusescope import``."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusescope.cli.options import FILE, force_option, json_option, print_json, say
from fusescope.graph.units import plural, printable
from fusescope.report.documents import header

if TYPE_CHECKING:
    from fusescope.profiler.run import Run

_LONGEST = 100
"""Characters of an engine's label that name a folder."""


@click.command()
@click.argument("files", type=FILE, nargs=-1)
@click.option("-o", "--output", type=FILE, required=True, help="Folder of the run to write.")
@click.option("--layers", type=FILE, help="Take the layers from this file, and not its times.")
@click.option("--profile", type=FILE, help="Take the times of layers from this file, and not its layers.")
@click.option("--times", type=FILE, help="Take the times of inferences from this file.")
@click.option("--log", type=FILE, help="Take all that this log holds, as for a file without an option.")
@click.option("--onnx", type=FILE, help="The ONNX model that was compiled; names of layers are resolved to its nodes.")
@click.option("--engine", default="", metavar="LABEL", help="Which engine, where the files hold several.")
@click.option("--all", "every", is_flag=True, help="Import each engine, into OUTPUT-LABEL.")
@click.option("--name", default="", help="What to call the run in reports; the engine's label or the file by default.")
@force_option
@json_option
def command(
    files: tuple[Path, ...],
    output: Path,
    layers: Path | None,
    profile: Path | None,
    times: Path | None,
    log: Path | None,
    onnx: Path | None,
    engine: str,
    every: bool,
    name: str,
    force: bool,
    as_json: bool,
) -> None:
    """Make a run of recorded FILES: of trtexec, the engine inspector, a build log, or a folder of them.

    What a file is, is told by its content: layer information, profile, times, a whole log, metadata. The run keeps the
    files as they came.
    """
    from fusescope.graph.files import refuse_existing
    from fusescope.profiler.imports import import_run
    from fusescope.profiler.sources import chosen_key, engine_keys, read_sources

    if engine and every:
        raise click.UsageError("--engine chooses one engine, --all takes every one")
    given = {"layers": layers, "profile": profile, "latency": times, "": log}
    options = [(path, role) for role, path in given.items() if path is not None]
    if not files and not options:
        raise click.UsageError("name at least one recorded file or folder")
    sources, left = read_sources(files, options)
    for reason in left:
        say(f"left out: {reason}")
    keys = engine_keys(sources) if every else (chosen_key(sources, engine),)
    places = _places(output, [str(key) for key in keys]) if len(keys) > 1 else [output]
    for place in places:
        refuse_existing(place, force=force)
    runs = [
        import_run(sources, key, place, model=onnx, name=name if len(keys) == 1 else f"{name} {key}".strip())
        for key, place in zip(keys, places, strict=True)
    ]
    if as_json:
        print_json({**header("import"), "runs": [_document(run) for run in runs]})
        return
    for run in runs:
        _tell(run)


def _places(output: Path, labels: Sequence[str]) -> list[Path]:
    """A folder for each engine, named after it."""
    places: list[Path] = []
    for number, label in enumerate(labels, start=1):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:_LONGEST]
        place = output.with_name(f"{output.name}-{plain or number}")
        places.append(output.with_name(f"{place.name}-{number}") if place in places else place)
    return places


def _document(run: "Run") -> dict[str, Any]:
    return {
        **asdict(run.provenance),
        "folder": str(run.folder),
        "layers": len(run.engine.layers),
        "unread": len(run.engine.unread),
        "warnings": list(run.warnings),
    }


def _tell(run: "Run") -> None:
    origin = run.provenance
    told = [plural(len(run.engine.layers), "layer")]
    if run.profile is not None:
        told.append(f"{run.profile.total_ms:.3f} ms in {plural(len(run.profile.layers), 'layer time')}")
    if run.latency is not None and run.latency.compute.median_ms is not None:
        told.append(f"median latency {run.latency.compute.median_ms:.3f} ms")
    click.echo(printable(f"{origin.name}: {', '.join(told)}; {origin.how}"))
    for artifact in origin.artifacts:
        of = f" of {artifact.section}" if artifact.section else ""
        say(f"{artifact.file}: {', '.join(artifact.roles)}{of}")
    if unread := run.engine.unread:
        say(f"{plural(len(unread), 'line')} could not be read; the first: {unread[0].text[:200]}")
    for warning in run.warnings:
        say(f"note: {warning}")
    say(f"wrote {run.folder}")
