"""The convolution that a layer computes, by its node in the graph or else by what the recording says of it."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from fusescope.graph.model import ModelGraph, Node
from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.layers import Layer

_CONV = frozenset({"Conv", "ConvTranspose"})
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Convolution:
    """A layer that computes a convolution."""

    layer: Layer
    """The layer."""

    nodes: tuple[str, ...]
    """Its convolutions among the ONNX nodes; what it names where they are not known."""

    dtype: str
    """Element type that is multiplied: of 8-bit inputs if there are any, ``tf32`` if the kernel's name says so."""

    groups: int | None
    """Groups; None if not known."""

    channels: int | None
    """Channels that each group reads; None if not known."""

    kernel: tuple[int, ...]
    """Kernel extents; empty if not known."""

    @property
    def rows(self) -> int | None:
        """Pixels that it computes, over the whole batch; None if not known."""
        shape = self.layer.outputs[0].shape if self.layer.outputs else ()
        sizes = (*shape[:1], *shape[2:])
        return math.prod(sizes) if sizes and min(sizes) >= 0 else None

    @property
    def written(self) -> int | None:
        """Channels that it writes; None if not known."""
        shape = self.layer.outputs[0].shape if self.layer.outputs else ()
        return shape[1] if len(shape) > 1 and shape[1] >= 0 else None

    @property
    def is_depthwise(self) -> bool:
        """Whether each group reads a single channel: there is no matrix to multiply."""
        told = self.groups is not None and self.groups > 1 and self.channels == 1
        return told or "depthwise" in f"{self.layer.kind} {self.layer.tactic}".lower()


@lru_cache(maxsize=4)
def convolutions(view: EngineView) -> tuple[Convolution, ...]:
    """The layers that compute a convolution, in order; kept for the engines last asked about."""
    convs = (each for each in view.attributions if each.group == "conv" and each.layer.inputs)
    return tuple(_convolution(attribution, view.graph) for attribution in convs)


def _convolution(attribution: Attribution, graph: ModelGraph) -> Convolution:
    layer = attribution.layer
    nodes = [graph.nodes[name] for name in attribution.work if graph.nodes[name].op in _CONV]
    shapes = (_of_node(nodes[0], graph) if nodes else None) or _told(layer) or _of_constants(layer) or (None, None, ())
    groups, channels, kernel = shapes
    names = tuple(node.name for node in nodes) or layer.onnx_nodes
    return Convolution(layer, names, _dtype(layer), groups, channels, kernel)


def _dtype(layer: Layer) -> str:
    read = next((tensor for tensor in layer.inputs if tensor.is_eight_bit), layer.inputs[0])
    return "tf32" if read.dtype_name == "fp32" and "tf32" in layer.tactic.lower() else read.dtype_name


_Shapes = tuple[int | None, int | None, tuple[int, ...]]


def _of_node(node: Node, graph: ModelGraph) -> _Shapes | None:
    """Groups, channels that each reads, and kernel extents, by the weights of a node; None if those are not known."""
    info = graph.tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
    weight = [size for size in (info.shape if info else None) or () if isinstance(size, int)]
    if len(weight) < 3:
        return None
    groups = max(node.integers("group"), default=1)
    return groups, weight[0] // groups if node.op == "ConvTranspose" else weight[1], tuple(weight[2:])


def _told(layer: Layer) -> _Shapes | None:
    """The same by the keys of TensorRT up to 10, ``Groups`` and ``Kernel``; None without them."""
    keys = next((prefix for prefix in ("", "Conv") if f"{prefix}Groups" in layer.attributes), None)
    shape = layer.inputs[0].shape
    if keys is None or len(shape) < 2 or shape[1] < 0:
        return None
    groups = _numbers(layer.attributes[f"{keys}Groups"])
    if not groups or not groups[0]:
        return None
    return groups[0], shape[1] // groups[0], _numbers(layer.attributes.get(f"{keys}Kernel", ""))


def _of_constants(layer: Layer) -> _Shapes | None:
    """The same by a constant as long as the output has channels, as TensorRT 11 lists it; None without one."""
    written = layer.outputs[0].shape if layer.outputs else ()
    read = layer.inputs[0].shape
    for constant in layer.constants:
        shape = constant.shape
        if len(shape) == len(written) == len(read) > 2 and shape[0] == written[1] and 0 < shape[1] <= read[1]:
            return read[1] // shape[1], shape[1], shape[2:]
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number[:9]) for number in _NUMBERS.findall(text))
