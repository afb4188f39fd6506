"""Spots of the graph with the kernels for them, before and after: what a drawing of a site or a finding is made of."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fusescope.graph.neighbourhood import Excerpt, Neighbourhood, excerpt, node_neighbourhood, site_neighbourhood
from fusescope.graph.sites import QuantizeSite
from fusescope.profiler.alignment import aligned_names
from fusescope.profiler.attribution import EngineView


@dataclass(frozen=True, slots=True)
class Spot:
    """One spot of the graph."""

    name: str
    """The tensor of a Quantize site, or a node that a finding names."""

    places: tuple[int, ...]
    """Its neighbourhood: indices of places in the excerpt, in topological order."""

    omitted: int
    """Readers that the neighbourhood has no room for."""

    kernels: tuple[int, ...]
    """Kernels of the explained engine that compute, finish or quantize any of it, in execution order."""

    baseline_kernels: tuple[int, ...]
    """Kernels of the baseline that compute any of it; empty without a baseline."""


def find_spots(
    view: EngineView, baseline: EngineView | None, sites: Iterable[QuantizeSite], names: Iterable[str]
) -> tuple[Excerpt, tuple[Spot, ...]]:
    """Find the spots of all sites, and of the nodes that findings name.

    Args:
        view: The explained engine.
        baseline: The engine that it is held against, if any.
        sites: The Quantize sites of its graph.
        names: Nodes and tensors that findings name.

    Returns:
        The part of the graph that the spots are in, and the spots, each name once.
    """
    graph = view.graph
    found: dict[str, Neighbourhood] = {}
    for site in sites:
        found.setdefault(site.tensor, site_neighbourhood(graph, site))
    for name in names:
        if name not in found and name in graph.nodes:
            found[name] = node_neighbourhood(graph, name)
    cut = excerpt(graph, found.values())
    index = {place.name: number for number, place in enumerate(cut.places)}
    after = _kernels(view)
    before = {} if baseline is None else _baseline_kernels(view, baseline)
    spots = (
        Spot(
            name,
            tuple(index[node] for node in around.nodes),
            around.omitted,
            _of_any(after, around.nodes),
            _of_any(before, around.nodes),
        )
        for name, around in found.items()
    )
    return cut, tuple(spots)


def _kernels(view: EngineView) -> Mapping[str, list[int]]:
    """Indices of the kernels that compute, finish or quantize each node."""
    found: dict[str, list[int]] = defaultdict(list)
    for attribution in view.attributions:
        if attribution.is_kernel:
            for name in {*attribution.work, *attribution.quantizes, attribution.finishes}:
                found[name].append(attribution.layer.index)
    return found


def _baseline_kernels(view: EngineView, baseline: EngineView) -> Mapping[str, list[int]]:
    """Indices of the baseline's kernels for each node of the explained engine."""
    ours, theirs = aligned_names(view, baseline)
    kernels: dict[str, list[int]] = {}
    for name, indices in _kernels(baseline).items():
        kernels.setdefault(theirs.get(name, ""), []).extend(indices)
    return {name: kernels[key] for name, key in ours.items() if key in kernels}


def _of_any(kernels: Mapping[str, list[int]], nodes: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({index for node in nodes for index in kernels.get(node, ())}))
