"""``fusescope compare``."""

from pathlib import Path

import click

from fusescope.cli.options import FILE, force_option, json_option, print_json, say


@click.command()
@click.argument("runs", type=FILE, nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--markdown", type=FILE, help="Write the comparison, with every region, to this file.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(["time", "bytes", "kernels", "model"]),
    default="time",
    show_default=True,
    help="Order of the regions: by their share in the difference, or as the model runs.",
)
@force_option
@json_option
def command(runs: tuple[Path, ...], markdown: Path | None, order: str, force: bool, as_json: bool) -> None:
    """Hold engines against the first RUN, region by region.

    Regions are aligned by the ONNX nodes behind the layers; by shapes and places where names differ. Each row has the
    kernels, bytes and element types of every engine, and the times where a clock ran; rows add up to the engines. RUN
    is a folder that `fusescope build` or `fusescope import` wrote.
    """
    from fusescope.graph.files import refuse_existing, write_text
    from fusescope.profiler.compare import compare
    from fusescope.profiler.run import read_run
    from fusescope.report.comparison_text import comparison_markdown, print_compared
    from fusescope.report.documents import comparison_document

    if markdown is not None:
        refuse_existing(markdown, force=force)
    comparison = compare([read_run(run) for run in runs])
    if markdown is not None:
        write_text(markdown, comparison_markdown(comparison, order))
        say(f"wrote {markdown}")
    if as_json:
        print_json(comparison_document(comparison, order))
    else:
        print_compared(comparison, order)
