"""Dumps that hold one layer in a line: what is read, and what could not be."""

from collections.abc import Callable, Iterable

from fusescope.graph.errors import UserError
from fusescope.profiler.layers import Engine, Layer, UnreadLine


def read_lines(lines: Iterable[str], layer: Callable[[str, int], Layer | None], where: str) -> Engine:
    """Read the lines behind a header.

    Args:
        lines: Them, the first of which is the second of the dump.
        layer: Reads a line, given the layer's index; returns None for one that it does not understand.
        where: What the lines are of, for the message.

    Returns:
        The engine. Lines that are not understood are in `Engine.unread`; they are not dropped. Blank ones are.

    Raises:
        UserError: No line can be read as a layer.
    """
    layers: list[Layer] = []
    unread: list[UnreadLine] = []
    for number, line in enumerate(lines, start=2):
        if not line.strip(" \t\r"):
            continue
        found = layer(line, len(layers))
        if found is None:
            unread.append(UnreadLine(number, line))
        else:
            layers.append(found)
    if not layers:
        shown = f": line {unread[0].number} reads {unread[0].text[:120]!r}" if unread else ""
        raise UserError(f"holds no layer that can be read{shown}", where=where)
    return Engine(tuple(layers), unread=tuple(unread))
