"""Layer information as JSON, of the engine inspector or of ``trtexec --exportLayerInfo``, from TensorRT 8.2 on.

Up to 10.x an object has ``Layers`` and ``Bindings``, and a tensor says ``Format/Datatype``; from 11.0 on it has ``I/O
Tensors``, a layer has ``Constants``, and a tensor says ``Datatype``, ``Format`` and strides. An engine that was built
without detailed profiling verbosity has names of layers only. Some programs keep the list of layers alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.bindings import with_bindings
from fusescope.profiler.artifacts.files import parse_json
from fusescope.profiler.artifacts.formats import LARGEST, read_format
from fusescope.profiler.artifacts.formats import channel_multiple as multiple_of
from fusescope.profiler.artifacts.oneline import read_metadata
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.weights import counted_weights
from fusescope.profiler.layers import Engine, Layer, Tensor, UnreadLine

_LAYERS = ("Layers", "layers", "LayerInfo")
_IO = "I/O Tensors"
_START = re.compile(r'\s*(?:\{|\[\s*(?:"|\{\s*"Name"\s*:\s*"(?:[^"\\]|\\.){0,8000}"\s*,\s*"LayerType"))', re.DOTALL)
_KEY = re.compile(rf'"(?:{"|".join(_LAYERS)})"\s*:\s*\[\s*(?:["{{\]]|$)')
_DIGITS = 18
_OWN = frozenset(
    {"Name", "LayerType", "Inputs", "Constants", "Outputs", "TacticName", "StreamId", "EventId", "Metadata"}
)
"""Keys of a layer that have a field in `Layer`."""


def recognise(text: str) -> bool:
    """Whether a text is layer information, by how it begins and the key of its list."""
    start = _START.match(text)
    return start is not None and (not start[0].endswith("{") or _KEY.search(text) is not None)


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read layer information.

    Args:
        text: The file.
        origin: Its name.

    Raises:
        UserError: It is cut short, holds no layer, or none that can be read.
    """
    document = parse_json(text, origin)
    top = document if isinstance(document, dict) else {}
    layers = next((top[key] for key in _LAYERS if key in top), document)
    if not isinstance(layers, list) or not layers:
        remedy = "record it with trtexec --exportLayerInfo, from an engine built with --profilingVerbosity=detailed"
        raise UserError("holds no layers", where=origin, remedy=remedy)
    verbosity = top.get("ProfilingVerbosity")
    facts = {"verbosity": verbosity} if isinstance(verbosity, str) else {}
    return (Section("", engine=_engine(layers, top, origin), facts=facts),)


def _engine(items: Sequence[object], top: Mapping[str, Any], origin: str) -> Engine:
    layers: list[Layer] = []
    unread: list[UnreadLine] = []
    for place, item in enumerate(items, start=1):
        layer = _layer(item, len(layers))
        if layer is None:
            unread.append(UnreadLine(place, json.dumps(item)))
        else:
            layers.append(layer)
    if not layers:
        raise UserError(f"holds no layer that can be read: the first is {unread[0].text[:120]}", where=origin)
    engine = Engine(tuple(layers), unread=tuple(unread))
    tensors, names = top.get(_IO), top.get("Bindings")
    if isinstance(tensors, list):
        inputs, outputs = (tuple(_io_tensors(tensors, mode)) for mode in ("Input", "Output"))
        return Engine(engine.layers, inputs, outputs, engine.unread)
    return with_bindings(engine, [name for name in names if isinstance(name, str)] if isinstance(names, list) else [])


def _layer(item: object, index: int) -> Layer | None:
    """One entry: an object, or a name alone; None if it cannot be read."""
    if isinstance(item, str):
        return Layer(index, item, "")
    if not isinstance(item, dict) or not isinstance(item.get("Name"), str):
        return None
    inputs, constants, outputs = (_tensors(item.get(key, ())) for key in ("Inputs", "Constants", "Outputs"))
    kind, tactic, metadata = (item.get(key, "") for key in ("LayerType", "TacticName", "Metadata"))
    stream, event = item.get("StreamId", 0), item.get("EventId")
    texts = all(isinstance(text, str) for text in (kind, tactic, metadata))
    numbers = _is_count(stream) and (event is None or _is_count(event))
    if inputs is None or constants is None or outputs is None or not texts or not numbers:
        return None
    attributes = {key: _written(value) for key, value in item.items() if key not in _OWN}
    nodes, notes = read_metadata(metadata)
    return Layer(
        index=index,
        name=item["Name"],
        kind=kind,
        inputs=inputs,
        constants=constants or counted_weights(attributes),
        outputs=outputs,
        tactic=tactic,
        stream=stream,
        event=event,
        onnx_nodes=nodes,
        notes=notes,
        attributes=attributes,
    )


def _written(value: object) -> str:
    """A value as the inspector writes it in one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":") if isinstance(value, list) else (", ", ": "))


def _tensors(items: object) -> tuple[Tensor, ...] | None:
    if not isinstance(items, Sequence) or isinstance(items, str):
        return None
    found = []
    for item in items:
        tensor = _tensor(item)
        if tensor is None:
            return None
        found.append(tensor)
    return tuple(found)


def _tensor(item: object) -> Tensor | None:
    if not isinstance(item, dict) or not isinstance(item.get("Name"), str):
        return None
    shape, strides = _sizes(item.get("Dimensions")), _sizes(item.get("Strides", []), of_memory=False)
    if shape is None or strides is None:
        return None
    name, said = item["Name"], item.get("Format/Datatype")
    if isinstance(said, str):
        told = read_format(said)
        return Tensor(name, shape, told.dtype_text, told.layout, strides, told.channel_multiple)
    dtype, layout = item.get("Datatype"), item.get("Format", "")
    if not isinstance(dtype, str) or not isinstance(layout, str):
        return None
    return Tensor(name, shape, dtype, layout, strides, multiple_of(layout))


def _sizes(value: object, *, of_memory: bool = True) -> tuple[int, ...] | None:
    """A list of sizes, -1 for one that is not known; None if it is no such list, or no memory holds so much."""
    if not isinstance(value, list) or not all(isinstance(size, int) and not isinstance(size, bool) for size in value):
        return None
    elements = 1
    for size in value:
        elements *= max(1, size) if of_memory else 1
        if elements > LARGEST or abs(size) > LARGEST:
            return None
    return tuple(max(size, -1) if of_memory else size for size in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**_DIGITS


def _io_tensors(items: Sequence[object], mode: str) -> list[Tensor]:
    found = []
    for item in items:
        if isinstance(item, dict) and item.get("IOMode") == mode:
            tensor = _tensor({**item, "Datatype": item.get("DataType")})
            found += [tensor] if tensor else []
    return found
