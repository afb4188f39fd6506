"""The layer profile that ``trtexec --dumpProfile`` prints, in both of its layouts.

Up to TensorRT 8.6.0 the name stands first, right aligned, and three or four numbers follow it; from 8.6.1 on four
numbers stand first and the name last. Names hold blanks and digits, so the numbers are counted from their own end. The
table leaves out layers that took no time, and ends with a row of totals.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.profile_json import ONE_INFERENCE
from fusescope.profiler.artifacts.values import inferences, is_number, milliseconds, number, shown
from fusescope.profiler.timing import LayerProfile, LayerTime

TITLE = re.compile(r"=== Profile \((?P<count>-?[0-9]{1,18}) iterations ?\) ===")
"""The line above the table."""

_NAME_LAST = re.compile(r" *Time ?\(ms\) +Avg\.(?: Time )?\(ms\) +Median(?: Time )?\(ms\) +Time ?\(?%\)? +Layer *")
_NAME_FIRST = re.compile(r" *Layer +Time \(ms\) +Avg\. Time \(ms\) +(?P<median>Median Time \(ms\) +)?Time % *")
_TOTAL = "Total"
_HALF = 0.005
"""A printed total of a layer is off by no more: it has two decimals."""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    time: float
    median: float | None


def read_table(lines: Sequence[str], origin: str) -> tuple[LayerProfile, list[str]]:
    """Read a printed profile.

    Args:
        lines: Its lines without the log's prefix, from the title to the first blank one.
        origin: The file, and the place in it.

    Returns:
        The profile, with averages from the totals, which have more digits; and what to say of it.

    Raises:
        UserError: It has no row that can be read, counts no inference, or a time is negative or no number.
    """
    title, *rest = lines
    match = TITLE.match(title)
    if match is None:
        raise UserError("is no printed profile", where=origin)
    iterations = inferences(number(match["count"]), origin)
    split = _splitter(rest[0] if rest else "")
    if split is None:
        raise UserError("is cut short: the printed profile has no row of titles", where=origin)
    cells = [split(line) for line in rest[1:]]
    rows = [_row(each, origin) for each in cells if each is not None]
    warnings = [ONE_INFERENCE] if iterations == 1 else []
    if unread := [line for line, each in zip(rest[1:], cells, strict=True) if each is None]:
        warnings.append(
            f"{plural(len(unread), 'line')} of the printed profile cannot be read, such as {shown(unread[0].strip())!r}"
        )
    total = rows.pop() if rows and rows[-1].name == _TOTAL else None
    if not rows:
        raise UserError("holds no layer in its printed profile", where=origin)
    warnings += _check(rows, total)
    layers = tuple(LayerTime(row.name, row.time / iterations, row.median) for row in rows)
    return LayerProfile(layers, iterations, "recorded", origin, complete=False), warnings


def _splitter(titles: str) -> Callable[[str], tuple[str, ...] | None] | None:
    """A function that splits a row of the layout with these titles into the name, the total and the median if any."""
    first, last = _NAME_FIRST.fullmatch(titles), _NAME_LAST.fullmatch(titles)
    if last:
        return _name_last
    if first:
        return _name_first_with_median if first["median"] else _name_first
    return None


def _name_last(line: str) -> tuple[str, ...] | None:
    cells = line.split(maxsplit=4)
    if len(cells) < 5 or not all(map(is_number, cells[:4])):
        return None
    # Three blanks stand before the name; what follows them is part of it.
    behind = line[line.index(cells[3], _behind(line, cells[:3])) + len(cells[3]) :]
    return behind.removeprefix("   ").rstrip("\r"), cells[0], cells[2]


def _behind(line: str, cells: Sequence[str]) -> int:
    """Where the last of some cells ends that stand one after the other."""
    end = 0
    for cell in cells:
        end = line.index(cell, end) + len(cell)
    return end


def _name_first(line: str) -> tuple[str, ...] | None:
    cells = line.rsplit(maxsplit=3)
    return (cells[0].lstrip(" "), cells[1]) if len(cells) == 4 and all(map(is_number, cells[1:])) else None


def _name_first_with_median(line: str) -> tuple[str, ...] | None:
    cells = line.rsplit(maxsplit=4)
    return (cells[0].lstrip(" "), cells[1], cells[3]) if len(cells) == 5 and all(map(is_number, cells[1:])) else None


def _row(cells: tuple[str, ...], origin: str) -> _Row:
    name, *times = cells
    time, *median = (milliseconds(number(each), f"the time of {shown(name)}", origin) for each in times)
    return _Row(name, time, median[0] if median else None)


def _check(rows: Sequence[_Row], total: _Row | None) -> list[str]:
    if total is None:
        return ["the printed profile has no row of totals: it is cut short, and layers may be missing"]
    found = sum(row.time for row in rows)
    if abs(found - total.time) <= _HALF * (len(rows) + 1):
        return []
    return [
        f"the rows of the printed profile add up to {found:.2f} ms, its total says {total.time:.2f} ms: rows are "
        "missing or changed"
    ]
