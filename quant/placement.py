"""Which activation tensors get Quantize/Dequantize pairs, and which of their readers read through them."""

from fusescope.graph import ops
from fusescope.graph.model import ModelGraph

HIGH_PRECISION = frozenset({"float", "float16", "bfloat16"})
"""The element types that can be quantized, as a graph calls them."""


def calibration_tensors(graph: ModelGraph) -> tuple[str, ...]:
    """List the activations that a placement may quantize: what weighted operations and sums read.

    Args:
        graph: A model without Q/DQ nodes. Bodies of If and Loop are not looked into.

    Returns:
        Tensors in the order in which they are first read, each once; constants and integers are none.
    """
    readers = ops.WEIGHTED | ops.SUMS
    read = (tensor for node in graph.nodes.values() if node.op in readers for tensor in graph.activations(node))
    return tuple(tensor for tensor in dict.fromkeys(read) if graph.tensors[tensor].dtype in HIGH_PRECISION | {""})
