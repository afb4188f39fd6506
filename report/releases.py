"""The matrix of releases: in the terminal, as an HTML page, and as JUnit XML for CI systems."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from rich.padding import Padding

from fusescope.graph.units import count, plural
from fusescope.profiler.releases.matrix import Change, FusionMatrix, Row, scores
from fusescope.report.terminal import as_text, plain_console, plain_table

_STYLE = {"worse": "red", "better": "green", "different": "yellow"}


def print_matrix(found: FusionMatrix, differences: Sequence[Change] | None) -> None:
    """Print cases by releases, how the documented rules fare, and the changes, most harmful first.

    Args:
        found: The matrix.
        differences: What changed; None where nothing was compared.
    """
    console = plain_console()
    table = plain_table("pattern", *found.releases, title=f"Quantizes by release, compiled for {found.target}", left=9)
    for pattern, rows in by_pattern(found):
        table.add_row(as_text(pattern), *(_cell(row) for row in rows))
    console.print(table)
    title = "\nDocumented rules of that runtime"
    rules = plain_table("release", "documented rule", "sites", "borne out", title=title, left=2)
    for score in scores(found):
        rules.add_row(score.release, as_text(score.rule), count(score.sites), count(score.borne_out))
    console.print(rules)
    if not differences:
        console.print("" if differences is None else "\nno change")
        return
    console.print(f"\n[bold]{plural(len(differences), 'change')}[/bold], most harmful first")
    for group in grouped_changes(differences):
        style = _STYLE[group.direction]
        console.print(f"[{style}]{group.direction}[/{style}] {as_text(group.what)}")
        where = f"{group.before} to {group.after}: {', '.join(group.patterns)}"
        console.print(Padding(f"[dim]{as_text(where)}[/dim]", (0, 0, 0, 3)))


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Patterns that changed in the same way."""

    direction: str
    """``better``, ``worse`` or ``different``."""

    what: str
    """The difference in words."""

    before: str
    """The earlier release."""

    after: str
    """The later release."""

    patterns: tuple[str, ...]
    """Names of the cases."""


def grouped_changes(differences: Sequence[Change]) -> tuple[ChangeGroup, ...]:
    """The changes, those of one kind together, in the order of the first of each."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for change in differences:
        groups.setdefault((change.direction, change.what, change.before, change.after), []).append(change.pattern)
    return tuple(ChangeGroup(*key, tuple(patterns)) for key, patterns in groups.items())


def by_pattern(found: FusionMatrix) -> list[tuple[str, list[Row | None]]]:
    """Each pattern with its row of every release; None where a release was not asked."""
    rows = {(row.pattern, row.release): row for row in found.rows}
    return [(pattern, [rows.get((pattern, release)) for release in found.releases]) for pattern in found.questions]


def junit_xml(found: FusionMatrix, differences: Sequence[Change]) -> str:
    """The matrix as JUnit XML: a case per pattern and release, failed where it got worse."""
    worse: dict[tuple[str, str], list[str]] = {}
    for change in differences:
        if change.direction == "worse":
            worse.setdefault((change.pattern, change.after), []).append(f"{change.what} (was {change.before})")
    root = ET.Element("testsuites")
    for release in found.releases:
        rows = [row for row in found.rows if row.release == release]
        failed = sum((row.pattern, release) in worse for row in rows)
        suite = ET.SubElement(root, "testsuite", name=release, tests=str(len(rows)), failures=str(failed))
        for row in rows:
            case = ET.SubElement(suite, "testcase", classname=release, name=row.pattern)
            if words := worse.get((row.pattern, release)):
                ET.SubElement(case, "failure", message=_xml_text("; ".join(words)))
            ET.SubElement(case, "system-out").text = _xml_text(row.failure or row.verdict)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cell(row: Row | None) -> str:
    return "-" if row is None else f"{row.verdict} ({plural(len(row.kernels), 'kernel')})"


def _xml_text(text: str) -> str:
    """Text without the control characters that XML 1.0 cannot hold."""
    return "".join(character if character >= " " or character in "\t\n" else "?" for character in text)
