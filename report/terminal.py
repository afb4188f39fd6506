"""The explanation as text: aligned, coloured only on a terminal, readable when piped."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fusescope.graph.rules import Prediction
from fusescope.graph.sites import QuantizeSite
from fusescope.graph.units import count, mebibytes, megabytes, microseconds, plural, printable
from fusescope.profiler.explanation import Coverage, Explanation, Side
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report.caveats import gaps
from fusescope.report.documents import records
from fusescope.report.shaping import answer, causes, group_figures, is_timed, tiles, told_trial

_FINDINGS_SHOWN = 6
_NODES_SHOWN = 3
_PIPE_WIDTH = 120


def print_explanation(explanation: Explanation) -> None:
    """Print an explanation: the balance, the groups, the Quantizes, the findings, and what is expected elsewhere."""
    console = plain_console()
    _print_heading(explanation, console)
    console.print(_balance(explanation.baseline, explanation.quantized))
    console.print(_groups(explanation))
    if explanation.quantize.sites:
        _print_quantizes(explanation, console)
    _print_conversions(explanation, console)
    _print_findings(explanation, console)
    if explanation.expected:
        console.print(f"\n[dim]{as_text(explanation.expected)}[/dim]")
    _print_gaps(explanation.coverage, console)


def print_comparison(explanations: Sequence[Explanation]) -> None:
    """Print one line per engine of a study."""
    console = plain_console()
    table = plain_table(
        "engine", "batch", "kernels", "only quantize", "traffic", "plan", "convs, gemms in 8 bits", title="Engines"
    )
    seen: set[tuple[str, int | None]] = set()
    for explanation in explanations:
        for side in (explanation.baseline, explanation.quantized):
            if side is None or (key := (side.provenance.name, side.provenance.batch)) in seen:
                continue
            seen.add(key)
            alone = explanation.quantize.kernels_alone if side is explanation.quantized else 0
            table.add_row(
                as_text(side.provenance.name),
                str(side.provenance.batch or "-"),
                count(side.kernels),
                count(alone),
                megabytes(side.traffic_bytes),
                mebibytes(side.plan_bytes),
                f"{side.weighted_in_8_bits} of {side.weighted}",
            )
    console.print(table)


def print_sites(
    sites: Sequence[QuantizeSite],
    predictions: Sequence[Prediction],
    *,
    by: str = "by the documented rules",
) -> None:
    """Print how many sites are expected to become what, by reason, and then the sites; `by` says whose rules."""
    console = plain_console()
    by_reason: dict[tuple[str, str], list[QuantizeSite]] = {}
    for site, prediction in zip(sites, predictions, strict=True):
        by_reason.setdefault((prediction.prediction, prediction.reason), []).append(site)
    console.print(f"[bold]{plural(len(sites), 'Quantize site')}[/bold], {by}")
    summary = plain_table("sites", "expected", "reason", left=3)
    for (expected, reason), members in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        summary.add_row(count(len(members)), expected, as_text(reason))
    console.print(summary)
    listing = plain_table("tensor", "expected", "producer", "readers", "high-precision readers", left=5)
    for site, prediction in zip(sites, predictions, strict=True):
        listing.add_row(
            as_text(site.tensor),
            prediction.prediction,
            as_text(site.producer_kind),
            count(len(site.readers)),
            as_text(", ".join(site.high_precision_readers)) or "-",
        )
    console.print(listing)


def plain_console() -> Console:
    """A console that colours on a terminal only, and has a fixed width in a pipe, which has none."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def as_text(name: str) -> str:
    """A name from someone's file for a console: no markup, no control of the terminal."""
    return escape(printable(name))


def plain_table(*columns: str, title: str = "", left: int = 1) -> Table:
    """A table without lines whose first `left` columns are text and the others numbers."""
    table = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for index, column in enumerate(columns):
        table.add_column(as_text(column), justify="left" if index < left else "right", overflow="fold")
    return table


def _print_heading(explanation: Explanation, console: Console) -> None:
    origin = explanation.quantized.provenance
    against = f" against {explanation.baseline.provenance.name}" if explanation.baseline else ""
    told = filter(None, (as_text(origin.model_name), f"batch {origin.batch or '-'}"))
    console.print(f"\n[bold]{as_text(origin.name + against)}[/bold], {', '.join(told)}")
    console.print(f"[dim]{as_text(explanation.observed)}[/dim]")
    if origin.weights:
        console.print(f"[dim]weights: {as_text(origin.weights)}[/dim]")
    if origin.scales:
        console.print(f"[dim]activation scales: {as_text(origin.scales)}[/dim]")
    for warning in explanation.warnings:
        console.print(f"[yellow]{as_text(warning)}[/yellow]")
    console.print(f"\n{as_text(answer(explanation))}\n")


def _balance(baseline: Side | None, quantized: Side) -> Table:
    names = (quantized.provenance.name,) if baseline is None else (baseline.provenance.name, quantized.provenance.name)
    table = plain_table("", *names, *(() if baseline is None else ("difference",)))
    for tile in tiles(baseline, quantized):
        cells = (tile.after,) if baseline is None else (tile.before, tile.after, tile.change)
        table.add_row(tile.label, *cells)
    return table


def _groups(explanation: Explanation) -> Table:
    sides = list(dict.fromkeys(explanation.groups.columns.get_level_values(0)))
    timed = is_timed(explanation)
    columns = ("kernels", "bytes", *(("time", "share", "share net") if timed else ()))
    headers = [figure if len(sides) == 1 else f"{side} {figure}" for side in sides for figure in columns]
    what = "Kernels, bytes and time by group" if timed else "Kernels and bytes by group"
    table = plain_table("group", *headers, title=f"\n{what}")
    for group in explanation.groups.index:
        cells = {side: explanation.groups.loc[group, side] for side in sides}
        if any(row["kernels"] for row in cells.values()):
            figures = (figure for row in cells.values() for figure in group_figures(row, timed=timed))
            table.add_row(str(group), *figures)
    return table


def _print_conversions(explanation: Explanation, console: Console) -> None:
    """Changes of format and, where the compiler chose what runs in 8 bits, of element type."""
    if not explanation.reformats.empty and is_timed(explanation):
        table = plain_table("change of format", "kernels", "bytes", "time", title="\nChanges of format")
        for row in records(explanation.reformats):
            figures = (count(row["kernels"]), megabytes(row["bytes"]), microseconds(row["time_us"]))
            table.add_row(as_text(row["why"]), *figures)
        console.print(table)
    if explanation.quantization == "implicit":
        table = plain_table(
            "reads", "writes", "group", "kernels", "bytes", "time", title="\nWhere element types change", left=3
        )
        for row in records(explanation.transitions):
            texts = (as_text(row[key]) for key in ("read", "written", "group"))
            table.add_row(*texts, count(row["kernels"]), megabytes(row["bytes"]), microseconds(row["time_us"]))
        console.print(table)


def _print_quantizes(explanation: Explanation, console: Console) -> None:
    cost = explanation.quantize
    console.print(
        f"\n[bold]{plural(cost.sites, 'Quantize site')}[/bold] in {plural(cost.kernels_carrying, 'kernel')}. "
        f"What quantizing costs lies between the {cost.kernels_alone} that do nothing else "
        f"({_cost(cost.bytes_alone, cost.time_alone_us)}) and all {cost.kernels_carrying} "
        f"({_cost(cost.bytes_carrying, cost.time_carrying_us)})."
    )
    shown = [verdict for verdict in VERDICTS if cost.verdicts[verdict]]
    table = plain_table("reason", "sites", *shown, "kernels", "bytes")
    for row in records(explanation.reasons.reset_index()):
        counts = (count(row[column]) for column in ("sites", *shown, "kernels"))
        table.add_row(as_text(row["reason"]), *counts, megabytes(row["bytes"]))
    console.print(table)
    for verdict in shown:
        console.print(f"[dim]{verdict}: {VERDICTS[verdict]}[/dim]")


def _cost(moved: int, time_us: float | None) -> str:
    return megabytes(moved) if time_us is None else f"{megabytes(moved)}, {microseconds(time_us)}"


def _print_findings(explanation: Explanation, console: Console) -> None:
    findings = causes(explanation)
    if not findings:
        return
    ranked = "time" if any(finding.time_us for finding in findings) else "bytes"
    console.print(f"\n[bold]Findings[/bold], most {ranked} first; they overlap")
    for number, finding in enumerate(findings[:_FINDINGS_SHOWN], start=1):
        console.print(f"{number}. [bold]{as_text(finding.title)}[/bold] ({_cost(finding.bytes, finding.time_us)})")
        _indented(as_text(finding.detail), console)
        if finding.nodes:
            more = f" and {len(finding.nodes) - _NODES_SHOWN} more" if len(finding.nodes) > _NODES_SHOWN else ""
            _indented(f"[dim]where: {as_text(', '.join(finding.nodes[:_NODES_SHOWN]))}{more}[/dim]", console)
        if finding.remedy:
            _indented(f"try: {as_text(finding.remedy)} [dim]({finding.status})[/dim]", console)
        for trial in finding.trials:
            _indented(as_text(f"tried in {trial.variant}: {told_trial(trial, explanation.findings)}"), console)
    if len(findings) > _FINDINGS_SHOWN:
        console.print(f"[dim]{len(findings) - _FINDINGS_SHOWN} more: see the report or --json[/dim]")


def _indented(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 3)))


def _print_gaps(coverage: Coverage, console: Console) -> None:
    for what, items in gaps(coverage).items():
        listed = f" ({as_text(', '.join(items)[:200])})" if items else ""
        console.print(f"[yellow]{what}{listed}[/yellow]")
