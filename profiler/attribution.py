"""What each layer of an engine does: the ONNX work that it computes, its group, and the Quantizes that it carries.

The metadata of a layer says where it comes from, not what it computes: a kernel that pads the input of a conv names
that conv, and so does one that finishes what a conv began. The rules that tell them apart:

* A conv or gemm is computed by the layers naming it whose kind says so; where there is none, by those whose tokens say
  so; where there is none either, by all that name it.
* A named conv that another layer computes is a border: of a layer that feeds the conv's kernel, only named nodes before
  the conv are its work; of a layer that reads from the conv's kernel, only named nodes after it.
* Of a layer that writes a Quantize's 8-bit tensor, only named nodes upstream of that Quantize are its work.
* Dtypes come from tensors, never from names.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.ops import ALIAS, DEQUANTIZE, MOVES, POINTWISE, QUANTIZE, WEIGHTED
from fusescope.profiler.kinds import GENERATED, NOT_KERNELS, OPERATIONS, TOKENS, WEIGHT, kind_group, tokens
from fusescope.profiler.layers import Engine, Layer

TRANSPARENT = ALIAS | MOVES
"""Operations that compute nothing: they rename, convert or move."""

_FINISHING = POINTWISE | TRANSPARENT | {"BatchNormalization"}
_MULTIPLYING = frozenset({"conv", "gemm"})
_HEAVY = _MULTIPLYING | {"norm", "resize"}
_LAYOUT = frozenset({"copy", "reformat"})


@dataclass(frozen=True, slots=True)
class Attribution:
    """What one layer does."""

    layer: Layer
    """The layer."""

    group: str
    """Its heaviest work, a key of `fusescope.profiler.kinds.GROUPS`."""

    work: tuple[str, ...]
    """ONNX nodes that it computes, Quantizes and Dequantizes excepted; empty if none is known."""

    quantizes: tuple[str, ...]
    """Quantize nodes whose 8-bit tensor it writes."""

    direction: str
    """``quantize``, ``dequantize`` or ``both`` for a layer of the group ``quantize``; else empty."""

    finishes: str
    """The 8-bit conv or gemm whose raw accumulators it reads; empty if there is none."""

    pads: bool
    """Whether it adds channels of zeros."""

    dequantizes: bool
    """Whether it reads an 8-bit tensor and writes a high-precision one without multiplying weights."""

    partial: bool
    """Whether another layer computes a part of the same ONNX nodes, or the layer's name is cut short."""

    @property
    def is_kernel(self) -> bool:
        """Whether the layer runs on the GPU."""
        return self.group not in NOT_KERNELS

    @property
    def carries_quantize(self) -> bool:
        """Whether it writes the 8-bit tensor of a Quantize."""
        return bool(self.quantizes)


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros appended to the channels of a tensor."""

    channels: int
    """Channels of the tensor."""

    padded_channels: int
    """Channels that are written."""

    zero_bytes: int
    """Bytes of the zeros."""

    within_groups: bool
    """Whether each channel is padded by itself, for a depthwise conv, instead of all of them at their end."""


class EngineView:
    """An engine beside the ONNX graph that it was built from: who computes which node.

    Args:
        engine: The engine.
        graph: The ONNX graph that it was built from.
    """

    def __init__(self, engine: Engine, graph: ModelGraph) -> None:
        self.engine = engine
        self.graph = graph

    def nodes(self, layer: Layer) -> Iterator[Node]:
        """The ONNX nodes that a layer's metadata names and that the graph has."""
        return (node for name in layer.onnx_nodes if (node := self.graph.nodes.get(name)))

    @cached_property
    def weighted(self) -> dict[str, tuple[Layer, ...]]:
        """Conv or gemm node to the layers that compute it."""
        return {
            name: _computing(self.engine.naming[name])
            for name in self.engine.naming
            if name in self.graph.nodes and self.graph.nodes[name].op in WEIGHTED
        }

    @cached_property
    def attributions(self) -> tuple[Attribution, ...]:
        """What each layer does, in the order of the layers."""
        first = [self._attribution(layer) for layer in self.engine.layers]
        times: dict[str, int] = {}
        for attribution in first:
            for name in attribution.work:
                times[name] = times.get(name, 0) + 1
        return tuple(
            replace(attribution, partial=True) if any(times[name] > 1 for name in attribution.work) else attribution
            for attribution in first
        )

    def computing(self, node: str) -> tuple[Layer, ...]:
        """The layers that compute a node; empty if none is known."""
        if node in self.weighted:
            return self.weighted[node]
        return tuple(self._workers.get(node, ()))

    def computes(self, layer: Layer, node: str) -> bool:
        """Whether `layer` computes the conv or gemm `node`."""
        return any(layer is found for found in self.weighted.get(node, ()))

    def upstream_work(self, layer: Layer, tensor: str) -> list[str]:
        """Named nodes that lead to `tensor` and that `layer` computes, nearest first."""
        named = set(layer.onnx_nodes)
        work: list[str] = []
        seen: set[str] = set()
        stack = [tensor]
        while stack:
            node = self.graph.producer(stack.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            foreign = node.op in WEIGHTED and not self.computes(layer, node.name)
            if foreign or (node.name not in named and node.op not in TRANSPARENT):
                continue
            if node.name in named and node.op not in QUANTIZE | DEQUANTIZE:
                work.append(node.name)
            stack.extend(node.reads)
        return work

    def eight_bit_conv_behind(self, layer: Layer) -> str:
        """The 8-bit conv or gemm whose raw accumulators `layer` reads; empty if there is none.

        A conv's output is raw where the layer that reads it also names the conv (it adds bias or scale), or where it
        is fp32 although the model's own tensor is not.
        """
        for tensor in layer.inputs:
            for writer in self.engine.writers.get(tensor.name, ()):
                for node in self._computed_by.get(writer.index, ()):
                    runs_in_8_bits = any(read.is_eight_bit for read in writer.inputs)
                    raw = node in layer.onnx_nodes or (
                        tensor.dtype_name == "fp32" and self._output_dtype(node) not in {"float32", ""}
                    )
                    if runs_in_8_bits and raw and not self.computes(layer, node):
                        return node
        return ""

    @cached_property
    def _workers(self) -> dict[str, list[Layer]]:
        workers: dict[str, list[Layer]] = {}
        for attribution in self.attributions:
            for name in attribution.work:
                workers.setdefault(name, []).append(attribution.layer)
        return workers

    def _output_dtype(self, node: str) -> str:
        return self.graph.tensors[self.graph.nodes[node].outputs[0]].dtype

    @cached_property
    def _computed_by(self) -> dict[int, list[str]]:
        computed: dict[int, list[str]] = {}
        for node, layers in self.weighted.items():
            for layer in layers:
                computed.setdefault(layer.index, []).append(node)
        return computed

    def _attribution(self, layer: Layer) -> Attribution:
        writes_8_bits = any(tensor.is_eight_bit for tensor in layer.outputs)
        reads_8_bits = any(tensor.is_eight_bit for tensor in layer.inputs)
        quantizes = [node for node in self.nodes(layer) if node.op in QUANTIZE] if writes_8_bits else []
        work = self._work(layer, quantizes)
        finishes = self.eight_bit_conv_behind(layer)
        group, direction = self._group(layer, work, finishes)
        return Attribution(
            layer=layer,
            group=group,
            work=tuple(work),
            quantizes=tuple(node.name for node in quantizes),
            direction=direction,
            finishes=finishes,
            pads=bool(paddings(layer)),
            dequantizes=reads_8_bits and not writes_8_bits and group not in _MULTIPLYING,
            partial=tokens(layer.name)[-1:] == ("Etc",),
        )

    def _work(self, layer: Layer, quantizes: list[Node]) -> list[str]:
        computed = self._computed_by.get(layer.index, [])
        if quantizes:
            upstream = [self.upstream_work(layer, node.inputs[0]) for node in quantizes]
            return list(dict.fromkeys([*computed, *(name for names in upstream for name in names)]))
        ahead, behind = self._borders(layer)
        return [
            node.name
            for node in self.nodes(layer)
            if node.op not in QUANTIZE | DEQUANTIZE
            and (node.op not in WEIGHTED or node.name in computed)
            and node.name not in ahead
            and node.name not in behind
        ]

    def _borders(self, layer: Layer) -> tuple[set[str], set[str]]:
        """Named nodes that lie beyond a conv that another layer computes: after one it feeds, before one it reads."""
        named = {node.name for node in self.nodes(layer)}
        ahead: set[str] = set()
        behind: set[str] = set()
        for name in named:
            for other in self.weighted.get(name, ()):
                if other is layer:
                    continue
                if _feeds(layer, other):
                    ahead |= self._reach(name, named, forward=True)
                elif _feeds(other, layer):
                    behind |= self._reach(name, named, forward=False)
        return ahead, behind

    def _reach(self, start: str, within: set[str], *, forward: bool) -> set[str]:
        found: set[str] = set()
        stack = [self.graph.nodes[start]]
        while stack:
            node = stack.pop()
            for near in self._next(node, forward=forward):
                if near.name in within and near.name not in found:
                    found.add(near.name)
                    stack.append(near)
        return found

    def _next(self, node: Node, *, forward: bool) -> Iterable[Node]:
        if forward:
            return (reader for tensor in node.outputs for reader in self.graph.readers(tensor))
        return (producer for tensor in node.reads if (producer := self.graph.producer(tensor)))

    def _group(self, layer: Layer, work: list[str], finishes: str) -> tuple[str, str]:
        """The layer's group and, for the group ``quantize``, its direction."""
        operations = {self.graph.nodes[name].op for name in work}
        group = _heaviest(layer, operations)
        if kind_group(layer.kind) != GENERATED or _proven(layer):
            return group, ""
        if finishes and operations <= _FINISHING and self._only_from(finishes, work):
            return "epilogue", ""
        direction = self._direction(layer) if operations <= TRANSPARENT else ""
        return ("quantize", direction) if direction else (group, "")

    def _only_from(self, conv: str, work: list[str]) -> bool:
        """Whether all that flows into `work` from outside is the result of `conv` (and constants)."""
        inside = {conv, *work}
        for name in work:
            for tensor in self.graph.nodes[name].reads:
                producer = self.graph.producer(tensor)
                while producer is not None and producer.name not in inside and producer.op in TRANSPARENT:
                    producer = self.graph.producer(producer.inputs[0])
                foreign = producer is None or producer.name not in inside
                if foreign and tensor not in self.graph.constants:
                    return False
        return True

    def _direction(self, layer: Layer) -> str:
        """Which way a layer that computes nothing of the model converts; empty if it converts nothing."""
        named = any(node.op in QUANTIZE for node in self.nodes(layer))
        if any(tensor.is_eight_bit for tensor in layer.outputs):
            return "quantize" if named else ""
        if any(tensor.is_eight_bit for tensor in layer.reads):
            return "dequantize"
        return "both" if named else ""


def _computing(named_by: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Those of the layers naming a conv or gemm that compute it."""
    by_kind = tuple(layer for layer in named_by if kind_group(layer.kind) in _MULTIPLYING)
    by_tokens = tuple(layer for layer in named_by if _proven(layer) & _MULTIPLYING)
    return by_kind or by_tokens or named_by


def _feeds(first: Layer, second: Layer) -> bool:
    written = {tensor.name for tensor in first.outputs}
    return any(tensor.name in written for tensor in second.inputs)


def _heaviest(layer: Layer, operations: set[str]) -> str:
    """Group of the heaviest of: the layer's kind, the operations that it computes, its tokens if none is known."""
    kind = kind_group(layer.kind)
    by_nodes = {OPERATIONS.get(operation, "pointwise") for operation in operations}
    if kind != GENERATED:
        # A 1x1 conv may run as a gemm: then the ONNX node knows better than the kind.
        return "conv" if kind == "gemm" and "conv" in by_nodes else kind
    if not by_nodes:
        by_tokens = {TOKENS.get(token, "pointwise") for token in tokens(layer.name)}
        return "reformat" if by_tokens <= _LAYOUT else min(by_tokens, key=WEIGHT.__getitem__)
    return min(by_nodes | _proven(layer), key=WEIGHT.__getitem__)


def _proven(layer: Layer) -> set[str]:
    """Work that the tokens of a generated kernel prove, whatever its metadata name."""
    return {TOKENS[token] for token in tokens(layer.name) if token in TOKENS} & _HEAVY


def shows_dtypes(layer: Layer) -> bool:
    """Whether the dump tells the element types that a layer's kernels read: not of a bare name or a closed region."""
    known = bool(layer.inputs) and all(tensor.dtype for tensor in layer.inputs)
    return known and kind_group(layer.kind) != "opaque"


def paddings(layer: Layer) -> tuple[Padding, ...]:
    """Each block of zeros that a layer adds to the channels of what it reads; empty for a layer that pads nothing.

    It pads if an output is as wide in channels as an input and a constant of the output's dtype together, and both
    are equal to it in all else.
    """
    found = []
    for constant in (tensor for tensor in layer.constants if len(tensor.shape) > 2):
        for written in (tensor for tensor in layer.outputs if tensor.dtype_text == constant.dtype_text):
            for read in layer.inputs:
                if _appended(read.shape, constant.shape, written.shape):
                    found.append(Padding(read.shape[1], written.shape[1], constant.bytes or 0, within_groups=False))
                elif _interleaved(read.shape, constant.shape, written.shape):
                    found.append(Padding(read.shape[1], written.shape[1], constant.bytes or 0, within_groups=True))
                else:
                    continue
                break
    return tuple(found)


def _appended(read: tuple[int, ...], zeros: tuple[int, ...], written: tuple[int, ...]) -> bool:
    """Whether zeros of the same height and width are concatenated to the channels."""
    same = len(read) == len(zeros) and read[:1] + read[2:] == zeros[:1] + zeros[2:]
    return same and written == (read[0], read[1] + zeros[1], *read[2:])


def _interleaved(read: tuple[int, ...], zeros: tuple[int, ...], written: tuple[int, ...]) -> bool:
    """Whether every channel gets channels of zeros of its own: zeros of (N, C, added, ...), as for depthwise convs."""
    same = len(zeros) == len(read) + 1 and zeros[:2] == read[:2] and zeros[3:] == read[2:]
    return same and written == (read[0], read[1] * (1 + zeros[2]), *read[2:])
