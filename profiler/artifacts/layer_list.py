"""The list of layers in the log of a verbose build, of every version from TensorRT 8.0 on.

Below ``Engine Layer Information:`` stands one line per layer: kind, name, tactic, and tensors with dtype and shape, as
``x[Float(-2,1,28,28)]`` up to 8.4 and ``x (Float[-1,1:4,28,28])`` from 8.5 on. A size of -2 or -1 is one that is not
known at build time; a number behind a colon is the width of the vectors that channels are stored in. Regions
(``ForeignNode``) stand as one layer.
"""

import re

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.lines import read_lines
from fusescope.profiler.layers import Engine, Layer, Tensor

HEADER = "Engine Layer Information:"

_HEAD = re.compile(
    r"Layer\((?P<kind>\w{1,80})\): (?>(?P<name>.*?), Tactic: )(?P<tactic>-?[0-9]{1,20}|0x[0-9a-f]{1,16}),? ", re.DOTALL
)
_SIZES = r"(?:-?[0-9]{1,18}(?::[0-9]{1,4})?(?:,-?[0-9]{1,18}(?::[0-9]{1,4})?)*)?"
_NEW = re.compile(rf"(?P<name>.*?) \((?P<dtype>\w{{1,20}})\[(?P<shape>{_SIZES})\]\)(?P<next>, | -> |$)", re.DOTALL)
_OLD = re.compile(rf"(?P<name>.*?)\[(?P<dtype>\w{{1,20}})\((?P<shape>{_SIZES})\)\](?P<next>, | -> |$)", re.DOTALL)
_VECTOR = re.compile(r":(?P<width>[0-9]{1,4})")
_ARROW = " -> "


def read_layer_list(text: str) -> Engine:
    """Read a list that begins with ``Engine Layer Information:``.

    Args:
        text: The list, without the log around it.

    Returns:
        The engine. Lines that are not understood are in `Engine.unread`; they are not dropped.

    Raises:
        UserError: The text is no such list, or no line of it can be read as a layer.
    """
    header, *lines = text.split("\n")
    if header.strip() != HEADER:
        raise UserError(f"is no list of layers: it begins with {header[:60]!r}, not with {HEADER!r}")
    return read_lines(lines, _layer, "list of layers")


def _layer(line: str, index: int) -> Layer | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    tensors = _tensors(line, head.end(), _NEW) or _tensors(line, head.end(), _OLD)
    if tensors is None:
        return None
    inputs, outputs = tensors
    return Layer(
        index=index,
        name=head["name"],
        kind=head["kind"],
        inputs=inputs,
        outputs=outputs,
        attributes={"TacticValue": head["tactic"]},
    )


def _tensors(line: str, start: int, style: re.Pattern[str]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None:
    """Tensors before and behind the arrow; None if the line is not of this style."""
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])
    side = int(line.startswith(_ARROW, start))
    end = start + side * len(_ARROW)
    while end < len(line):
        match = style.match(line, end)
        if match is None:
            return None
        sides[side].append(_tensor(match))
        side += match["next"] == _ARROW
        end = match.end()
        if side > 1:
            return None
    return (tuple(sides[0]), tuple(sides[1])) if side == 1 else None


def _tensor(match: re.Match[str]) -> Tensor:
    shape = _VECTOR.sub("", match["shape"])
    vector = _VECTOR.search(match["shape"])
    sizes = tuple(max(int(size), -1) for size in shape.split(",") if size)
    width = max(1, int(vector["width"])) if vector else 1
    return Tensor(match["name"], sizes, match["dtype"], layout=vector[0] if vector else "", channel_multiple=width)
