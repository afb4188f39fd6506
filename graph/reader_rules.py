"""Which convs, gemms and other readers cannot run in the 8 bits that the graph asks for, or run badly."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from fusescope.graph import ops
from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.sites import conv_precision, operand_format

_BOTH = frozenset({"tensorrt", "tensorrt-rtx"})
_RTX = frozenset({"tensorrt-rtx"})
_TENSORRT = frozenset({"tensorrt"})
_PROBES = "fusescope's probes of TensorRT for RTX 1.7.1, compiled ahead of time for sm89 and sm120"

_MOVES = ops.ALIAS | ops.MOVES
_READS_8_BITS = ops.RUNS_IN_8_BITS | ops.QUANTIZE | ops.ACTIVATIONS

FP8_MOST_TAPS = 32
"""Kernel extents multiplied: the most that FP8 convs have kernels for on some targets."""


@dataclass(frozen=True, slots=True)
class ReaderRule:
    """A documented limit of 8-bit kernels."""

    name: str
    """Stable key of the rule."""
    blocks: bool
    """True: the node runs in high precision instead. False: it runs in 8 bits, but not well."""
    reason: str
    """Short stable text to group nodes by."""
    explanation: str
    """One sentence: what happens and why."""
    source: str
    """Document that says so."""
    remedy: str
    """What to try."""
    applies: Callable[[ModelGraph, Node], bool]
    """Whether a node is one of those that the limit is about."""
    runtimes: frozenset[str] = _BOTH
    """Runtimes that the limit holds for."""
    targets: frozenset[str] | None = None
    """SMs that the limit holds for; None for all."""
    formats: frozenset[str] | None = None
    """Formats of a dequantized operand that the limit holds for; None for all."""


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """A node that a limit of 8-bit kernels concerns."""

    node: str
    """Name of the node."""
    rule: ReaderRule
    """The limit."""


def node_findings(graph: ModelGraph, runtime: str = "tensorrt", target: str | None = None) -> tuple[NodeFinding, ...]:
    """List all limits that concern the quantized convs, gemms and other readers of a model.

    Args:
        graph: The model.
        runtime: "tensorrt" or "tensorrt-rtx".
        target: SM such as "sm89". Limits of some targets only are left out when it is None.

    Returns:
        Findings in topological order of the nodes; a node may have several.
    """
    return tuple(
        NodeFinding(node.name, rule)
        for node in graph.nodes.values()
        for rule in _limits(graph, node, _rules_for(runtime, target, blocking=False))
    )


def blocking_rule(graph: ModelGraph, node: Node, runtime: str, target: str | None) -> ReaderRule | None:
    """Return the first limit that keeps a reader of 8 bits in high precision; None if there is none."""
    return next(_limits(graph, node, _rules_for(runtime, target, blocking=True)), None)


@cache
def _rules_for(runtime: str, target: str | None, *, blocking: bool) -> tuple[ReaderRule, ...]:
    """Return the rules of a runtime and target, all or only those that block."""
    return tuple(
        rule
        for rule in READER_RULES
        if runtime in rule.runtimes
        and (rule.targets is None or target in rule.targets)
        and (rule.blocks or not blocking)
    )


def _limits(graph: ModelGraph, node: Node, rules: tuple[ReaderRule, ...]) -> Iterator[ReaderRule]:
    """Yield those of `rules` that concern a node, in the order of the table."""
    formats = {operand_format(graph, tensor) for tensor in node.inputs} - {None}
    for rule in rules if formats else ():
        if (rule.formats is None or rule.formats & formats) and rule.applies(graph, node):
            yield rule


def _runs_in_fp8(graph: ModelGraph, node: Node) -> bool:
    return conv_precision(graph, node) == "fp8"


def _weight_shape(graph: ModelGraph, node: Node) -> tuple[int, ...]:
    shape = graph.tensors[node.inputs[1]].shape or ()
    return tuple(extent for extent in shape if isinstance(extent, int))


def _is_grouped(_: ModelGraph, node: Node) -> bool:
    return max(node.integers("group"), default=1) > 1


def _taps(graph: ModelGraph, node: Node) -> int:
    return math.prod(node.integers("kernel_shape") or _weight_shape(graph, node)[2:])


def _reads_few_channels(graph: ModelGraph, node: Node) -> bool:
    """Whether an ungrouped conv reads three channels or fewer."""
    channels = _ungrouped_channels(graph, node)
    return channels is not None and channels <= 3


def _needs_padding(graph: ModelGraph, node: Node) -> bool:
    channels = _ungrouped_channels(graph, node)
    return channels is not None and channels % 4 != 0


def _ungrouped_channels(graph: ModelGraph, node: Node) -> int | None:
    """Return how many channels an ungrouped conv reads; None for other nodes and weights of unknown shape."""
    if node.op != "Conv" or _is_grouped(graph, node):
        return None
    shape = _weight_shape(graph, node)
    return shape[1] if len(shape) > 2 else None


def _pools_between(graph: ModelGraph, node: Node) -> bool:
    producer = graph.producer(node.inputs[0]) if node.op in ops.WEIGHTED else None
    while producer is not None and producer.op in _MOVES:
        producer = graph.producer(producer.inputs[0])
    return producer is not None and producer.op == "MaxPool"


READER_RULES: tuple[ReaderRule, ...] = (
    ReaderRule(
        name="no FP8 on the target",
        blocks=True,
        reason="target without FP8",
        explanation="The target has no FP8 kernels; TensorRT for RTX refuses to build the model.",
        source="TensorRT support matrix, hardware and precision: FP8 from compute capability 8.9",
        remedy="build for sm89 or newer, or quantize to INT8",
        applies=lambda *_: True,
        targets=frozenset({"sm75", "sm80", "sm86", "sm87", "sm88"}),
        formats=frozenset({"fp8"}),
    ),
    ReaderRule(
        name="FP8 transposed conv",
        blocks=True,
        reason="FP8 transposed conv",
        explanation="There is no FP8 kernel for transposed convs; it runs in high precision.",
        source="TensorRT for RTX support matrix: FP8 deconvolution is not supported",
        remedy="keep transposed convs in high precision, or quantize them to INT8",
        applies=lambda _, node: node.op == "ConvTranspose",
        formats=frozenset({"fp8"}),
    ),
    ReaderRule(
        name="FP8 kernel of more than 32 taps",
        blocks=True,
        reason="FP8 kernel of more than 32 taps",
        explanation="FP8 convs with more than 32 kernel elements are not supported here; it runs in high precision.",
        source="TensorRT 10.16.1 release notes, limitations: kernel volume above 32 on SM 8.9, 9.0, 12.0 and 12.1",
        remedy="keep this conv in high precision, or quantize it to INT8",
        applies=lambda graph, node: node.op == "Conv" and _taps(graph, node) > FP8_MOST_TAPS,
        targets=frozenset({"sm89", "sm90", "sm120", "sm121"}),
        formats=frozenset({"fp8"}),
    ),
    ReaderRule(
        name="only one operand in 8 bits",
        blocks=True,
        reason="only one operand in 8 bits",
        explanation="A conv or gemm runs in 8 bits only if both of its operands are quantized to the same format.",
        source="TensorRT documentation, Q/DQ placement: quantize all inputs of weighted operations",
        remedy="quantize the other operand too, or neither",
        applies=lambda graph, node: node.op in ops.WEIGHTED and conv_precision(graph, node) is None,
    ),
    ReaderRule(
        name="max pool before the conv",
        blocks=True,
        reason="max pool between Dequantize and conv",
        explanation="TensorRT for RTX does not move the Dequantize across a max pool; the conv behind loses 8 bits.",
        source=_PROBES,
        remedy="quantize behind the pool",
        applies=_pools_between,
        runtimes=_RTX,
    ),
    ReaderRule(
        name="no 8-bit reader",
        blocks=True,
        reason="reader without 8-bit kernel",
        explanation="The node that reads the dequantized tensor has no 8-bit kernel, so the tensor is only rounded.",
        source="TensorRT documentation, Q/DQ processing: quantizable layers",
        remedy="take the Quantize and Dequantize away",
        applies=lambda _, node: node.op not in _READS_8_BITS,
    ),
    ReaderRule(
        name="grouped FP8 conv",
        blocks=False,
        reason="grouped or depthwise FP8 conv",
        explanation="There is no optimised FP8 kernel for grouped convs; TensorRT for RTX pads their channels.",
        source="TensorRT 10.12 release notes; https://github.com/NVIDIA/TensorRT/issues/4524; " + _PROBES,
        remedy="quantize grouped and depthwise convs to INT8, or not at all",
        applies=lambda graph, node: _runs_in_fp8(graph, node) and _is_grouped(graph, node),
        formats=frozenset({"fp8"}),
    ),
    ReaderRule(
        name="FP8 conv of an image",
        blocks=False,
        reason="FP8 conv of three channels or fewer",
        explanation="Full TensorRT may find no FP8 kernel for a conv of three channels or fewer and refuse the model.",
        source="https://github.com/NVIDIA/Model-Optimizer, examples/torch_onnx/README.md (error code 10 on SM 12.0)",
        remedy="keep the stem in high precision",
        applies=_reads_few_channels,
        runtimes=_TENSORRT,
        targets=frozenset({"sm120"}),
        formats=frozenset({"fp8"}),
    ),
    ReaderRule(
        name="FP8 channels padded",
        blocks=False,
        reason="FP8 input channels not a multiple of 4",
        explanation="FP8 convs want rows of 4 bytes: a kernel pads the channels of the conv's input.",
        source="TensorRT for RTX support matrix: FP8 alignment of 4 bytes; " + _PROBES,
        remedy="use a width that is a multiple of 4, or keep these convs in high precision",
        applies=lambda graph, node: _runs_in_fp8(graph, node) and _needs_padding(graph, node),
        runtimes=_RTX,
        formats=frozenset({"fp8"}),
    ),
)
"""Limits in the order in which they are reported; the first that blocks and applies explains a lost site."""
