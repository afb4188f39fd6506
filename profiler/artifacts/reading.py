"""Every format of recordings, and the one entry that tells by a file's content which it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts import cells, inspector_json, mapping, metadata, profile_json, times_json, trtexec_log
from fusescope.profiler.artifacts.files import read_text
from fusescope.profiler.artifacts.members import with_members
from fusescope.profiler.artifacts.recording import Recording, Section


@dataclass(frozen=True)
class Format:
    """One format that is read."""

    title: str
    """What to call a file of it."""

    recognise: Callable[[str], bool]
    """Tells whether a text is of the format; it need not be whole."""

    read: Callable[[str, str], tuple[Section, ...]]
    """Reads a text, given the name of its file."""


FORMATS: Mapping[str, Format] = {
    "inspector": Format("layer information", inspector_json.recognise, inspector_json.read),
    "profile": Format("a layer profile", profile_json.recognise, profile_json.read),
    "times": Format("times of inferences", times_json.recognise, times_json.read),
    "metadata": Format("metadata of TREx", metadata.recognise, metadata.read),
    "mapping": Format("layer times by name", mapping.recognise, mapping.read),
    "cells": Format("the cookbook's table of a profile", cells.recognise, cells.read),
    "log": Format("a log", trtexec_log.recognise, trtexec_log.read),
}
"""Key of a format to how it is read. The first that recognises a text reads it."""


def read_recording(path: Path) -> Recording:
    """Read a file that somebody recorded.

    Args:
        path: The file.

    Returns:
        What it holds, engine by engine. Layers have their members and their optimization profile.

    Raises:
        UserError: It cannot be read, is of no known format, or is broken.
    """
    text = read_text(path)
    key = next((key for key, form in FORMATS.items() if form.recognise(text)), None)
    if key is None:
        titles = ", ".join(form.title for form in FORMATS.values())
        raise UserError(f"is of no format that fusescope reads: {titles}", where=path)
    said = _broken(text)
    sections = (_completed(section, said) for section in FORMATS[key].read(text, path.name))
    return Recording(path, key, tuple(sections))


def _completed(section: Section, said: tuple[str, ...]) -> Section:
    engine = None if section.engine is None else with_members(section.engine)
    return replace(section, engine=engine, warnings=(*section.warnings, *said))


def _broken(text: str) -> tuple[str, ...]:
    """What to say of bytes that are no UTF-8."""
    if text.isascii():
        return ()
    number = sum("\udc80" <= character <= "\udcff" for character in text)
    if not number:
        return ()
    bytes_are = plural(number, "byte of the file is", "bytes of the file are")
    return (f"{bytes_are} no UTF-8: names show {'it as an escape' if number == 1 else 'them as escapes'}",)
