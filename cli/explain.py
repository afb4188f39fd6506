"""``fusescope explain``."""

from pathlib import Path

import click

from fusescope.cli.options import FILE, force_option, gpu_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FILE)
@click.option("--baseline", type=FILE, help="Run of the unquantized model to explain it against.")
@click.option("--html", type=FILE, help="Write the interactive report to this file.")
@gpu_option
@force_option
@json_option
def command(run: Path, baseline: Path | None, html: Path | None, gpu: str | None, force: bool, as_json: bool) -> None:
    """Explain what the compiler did with the model of RUN, the folder that `fusescope build` wrote.

    With a baseline: how many kernels and bytes more or fewer, which kernels only quantize, which were split off a
    convolution, which spot of the graph each comes from, and what to try.
    """
    from fusescope.graph.files import refuse_existing, write_text
    from fusescope.profiler.explain import explain
    from fusescope.profiler.gpus import gpu_named
    from fusescope.profiler.run import read_run
    from fusescope.report.documents import explanation_document
    from fusescope.report.html import render_html
    from fusescope.report.terminal import print_explanation

    if html is not None:
        refuse_existing(html, force=force)
    named = gpu_named(gpu) if gpu else None
    explanation = explain(read_run(run), read_run(baseline) if baseline else None, gpu=named)
    if html is not None:
        write_text(html, render_html([explanation], title=explanation.quantized.provenance.name))
        say(f"wrote {html}")
    if as_json:
        print_json(explanation_document(explanation))
    else:
        print_explanation(explanation)
