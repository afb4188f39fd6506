"""The longest chain of kernels in which each must wait for the one before."""

import networkx as nx

from fusescope.profiler.attribution import Attribution
from fusescope.profiler.layers import Engine

_START = -1


def longest_chain(engine: Engine, attributions: tuple[Attribution, ...]) -> tuple[int, ...]:
    """Find the longest dependent chain of kernels.

    One layer waits for another if it reads what that writes, if it follows it on the same stream, or if it waits for
    an event that that signals.

    Args:
        engine: The engine.
        attributions: Its attributions, in the order of the layers.

    Returns:
        Indices of the kernels on the chain, in order. Its length is a count of kernels, not a time.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    last_on_stream: dict[int, int] = {}
    signalled: dict[int, int] = {}
    written: dict[str, list[int]] = {}

    for layer in engine.layers:
        before = [last_on_stream.get(layer.stream, _START)]
        if layer.event is not None and layer.event in signalled:
            before.append(signalled[layer.event])
        before.extend(index for tensor in layer.inputs for index in written.get(tensor.name, ()))
        weight = int(attributions[layer.index].is_kernel)
        graph.add_weighted_edges_from((index, layer.index, weight) for index in before)
        last_on_stream[layer.stream] = layer.index
        if layer.kind.lower() == "signal" and layer.event is not None:
            signalled[layer.event] = layer.index
        for tensor in layer.outputs:
            written.setdefault(tensor.name, []).append(layer.index)

    path = nx.dag_longest_path(graph, weight="weight")
    return tuple(index for index in path if index != _START and attributions[index].is_kernel)
