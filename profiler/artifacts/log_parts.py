"""A log of trtexec, or of a program that builds engines, taken apart: what it says of each engine, block by block.

trtexec begins and ends with a line ``&&&& RUNNING`` and ``&&&& PASSED``; several such runs may follow each other in a
file, with builds by a Python program before, between and behind them. Only a line feed ends a line: metadata of layers
holds bytes that Python takes for other line ends. Time is linear in the text.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fusescope.profiler.artifacts.options import version_of
from fusescope.profiler.artifacts.profile_table import TITLE as TABLE
from fusescope.profiler.artifacts.summary import OLD_TITLE, is_summary
from fusescope.profiler.artifacts.summary import TITLE as SUMMARY
from fusescope.profiler.artifacts.values import number

Kind = Literal["options", "summary", "old summary", "table", "dump", "list"]

LAYERS, LIST = "Layers:", "Engine Layer Information:"
"""What stands above a text dump of the inspector, and above a verbose build's list of layers."""

PREFIX = re.compile(
    r"(?:\[[0-9]{2}/[0-9]{2}/[0-9]{4}-[0-9]{2}:[0-9]{2}:[0-9]{2}\] )?"
    r"(?:\[TRT\] )?\[(?P<level>[VIWEF])\](?: \[TRT\])?(?: |$)"
)
"""What a logger writes before a message, from trtexec or from Python."""

_FRAME = re.compile(
    r"&&&& (?P<word>RUNNING|PASSED|FAILED|WAIVED) (?P<tool>\S{1,200})"
    r"(?: \[(?P<product>[^\] ]{1,40}) v(?P<version>[0-9.]{1,12})\])?"
    r"(?: \[b[0-9]{1,9}\])?(?: # (?P<command>.*))?"
)
_HEADING = re.compile(r"=== (?P<title>[A-Z][A-Za-z ]{1,40}) ===")
_TAILS = ("Bindings:", "I/O Tensors:", "Engine Metadata:")
_SAID = re.compile(
    r"TensorRT version: (?P<version>[0-9.]{1,12})"
    r"|Created engine with size: (?P<mebibytes>[0-9.e+-]{1,20}) MiB"
    r"|Engine built in (?P<build_s>[0-9.e+-]{1,20}) sec"
    r"|Engine generation completed in (?P<generation_s>[0-9.e+-]{1,20}) seconds"
    r"|Timing trace has (?P<iterations>[0-9]{1,12}) queries"
    r"|(?:The engine uses|\[MS\] Number of aux streams is) (?P<aux_streams>[0-9]{1,4})\b"
    r"|(?:Created input|Input) binding for .{0,2000} with dimensions (?P<shape>[0-9]{1,9}(?:x[0-9]{1,9})*)"
    r"(?: and type |$)"
    r"|\* GPU compute time is unstable, with coefficient of variance = (?P<variation>[0-9.e+-]{1,20})%"
)


@dataclass
class Part:
    """What a log says of one engine, as far as it has been read."""

    tool: str = ""
    """The program of the line ``&&&& RUNNING``; empty outside of such a frame."""

    facts: dict[str, str] = field(default_factory=dict)
    """What single lines say, by the keys of `fusescope.profiler.artifacts.recording.FACTS`."""

    blocks: list[tuple[Kind, list[str]]] = field(default_factory=list)
    """Tables, summaries, dumps and lists, as lines without the log's prefix, from the title on."""

    batches: set[int] = field(default_factory=set)
    """First dimensions of inputs that inferences ran with."""

    variation: float | None = None
    """Coefficient of variation of the GPU time, where trtexec warns of it."""

    remarks: dict[str, None] = field(default_factory=dict)
    """Trtexec's own warnings about what it measured, in order."""

    error: str = ""
    """The first error that was logged."""

    @property
    def options(self) -> dict[str, str]:
        """Trtexec's options, by its own words."""
        pairs = (line.partition(":") for kind, lines in self.blocks if kind == "options" for line in lines[1:])
        return {name.strip(): value for name, _, value in pairs}

    def last(self, *kinds: Kind) -> list[str] | None:
        """Lines of the last block of these kinds; None if there is none."""
        return next((lines for kind, lines in reversed(self.blocks) if kind in kinds), None)

    def lists_layers(self) -> bool:
        """Whether it holds the layers of an engine already."""
        return self.last("dump", "list") is not None


def parts_of(text: str) -> list[Part]:
    """Take a log apart.

    Args:
        text: The log.

    Returns:
        A part per run of trtexec, and one per build outside of such a run; some may say nothing.
    """
    splitter = _Splitter()
    for line in _lines(text):
        splitter.take(line)
    return splitter.parts


def _lines(text: str) -> Iterator[str]:
    """Lines without their ends, one at a time: a log of 200 MB is not kept twice."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end].removesuffix("\r")
        start = end + 1
    yield text[start:].removesuffix("\r")


class _Splitter:
    """Reads a log line by line: which part it belongs to, and which block of it."""

    def __init__(self) -> None:
        self.parts = [Part()]
        self._block: tuple[Kind, list[str]] | None = None
        self._is_behind_blank = False
        self._is_in_tail = False

    @property
    def _part(self) -> Part:
        return self.parts[-1]

    def take(self, line: str) -> None:
        """Read the next line."""
        if line.startswith("&&&& ") and (frame := _FRAME.match(line)):
            self._frame(frame)
            return
        prefix = PREFIX.match(line)
        message = line[prefix.end() :] if prefix else line
        if self._block is not None and self._continues(message, is_logged=prefix is not None):
            return
        self._message(message, prefix["level"] if prefix else "")

    def _frame(self, frame: re.Match[str]) -> None:
        self._block = None
        if frame["word"] == "RUNNING":
            self.parts.append(Part(tool=frame["tool"]))
        facts = self._part.facts
        if frame["word"] != "RUNNING":
            facts["status"] = frame["word"]
        if frame["product"]:
            facts.setdefault("tensorrt_version", version_of(frame["version"]))
            is_rtx = "rtx" in (frame["product"] + frame["tool"]).lower()
            facts.setdefault("runtime", "tensorrt-rtx" if is_rtx else "tensorrt")
        if frame["command"]:
            facts.setdefault("command", frame["command"])
        if frame["word"] != "RUNNING":
            self._part.tool = self._part.tool or frame["tool"]
            self.parts.append(Part())

    def _continues(self, message: str, *, is_logged: bool) -> bool:
        """Whether the block that runs takes a line; it ends at the first that it does not."""
        assert self._block is not None
        kind, lines = self._block
        if kind in {"dump", "list"}:
            return self._takes_layer(message, is_logged=is_logged)
        if not message.strip(" ") or message.startswith("=== "):
            taken = False
        elif kind == "old summary":
            taken = is_summary(message)
        else:
            taken = not message.startswith(("* ", "TensorRT version: "))
        if taken:
            lines.append(message)
        else:
            self._block = None
        return taken

    def _takes_layer(self, message: str, *, is_logged: bool) -> bool:
        """As `_continues`, for layers: no prefix stands before them, and other threads may speak in between."""
        assert self._block is not None
        kind, lines = self._block
        is_blank = not is_logged and not message.strip(" ")
        is_tail = not is_logged and message.rstrip(" ") in _TAILS
        if is_logged:
            ends = kind == "list" or self._is_in_tail or self._is_behind_blank
        elif self._is_behind_blank:
            ends = not is_tail
        else:
            ends = is_blank and kind == "list"
        if ends:
            self._block = None
        if ends or is_logged:
            return False
        if is_tail:
            lines.append("")
        self._is_in_tail = self._is_in_tail or is_tail
        self._is_behind_blank = is_blank
        if not is_blank:
            lines.append(message)
        return True

    def _message(self, message: str, level: str) -> None:
        title = message.rstrip(" ")
        if title == LAYERS:
            self._open_layers("dump", title)
        elif title == LIST:
            self._open_layers("list", title)
        elif message.startswith("=== "):
            self._heading(message)
        elif title == OLD_TITLE:
            self._open("old summary", title)
        elif message.startswith("* ") and level == "W":
            self._remark(message[2:])
        if said := _SAID.match(message):
            self._said(said)
            if said["aux_streams"] and level == "W":
                self._remark(message)
        if level == "E" and not self._part.error:
            self._part.error = message

    def _heading(self, message: str) -> None:
        if TABLE.match(message):
            self._open("table", message)
        elif message.rstrip(" ") == SUMMARY:
            self._open("summary", message)
        elif (heading := _HEADING.fullmatch(message)) and heading["title"].endswith(("Options", "Information")):
            if heading["title"] == "Model Options" and self._part.last("options"):
                self.parts.append(Part())
            self._open("options", message)

    def _open(self, kind: Kind, title: str) -> None:
        self._block = (kind, [title])
        self._is_behind_blank = self._is_in_tail = False
        self._part.blocks.append(self._block)

    def _open_layers(self, kind: Kind, title: str) -> None:
        """Begin a dump or list: outside of a run of trtexec of another engine, unless it is a dump behind a list."""
        again = self._part.last("dump") is not None if kind == "dump" else self._part.lists_layers()
        if again and not self._part.tool:
            self.parts.append(Part())
        self._open(kind, title)

    def _remark(self, text: str) -> None:
        self._part.remarks[text.strip()] = None

    def _said(self, said: re.Match[str]) -> None:
        part = self._part
        if said["generation_s"] and not part.tool and part.lists_layers():
            part = Part()
            self.parts.append(part)
        for key in ("build_s", "iterations", "aux_streams"):
            if said[key]:
                part.facts[key] = said[key]
        if said["generation_s"] and not part.tool:
            part.facts["build_s"] = said["generation_s"]
        if said["version"]:
            part.facts["tensorrt_version"] = version_of(said["version"])
        if math.isfinite(size := number(said["mebibytes"] or "") * 2**20):
            part.facts["plan_bytes"] = str(round(size))
        if said["shape"]:
            part.batches.add(int(said["shape"].partition("x")[0]))
            part.facts.pop("batch", None)
            if len(part.batches) == 1:
                part.facts["batch"] = str(*part.batches)
        if math.isfinite(percent := number(said["variation"] or "")):
            part.variation = percent / 100
