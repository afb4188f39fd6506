"""The neighbourhood of a spot in the graph: the few nodes around it, and the tensors between them, as plain data."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from fusescope.graph import ops
from fusescope.graph.model import ModelGraph, Node, Shape
from fusescope.graph.sites import QuantizeSite, conv_precision

LARGEST = 40
"""Nodes of a neighbourhood, at most: more cannot be read in one drawing."""

_CONVERTS = ops.QUANTIZE | ops.DEQUANTIZE | ops.ALIAS
"""Operations that are passed on the way to what really reads or makes a value."""

_PART_OF_A_BRANCH = ops.PASSES | ops.SUMS | ops.UPSAMPLES
"""Operations that a branch ends in, behind the conv or sum that it is known by."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The nodes around a spot."""

    nodes: tuple[str, ...]
    """Their names, in topological order; at most `LARGEST`."""

    omitted: int
    """Readers that found no room."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node as a drawing shows it."""

    name: str
    """The node's name."""

    op: str
    """ONNX operation type."""

    precision: str
    """Format that a conv or gemm reads both operands in, such as "fp8"; "" for high precision and other nodes."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor with its ends, as far as they are in the excerpt."""

    tensor: str
    """The tensor's name."""

    dtype: str
    """ONNX element type in lower case; "" when unknown."""

    shape: Shape | None
    """Extents; None when unknown."""

    source: int | None
    """Index of the place that writes it; None for a graph input, or what is written elsewhere."""

    targets: tuple[int, ...]
    """Indices of the places that read it; empty for what is only read elsewhere."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a graph that some neighbourhoods are made of, each node and tensor once."""

    places: tuple[Place, ...]
    """Its nodes, in topological order."""

    wires: tuple[Wire, ...]
    """The activations that they write or read; no constants."""


def site_neighbourhood(graph: ModelGraph, site: QuantizeSite) -> Neighbourhood:
    """Return what makes the tensor of a site, its Quantizes, its Dequantizes, all its readers, and what it is made of.

    Readers are those in 8 bits and those in high precision, also of values between the producer and the tensor.
    """
    core = [graph.nodes[name] for name in (site.producer, *site.path) if name is not None]
    start = core[0].outputs if site.producer else (core[0].inputs[:1] if core else (site.tensor,))
    ends = {*site.readers, *site.high_precision_readers, *site.branch_readers}
    inner = {node.name for node in core}

    def passed(node: Node) -> bool:
        return node.name in inner or node.op in _CONVERTS or (node.op in ops.COMMUTES and node.name not in ends)

    first = [*core, *(graph.nodes[name] for name in site.quantize)]
    return _around(graph, first, start, passed, ends)


def node_neighbourhood(graph: ModelGraph, name: str) -> Neighbourhood:
    """Return a node with what it reads from, and who reads its result behind an activation, a Quantize or both."""
    node = graph.nodes[name]
    outputs = tuple(filter(None, node.outputs))
    ends = {reader.name for tensor in outputs for reader in graph.readers(tensor)}
    return _around(graph, [node], outputs, lambda reader: reader.op in _CONVERTS | ops.PASSES, ends)


def excerpt(graph: ModelGraph, neighbourhoods: Iterable[Neighbourhood]) -> Excerpt:
    """Return the part of a graph that some neighbourhoods are made of."""
    names = {name for neighbourhood in neighbourhoods for name in neighbourhood.nodes}
    nodes = [graph.nodes[name] for name in sorted(names, key=graph.positions.__getitem__)]
    index = {node.name: place for place, node in enumerate(nodes)}
    tensors = dict.fromkeys(tensor for node in nodes for tensor in (*_reads(graph, node), *filter(None, node.outputs)))
    return Excerpt(
        tuple(Place(node.name, node.op, conv_precision(graph, node) or "") for node in nodes),
        tuple(_wire(graph, tensor, index) for tensor in tensors),
    )


def _wire(graph: ModelGraph, tensor: str, index: dict[str, int]) -> Wire:
    info, producer = graph.tensors[tensor], graph.producer(tensor)
    readers = (index[reader.name] for reader in graph.readers(tensor) if reader.name in index)
    return Wire(tensor, info.dtype, info.shape, index.get(producer.name) if producer else None, tuple(readers))


def _around(
    graph: ModelGraph,
    first: list[Node],
    start: Iterable[str],
    passed: Callable[[Node], bool],
    ends: Collection[str],
) -> Neighbourhood:
    """Collect `first`, then what reads `start` behind nodes that are `passed`, then what `first` is made of."""
    found = dict.fromkeys(node.name for node in first[:LARGEST])
    pending = list(start)
    seen = set(pending)
    while pending:
        for reader in graph.readers(pending.pop(0)):
            if reader.op in ops.SHAPE_READERS or (reader.name not in found and len(found) == LARGEST):
                continue
            found[reader.name] = None
            if passed(reader):
                fresh = [tensor for tensor in reader.outputs if tensor and tensor not in seen]
                pending += fresh
                seen.update(fresh)
    _add_origins(graph, first[0] if first else None, found)
    nodes = sorted(found, key=graph.positions.__getitem__)
    return Neighbourhood(tuple(nodes), sum(name not in found for name in ends))


def _add_origins(graph: ModelGraph, node: Node | None, found: dict[str, None]) -> None:
    """Add what a node is made of: its operands' makers, and theirs where nobody else reads what lies between."""
    pending = _makers(graph, node) if node else []
    while pending and len(found) < LARGEST:
        maker = pending.pop(0)
        if maker.name not in found:
            found[maker.name] = None
            if maker.op in _PART_OF_A_BRANCH and _has_one_reader(graph, maker):
                pending += _makers(graph, maker)


def _has_one_reader(graph: ModelGraph, node: Node) -> bool:
    return sum(len(graph.readers(tensor)) for tensor in node.outputs if tensor) == 1


def _makers(graph: ModelGraph, node: Node) -> list[Node]:
    return [maker for tensor in _reads(graph, node) if (maker := graph.producer(tensor))]


def _reads(graph: ModelGraph, node: Node) -> list[str]:
    return [tensor for tensor in node.reads if tensor not in graph.constants]
