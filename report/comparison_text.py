"""A comparison in the terminal and as a Markdown document."""

from collections.abc import Iterator

from rich.console import Console

from fusescope.graph.units import megabytes, microseconds, plural
from fusescope.profiler.comparison import ORDERS, ComparedRun, Comparison
from fusescope.profiler.explanation import Finding
from fusescope.report.comparison_shaping import (
    clock_sentences,
    contribution_columns,
    contribution_rows,
    figure_rows,
    group_columns,
    group_rows,
    region_columns,
    region_rows,
)
from fusescope.report.markdown_text import bullets, code, names, shortened, table, text
from fusescope.report.terminal import as_text, plain_console, plain_table

_REGIONS_SHOWN = 20
_FINDINGS_SHOWN = 3
_NODES_SHOWN = 5


def print_compared(comparison: Comparison, order: str) -> None:
    """Print a comparison: figures, what differences are made of, groups, regions and findings.

    Args:
        comparison: The engines.
        order: A key of `ORDERS`.
    """
    console = plain_console()
    console.print(f"\n[bold]{as_text(_title(comparison))}[/bold]")
    for run in comparison.runs:
        console.print(f"[dim]{as_text(f'{run.label}: {run.observed}')}[/dim]")
    for warning in comparison.warnings:
        console.print(f"[yellow]{as_text(warning)}[/yellow]")
    _print_table(console, "", ("", *(run.label for run in comparison.runs)), figure_rows(comparison))
    for sentence in clock_sentences(comparison):
        console.print(f"[dim]{as_text(sentence)}[/dim]")
    for place, run in enumerate(comparison.runs[1:], start=1):
        title = f"What the difference of {run.label} is made of"
        _print_table(console, title, contribution_columns(comparison), contribution_rows(comparison, place), left=2)
    _print_table(console, "By group", group_columns(comparison), group_rows(comparison))
    rows = region_rows(comparison, order, _REGIONS_SHOWN)
    _print_table(console, f"Regions, {ORDERS[order]}", region_columns(comparison), rows, left=2)
    for run in comparison.runs:
        _print_findings(console, run)


def comparison_markdown(comparison: Comparison, order: str) -> str:
    """Write a comparison as a Markdown document with every region.

    Args:
        comparison: The engines.
        order: A key of `ORDERS`.
    """
    return "\n\n".join(_blocks(comparison, order)) + "\n"


def _blocks(comparison: Comparison, order: str) -> Iterator[str]:
    labels = [code(run.label) for run in comparison.runs]
    yield f"# {text(shortened(_title(comparison)))}"
    yield bullets(f"{label}: {text(run.observed)}" for label, run in zip(labels, comparison.runs, strict=True))
    if not any(run.side.latency or run.side.layer_time for run in comparison.runs):
        yield "No clock ran: these are facts of the engines, and nothing is said about speed."
    if comparison.warnings:
        yield "\n>\n".join(f"> {text(warning)}" for warning in comparison.warnings)
    yield table(("figure", *labels), _escaped(figure_rows(comparison)))
    if told := [text(sentence) for sentence in clock_sentences(comparison)]:
        yield bullets(told)
    for place, label in enumerate(labels[1:], start=1):
        yield f"## What the difference of {label} is made of"
        yield table(contribution_columns(comparison), _escaped(contribution_rows(comparison, place)), left=2)
    yield "## By group"
    yield table(tuple(map(text, group_columns(comparison))), _escaped(group_rows(comparison)))
    yield f"## Regions, {ORDERS[order]}"
    yield table(tuple(map(text, region_columns(comparison))), _escaped(region_rows(comparison, order)), left=2)
    for label, run in zip(labels, comparison.runs, strict=True):
        if run.findings:
            yield f"## Findings in {label}"
            yield bullets(_told(finding) for finding in run.findings)


def _escaped(rows: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return (tuple(text(shortened(cell)) for cell in row) for row in rows)


def _told(finding: Finding) -> str:
    parts = [f"{text(finding.title)} ({_cost(finding)}). {text(finding.detail)}"]
    if finding.nodes:
        parts.append(f"Where: {names(finding.nodes, _NODES_SHOWN)}.")
    if finding.remedy:
        parts.append(f"Try: {text(finding.remedy)} ({finding.status}).")
    return " ".join(parts)


def _title(comparison: Comparison) -> str:
    first, *others = (run.label for run in comparison.runs)
    return f"{', '.join(others)} against {first}"


def _cost(finding: Finding) -> str:
    spent = "" if finding.time_us is None else f", {microseconds(finding.time_us)}"
    return f"{plural(finding.kernels, 'kernel')}, {megabytes(finding.bytes)}{spent}"


def _print_table(
    console: Console, title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]], left: int = 1
) -> None:
    shown = plain_table(*columns, title=f"\n{as_text(title)}" if title else "", left=left)
    cells = [tuple(map(as_text, row)) for row in rows]
    for row in cells:
        shown.add_row(*row)
    for place, column in list(enumerate(shown.columns))[left:]:  # a long head is folded, and leaves room for texts
        column.max_width = max(map(len, (*columns[place].split(), *(row[place] for row in cells))))
    console.print(shown)


def _print_findings(console: Console, run: ComparedRun) -> None:
    if not run.findings:
        return
    console.print(f"\n[bold]Findings in {as_text(run.label)}[/bold], most costly first; they overlap")
    for finding in run.findings[:_FINDINGS_SHOWN]:
        console.print(as_text(f"{finding.title} ({_cost(finding)})"))
        if finding.remedy:
            console.print(f"   [dim]try: {as_text(finding.remedy)} ({finding.status})[/dim]")
    if len(run.findings) > _FINDINGS_SHOWN:
        command = "fusescope explain, or --json here"
        console.print(f"[dim]{plural(len(run.findings) - _FINDINGS_SHOWN, 'more finding')}: {command}[/dim]")
