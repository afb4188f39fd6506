"""From the names in a recording to the nodes of the ONNX model.

Metadata come first. Where a layer has none, as before TensorRT 8.6, the members of its name are taken. A region that
the recording does not open up stands for the nodes between its ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusescope.graph.model import ModelGraph, Node
from fusescope.profiler.artifacts.regions import region_ends
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.naming import REFORMAT_PREFIX, is_of_tensorrt, of_model


def resolve(engine: Engine, graph: ModelGraph | None) -> Engine:
    """Name the ONNX nodes of every layer.

    Args:
        engine: The engine as it was read.
        graph: The ONNX model; None if there is none, then members stand for nodes as they are called.

    Returns:
        The engine with `Layer.onnx_nodes` filled where metadata name none. The Quantize of an 8-bit tensor that a
        layer writes is named too if the tensor goes by the model's name.
    """
    layers = tuple(_resolved(layer, graph) for layer in engine.layers)
    return replace(engine, layers=layers)


def lacking(engine: Engine, graph: ModelGraph) -> tuple[str, ...]:
    """Names in a resolved engine that the graph has no node, tensor or weight of; TensorRT's own are left out."""
    named = (name for layer in engine.layers for name in (layer.onnx_nodes or _members(layer)))
    missing = (name for name in dict.fromkeys(named) if name not in graph.nodes and name not in graph.tensors)
    return tuple(name for name in missing if not is_of_tensorrt(name))


def _resolved(layer: Layer, graph: ModelGraph | None) -> Layer:
    if graph is None:
        return layer if layer.onnx_nodes else replace(layer, onnx_nodes=of_model(_members(layer)))
    nodes = list(layer.onnx_nodes)
    if not nodes:
        region = _region(layer, graph)
        nodes = list(region) if region else [name for name in _members(layer) if name in graph.nodes]
    if not any(name in graph.nodes and _is_quantize(graph.nodes[name], graph) for name in nodes):
        nodes += [node.name for node in _quantizing(layer, graph)]
    return layer if nodes == list(layer.onnx_nodes) else replace(layer, onnx_nodes=tuple(dict.fromkeys(nodes)))


def _members(layer: Layer) -> tuple[str, ...]:
    """Members of a name; none of a layer that only moves what another one, whose name it has, reads or writes."""
    return () if layer.name.startswith(REFORMAT_PREFIX) else layer.members


def _quantizing(layer: Layer, graph: ModelGraph) -> Iterable[Node]:
    """Quantizes whose output an 8-bit tensor that the layer writes is called by."""
    for tensor in layer.outputs:
        node = graph.producer(tensor.name) if tensor.is_eight_bit else None
        if node is not None and _is_quantize(node, graph):
            yield node


def _is_quantize(node: Node, graph: ModelGraph) -> bool:
    from fusescope.graph.ops import QUANTIZE

    return node.op in QUANTIZE and bool(node.inputs) and node.inputs[0] not in graph.constants


def _region(layer: Layer, graph: ModelGraph) -> tuple[str, ...]:
    """The nodes of a region: those between the tensors that it reads and writes, or else between its ends."""
    first, last = region_ends(layer.name)
    if not (first and last):
        return ()
    read = {tensor.name for tensor in layer.inputs}
    written = [tensor.name for tensor in layer.outputs]
    if written and read and all(name in graph.tensors for name in (*read, *written)):
        return _between(graph, written, read)
    return _on_paths(graph, _end(first, graph), _end(last, graph))


def _between(graph: ModelGraph, written: Sequence[str], read: set[str]) -> tuple[str, ...]:
    found: set[str] = set()
    pending = list(written)
    while pending:
        tensor = pending.pop()
        node = None if tensor in read else graph.producer(tensor)
        if node is not None and node.name not in found:
            found.add(node.name)
            pending.extend(tensor for tensor in node.reads if tensor not in graph.constants)
    return tuple(name for name in graph.nodes if name in found)


def _end(text: str, graph: ModelGraph) -> list[Node]:
    """The nodes that one end of a region names; of a weight, the nodes that read it."""
    found: list[Node] = []
    for name in text.split(" + "):
        if name in graph.nodes:
            found.append(graph.nodes[name])
        else:
            found.extend(graph.readers(name))
    return found


def _on_paths(graph: ModelGraph, first: Sequence[Node], last: Sequence[Node]) -> tuple[str, ...]:
    after = _reach(graph, first, forward=True)
    before = _reach(graph, last, forward=False)
    return tuple(name for name in graph.nodes if name in after and name in before)


def _reach(graph: ModelGraph, start: Sequence[Node], *, forward: bool) -> set[str]:
    found = {node.name for node in start}
    pending = list(start)
    while pending:
        node = pending.pop()
        if forward:
            near = [reader for tensor in node.outputs for reader in graph.readers(tensor)]
        else:
            near = [producer for tensor in node.reads if (producer := graph.producer(tensor))]
        for other in near:
            if other.name not in found:
                found.add(other.name)
                pending.append(other)
    return found
