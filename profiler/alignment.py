"""Which node of one engine is which node of another, where one of them, or both, are known by names only.

Exporters number nodes by their place: ``Conv_84`` of a model with Quantizes is another convolution than ``Conv_84`` of
the model without. So such names are compared only if both engines number alike; the name of a convolution's weight,
which TensorRT puts before the node, tells better.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import networkx as nx

from fusescope.graph.model import ModelGraph
from fusescope.graph.ops import DEQUANTIZE, QUANTIZE, WEIGHTED
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.naming import weight_anchors, weight_stem

Piece = tuple[str, int | str]
"""A kernel of one of the engines, or an ONNX node: ``("quantized", 3)``, ``("node", "/conv1/Conv")``."""

_BY_PLACE = re.compile(r"[A-Za-z_]*[A-Za-z][-_]*\d+")


def aligned_names(view: EngineView, other: EngineView) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Find the names under which nodes of two engines are the same.

    Returns:
        For each engine, node name to the name that the two share it by; a node that aligns with nothing is not in it.
    """
    if not (view.by_name or other.by_name):
        return {name: name for name in view.graph.nodes}, {name: name for name in other.graph.nodes}
    anchors = [weight_stems(each) for each in (view, other)]
    alike = _number_alike(view, other)
    common = set(anchors[0].values()) & set(anchors[1].values())
    return _names(view, anchors[0], common, alike=alike), _names(other, anchors[1], common, alike=alike)


def shared_names(views: Sequence[EngineView]) -> list[dict[str, str]]:
    """Names under which the nodes of any number of engines are the same, for each engine.

    A node takes the name of the first engine that it aligns with; one that aligns with none has a name of its own.
    """
    shared: list[dict[str, str]] = []
    for place, view in enumerate(views):
        found: dict[str, str] = {}
        for other, known in zip(views, shared, strict=False):
            ours, theirs = aligned_names(view, other)
            back = {name: node for node, name in theirs.items()}
            found = {node: known[back[name]] for node, name in ours.items() if name in back} | found
        shared.append({node: f"{place} {node}" for node in view.graph.nodes} | found)
    return shared


def kernel_graph(engines: Mapping[str, tuple[EngineView, Mapping[str, str]]]) -> "nx.Graph[Piece]":
    """The kernels of all engines, each joined to the nodes that it computes or finishes, by their shared names.

    Args:
        engines: By side, an engine and the names that its nodes share with those of the others.
    """
    graph: nx.Graph[Piece] = nx.Graph()
    for side, (engine, shared) in engines.items():
        for attribution in engine.attributions:
            kernel: Piece = (side, attribution.layer.index)
            if attribution.is_kernel:
                graph.add_node(kernel)
                names = filter(None, (*attribution.work, attribution.finishes))
                graph.add_edges_from((kernel, ("node", shared.get(name, f"{side} {name}"))) for name in names)
    return graph


def weight_stems(view: EngineView) -> dict[str, str]:
    """Conv or gemm of an engine to the stem of its weight's name, such as ``layer1.0.conv1``, each stem once."""
    pairs = _by_members(view) if view.by_name else _by_graph(view.graph)
    found: dict[str, str] = {}
    for node, stem in pairs:
        if stem not in found.values():
            found[node] = stem
    return found


def _names(view: EngineView, anchors: Mapping[str, str], common: set[str], *, alike: bool) -> dict[str, str]:
    found = {name: name for name in view.graph.nodes if alike or not _BY_PLACE.fullmatch(name)}
    return found | {name: f"weight {stem}" for name, stem in anchors.items() if stem in common}


def _number_alike(view: EngineView, other: EngineView) -> bool:
    """Whether the numbered convs and gemms of one engine are among those of the other."""
    ours, theirs = (
        {name for name, node in each.graph.nodes.items() if node.op in WEIGHTED and _BY_PLACE.fullmatch(name)}
        for each in (view, other)
    )
    return ours <= theirs or theirs <= ours


def _by_members(view: EngineView) -> Iterable[tuple[str, str]]:
    for layer in view.engine.layers:
        yield from weight_anchors(layer.members)


def _by_graph(graph: ModelGraph) -> Iterable[tuple[str, str]]:
    for node in graph.nodes.values():
        if node.op in WEIGHTED and len(node.inputs) > 1:
            weight = node.inputs[1]
            while (producer := graph.producer(weight)) and producer.op in QUANTIZE | DEQUANTIZE:
                weight = producer.inputs[0]
            if stem := weight_stem(weight):
                yield node.name, stem
