"""Whole logs: of trtexec, of TensorRT's builder under a Python program, or excerpts of them.

A log may hold the options, the build, the layers (as a text dump of the inspector or as a verbose build's list), the
performance summary and the printed profile of one engine, or of several one after the other. Nothing says that a build
by a program and a run of trtexec behind it are about the same engine, so they stay apart.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural, printable
from fusescope.profiler.artifacts.layer_list import read_layer_list
from fusescope.profiler.artifacts.log_parts import LAYERS, LIST, PREFIX, Kind, Part, parts_of
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.artifacts.options import facts_of
from fusescope.profiler.artifacts.profile_table import read_table
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.regions import with_regions
from fusescope.profiler.artifacts.summary import read_summary
from fusescope.profiler.artifacts.values import shown
from fusescope.profiler.layers import Engine, Layer

_SIGNS = ("&&&& RUNNING ", "&&&& PASSED ", "&&&& FAILED ", "=== Performance summary ===", "=== Profile (", LIST)
_HEAD = 100_000
"""Characters within which a log shows that it is one, if none of its signs is in it."""

_LOGGED = re.compile(f"^(?:{PREFIX.pattern}|{LAYERS} *$)", re.MULTILINE)
_FILE = re.compile(r" --(?:loadEngine|onnx|uff|model|deploy)=(?P<path>\S+)")
_BLOCKS: Mapping[Kind, str] = {
    "dump": "the dump of the layers",
    "list": "the build's list of layers",
    "table": "the printed profile",
    "summary": "the performance summary",
    "old summary": "the performance summary",
}
_SAME = 0.5
"""Share of names that a dump and a list must have in common to be of one engine."""

T = TypeVar("T")


def recognise(text: str) -> bool:
    """Whether a text is a log, by what trtexec and TensorRT's logger write."""
    return any(sign in text for sign in _SIGNS) or _LOGGED.search(text, 0, _HEAD) is not None


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read a log.

    Args:
        text: The file.
        origin: Its name.

    Returns:
        A section per engine that it holds layers, times or a run of trtexec of. What is in it but cannot be read is
        told of in the section's warnings.

    Raises:
        UserError: It holds no layers, no times and no run of trtexec.
    """
    parts = [part for part in parts_of(text) if part.tool or _holds_blocks(part)]
    if not parts:
        remedy = "record one with trtexec --verbose --profilingVerbosity=detailed --dumpLayerInfo --dumpProfile"
        raise UserError("is a log without layers, times or a run of trtexec", where=origin, remedy=remedy)
    labels = _labels(parts)
    return tuple(
        _section(part, label, f"{origin}, {label}" if label else origin)
        for part, label in zip(parts, labels, strict=True)
    )


def _holds_blocks(part: Part) -> bool:
    return any(kind != "options" for kind, _ in part.blocks)


def _labels(parts: Sequence[Part]) -> list[str]:
    """What to call each engine: after its file, numbered where names repeat; nothing if there is one."""
    if len(parts) == 1:
        return [""]
    builds = 0
    names = []
    for part in parts:
        match = _FILE.search(part.facts.get("command", ""))
        if match:
            names.append(re.split(r"[/\\]", match["path"])[-1] or match["path"])
        else:
            builds += 1
            names.append(f"build {builds}")
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return labels


def _section(part: Part, label: str, origin: str) -> Section:
    warnings = [f"trtexec warns: {printable(remark)}" for remark in part.remarks]
    warnings += _ending(part)
    engine = _engine(part, warnings)
    latency = _read(part, ("summary", "old summary"), lambda lines: read_summary(lines, origin), warnings)
    table = _read(part, ("table",), lambda lines: read_table(lines, origin), warnings)
    warnings += table[1] if table else []
    if latency is not None:
        samples = part.facts.get("iterations")
        spread = replace(latency.compute, samples=int(samples) if samples else None, variation=part.variation)
        latency = replace(latency, compute=spread)
    facts = {**facts_of(part.options), **part.facts}
    return Section(label, engine, table[0] if table else None, latency, facts, tuple(dict.fromkeys(warnings)))


def _ending(part: Part) -> list[str]:
    status = part.facts.get("status")
    if status == "FAILED":
        because = f": {shown(part.error)}" if part.error else ""
        return [f"trtexec says that it FAILED{because}"]
    if part.tool and status is None:
        return ["the log ends before trtexec says PASSED or FAILED: it is cut short, and what follows is not in it"]
    return []


def _read(part: Part, kinds: Sequence[Kind], reader: Callable[[list[str]], T], warnings: list[str]) -> T | None:
    """Read the last block of some kinds; if it cannot be read the rest of the log still can, and the reason is said."""
    for kind in kinds:
        lines = part.last(kind)
        if lines is None:
            continue
        try:
            return reader(lines)
        except UserError as error:
            warnings.append(f"{_BLOCKS[kind]} was left out: it {error.what}")
    return None


def _engine(part: Part, warnings: list[str]) -> Engine | None:
    """Layers from the inspector's dump if there is one, with regions from the build's list; else from the list."""
    dumped = _read(part, ("dump",), lambda lines: read_oneline("\n".join(lines)), warnings)
    listed = _read(part, ("list",), lambda lines: read_layer_list("\n".join(lines)), warnings)
    lists = sum(kind == "list" for kind, _ in part.blocks)
    if lists > 1:
        warnings.append(
            f"the log lists the layers of {plural(lists, 'build')} for one run of trtexec: the last was taken"
        )
    if dumped is None or listed is None:
        return dumped or listed
    if _share(dumped, listed) < _SAME:
        warnings.append(
            "the list of layers of the build is of another engine than the layers that were dumped: not used"
        )
        return dumped
    if not any(layer.kind for layer in dumped.layers):
        return listed  # the dump holds names only
    return with_regions(dumped, listed)


def _share(dumped: Engine, listed: Engine) -> float:
    """Share of the listed layers that were dumped, by name; regions come out as kernels, so they do not count."""
    known = {layer.name for layer in dumped.layers}
    names = [layer.name for layer in _outside_regions(listed)]
    return sum(name in known for name in names) / len(names) if names else 1.0


def _outside_regions(engine: Engine) -> Iterable[Layer]:
    return (layer for layer in engine.layers if "ForeignNode[" not in layer.name)
