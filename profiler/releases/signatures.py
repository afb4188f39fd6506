"""What a Quantize site is like: the likeness by which one release's behaviour is carried over to another graph."""

from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.ops import WEIGHTED
from fusescope.graph.reader_rules import blocking_rule
from fusescope.graph.sites import QuantizeSite, conv_precision, weight_granularity


def signatures(graph: ModelGraph, site: QuantizeSite, runtime: str, target: str) -> tuple[str, ...]:
    """What a site is like, most precisely first.

    Args:
        graph: The graph.
        site: A Quantize site of it.
        runtime: Whose documented limits of 8-bit readers tell them apart.
        target: What would be compiled for.
    """
    path = "+".join(graph.nodes[name].op for name in site.path) or "-"
    readers = "+".join(sorted({_reader(graph, name, runtime, target) for name in site.readers})) or "-"
    shared = "shared" if site.high_precision_readers or site.branch_readers or site.is_graph_output else "own"
    form = f"{site.format} {_granularity(graph)}"
    producer = _producer(graph, site)
    return (
        f"{form}: {producer}, {path}, {shared}, read by {readers}",
        f"{form}: {producer}, {shared}, read by {readers}",
    )


def _producer(graph: ModelGraph, site: QuantizeSite) -> str:
    node = graph.nodes.get(site.producer or "")
    if node is None or node.op not in WEIGHTED:
        return site.producer_kind
    return f"{_operation(node)} in {conv_precision(graph, node) or 'high precision'}"


def _reader(graph: ModelGraph, name: str, runtime: str, target: str) -> str:
    node = graph.nodes[name]
    limit = blocking_rule(graph, node, runtime, target)
    return _operation(node) if limit is None else f"{_operation(node)} ({limit.name})"


def _operation(node: Node) -> str:
    return f"grouped {node.op}" if max(node.integers("group"), default=1) > 1 else node.op


def _granularity(graph: ModelGraph) -> str:
    """How the 8-bit weights of the graph are scaled: one word for the graph, since a recipe has one."""
    return next((word for node in graph.nodes.values() if (word := weight_granularity(graph, node))), "unweighted")
