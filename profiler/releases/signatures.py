"""What a Quantize site is like: the likeness by which one release's behaviour is carried over to another graph."""

from fusescope.graph.model import ModelGraph
from fusescope.graph.ops import DEQUANTIZE, WEIGHTED
from fusescope.graph.sites import QuantizeSite


def signatures(graph: ModelGraph, site: QuantizeSite) -> tuple[str, ...]:
    """What a site is like, most precisely first.

    Args:
        graph: The graph.
        site: A Quantize site of it.
    """
    path = "+".join(graph.nodes[name].op for name in site.path) or "-"
    readers = "+".join(sorted({graph.nodes[name].op for name in site.readers})) or "-"
    shared = "shared" if site.high_precision_readers or site.branch_readers or site.is_graph_output else "own"
    form = f"{site.format} {_granularity(graph)}"
    kind = site.producer_kind
    return (
        f"{form}: {kind}, {path}, {shared}, read by {readers}",
        f"{form}: {kind}, {path}, {shared}",
        f"{form}: {kind}, {shared}",
    )


def _granularity(graph: ModelGraph) -> str:
    """How the 8-bit weights of the graph are scaled: one word for the graph, since a recipe has one."""
    for node in graph.nodes.values():
        if node.op not in WEIGHTED or len(node.inputs) < 2:
            continue
        behind = graph.producer(node.inputs[1])
        if behind is not None and behind.op in DEQUANTIZE:
            shape = graph.tensors[behind.inputs[1]].shape or ()
            return "per-channel" if len(shape) == 1 and shape != (1,) else "per-tensor"
    return "unweighted"
