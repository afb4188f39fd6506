"""Numbers and names out of recorded files: a time is checked before it is believed, a name before it is shown."""

import math

from fusescope.graph.errors import UserError
from fusescope.graph.units import printable

_SHOWN = 80


def shown(name: str) -> str:
    """A name out of a file as a message may show it: short, in one line, with nothing hidden."""
    text = printable(name)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def milliseconds(value: object, what: str, origin: str) -> float:
    """A time: a finite number that is not negative.

    Args:
        value: What the file holds.
        what: Which time it is, for the message.
        origin: The file.

    Raises:
        UserError: It is no such number.
    """
    number = _number(value)
    if number is None or not math.isfinite(number) or number < 0:
        raise UserError(
            f"{what} is {shown(str(value)[:_SHOWN])}, which is no time", where=origin, remedy="record it again"
        )
    return number


def inferences(value: object, origin: str) -> int:
    """A count of inferences: a whole number from 1.

    Raises:
        UserError: It is none, so that no average can be believed.
    """
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number) or number < 1:
        what = f"counts {shown(str(value)[:_SHOWN])} inferences, so that nothing was timed"
        raise UserError(what, where=origin, remedy="record it again")
    return int(number)


def number(text: str) -> float:
    """A number that a file writes as text; NaN, which no reader takes for a time, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
