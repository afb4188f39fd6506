"""The engine dump in one line per layer, as the builder of TensorRT 11 and TensorRT for RTX logs it.

The text begins with ``Layers:``, has one line per layer, a blank line, ``I/O Tensors:`` with one indented line per
tensor, a blank line and ``Engine Metadata:``. Nothing in it is quoted, so a line is split at the words that the writer
always writes, in their order. Read off dumps of TensorRT 11.0 and TensorRT-RTX 1.6.1 and 1.7.1.
"""

import re

from fusescope.graph.errors import UserError
from fusescope.profiler.layers import Engine, Layer, Tensor, UnreadLine

HEADER = "Layers:"
_IO_HEADER = "I/O Tensors:"

_FIELD = re.compile(r", ([A-Z]\w*): ")
_SIZES = r"(?:-?[0-9]{1,18}(?:,-?[0-9]{1,18})*)?"
# A name ends at the first word that must follow it, for good (?>...): a line made to mislead takes linear time too.
_TENSOR = re.compile(
    rf" \{{ Name: (?>(?P<name>.*?), Dimensions: \[)(?P<shape>{_SIZES})\]"
    rf"(?:, Strides: \[(?P<strides>{_SIZES})\])?(?:, StrideOrder: \[{_SIZES}\])?"
    r", Datatype: (?P<dtype>[^,]+?), Format: (?P<layout>[^{}]*?) ?\}(?:,|$)"
)
_IO = re.compile(
    r" Name: (?>(?P<name>.*?), IOMode: )(?P<mode>Input|Output), DataType: (?P<dtype>[^,]+)"
    rf", Dimensions: \[(?P<shape>{_SIZES})\]"
)
_NUMBER = re.compile("[0-9]{1,18}")
_ONNX_NODE = re.compile(r"\[ONNX Layer: (?P<node>.*)\](?P<note>[^\]]*)", re.DOTALL)
_SEPARATORS = re.compile("[\x1e\x1f]")


def read_oneline(text: str) -> Engine:
    """Read a dump that begins with ``Layers:``.

    Args:
        text: The dump, with the raw separator bytes 0x1E or 0x1F between the ONNX nodes of a layer's metadata.

    Returns:
        The engine. Lines that are not understood are in `Engine.unread`; they are not dropped.

    Raises:
        UserError: The text is no such dump, or no line of it can be read as a layer.
    """
    header, *lines = text.split("\n")
    if header.strip() != HEADER:
        raise UserError(f"is not an engine dump: it begins with {header[:60]!r}, not with {HEADER!r}")
    if _IO_HEADER not in lines:
        raise UserError(f"is cut short: it has no {_IO_HEADER!r}", where="engine dump")
    end = lines.index(_IO_HEADER)
    layers: list[Layer] = []
    unread: list[UnreadLine] = []
    for number, line in enumerate(lines[:end], start=2):
        if not line:
            continue
        layer = _layer(line, index=len(layers))
        if layer is None:
            unread.append(UnreadLine(number, line))
        else:
            layers.append(layer)
    if not layers:
        shown = f": line {unread[0].number} reads {unread[0].text[:120]!r}" if unread else ""
        raise UserError(f"holds no layer that can be read{shown}", where="engine dump")
    io = [match for line in lines[end:] if (match := _IO.match(line))]
    return Engine(
        layers=tuple(layers),
        inputs=tuple(_io_tensor(match) for match in io if match["mode"] == "Input"),
        outputs=tuple(_io_tensor(match) for match in io if match["mode"] == "Output"),
        unread=tuple(unread),
    )


def _layer(line: str, index: int) -> Layer | None:
    head, has_inputs, rest = line.partition(", Inputs: [")
    name, has_kind, kind = head.removeprefix("Name: ").rpartition(", LayerType: ")
    reads, has_outputs, rest = rest.partition("], Outputs: [")
    reads, _, constant_text = reads.partition("], Constants: [")
    written, has_end, tail = _closed(rest)
    inputs, constants, outputs = _tensors(reads), _tensors(constant_text), _tensors(written)
    fields_text, has_metadata, metadata = tail.partition(", Metadata:")
    complete = head.startswith("Name: ") and all((has_inputs, has_kind, has_outputs, has_end, has_metadata))
    if not complete or inputs is None or constants is None or outputs is None:
        return None
    first, *pairs = _FIELD.split(fields_text)
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    stream, event = fields.pop("StreamId", "0"), fields.pop("EventId", None)
    if first or not all(_NUMBER.fullmatch(number) for number in (stream, event or "0")):
        return None
    nodes, notes = read_metadata(metadata.removeprefix(" "))
    return Layer(
        index=index,
        name=name,
        kind=kind,
        inputs=inputs,
        constants=constants,
        outputs=outputs,
        tactic=fields.pop("TacticName", ""),
        stream=int(stream),
        event=None if event is None else int(event),
        onnx_nodes=nodes,
        notes=notes,
        attributes=fields,
    )


def _closed(text: str) -> tuple[str, str, str]:
    """Split at the bracket that closes a list of tensors."""
    if text.startswith("]"):
        return "", "]", text[1:]
    tensors, bracket, tail = text.partition(" }]")
    return tensors + bracket[:2], bracket, tail


def _tensors(text: str) -> tuple[Tensor, ...] | None:
    found, end = [], 0
    while match := _TENSOR.match(text, end):
        end = match.end()
        found.append(
            Tensor(
                name=match["name"],
                shape=_integers(match["shape"]),
                dtype_text=match["dtype"],
                layout=match["layout"],
                strides=_integers(match["strides"] or ""),
            )
        )
    return tuple(found) if not text[end:].strip() else None


def read_metadata(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """ONNX nodes that a layer's metadata name, each once, and what else they say; both separators are understood."""
    nodes, notes = [], []
    for item in filter(None, _SEPARATORS.split(text)):
        match = _ONNX_NODE.fullmatch(item)
        if match is None:
            notes.append(item)
            continue
        nodes.append(match["node"])
        if match["note"]:
            notes.append(match["note"])
    return tuple(dict.fromkeys(nodes)), tuple(notes)


def _io_tensor(match: re.Match[str]) -> Tensor:
    return Tensor(match["name"], _integers(match["shape"]), match["dtype"])


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(",") if item)
