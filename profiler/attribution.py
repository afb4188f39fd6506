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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.ops import ALIAS, DEQUANTIZE, MOVES, POINTWISE, QUANTIZE, WEIGHTED
from fusescope.profiler.kinds import GENERATED, NOT_KERNELS, OPERATIONS, TOKENS, WEIGHT, kind_group, tokens
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.naming import graph_by_name, name_group
from fusescope.profiler.paddings import paddings
from fusescope.profiler.resolve import resolve

TRANSPARENT = ALIAS | MOVES
"""Operations that compute nothing: they rename, convert or move."""

_FINISHING = POINTWISE | TRANSPARENT | {"BatchNormalization"}
_MULTIPLYING = frozenset({"conv", "gemm"})
_HEAVY = _MULTIPLYING | {"norm", "resize"}
_LAYOUT = frozenset({"copy", "reformat"})
_CONVERTING = frozenset({"copy", "pointwise", "reformat", ""})

GROUPED_BY: Mapping[str, str] = {
    "type": "its LayerType",
    "nodes": "the ONNX nodes that it computes",
    "tokens": "operations in the name of a generated kernel",
    "names": "words in names: nothing proves it",
}
"""What the group of a layer rests on."""

_EXPLICIT = "QDQ"  # `Origin` of a Reformat that is a Quantize or Dequantize of the model
_MOVING = frozenset({"copy", "pool", "reformat", "quantize"})


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

    carries_quantize: bool
    """Whether it writes the 8-bit tensor of a Quantize."""

    grouped_by: str
    """What the group rests on, a key of `GROUPED_BY`; empty for the group ``other``."""

    @property
    def is_kernel(self) -> bool:
        """Whether the layer runs on the GPU."""
        return self.group not in NOT_KERNELS


class EngineView:
    """An engine beside the ONNX graph that it was built from: who computes which node.

    Args:
        engine: The engine.
        graph: The ONNX graph that it was built from; None if it is not known. Then the graph is one of names only.
    """

    def __init__(self, engine: Engine, graph: ModelGraph | None) -> None:
        self.engine = resolve(engine, graph)
        self.by_name = graph is None
        self.graph = graph_by_name(self.engine) if graph is None else graph

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
        return "" if self.by_name else self.graph.tensors[self.graph.nodes[node].outputs[0]].dtype

    @cached_property
    def _computed_by(self) -> dict[int, list[str]]:
        computed: dict[int, list[str]] = {}
        for node, layers in self.weighted.items():
            for layer in layers:
                computed.setdefault(layer.index, []).append(node)
        return computed

    @cached_property
    def is_explicit(self) -> bool:
        """Whether Quantizes of the model were compiled, so that whatever writes 8 bits carries one of them."""
        named = any(node.op in QUANTIZE | DEQUANTIZE for node in self.graph.nodes.values())
        return named or any(layer.attributes.get("Origin") == _EXPLICIT for layer in self.engine.layers)

    def _attribution(self, layer: Layer) -> Attribution:
        writes_8_bits = any(tensor.is_eight_bit for tensor in layer.outputs)
        reads_8_bits = any(tensor.is_eight_bit for tensor in layer.inputs)
        quantizes = [node for node in self.nodes(layer) if node.op in QUANTIZE] if writes_8_bits else []
        quantizes = [node for node in quantizes if not self._quantizes_weight(node)]
        work = self._work(layer, quantizes)
        finishes = self.eight_bit_conv_behind(layer)
        group, direction, grouped_by = self._group(layer, work, finishes)
        carries = bool(quantizes)
        if self.by_name and self.is_explicit:
            makes = direction in {"quantize", "both"} or not (reads_8_bits and group in _MOVING)
            carries = writes_8_bits and group not in NOT_KERNELS and makes
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
            carries_quantize=carries,
            grouped_by=grouped_by,
        )

    def _quantizes_weight(self, node: Node) -> bool:
        return bool(node.inputs) and node.inputs[0] in self.graph.constants

    def _work(self, layer: Layer, quantizes: list[Node]) -> list[str]:
        computed = self._computed_by.get(layer.index, [])
        if quantizes and not self.by_name:
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

    def _group(self, layer: Layer, work: list[str], finishes: str) -> tuple[str, str, str]:
        """The layer's group, for the group ``quantize`` its direction, and what the group rests on."""
        operations = {operation for name in work if (operation := self.graph.nodes[name].op)}
        kind = kind_group(layer.kind) if layer.kind else name_group(layer.name)
        if direction := self._converts(layer, kind):
            return "quantize", direction, "type" if layer.kind else "names"
        group, grouped_by = _heaviest(layer, kind, operations)
        if (grouped_by == "nodes" and self.by_name) or (grouped_by == "type" and not layer.kind):
            grouped_by = "names"
        if kind != GENERATED or _proven(layer):
            return group, "", grouped_by
        if finishes and operations <= _FINISHING and self._only_from(finishes, work):
            return "epilogue", "", grouped_by
        direction = self._direction(layer) if operations <= TRANSPARENT else ""
        return ("quantize", direction, grouped_by) if direction else (group, "", grouped_by)

    def _converts(self, layer: Layer, kind: str) -> str:
        """Which way a layer that is a Quantize or Dequantize of the model by itself converts; empty for any other.

        Before generated kernels, those were layers of type Reformat, of origin QDQ, or of type Scale.
        """
        if kind not in _CONVERTING:
            return ""
        reads = any(tensor.is_eight_bit for tensor in layer.inputs)
        writes = any(tensor.is_eight_bit for tensor in layer.outputs)
        named = {node.op for node in self.nodes(layer)}
        only = bool(named) and named <= QUANTIZE | DEQUANTIZE
        scales = layer.kind.lower() == "scale" and writes and not reads
        if not (only or scales or layer.attributes.get("Origin") == _EXPLICIT):
            return ""
        if reads == writes:  # rounded in high precision, rescaled, or of unknown dtypes: then names tell
            one_way = {"quantize": named <= QUANTIZE, "dequantize": named <= DEQUANTIZE}
            return next((way for way, holds in one_way.items() if named and holds), "both")
        return "quantize" if writes else "dequantize"

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


def _heaviest(layer: Layer, kind: str, operations: set[str]) -> tuple[str, str]:
    """Group of the heaviest of: the layer's kind, the operations that it computes, its tokens if none is known.

    Returns:
        The group, and what it rests on.
    """
    by_nodes = {OPERATIONS.get(operation, "pointwise") for operation in operations}
    if kind == GENERATED:
        if by_nodes:
            return min(by_nodes | _proven(layer), key=WEIGHT.__getitem__), "nodes"
        by_tokens = {TOKENS.get(token, "pointwise") for token in tokens(layer.name)}
        return ("reformat" if by_tokens <= _LAYOUT else min(by_tokens, key=WEIGHT.__getitem__)), "tokens"
    if not kind:
        return (min(by_nodes, key=WEIGHT.__getitem__), "nodes") if by_nodes else ("other", "")
    if kind in _MULTIPLYING and (multiplying := by_nodes & _MULTIPLYING) and kind not in multiplying:
        # A 1x1 conv may run as a gemm, and a gemm as a conv: then the ONNX node knows better than the kind.
        return multiplying.pop(), "nodes"
    return kind, "" if kind == "other" else "type"


def _proven(layer: Layer) -> set[str]:
    """Work that the tokens of a generated kernel prove, whatever its metadata name."""
    return {TOKENS[token] for token in tokens(layer.name) if token in TOKENS} & _HEAVY


def shows_dtypes(layer: Layer) -> bool:
    """Whether the dump tells the element types that a layer's kernels read: not of a bare name or a closed region."""
    known = bool(layer.inputs) and all(tensor.dtype for tensor in layer.inputs)
    return known and kind_group(layer.kind) != "opaque"
