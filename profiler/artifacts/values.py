"""Numbers and names out of recorded files: a time is checked before it is believed, a name before it is shown."""

import math
import re

from fusescope.graph.errors import UserError
from fusescope.graph.units import printable

_SHOWN = 80
_LONGEST = 1e12
"""Milliseconds, thirty years: nobody timed so long, and sums of such times stay finite."""

# What C++ prints of a number; Python takes digits of other scripts and underscores for one too.
_PRINTED = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE)


def shown(name: str) -> str:
    """A name out of a file as a message may show it: short, in one line, with nothing hidden."""
    text = printable(name)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def milliseconds(value: object, what: str, origin: str) -> float:
    """A time: a number from 0 to `_LONGEST`.

    Args:
        value: What the file holds.
        what: Which time it is, for the message.
        origin: The file.

    Raises:
        UserError: It is no such number.
    """
    number = _number(value)
    if number is None or not 0 <= number <= _LONGEST:
        raise UserError(f"{what} is {_told(value)}, which is no time", where=origin, remedy="record it again")
    return number


def inferences(value: object, origin: str) -> int:
    """A count of inferences: a whole number from 1.

    Raises:
        UserError: It is none, so that no average can be believed.
    """
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number) or number < 1:
        what = f"counts {_told(value)} inferences, so that nothing was timed"
        raise UserError(what, where=origin, remedy="record it again")
    return int(number)


def number(text: str) -> float:
    """A number that a file writes as text; NaN, which no reader takes for a time, if it is none."""
    return float(text) if is_number(text) else math.nan


def is_number(text: str) -> bool:
    """Whether a text is a number as files write it, NaN and infinity among them."""
    return _PRINTED.fullmatch(text) is not None


def _told(value: object) -> str:
    """A value that should be a number, for a message; what holds others, which may be long and deep, by its type."""
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict | tuple) else shown(str(value)[:_SHOWN])


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
