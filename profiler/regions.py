"""Engines aligned: the regions of a model, each with the layers that compute it in every engine.

Layers are in one region if they compute the same ONNX nodes. What names leave open is aligned by type and shape, then
by operations that one engine runs inside a layer and another beside it, then by place: what lies between the same
regions. Changes of format and Quantizes that stand alone compute nothing: they are aligned by place only.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.alignment import kernel_graph, shared_names
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.kinds import NOT_KERNELS
from fusescope.profiler.layers import Layer

ALIGNED_BY: Mapping[str, str] = {
    "nodes": "ONNX nodes that the layers compute",
    "names": "names in the recordings, which no ONNX model proves",
    "shapes": "type and shapes of the layers, in order of execution",
    "place": "the regions before and behind",
}
"""What says that layers of several engines do the same."""

_CONVERSIONS = frozenset({"quantize", "reformat", "copy"})
_Place = tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the model in several engines."""

    layers: tuple[tuple[int, ...], ...]
    """Indices of its layers in each engine, in the order of the engines; empty where an engine has none."""

    aligned_by: str
    """A key of `ALIGNED_BY`; empty for a region of one engine."""

    converts: str
    """What its layers do to a tensor, such as ``quantize`` or ``reformat``; empty for layers that compute."""

    before: tuple[int, ...]
    """Of layers that convert: places of the regions whose tensors they read; empty at an input of the engine."""

    behind: tuple[int, ...]
    """Of layers that convert: places of the regions that read what they write; empty at an output of the engine."""


def align(views: Sequence[EngineView]) -> tuple[Region, ...]:
    """Align engines; every layer of each is in exactly one region.

    Args:
        views: The engines beside their graphs, the reference first.
    """
    alignment = _Alignment(views)
    for side in range(1, len(views)):
        alignment.fold(side)
    alignment.place_conversions()
    return alignment.regions()


class _Alignment:
    """Regions while they are found: layers by region and side, and the region of each layer by side."""

    def __init__(self, views: Sequence[EngineView]) -> None:
        self.views = views
        self.sides = range(len(views))
        self.members: dict[int, list[list[int]]] = {}
        self.how: dict[int, str] = {}
        self.converts: dict[int, str] = {}
        self.homes: list[dict[int, int]] = [{} for _ in views]
        names = shared_names(views)
        sides = {str(side): (view, names[side]) for side, view in enumerate(views)}
        for component in nx.connected_components(kernel_graph(sides)):
            pieces = [(int(side), index) for side, index in component if side != "node" and isinstance(index, int)]
            if len({side for side, _ in pieces}) > 1 or not all(self._is_conversion(*piece) for piece in pieces):
                self._add(pieces, "names" if any(view.by_name for view in views) else "nodes")

    def fold(self, side: int) -> None:
        """Align what is still open on one side with the sides before it."""
        while self._match(side, self._signature_in_place) or self._match(side, self._signature):
            pass
        while self._absorb(side):
            pass
        self._enclose(side)

    def place_conversions(self) -> None:
        """Put the layers that compute nothing into regions, by their places."""
        anchors = {region for region, members in self.members.items() if all(members)}
        found: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for side in self.sides:
            places = self._places(side, anchors)
            for attribution in self.views[side].attributions:
                index = attribution.layer.index
                if index not in self.homes[side]:
                    what = attribution.direction or attribution.group
                    found[what, places[index] if attribution.is_kernel else ()].append((side, index))
        for (what, _), pieces in found.items():  # type: ignore[misc]
            self.converts[self._add(pieces, "place")] = what

    def regions(self) -> tuple[Region, ...]:
        """All regions, in the order in which the engines reach them."""
        order = sorted(self.members, key=self._first)
        computing = {region: place for place, region in enumerate(order)}
        anchors = set(self.members) - set(self.converts)
        places = [self._places(side, anchors) for side in self.sides]
        found = []
        for region in order:
            members = self.members[region]
            pieces = [(side, index) for side in self.sides for index in members[side] if region in self.converts]
            kernels = [piece for piece in pieces if self.converts[region] not in NOT_KERNELS]
            ends = [{near for side, index in kernels for near in places[side][index][end]} for end in (0, 1)]
            found.append(
                Region(
                    layers=tuple(tuple(sorted(each)) for each in members),
                    aligned_by=self.how[region] if sum(map(bool, members)) > 1 else "",
                    converts=self.converts.get(region, ""),
                    before=tuple(sorted(computing[near] for near in ends[0])),
                    behind=tuple(sorted(computing[near] for near in ends[1])),
                )
            )
        return tuple(found)

    def _add(self, pieces: Iterable[tuple[int, int]], how: str) -> int:
        region = len(self.how)
        self.members[region] = [[] for _ in self.sides]
        self.how[region] = how
        for side, index in pieces:
            self.members[region][side].append(index)
            self.homes[side][index] = region
        return region

    def _merge(self, region: int, other: int, how: str) -> None:
        for side, indices in enumerate(self.members.pop(other)):
            self.members[region][side] += indices
            self.homes[side].update(dict.fromkeys(indices, region))
        self.how[region] = how

    def _open(self, side: int) -> tuple[list[int], list[int]]:
        """Regions of sides before this one that it has nothing for, and regions that it is the first to have."""
        before = [region for region, members in self.members.items() if any(members[:side]) and not members[side]]
        new = [region for region, members in self.members.items() if members[side] and not any(members[:side])]
        return sorted(before, key=self._first), sorted(new, key=self._first)

    def _anchors(self, side: int) -> set[int]:
        return {region for region, members in self.members.items() if members[side] and any(members[:side])}

    def _match(self, side: int, key: Callable[[int, int, list[_Place]], Hashable]) -> bool:
        """Join open regions with equal keys, the first to the first, where both sides have as many of them."""
        anchors, matched = self._anchors(side), False
        places = [self._places(each, anchors) for each in range(side + 1)]
        pairs: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for end, regions in enumerate(self._open(side)):
            for region in regions:
                at = self._side(region)
                if self._signature(region, at, places[at]) is not None:
                    pairs[key(region, at, places[at])][end].append(region)
        for before, new in pairs.values():
            if len(before) == len(new):
                for region, other in zip(before, new, strict=True):
                    self._merge(region, other, "shapes")
                    matched = True
        return matched

    def _absorb(self, side: int) -> bool:
        """Join open regions to a region beside them that runs their operations inside its layers elsewhere."""
        anchors, merged = self._anchors(side), False
        places = [self._places(each, anchors) for each in range(side + 1)]
        for region in (region for regions in self._open(side) for region in regions):
            at = self._side(region)
            operations = self._operations(region, at)
            near = self._place(region, places[at])
            for anchor in sorted(near[0] | near[1]) if operations else ():
                own = self._operations(anchor, at)
                others = (self._operations(anchor, each) for each in range(side + 1) if each != at)
                if any(operations <= other - own for other in others):
                    self._merge(anchor, region, self.how[anchor])
                    merged = True
                    break
        return merged

    def _enclose(self, side: int) -> None:
        """Join what is left over between the same regions."""
        anchors = self._anchors(side)
        places = [self._places(each, anchors) for each in range(side + 1)]
        pairs: dict[_Place, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for end, regions in enumerate(self._open(side)):
            for region in regions:
                pairs[self._place(region, places[self._side(region)])][end].append(region)
        for place, (before, new) in pairs.items():
            if before and new and any(place):
                for other in (*before[1:], *new):
                    self._merge(before[0], other, "place")

    def _places(self, side: int, anchors: set[int]) -> list[_Place]:
        """For each layer the nearest of some regions before it and behind it, through all that lies between."""
        engine, home = self.views[side].engine, self.homes[side]
        before: dict[int, frozenset[int]] = {}
        behind: dict[int, frozenset[int]] = {}
        for layer in engine.layers:
            near = (other for tensor in layer.inputs for other in engine.writers.get(tensor.name, ()))
            before[layer.index] = _seen(
                layer, (other for other in near if other.index in before), home, anchors, before
            )
        for layer in reversed(engine.layers):
            near = (other for tensor in layer.outputs for other in engine.readers.get(tensor.name, ()))
            behind[layer.index] = _seen(
                layer, (other for other in near if other.index in behind), home, anchors, behind
            )
        return [(before[layer.index], behind[layer.index]) for layer in engine.layers]

    def _place(self, region: int, places: list[_Place]) -> _Place:
        indices = self.members[region][self._side(region)]
        before, behind = zip(*(places[index] for index in indices), strict=True)
        return frozenset().union(*before) - {region}, frozenset().union(*behind) - {region}

    def _signature(self, region: int, side: int, _: list[_Place]) -> Hashable:
        """Group and shapes of a region's first layer with a conv or gemm, or first layer; None if they are unknown.

        Without the first dimension, which is the batch.
        """
        view = self.views[side]
        layers = [view.engine.layers[index] for index in sorted(self.members[region][side])]
        layer = next((layer for layer in layers if _multiplies(view, layer)), layers[0])
        if not layer.inputs or not layer.outputs:
            return None
        shapes = (layer.inputs[0].shape, layer.outputs[0].shape)
        known = all(shape and min(shape) > 0 for shape in shapes)
        return (view.attributions[layer.index].group, *(shape[1:] for shape in shapes)) if known else None

    def _signature_in_place(self, region: int, side: int, places: list[_Place]) -> Hashable:
        return self._signature(region, side, places), self._place(region, places)

    def _operations(self, region: int, side: int) -> Counter[str]:
        view = self.views[side]
        names = {name for index in self.members[region][side] for name in view.attributions[index].work}
        return Counter(view.graph.nodes[name].op for name in names if view.graph.nodes[name].op)

    def _side(self, region: int) -> int:
        return next(side for side, indices in enumerate(self.members[region]) if indices)

    def _first(self, region: int) -> tuple[float, int]:
        """How far into its engine a region begins."""
        side = self._side(region)
        return min(self.members[region][side]) / len(self.views[side].engine.layers), side

    def _is_conversion(self, side: int, index: int) -> bool:
        attribution = self.views[side].attributions[index]
        return attribution.group in _CONVERSIONS and (attribution.group != "copy" or not attribution.work)


def _multiplies(view: EngineView, layer: Layer) -> bool:
    return any(view.graph.nodes[name].op in WEIGHTED for name in view.attributions[layer.index].work)


def _seen(
    layer: Layer,
    near: Iterable[Layer],
    home: Mapping[int, int],
    anchors: set[int],
    known: Mapping[int, frozenset[int]],
) -> frozenset[int]:
    """The anchors that a layer sees in one direction: its neighbours', or what they see."""
    own, seen = home.get(layer.index), set[int]()
    for other in near:
        region = home.get(other.index)
        if region is not None and region in anchors and region != own:
            seen.add(region)
        else:
            seen |= known[other.index]
    return frozenset(seen)
