"""``fusescope build``."""

from pathlib import Path
from typing import Any

import click

from fusescope.cli.options import (
    FILE,
    ShapeType,
    build_options,
    force_option,
    half_option,
    json_option,
    print_json,
    say,
    say_renamed,
)
from fusescope.graph.units import plural
from fusescope.report.documents import header


@click.command()
@click.argument("model", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="Folder of the run to write.")
@click.option(
    "--shape",
    "shapes",
    type=ShapeType(),
    multiple=True,
    metavar="NAME=1x3x224x224",
    help="Fix the size of an input; repeatable.",
)
@click.option("--name", default="", help="What to call the run in reports; the model's file name by default.")
@half_option
@build_options
@force_option
@json_option
def command(
    model: Path,
    output: Path,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    name: str,
    dtype: str | None,
    runtime: str,
    timeout: float,
    force: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Compile MODEL, an ONNX file, and keep the engine as a run.

    The engine is built in a process of its own. On a machine without a GPU the runtime `tensorrt-rtx` compiles ahead
    of time for `--target`. A structure-only model is filled with seeded values.
    """
    from dataclasses import asdict

    from fusescope.graph.external import load_with_weights
    from fusescope.graph.files import refuse_existing
    from fusescope.profiler.build import build, prepare
    from fusescope.profiler.runtimes import CompileOptions
    from fusescope.quant.half import to_half

    refuse_existing(output, force=force)
    workspace = asked.pop("workspace")
    options = CompileOptions(**asked, workspace_bytes=None if workspace is None else workspace << 20)
    proto = load_with_weights(model)
    compilable = prepare(to_half(proto) if dtype else proto, model.name, dict(shapes))
    say_renamed(compilable.renamed)
    run = build(compilable, output, runtime=runtime, options=options, name=name or model.stem, timeout_s=timeout)
    if as_json:
        print_json({**header("run"), **asdict(run.provenance), "folder": str(output)})
        return
    origin = run.provenance
    compiler = f"{runtime} {origin.runtime_version} for {origin.target}"
    click.echo(f"{len(run.engine.layers)} layers, compiled by {compiler}")
    if unread := run.engine.unread:
        say(f"{plural(len(unread), 'line')} of the dump could not be read; the first: {unread[0].text[:200]}")
    say(f"wrote {output}")
