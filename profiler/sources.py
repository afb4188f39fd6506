"""Recorded files as a user gives them: single ones, each for all that it holds or for one role, and whole folders.

Files of one engine in a folder are told by what their names begin with, as TREx and trtexec's users name them:
``resnet.graph.json``, ``resnet.profile.json``, ``resnet.build.metadata.json``.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.reading import FORMATS, read_recording
from fusescope.profiler.artifacts.recording import Recording, Section
from fusescope.profiler.merging import ROLES, Part

_ROLE_WORDS = {"layers": "layers", "profile": "times of layers", "latency": "times of inferences"}
_WORDS = re.compile(
    r"(?:^|[._-])(?:build|profile|timing|times?|graph|layers?|engine_info|layer_?info|layer_latency|latency|meta_?data"
    r"|export(?:LayerInfo|Profile|Times)|inspector|json|txt|log)$",
    re.IGNORECASE,
)
"""What names of files say of their content, behind the name of the engine."""

_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Source:
    """A recorded file that was read."""

    recording: Recording
    """What it holds."""

    roles: tuple[str, ...] = ROLES
    """What it is taken for."""

    group: str = ""
    """Which engine it is about, among the files that were given; empty if it is about any of them."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """One engine among those that files are about."""

    group: str
    """Which files are about it; empty if all are."""

    section: str
    """Which section of these files; empty if they have one."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.group, self.section)))

    def has(self, source: Source, section: Section) -> bool:
        """Whether a section of a file is about the engine, or about no engine in particular."""
        return source.group in {"", self.group} and section.label in {"", self.section}


def read_sources(
    paths: Iterable[Path], options: Iterable[tuple[Path, str]] = ()
) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """Read recorded files.

    Args:
        paths: Files, and folders of them.
        options: Files that were given for one of `ROLES`; the rest of what they hold, but for facts, is left.

    Returns:
        What was read, and why files of folders were left out, a line for each.

    Raises:
        UserError: A file that was named cannot be read, is of no known format, or holds nothing of its role; a folder
            has no recording.
    """
    sources: list[Source] = []
    left: list[str] = []
    for path in paths:
        if path.is_dir():
            found, others = _of_folder(path)
            sources += found
            left += others
        else:
            sources.append(Source(read_recording(path)))
    sources += (_of_role(path, role) for path, role in options)
    several = [each for each in sources if not each.group and any(part.label for part in each.recording.sections)]
    if len(several) > 1:  # labels of two files may be the same, and mean different engines
        sources = [replace(each, group=each.recording.path.name) if each in several else each for each in sources]
    return tuple(sources), tuple(left)


def engine_keys(sources: Iterable[Source]) -> tuple[EngineKey, ...]:
    """The engines that files are about, in the order in which they come: at least one."""
    keys = dict.fromkeys(EngineKey(each.group, part.label) for each in sources for part in each.recording.sections)
    special = {key.group for key in keys if key.section}
    found = [key for key in keys if key.section or (key.group and key.group not in special)]
    return tuple(found) or (EngineKey("", ""),)


def chosen_key(sources: Sequence[Source], label: str) -> EngineKey:
    """The engine of a label, or the only one.

    Raises:
        UserError: There are several engines and none was chosen, or there is none of that label.
    """
    keys = {str(key): key for key in engine_keys(sources)}
    listed = ", ".join(keys)
    if label and label not in keys:
        remedy = f"they are {listed}" if listed else "the files are about one engine: leave --engine out"
        raise UserError(f"there is no engine {label!r}", remedy=remedy)
    if not label and len(keys) > 1:
        raise UserError(
            f"the files hold {len(keys)} engines: {listed}",
            remedy="choose one with --engine, or import each into a run of its own with --all",
        )
    return keys[label] if label else next(iter(keys.values()))


def parts_of(source: Source, key: EngineKey, file: str) -> tuple[Part, ...]:
    """What a file says of an engine, as far as it is taken for it.

    Args:
        source: The file.
        key: The engine.
        file: What to call the file.
    """
    parts = (Part(file, section, source.roles) for section in source.recording.sections if key.has(source, section))
    return tuple(part for part in parts if part.held)


def _of_role(path: Path, role: str) -> Source:
    source = Source(read_recording(path), (role, "facts") if role else ROLES)
    held = {held for section in source.recording.sections for held in Part(path.name, section).held}
    if role and role not in held:
        title = FORMATS[source.recording.format].title
        raise UserError(f"holds no {_ROLE_WORDS[role]}: it is {title}", where=path, remedy="give it without an option")
    return source


def _of_folder(folder: Path) -> tuple[list[Source], list[str]]:
    """The recordings of a folder and of those in it, and why other files are none."""
    sources: list[Source] = []
    left: list[str] = []
    for path in sorted(_files(folder)):
        try:
            _refuse_binary(path)
            sources.append(Source(read_recording(path), group=_engine_name(path.relative_to(folder))))
        except UserError as error:
            left.append(str(error))
    if not sources:
        first = f"; the first of its files: {left[0]}" if left else ""
        raise UserError(f"holds no recording{first}", where=folder, remedy="name a file of trtexec or of the inspector")
    if len({each.group for each in sources} - {""}) < 2:
        sources = [replace(each, group="") for each in sources]
    return sources, left


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _refuse_binary(path: Path) -> None:
    """A plan, which may be large, is no text and need not be read whole."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=path) from error
    if b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError("is no text", where=path)


def _engine_name(path: Path) -> str:
    """Name of a file without what it says of the content, below the folder that was given."""
    name = path.name
    while (shorter := _WORDS.sub("", name)) != name:
        name = shorter
    return str(path.with_name(name)) if name else ("" if path.parent == Path() else str(path.parent))
