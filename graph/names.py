"""Node names that can be relied upon.

An engine's metadata reports the ONNX nodes behind a kernel by name, with byte 0x1F between two names. So each
node needs a name of its own, without control characters, before the model is compiled.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class Renamed:
    """A node whose name was missing, used before, or held control characters."""

    old: str
    """The name in the file; empty when the node had none."""
    new: str
    """The unique name that it goes by."""
    index: int
    """Position among all nodes of the file, in `all_nodes` order, from 0."""


_WITH_BODIES = frozenset({"FlexAttention", "If", "Loop", "Scan", "SequenceMap"})  # by onnx.defs: all that have bodies


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies that a node (If, Loop, Scan) runs."""
    if node.op_type not in _WITH_BODIES:
        return
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in file order, each followed by the nodes of its bodies."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body.node)


def unique_names(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """Give each node a unique name, in order: its own where that will do.

    The first node of a name keeps it. An unnamed node is called after its operation and first output
    tensor. The same nodes always get the same names. Linear in the number of nodes.
    """
    nodes = list(nodes)
    kept = {node.name for node in nodes if node.name and not _CONTROL.search(node.name)}
    taken: set[str] = set()
    last: dict[str, int] = {}
    names: list[str] = []
    for node in nodes:
        name = node.name
        if name not in kept or name in taken:
            name = _fresh(_base(node), kept, taken, last)
        taken.add(name)
        names.append(name)
    return names


def name_nodes(proto: onnx.ModelProto) -> tuple[Renamed, ...]:
    """Give every node of `proto`, also those in bodies, a unique name; in place.

    Returns:
        What was renamed, in file order. Empty on a second call.
    """
    nodes = list(all_nodes(proto.graph.node))
    names = unique_names(nodes)
    renamed = _renamed(nodes, names)
    for change in renamed:
        nodes[change.index].name = change.new
    return renamed


def planned_names(nodes: Iterable[onnx.NodeProto]) -> tuple[list[str], tuple[Renamed, ...]]:
    """Say what `name_nodes` would call the nodes of a graph, without a change to them.

    Returns:
        The names of `nodes` themselves, in order, and what is renamed among them and in their bodies.
    """
    every: list[onnx.NodeProto] = []
    own: list[int] = []
    for node in nodes:
        own.append(len(every))
        every.append(node)
        for body in subgraphs(node):
            every.extend(all_nodes(body.node))
    names = unique_names(every)
    return [names[index] for index in own], _renamed(every, names)


def _renamed(nodes: list[onnx.NodeProto], names: list[str]) -> tuple[Renamed, ...]:
    pairs = enumerate(zip(nodes, names, strict=True))
    return tuple(Renamed(node.name, name, index) for index, (node, name) in pairs if node.name != name)


def _base(node: onnx.NodeProto) -> str:
    output = next((output for output in node.output if output), "")
    name = node.name or "_".join(filter(None, (node.op_type, output)))
    return _CONTROL.sub("_", name)


def _fresh(base: str, kept: set[str], taken: set[str], last: dict[str, int]) -> str:
    """Return `base` or, if that is another node's name, `base_2`, `base_3`, ..."""
    name = base
    number = last.get(base, 1)
    while not name or name in kept or name in taken:
        number += 1
        name = f"{base}_{number}"
    last[base] = number
    return name
