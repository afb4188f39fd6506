"""Steps through a graph that more than one analysis takes."""

from fusescope.graph import ops
from fusescope.graph.model import ModelGraph, Node

_LONGEST_ACTIVATION = 16
"""Nodes of the longest activation that exporters spell out, with room: GELU by tanh has 9."""


def pointwise_base(graph: ModelGraph, node: Node) -> tuple[str | None, list[Node]]:
    """See whether `node` ends an activation that is spelled out, such as SiLU as Sigmoid and Mul.

    That is so if `node` has two operands, and both come from one tensor through pointwise operations alone.

    Returns:
        That tensor and the nodes of the activation; None and no nodes otherwise. Takes constant time.
    """
    frontier = set(graph.activations(node))
    nodes = [node]
    if node.op not in ops.POINTWISE or len(frontier) < 2:
        return None, []
    while len(frontier) > 1 and len(nodes) < _LONGEST_ACTIVATION:
        made = [producer for tensor in frontier if (producer := graph.producer(tensor)) is not None]
        if not made:
            return None, []
        last = max(made, key=lambda producer: graph.positions[producer.name])
        if last.op not in ops.POINTWISE:
            return None, []
        frontier = frontier.difference(last.outputs).union(graph.activations(last))
        nodes.append(last)
    return (frontier.pop(), nodes) if len(frontier) == 1 else (None, [])
