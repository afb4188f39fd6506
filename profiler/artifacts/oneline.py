"""The engine dump in one line per layer, as the inspector gives it and builders log it, from TensorRT 8.2 on.

The text begins with ``Layers:`` and has one line per layer. Behind them stand ``Bindings:`` with one name per line, or,
from TensorRT 11 and in TensorRT for RTX, ``I/O Tensors:`` with one indented line per tensor, a blank line and ``Engine
Metadata:``. Nothing is quoted, so a line is split at the words that the writer always writes, in their order. An engine
that was built without detailed profiling verbosity has the names of its layers only.
"""

import re
from dataclasses import replace

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.bindings import with_bindings
from fusescope.profiler.artifacts.formats import channel_multiple, read_format
from fusescope.profiler.artifacts.lines import read_lines
from fusescope.profiler.artifacts.weights import counted_weights
from fusescope.profiler.layers import Engine, Layer, Tensor

HEADER = "Layers:"
_IO_HEADER, _BINDINGS = "I/O Tensors:", "Bindings:"
_NAME = "Name: "

_FIELD = re.compile(r", ([A-Za-z]\w*): ")
_SIZES = r"(?:-?[0-9]{1,18}(?:,-?[0-9]{1,18})*)?"
# A name ends at the first word that must follow it, for good (?>...): a line made to mislead takes linear time too.
_TENSOR = re.compile(
    rf" \{{ Name: (?>(?P<name>.*?)(?:, Location: \w{{1,20}})?, Dimensions: \[)(?P<shape>{_SIZES})\]"
    rf"(?:, Strides: \[(?P<strides>{_SIZES})\])?(?:, StrideOrder: \[{_SIZES}\])?"
    r"(?:, Datatype: (?P<dtype>[^,]+?), Format: (?P<layout>[^{}]*?)|, Format/Datatype: (?P<both>[^{}]*?)) ?\}(?:,|$)"
)
_IO = re.compile(
    r" Name: (?>(?P<name>.*?), IOMode: )(?P<mode>Input|Output), DataType: (?P<dtype>[^,]+)"
    rf", Dimensions: \[(?P<shape>{_SIZES})\]"
)
_NUMBER = re.compile("[0-9]{1,18}")
_ONNX_NODE = re.compile(r"\[ONNX Layer: (?P<node>.*)\](?P<note>[^\]]*)", re.DOTALL)
# Text that went through a terminal has lost the separators.
_SEPARATORS = re.compile(r"[\x1e\x1f]|(?<=\])(?=\[ONNX Layer: )")


def read_oneline(text: str, *, detailed: bool = False) -> Engine:
    """Read a dump that begins with ``Layers:``.

    Args:
        text: The dump, with the raw separator bytes 0x1E or 0x1F between the ONNX nodes of a layer's metadata.
        detailed: Whether the engine was built with detailed profiling verbosity, so that names alone are no layers.

    Returns:
        The engine. Lines that are not understood are in `Engine.unread`; they are not dropped.

    Raises:
        UserError: The text is no such dump, or no line of it can be read as a layer.
    """
    header, *lines = text.split("\n")
    if header.strip() != HEADER:
        raise UserError(f"is not an engine dump: it begins with {header[:60]!r}, not with {HEADER!r}")
    end = next((place for place, line in enumerate(lines) if line.rstrip(" \r") in {_IO_HEADER, _BINDINGS}), None)
    if end is None:
        raise UserError(f"is cut short: it has neither {_IO_HEADER!r} nor {_BINDINGS!r}", where="engine dump")
    named = detailed or any(line.startswith(_NAME) for line in lines[:end])
    engine = read_lines(lines[:end], _layer if named else _only_name, "engine dump")
    if lines[end].startswith(_BINDINGS):
        return with_bindings(engine, [line.rstrip("\r") for line in lines[end + 1 :]])
    io = [match for line in lines[end:] if (match := _IO.match(line))]
    inputs, outputs = (
        tuple(_io_tensor(match) for match in io if match["mode"] == mode) for mode in ("Input", "Output")
    )
    return replace(engine, inputs=inputs, outputs=outputs)


def _only_name(line: str, index: int) -> Layer:
    return Layer(index, line.rstrip("\r"), "")


def _layer(line: str, index: int) -> Layer | None:
    head, has_inputs, rest = line.rstrip("\r").partition(", Inputs: [")
    name, has_kind, kind = head.removeprefix(_NAME).rpartition(", LayerType: ")
    reads, has_outputs, rest = rest.partition("], Outputs: [")
    reads, _, constant_text = reads.partition("], Constants: [")
    written, has_end, tail = _closed(rest)
    inputs, constants, outputs = _tensors(reads), _tensors(constant_text), _tensors(written)
    fields_text, _, metadata = tail.partition(", Metadata:")
    complete = head.startswith(_NAME) and all((has_inputs, has_kind, has_outputs, has_end))
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
        constants=constants or counted_weights(fields),
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
        found.append(_tensor(match))
    return tuple(found) if not text[end:].strip() else None


def _tensor(match: re.Match[str]) -> Tensor:
    name, shape, strides, dtype, layout, both = match.groups()
    sizes = _integers(shape), _integers(strides or "")
    if both is None:
        return Tensor(name, sizes[0], dtype, layout, sizes[1], channel_multiple(layout))
    told = read_format(both)
    return Tensor(name, sizes[0], told.dtype_text, told.layout, sizes[1], told.channel_multiple)


def read_metadata(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """ONNX nodes that a layer's metadata name, each once, and what else they say.

    0x1E stands between nodes of a classic fusion and 0x1F between those of a kernel of Myelin.
    """
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
