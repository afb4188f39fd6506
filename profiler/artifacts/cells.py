"""The table of an exported profile that NVIDIA's cookbook prints: its slowest layers, in cells between bars.

Above it stands how many inferences and layers the profile had, below it the row of totals over all of them.
"""

import re

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.values import inferences, milliseconds, number, shown
from fusescope.profiler.timing import LayerProfile, LayerTime

_TITLES = re.compile(r"^ *name \| +timeMs \| +averageMs \| +medianMs \| +percentage *\r?$", re.MULTILINE)
_COUNTS = re.compile(
    r"^Iteration count = (?P<iterations>-?[0-9]{1,18}), layer count = (?P<layers>[0-9]{1,9})\r?$", re.MULTILINE
)
_CELL = re.compile("[^ |]{1,40}")
_TOTAL = "total (all layers)"


def recognise(text: str) -> bool:
    """Whether such a table is in a text."""
    return _TITLES.search(text) is not None


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read the table.

    Args:
        text: The file.
        origin: Its name.

    Raises:
        UserError: There is none, it is cut short, or a time is negative or no number.
    """
    titles, counts = _TITLES.search(text), _COUNTS.search(text)
    if titles is None or counts is None or counts.start() > titles.start():
        raise UserError("holds no table of an exported profile", where=origin)
    layers: list[LayerTime] = []
    for line in text[titles.end() :].split("\n")[1:]:
        if not line.strip("-\r"):
            continue
        name, *cells = (cell.strip(" ") for cell in line.rstrip("\r").rsplit(" | ", 4))
        if len(cells) != 4 or not all(map(_CELL.fullmatch, cells)):
            break
        average, median = number(cells[1]), number(cells[2])
        if name == _TOTAL:
            iterations = inferences(int(counts["iterations"]), origin)
            profile = LayerProfile(tuple(layers), iterations, "recorded", origin, ordered=False, complete=False)
            total = milliseconds(average, f"averageMs of {_TOTAL}", origin)
            return (Section("", profile=profile, warnings=_missing(profile, int(counts["layers"]), total)),)
        what = f"of {shown(name)}"
        layers.append(
            LayerTime(name, milliseconds(average, f"averageMs {what}", origin), milliseconds(median, what, origin))
        )
    raise UserError(f"is cut short: its table has no row {_TOTAL!r}", where=origin, remedy="record it again")


def _missing(profile: LayerProfile, layers: int, total_ms: float) -> tuple[str, ...]:
    left = layers - len(profile.layers)
    if left <= 0:
        return ()
    rest = f"{total_ms - profile.total_ms:.4g} of {total_ms:.4g} ms"
    return (f"the table lists the slowest layers only: {plural(left, 'layer')}, {rest}, are not in it",)
