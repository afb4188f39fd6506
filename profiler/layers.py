"""The layer model: an engine as its inspector describes it, the same for every TensorRT version."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusescope.profiler.dtypes import DType, dtype_named


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a layer of an engine reads or writes."""

    name: str
    """The engine's name for it. Several layers may write slices of one tensor under one name."""

    shape: tuple[int, ...]
    """Dimensions in ONNX order; empty for a scalar; -1 where the dump does not know a size."""

    dtype_text: str
    """The element type in the dump's own word, such as ``Half``."""

    layout: str = ""
    """The memory format in the dump's own words, such as ``(NHWC) Channel major format``; empty if not said."""

    strides: tuple[int, ...] = ()
    """Elements between neighbours along each dimension; empty if not said."""

    channel_multiple: int = 1
    """What the layout rounds channels up to a multiple of; `bytes` includes that."""

    @property
    def dtype(self) -> DType | None:
        """The element type; None for a word that fusescope does not know."""
        return dtype_named(self.dtype_text)

    @property
    def dtype_name(self) -> str:
        """fusescope's word for the element type, or the dump's own where that is unknown."""
        return self.dtype.name if self.dtype else self.dtype_text

    @property
    def is_eight_bit(self) -> bool:
        """Whether the elements are quantized to 8 bits (FP8 or INT8)."""
        return self.dtype is not None and self.dtype.eight_bit

    @property
    def bytes(self) -> int | None:
        """Product of the dimensions times the element size; None if a size or the type is unknown.

        Channels are rounded up as the layout says. They are the third dimension from the end, or the fourth where it
        has three spatial ones.
        """
        if self.dtype is None or any(size < 0 for size in self.shape):
            return None
        elements = math.prod(self.shape)
        channel = len(self.shape) - (4 if "3 spatial" in self.layout else 3)
        if self.channel_multiple > 1 and channel >= 0 and elements:
            channels = self.shape[channel]
            elements = elements // channels * (channels + -channels % self.channel_multiple)
        return (elements * self.dtype.bits + 7) // 8


@dataclass(frozen=True, slots=True)
class Layer:
    """One entry of the engine inspector."""

    index: int
    """Place in execution order, from 0."""

    name: str
    """The layer's name. Names may repeat."""

    kind: str
    """The inspector's LayerType, such as ``correlation``."""

    inputs: tuple[Tensor, ...] = ()
    """Activations that it reads."""

    constants: tuple[Tensor, ...] = ()
    """Weights and literals that it reads."""

    outputs: tuple[Tensor, ...] = ()
    """Tensors that it writes."""

    tactic: str = ""
    """The kernel's name; empty where the dump has none."""

    stream: int = 0
    """The CUDA stream that it runs on, from 0."""

    event: int | None = None
    """The event that a signal or wait layer is about; None for every other layer."""

    onnx_nodes: tuple[str, ...] = ()
    """ONNX nodes that the metadata names: where the layer comes from, not what it computes."""

    notes: tuple[str, ...] = ()
    """What else the metadata says, such as ``__gemm_from_conv1x1``."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    """Every other key of the dump, as written."""

    members: tuple[str, ...] = ()
    """What its name says that it is fused from, such as ``Conv_0`` and ``Relu_1`` of ``Conv_0 + Relu_1``."""

    profile_index: int = 0
    """The optimization profile that it belongs to, from 0."""

    region: str = ""
    """Name of the region (``ForeignNode``) that a kernel was compiled from; empty if unknown."""

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Inputs and constants."""
        return self.inputs + self.constants


@dataclass(frozen=True, slots=True)
class UnreadLine:
    """A line of a dump that could not be read as a layer."""

    number: int
    """Line number in the dump, from 1."""

    text: str
    """The line as it stands."""


@dataclass(frozen=True)
class Engine:
    """A built engine: its layers in execution order."""

    layers: tuple[Layer, ...]
    """Every entry of the inspector."""

    inputs: tuple[Tensor, ...] = ()
    """The engine's own inputs."""

    outputs: tuple[Tensor, ...] = ()
    """The engine's own outputs."""

    unread: tuple[UnreadLine, ...] = ()
    """Lines of the dump that are not understood: what is missing in `layers`."""

    @cached_property
    def writers(self) -> Mapping[str, tuple[Layer, ...]]:
        """Tensor name to the layers that write it (several where they write slices of it)."""
        return _by_key(self.layers, lambda layer: (tensor.name for tensor in layer.outputs))

    @cached_property
    def readers(self) -> Mapping[str, tuple[Layer, ...]]:
        """Tensor name to the layers that read it as an activation."""
        return _by_key(self.layers, lambda layer: (tensor.name for tensor in layer.inputs))

    @cached_property
    def naming(self) -> Mapping[str, tuple[Layer, ...]]:
        """ONNX node name to the layers whose metadata name it."""
        return _by_key(self.layers, lambda layer: layer.onnx_nodes)


def _by_key(layers: tuple[Layer, ...], keys: Callable[[Layer], Iterable[str]]) -> Mapping[str, tuple[Layer, ...]]:
    index: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        for key in dict.fromkeys(keys(layer)):
            index[key].append(layer)
    return {key: tuple(found) for key, found in index.items()}
