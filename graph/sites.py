"""Quantize sites: the activation tensors that are quantized, what makes them and who reads them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fusescope.graph import ops
from fusescope.graph.collector import without_collector
from fusescope.graph.model import ModelGraph, Node, Shape
from fusescope.graph.sums import is_sum, sum_kind
from fusescope.graph.walk import pointwise_base

_SAME_VALUE_READERS = ops.QUANTIZE | ops.ALIAS


@dataclass(frozen=True, slots=True)
class QuantizeSite:
    """One activation tensor that is quantized to one format."""

    tensor: str
    """The tensor that the Quantize reads."""
    format: str
    """"fp8", "int8", another ONNX element type in lower case, or "" when the model does not say."""
    quantize: tuple[str, ...]
    """Names of the QuantizeLinear nodes on the tensor; more than one when they differ in scale."""
    dequantize: tuple[str, ...]
    """Names of the DequantizeLinear nodes behind them, also behind data movement in 8 bits."""
    producer: str | None
    """Name of the node whose result this is, seen through activations, bias, BatchNormalization, Identity,
    Cast and data movement; None for a graph input."""
    producer_kind: str
    """"conv", "gemm", "residual sum", "fuse sum", "sum", "pool", "concat", "resize", "norm", "reduce",
    "dequantize", "graph input", "unknown", or an ONNX operation in lower case."""
    path: tuple[str, ...]
    """Names of the nodes between producer and tensor, in topological order."""
    readers: tuple[str, ...]
    """Names of the nodes that read the dequantized tensor, or the 8-bit tensor without a Dequantize."""
    high_precision_readers: tuple[str, ...]
    """Names of other nodes that read the tensor, or what is the same value under Identity and Cast."""
    branch_readers: tuple[str, ...]
    """Names of nodes off the path that read a value on it, such as a conv's result before its activation."""
    is_graph_output: bool
    """Whether the tensor, the same value or one on the path is an output of the graph."""
    shape: Shape | None
    """Extents of the tensor; None when unknown."""
    dtype: str
    """ONNX element type of the tensor before it is quantized, in lower case; "" when unknown."""


@without_collector
def quantize_sites(graph: ModelGraph) -> tuple[QuantizeSite, ...]:
    """Find the Quantize sites of a model, in topological order of their first Quantize.

    Quantizes of weights, rooted at constants, are no sites. Those of one tensor to one format are one site.
    """
    found: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes.values():
        if node.op in ops.QUANTIZE and node.inputs and node.inputs[0] not in graph.constants:
            found.setdefault((node.inputs[0], number_format(graph, node)), []).append(node)
    return tuple(_site(graph, tensor, form, nodes) for (tensor, form), nodes in found.items())


def number_format(graph: ModelGraph, node: Node) -> str:
    """Return the format that a Quantize writes or a Dequantize reads.

    Returns:
        "fp8", "int8", another ONNX element type in lower case, or "" when the model does not say.
    """
    if node.op.startswith("TRT_"):
        return "fp8" if "FP8" in node.op else "int8"
    zero_point = node.inputs[2] if len(node.inputs) > 2 else ""
    codes = node.outputs[0] if node.op in ops.QUANTIZE else node.inputs[0]
    if not zero_point and node.op in ops.DEQUANTIZE and (quantize := _quantizer(graph, codes)) is not None:
        return number_format(graph, quantize)  # ModelOpt's torch exporter leaves wrong types of codes in the file
    dtype = (zero_point and graph.tensors[zero_point].dtype) or graph.tensors[codes].dtype
    return ops.FORMATS.get(dtype, dtype)


def _quantizer(graph: ModelGraph, codes: str) -> Node | None:
    """Return the Quantize that a tensor's codes are from, also across data movement."""
    producer = graph.producer(codes)
    while producer is not None and producer.op in ops.COMMUTES:
        producer = graph.producer(producer.inputs[0])
    return producer if producer is not None and producer.op in ops.QUANTIZE else None


def weight_granularity(graph: ModelGraph, node: Node) -> str | None:
    """Return how the 8-bit weights of a conv or gemm are scaled.

    Returns:
        "per-channel" for a vector of scales, "per-tensor" for one scale; None where no Dequantize gives the weights.
    """
    if node.op not in ops.WEIGHTED or len(node.inputs) < 2:
        return None
    behind = graph.producer(node.inputs[1])
    if behind is None or behind.op not in ops.DEQUANTIZE:
        return None
    shape = graph.tensors[behind.inputs[1]].shape or ()
    return "per-channel" if len(shape) == 1 and shape != (1,) else "per-tensor"


def operand_format(graph: ModelGraph, tensor: str) -> str | None:
    """Return the format that a tensor was dequantized from, also across data movement; None for high precision."""
    return _dequantized(graph).get(tensor)


def conv_precision(graph: ModelGraph, node: Node) -> str | None:
    """Return the format that a conv or gemm runs in by the graph.

    Returns:
        "fp8", "int8" or another number format when both operands come from a Dequantize of that format; None when
        either does not, and for other operations.
    """
    if node.op not in ops.WEIGHTED or len(node.inputs) < 2:
        return None
    data, weight = (operand_format(graph, tensor) for tensor in node.inputs[:2])
    return data if data == weight else None


@lru_cache(maxsize=4)
def _dequantized(graph: ModelGraph) -> Mapping[str, str]:
    """Return the formats of all tensors that hold dequantized values; kept for the graphs last asked about."""
    formats: dict[str, str] = {}
    for node in graph.nodes.values():
        if node.op in ops.DEQUANTIZE:
            formats[node.outputs[0]] = number_format(graph, node)
        elif node.op in ops.SAME_CODES and node.inputs[0] in formats:
            formats[node.outputs[0]] = formats[node.inputs[0]]
    return formats


def _site(graph: ModelGraph, tensor: str, form: str, quantize: list[Node]) -> QuantizeSite:
    producer, path = _produced(graph, tensor)
    same = _same_value(graph, tensor)
    on_path = {node.name for node in path}
    between = {read for node in path for read in graph.activations(node)} - same
    dequantize, readers = _read_by(graph, quantize)
    info = graph.tensors[tensor]
    return QuantizeSite(
        tensor=tensor,
        format=form,
        quantize=tuple(node.name for node in quantize),
        dequantize=tuple(node.name for node in dequantize),
        producer=producer.name if producer else None,
        producer_kind=_kind(graph, producer, path, tensor),
        path=tuple(node.name for node in path),
        readers=tuple(node.name for node in readers),
        high_precision_readers=_names(graph, same, _SAME_VALUE_READERS, set()),
        branch_readers=_names(graph, between, frozenset(), on_path),
        is_graph_output=any(output in same or output in between for output in graph.outputs),
        shape=info.shape,
        dtype=info.dtype,
    )


def _names(graph: ModelGraph, tensors: set[str], other: frozenset[str], known: set[str]) -> tuple[str, ...]:
    """Name the nodes that read any of `tensors`, in order, but for operations `other` and `known` nodes."""
    readers = {
        reader.name
        for tensor in tensors
        for reader in graph.readers(tensor)
        if reader.op not in ops.SHAPE_READERS and reader.op not in other and reader.name not in known
    }
    return tuple(sorted(readers, key=graph.positions.__getitem__) if len(readers) > 1 else readers)


def _produced(graph: ModelGraph, tensor: str) -> tuple[Node | None, list[Node]]:
    """Return the node whose result `tensor` is, and the nodes in between, in topological order."""
    path: list[Node] = []
    while (producer := graph.producer(tensor)) is not None:
        base, nodes = _through(graph, producer)
        if base is None:
            break
        path += nodes
        tensor = base
    return producer, _in_order(graph, path)


def _through(graph: ModelGraph, node: Node) -> tuple[str | None, list[Node]]:
    """Return the tensor that `node` only activates, shifts, scales or moves, and the nodes that do it."""
    if node.op in ops.PASSES:
        return node.inputs[0], [node]
    operands = graph.activations(node)
    if node.op in ops.AFFINE and len(operands) == 1:
        return operands[0], [node]
    return pointwise_base(graph, node)


def _same_value(graph: ModelGraph, tensor: str) -> set[str]:
    """Return the tensors that hold the value of `tensor`, up and down through Identity and Cast."""
    while (producer := graph.producer(tensor)) is not None and producer.op in ops.ALIAS:
        tensor = producer.inputs[0]
    same = {tensor}
    pending = [tensor]
    while pending:
        for reader in graph.readers(pending.pop()):
            if reader.op in ops.ALIAS and reader.outputs[0] not in same:
                same.add(reader.outputs[0])
                pending.append(reader.outputs[0])
    return same


def _read_by(graph: ModelGraph, quantize: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return the Dequantizes behind some Quantizes, and the nodes that read the value behind those."""
    dequantize: dict[str, Node] = {}
    readers: dict[str, Node] = {}
    pending = [node.outputs[0] for node in quantize]
    while pending:
        for reader in graph.readers(pending.pop()):
            if reader.op in ops.DEQUANTIZE:
                dequantize[reader.name] = reader
                readers |= {node.name: node for node in _real_readers(graph, reader.outputs[0])}
            elif reader.op in ops.COMMUTES:
                pending.append(reader.outputs[0])
            else:
                readers[reader.name] = reader
    return _in_order(graph, dequantize.values()), _in_order(graph, readers.values())


def _in_order(graph: ModelGraph, nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: graph.positions[node.name])


def _real_readers(graph: ModelGraph, tensor: str) -> Iterator[Node]:
    """Yield the nodes that read a value, directly or through Identity and Cast."""
    for reader in graph.readers(tensor):
        if reader.op in ops.ALIAS:
            yield from _real_readers(graph, reader.outputs[0])
        elif reader.op not in ops.SHAPE_READERS:
            yield reader


def _kind(graph: ModelGraph, producer: Node | None, path: list[Node], tensor: str) -> str:
    if producer is not None:
        if is_sum(graph, producer):
            return sum_kind(graph, producer)
        return ops.KINDS.get(producer.op, producer.op.lower())
    source = path[0].inputs[0] if path else tensor
    return "graph input" if source in graph.inputs else "unknown"
