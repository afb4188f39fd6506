"""``fusescope explain``."""

from pathlib import Path

import click

from fusescope.cli.options import FILE, force_option, gpu_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FILE)
@click.option("--baseline", type=FILE, help="Run of the unquantized model to explain it against.")
@click.option("--html", type=FILE, help="Write the interactive report to this file.")
@click.option("--markdown", type=FILE, help="Write the study, in Markdown, to this file.")
@click.option("--csv", type=FILE, help="Write every table, as CSV, into this folder.")
@click.option("--model-explorer", type=FILE, help="Write node data for Google's Model Explorer into this folder.")
@gpu_option
@force_option
@json_option
def command(
    run: Path,
    baseline: Path | None,
    html: Path | None,
    markdown: Path | None,
    csv: Path | None,
    model_explorer: Path | None,
    gpu: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Explain what the compiler did with the model of RUN, the folder that `fusescope build` wrote.

    With a baseline: how many kernels and bytes more or fewer, which kernels only quantize, which were split off a
    convolution, which spot of the graph each comes from, and what to try.
    """
    from fusescope.graph.files import refuse_existing, write_folder, write_text
    from fusescope.profiler.explain import explain
    from fusescope.profiler.gpus import gpu_named
    from fusescope.profiler.run import read_run
    from fusescope.report.documents import explanation_document
    from fusescope.report.export import csv_files, model_explorer_files
    from fusescope.report.html import render_html
    from fusescope.report.markdown import render_markdown
    from fusescope.report.terminal import print_explanation

    outputs = [path for path in (html, markdown, csv, model_explorer) if path is not None]
    for output in outputs:
        refuse_existing(output, force=force)
    named = gpu_named(gpu) if gpu else None
    explanation = explain(read_run(run), read_run(baseline) if baseline else None, gpu=named)
    title = explanation.quantized.provenance.name
    if html is not None:
        write_text(html, render_html([explanation], title=title))
    if markdown is not None:
        write_text(markdown, render_markdown([explanation], title=title))
    if csv is not None:
        write_folder(csv, csv_files(explanation))
    if model_explorer is not None:
        write_folder(model_explorer, model_explorer_files(explanation))
    for output in outputs:
        say(f"wrote {output}")
    if as_json:
        print_json(explanation_document(explanation))
    else:
        print_explanation(explanation)
