"""Markdown from text that is not ours: whatever a name holds, it shows as text, on GitHub too.

Escapes follow CommonMark 0.31 and the extensions of GitHub Flavored Markdown 0.29 (tables, bare links, mathematics).
"""

import re
from collections.abc import Iterable, Sequence

from fusescope.graph.units import printable

LONGEST_NAME = 160
"""Characters of a name that are shown; the JSON document has all."""

_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_[]<>~#"} | {"&": "&amp;", "|": "&#124;", "$": "&#36;"}
)
_AT = re.compile("@+")
"""In a code span, since GitHub links a mail address however it is escaped."""
_BARE_LINK = re.compile(r"(?<=:)//|(?<=www)\.", re.IGNORECASE)
_BLOCK_START = re.compile(r"^(\d{0,9})([-+.)](?=\s|$)|[-=](?=[-=\s]*$))")
_URL = re.compile(r"https://[\w./#%-]*[\w/#]")


def text(words: str) -> str:
    """Text as Markdown that shows just that text: no markup, no HTML, no link, no second line."""
    escaped = _BARE_LINK.sub(lambda found: "".join(f"&#{ord(each)};" for each in found[0]), _shown(words))
    return _BLOCK_START.sub(r"\1\\\2", escaped.strip())


def code(name: str) -> str:
    """A name as a code span; as text if it holds a pipe, which no code span can hold in every table; ``-`` if empty."""
    if not name:
        return "-"
    if "|" in name:
        return text(shortened(name))
    shown = printable(shortened(name))
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    padding = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def sourced(source: str) -> str:
    """The source of a fact, of our own writing, with its addresses as links."""
    parts, start = [], 0
    for url in _URL.finditer(source):
        parts += [_shown(source[start : url.start()]), f"<{url[0]}>"]
        start = url.end()
    return "".join([*parts, text(source[start:])])


def names(found: Sequence[str], at_most: int) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(code(name) for name in found[:at_most])
    return listed + (f" and {len(found) - at_most:,d} more" if len(found) > at_most else "")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table of cells that are Markdown already; the first `left` columns are text, the others numbers."""
    lines = [header, ["---" if column < left else "--:" for column in range(len(header))], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def bullets(items: Iterable[str]) -> str:
    """A list of items that are Markdown already."""
    return "\n".join(f"- {item}" for item in items)


def fenced(lines: Iterable[str], language: str) -> str:
    """A code block."""
    shown = "\n".join(printable(line) for line in lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"


def shortened(name: str) -> str:
    """A name cut to `LONGEST_NAME` characters."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _shown(words: str) -> str:
    return _AT.sub(r"`\g<0>`", printable(words).translate(_ESCAPES))
