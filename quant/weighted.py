"""The convolutions and gemms of a model: their operands, their sizes, and which of them keep high precision."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import onnx
from onnx import TensorProto

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph
from fusescope.graph.names import all_nodes
from fusescope.graph.reader_rules import FP8_MOST_TAPS
from fusescope.quant.constants import HIGH_PRECISION, HIGH_PRECISION_NAMES, attributes_of

STEM_CHANNELS = 3
"""The most channels that a stem reads: those of an image."""

SMALL_CHANNELS = 16
"""Kernels that read (per group) or write fewer channels are small."""

ALIGNMENT = 4
"""FP8 convolutions want a multiple of this many channels."""

_CONVS = ("Conv", "ConvTranspose")


@dataclass(frozen=True, slots=True)
class Weighted:
    """A convolution or gemm that reads an activation and a constant kernel, or two activations."""

    name: str
    """Name of the node."""
    op: str
    """Its operation: a member of `fusescope.graph.ops.WEIGHTED`."""
    operands: tuple[int, ...]
    """Positions of its inputs that are activations: one, or both of a MatMul or Gemm without weights."""
    weight: int | None
    """Position of the input that is its kernel; None where both operands are activations."""
    axis: int | None
    """The axis of the kernel that counts output channels; None without a kernel, and for a kernel that is a vector."""
    reads: int
    """Channels that it reads, of all groups; 0 without a kernel."""
    writes: int
    """Channels that it writes, of all groups; 0 without a kernel."""
    group: int
    """Number of groups; 1 for gemms."""
    taps: int
    """Extents of a convolution's kernel multiplied; 1 for gemms."""
    is_last: bool
    """Whether no other convolution or gemm follows it."""


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """Kernels that a recipe may keep in high precision for their shape."""

    meaning: str
    """Which these are, in one clause."""
    source: str
    """Why one would: a document, or what was measured."""
    applies: Callable[[Weighted], bool]
    """Whether a convolution or gemm belongs to the class."""
    reason: Callable[[Weighted], str]
    """What is said of one that is kept."""


def _channels(node: Weighted) -> str:
    return f"it reads {node.reads} channel{'s'[: node.reads != 1]}"


SHAPE_CLASSES: Mapping[str, ShapeClass] = {
    "stem": ShapeClass(
        meaning="convs that read at most 3 channels",
        source="the published study; Model-Optimizer, examples/torch_onnx/README: no FP8 kernel on SM 12.0",
        applies=lambda node: node.op in _CONVS and node.reads <= STEM_CHANNELS,
        reason=_channels,
    ),
    "depthwise": ShapeClass(
        meaning="convs with one channel per group",
        source="TensorRT 10.12 release notes: no optimised FP8 kernels for grouped convs",
        applies=lambda node: node.group > 1 and node.reads == node.group,
        reason=lambda _: "it is depthwise",
    ),
    "grouped": ShapeClass(
        meaning="convs with more than one group, depthwise ones too",
        source="TensorRT 10.12 release notes: no optimised FP8 kernels for grouped convs",
        applies=lambda node: node.group > 1,
        reason=lambda node: f"it has {node.group} groups",
    ),
    "small-channels": ShapeClass(
        meaning="kernels that read (per group) or write fewer than 16 channels",
        source="nvidia-modelopt 0.47, modelopt/onnx/quantization/graph_utils.py: leaves them out of FP8",
        applies=lambda node: node.weight is not None and min(node.reads // node.group, node.writes) < SMALL_CHANNELS,
        reason=lambda node: f"it reads {node.reads // node.group} and writes {node.writes} channels",
    ),
    "unaligned-channels": ShapeClass(
        meaning="convs without groups that read a number of channels that is no multiple of 4",
        source="TensorRT for RTX support matrix: FP8 alignment of 4 bytes; a kernel pads their input",
        applies=lambda node: node.op in _CONVS and node.group == 1 and node.reads % ALIGNMENT != 0,
        reason=_channels,
    ),
    "large-kernels": ShapeClass(
        meaning="convs with kernels of more than 32 taps",
        source="TensorRT 10.16.1 release notes: no FP8 above a kernel volume of 32 on SM 8.9, 9.0, 12.0 and 12.1",
        applies=lambda node: node.taps > FP8_MOST_TAPS,
        reason=lambda node: f"its kernel has {node.taps} taps",
    ),
    "classifier": ShapeClass(
        meaning="convs and gemms that no other conv or gemm follows",
        source="the published study keeps the classifier in high precision",
        applies=lambda node: node.is_last,
        reason=lambda _: "no conv or gemm follows it",
    ),
}
"""The shape classes that a recipe may keep in high precision, by name."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays in high precision because the user asks for it."""

    names: Sequence[str] = ()
    """Patterns (fnmatch) of node names."""
    ops: Collection[str] = ()
    """Operations."""
    shapes: Sequence[str] = ()
    """Names in `SHAPE_CLASSES`."""


def select(
    graph: ModelGraph,
    model: onnx.GraphProto,
    constants: Mapping[str, TensorProto],
    *,
    wanted: Collection[str],
    keep: Keep,
) -> tuple[tuple[Weighted, ...], dict[str, str]]:
    """Say which convolutions and gemms can and shall be quantized.

    Args:
        graph: The model.
        model: The same as a proto; its nodes have the names that they have in `graph`.
        constants: Its tensors with known values.
        wanted: The operations to quantize, of `fusescope.graph.ops.WEIGHTED`.
        keep: What is asked to stay in high precision.

    Returns:
        Those to quantize, and the names of the others with the reason, both in graph order.

    Raises:
        UserError: A name pattern matches none of them, or no node is of an operation to keep.
    """
    names = [node.name for node in all_nodes(model.node) if node.op_type in wanted]
    asked = _asked(names, keep.names, "convolution" if set(wanted) == {"Conv"} else "convolution or gemm")
    _check_ops(keep.ops, {node.op_type for node in all_nodes(model.node)})
    last = _last(graph)
    chosen: list[Weighted] = []
    kept: dict[str, str] = {}
    for node in all_nodes(model.node):
        if node.op_type not in wanted:
            continue
        found: Weighted | str
        if node.name not in graph.nodes:
            found = "in the body of an If, Loop or Scan"
        else:
            found = _weighted(graph, node, constants, is_last=node.name in last)
        if reason := asked.get(node.name) or (found if isinstance(found, str) else _reason(found, keep)):
            kept[node.name] = reason
        elif isinstance(found, Weighted):
            chosen.append(found)
    return tuple(chosen), kept


def _asked(names: Sequence[str], patterns: Sequence[str], kind: str) -> dict[str, str]:
    """Find the nodes that patterns name; each with what is said of it."""
    asked: dict[str, str] = {}
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            near = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            remedy = f"{kind}s are called such as {', '.join(near)}" if near else f"the model has no {kind}"
            raise UserError(f"--keep {pattern!r} matches no {kind}", remedy=remedy)
        for name in matched:
            asked.setdefault(name, f"--keep {pattern}")
    return asked


def _check_ops(asked: Collection[str], there: Collection[str]) -> None:
    """Refuse an operation to keep that no node of the model has: it may be misspelt."""
    if unknown := next((op for op in asked if op not in there), None):
        near = get_close_matches(unknown, there, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        remedy = f"{hint}it has {', '.join(sorted(there))}"
        raise UserError(f"--keep-op {unknown!r} is no operation of the model", remedy=remedy)


def _reason(node: Weighted, keep: Keep) -> str:
    """Return why a node that could be quantized is not; empty when it is."""
    if node.op in keep.ops:
        return f"--keep-op {node.op}"
    shape = next((name for name in keep.shapes if SHAPE_CLASSES[name].applies(node)), None)
    return SHAPE_CLASSES[shape].reason(node) if shape else ""


def _last(graph: ModelGraph) -> frozenset[str]:
    """Find the convolutions and gemms that no other one follows."""
    followed: set[str] = set()
    last: list[str] = []
    for node in reversed(graph.nodes.values()):
        above = any(tensor in followed for tensor in node.outputs)
        if node.op in ops.WEIGHTED and not above:
            last.append(node.name)
        if above or node.op in ops.WEIGHTED:
            followed.update(node.reads)
    return frozenset(last)


def _weighted(
    graph: ModelGraph, node: onnx.NodeProto, constants: Mapping[str, TensorProto], *, is_last: bool
) -> Weighted | str:
    """Describe a node, or say why it cannot be quantized."""
    fixed = [position for position in range(2) if node.input[position] in graph.constants]
    operands = tuple(position for position in range(2) if position not in fixed)
    if len(fixed) == 2 or (node.op_type in _CONVS and 0 in fixed):
        return "its input is constant"
    for position in operands:
        dtype = graph.tensors[node.input[position]].dtype
        if dtype not in HIGH_PRECISION_NAMES and (dtype or not fixed):
            return f"its input is {dtype or 'of an unknown type'}"
    weight = constants.get(node.input[fixed[0]]) if fixed else None
    if weight is None and (fixed or node.op_type in _CONVS):
        return "its weights are computed"
    if weight is None:
        return Weighted(node.name, node.op_type, operands, None, None, 0, 0, 1, 1, is_last)
    if weight.data_type not in HIGH_PRECISION:
        return f"its weights are {TensorProto.DataType.Name(weight.data_type).lower()}"
    return Weighted(node.name, node.op_type, operands, fixed[0], *_sizes(node, tuple(weight.dims), fixed[0]), is_last)


def _sizes(node: onnx.NodeProto, shape: Sequence[int], position: int) -> tuple[int | None, int, int, int, int]:
    """Return the axis of the output channels, the channels read and written, the groups and the taps of a kernel."""
    attributes = attributes_of(node)
    group = int(attributes.get("group", 1))
    if node.op_type == "Conv":
        return 0, shape[1] * group, shape[0], group, math.prod(shape[2:])
    if node.op_type == "ConvTranspose":
        return 1, shape[0], shape[1] * group, group, math.prod(shape[2:])
    if len(shape) < 2:
        return None, math.prod(shape), 1, 1, 1
    # Of the left operand the last axis is summed over, of the right one the last but one; transposed the other.
    transposed = attributes.get("transA" if position == 0 else "transB", 0)
    summed, axis = (-1, -2) if (position == 0) != bool(transposed) else (-2, -1)
    return len(shape) + axis, shape[summed], shape[axis], 1, 1
