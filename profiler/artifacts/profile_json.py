"""The layer profile that ``trtexec --exportProfile`` writes, from TensorRT 7.1 on.

A list: first ``{ "count" : N }``, then one entry per layer in execution order. trtexec does not escape names, so a
quote or a control byte in one makes the file invalid JSON; therefore its own layout is read as it is written, by the
words around each name, and only what is laid out otherwise is parsed as JSON.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.files import parse_json
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.values import inferences, milliseconds, number, shown
from fusescope.profiler.timing import LayerProfile, LayerTime

_START = re.compile(r'\s*\[\s*\{\s*"(?:count"\s*:|name"\s*:\s*"(?:[^"\\]|\\.){0,8000}"\s*,\s*"(?:time|average)Ms"\s*:)')
_NUMBER = r"[^\s,{}]{1,40}"
_COUNT = re.compile(rf'\s*\[\s*\{{ "count" : (?P<count>{_NUMBER}) \}}')
_NAME = re.compile(r'\s*, \{ "name" : "')
_NEVER_IN_NAMES = (', { "name" : "', '"averageMs" : ')
"""What a name holds only if what ends it is damaged: its time would be that of the next entry."""

_TIMES = re.compile(
    rf'", "timeMs" : (?P<time>{_NUMBER}), "averageMs" : (?P<average>{_NUMBER})'
    rf'(?:, "medianMs" : (?P<median>{_NUMBER}))?, "percentage" : (?P<share>{_NUMBER}) \}}'
)
_DIGITS = 0.01
"""Relative difference from which two times of a file contradict each other; it rounds to six digits."""

_SHARES = 0.01
"""By how many percent the percentages, which have six digits, may miss 100 for rounding."""

ONE_INFERENCE = (
    "one inference was profiled: its layer times have no spread, and a second one may differ by more than they do"
)
"""What must be said of a profile with ``count`` 1."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    time: object
    average: object
    median: object
    share: object


def recognise(text: str) -> bool:
    """Whether a text is such a profile, by how it begins."""
    return _START.match(text) is not None


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read a layer profile.

    Args:
        text: The file.
        origin: Its name.

    Raises:
        UserError: It is cut short, counts no inference, or holds a time that is negative or no number.
    """
    count, entries = _as_written(text) or _as_json(text, origin)
    if not entries:
        raise UserError("holds no layer", where=origin, remedy="record it again")
    iterations = None if count is None else inferences(count, origin)
    layers = tuple(_layer(entry, iterations, origin) for entry in entries)
    profile = LayerProfile(layers, iterations, "recorded", origin)
    return (Section("", profile=profile, warnings=tuple(_warnings(entries, profile))),)


def _as_written(text: str) -> tuple[object, list[_Entry]] | None:
    """Entries in trtexec's own layout; None for another layout or a file that is cut short."""
    head = _COUNT.match(text)
    if head is None:
        return None
    entries: list[_Entry] = []
    end = head.end()
    for times in _TIMES.finditer(text, end):
        name = _NAME.match(text, end)
        if name is None or name.end() > times.start():
            return None
        if any(text.find(words, name.end(), times.start()) >= 0 for words in _NEVER_IN_NAMES):
            return None
        figures = (None if cell is None else number(cell) for cell in times.group("time", "average", "median", "share"))
        entries.append(_Entry(text[name.end() : times.start()], *figures))
        end = times.end()
    return (number(head["count"]), entries) if text[end:].strip() == "]" else None


def _as_json(text: str, origin: str) -> tuple[object, list[_Entry]]:
    document = parse_json(text, origin)
    if not isinstance(document, list) or not document:
        raise UserError("is no layer profile: it is not a list", where=origin)
    has_count = isinstance(document[0], dict) and "count" in document[0]
    count = document[0]["count"] if has_count else None
    entries: list[_Entry] = []
    for place, item in enumerate(document[has_count:], start=1):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise UserError(f"is no layer profile: entry {place} has no name", where=origin)
        entries.append(
            _Entry(item["name"], *(item.get(key) for key in ("timeMs", "averageMs", "medianMs", "percentage")))
        )
    return count, entries


def _layer(entry: _Entry, iterations: int | None, origin: str) -> LayerTime:
    name = shown(entry.name)
    if entry.average is not None:
        average = milliseconds(entry.average, f"averageMs of {name}", origin)
    elif iterations is not None:
        average = milliseconds(entry.time, f"timeMs of {name}", origin) / iterations
    else:
        raise UserError(f"has no averageMs of {name}, nor a count to divide its timeMs by", where=origin)
    if entry.time is not None:
        milliseconds(entry.time, f"timeMs of {name}", origin)
    median = None if entry.median is None else milliseconds(entry.median, f"medianMs of {name}", origin)
    return LayerTime(entry.name, average, median)


def _warnings(entries: Sequence[_Entry], profile: LayerProfile) -> list[str]:
    warnings = []
    if profile.iterations is None:
        warnings.append("the profile does not say how many inferences it averages")
    elif profile.iterations == 1:
        warnings.append(ONE_INFERENCE)
    if not profile.total_ms:
        return [*warnings, "every layer of the profile took no time"]
    shares = [_float(entry.share) for entry in entries if entry.share is not None]
    if len(shares) == len(entries) and not abs(sum(shares) - 100) <= _SHARES:
        warnings.append(f"the percentages of the profile add up to {sum(shares):.4g}, not to 100: entries are missing")
    if profile.iterations is not None:
        wrong = sum(
            abs(_float(entry.time) / profile.iterations - layer.average_ms) > _DIGITS * layer.average_ms + 1e-6
            for entry, layer in zip(entries, profile.layers, strict=True)
            if entry.time is not None
        )
        if wrong:
            warnings.append(f"averageMs of {plural(wrong, 'entry', 'entries')} of the profile is not timeMs / count")
    return warnings


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
