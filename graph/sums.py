"""Sums of activations: which are residual sums of a block, and which fuse branches of a network."""

from collections.abc import Iterable

from fusescope.graph import ops
from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.walk import pointwise_base

_LARGEST_BLOCK = 1000
"""Nodes looked at for the start of a block, at most: it keeps the analysis linear."""


def is_sum(graph: ModelGraph, node: Node) -> bool:
    """Whether `node` adds two or more activations that are not one and the same activation's parts."""
    if node.op not in ops.SUMS or len(graph.activations(node)) < 2:
        return False
    return pointwise_base(graph, node)[0] is None


def sum_kind(graph: ModelGraph, node: Node) -> str:
    """Tell what a sum joins.

    Returns:
        "fuse sum" for three or more branches (also through chains of Adds) or different resolutions;
        "residual sum" for a branch with a conv or gemm and the skip of the same block; "sum" for all others.
    """
    branches = list(_branches(graph, node))
    if len(branches) > 2:
        return "fuse sum"
    one, other = (_block(graph, branch) for branch in branches)
    shared = one.keys() & other.keys()
    # What each branch does after the two part; without a common start, all that it does since the last sum.
    own = [
        [maker for tensor, maker in block.items() if maker is not None and tensor not in shared]
        for block in (one, other)
    ]
    upsampled = [any(maker.op in ops.UPSAMPLES for maker in makers) for makers in own]
    if shared:
        if upsampled[0] != upsampled[1]:
            return "fuse sum"
        weighted = any(maker.op in ops.WEIGHTED for makers in own for maker in makers)
        return "residual sum" if weighted else "sum"
    strided = any(max(maker.integers("strides"), default=1) > 1 for makers in own for maker in makers)
    return "fuse sum" if strided or any(upsampled) else "sum"


def _branches(graph: ModelGraph, node: Node) -> Iterable[str]:
    """Yield what a chain of Adds sums: tensors that are no sum themselves, or a sum that others read too."""
    pending = list(graph.activations(node))
    while pending:
        tensor = pending.pop()
        producer = graph.producer(tensor)
        while producer is not None and producer.op in ops.ALIAS and len(graph.readers(tensor)) == 1:
            tensor = producer.inputs[0]
            producer = graph.producer(tensor)
        alone = len(graph.readers(tensor)) == 1 and tensor not in graph.outputs
        if producer is not None and alone and is_sum(graph, producer):
            pending += graph.activations(producer)
        else:
            yield tensor


def _block(graph: ModelGraph, tensor: str) -> dict[str, Node | None]:
    """Return the activations that `tensor` is computed from since the last sums, each with what makes it."""
    block: dict[str, Node | None] = {}
    pending = [tensor]
    while pending and len(block) < _LARGEST_BLOCK:
        tensor = pending.pop()
        if tensor in block:
            continue
        producer = graph.producer(tensor)
        block[tensor] = producer
        if producer is not None and not is_sum(graph, producer):
            pending += graph.activations(producer)
    return block
