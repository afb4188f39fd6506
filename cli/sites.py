"""``fusescope sites``."""

from pathlib import Path

import click

from fusescope.cli.options import FILE, json_option, print_json, say_renamed


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "--runtime",
    type=click.Choice(["tensorrt", "tensorrt-rtx"]),
    default="tensorrt",
    show_default=True,
    help="Whose documented rules to apply.",
)
@click.option("--target", help="What the engine would be built for, such as sm120; decides rules about hardware.")
@click.option(
    "--rules",
    default="documented",
    show_default=True,
    help="documented, or what a release was seen to do, such as tensorrt-rtx-1.7.",
)
@json_option
def command(model: Path, runtime: str, target: str | None, rules: str, as_json: bool) -> None:
    """List the Quantize sites of MODEL, an ONNX file, with what the documented rules expect of them.

    It needs no runtime and no weights.
    """
    from fusescope.graph.model import check_proto, graph_of, load_proto
    from fusescope.graph.rules import predictions
    from fusescope.graph.sites import quantize_sites
    from fusescope.profiler.targets import TARGETS, check_target
    from fusescope.report.documents import sites_document
    from fusescope.report.terminal import print_sites

    if target is not None:
        check_target(target, TARGETS, ())
    proto = load_proto(model)
    check_proto(proto, model)
    graph = graph_of(proto, name=model.name)
    sites = quantize_sites(graph)
    if rules == "documented":
        expected = predictions(graph, sites, runtime, target)
    else:
        from fusescope.profiler.releases.observed import observed_predictions, stored_rules

        expected = observed_predictions(graph, sites, stored_rules(rules))
    if as_json:
        print_json(sites_document(graph.name, sites, expected))
    else:
        by = "by the documented rules" if rules == "documented" else f"as {rules} was seen to do"
        print_sites(sites, expected, by=by)
        if not sites:
            click.echo("The model quantizes no activation; `fusescope quantize` does that.")
    say_renamed(graph.renamed)
