"""Which activation tensors get Quantize/Dequantize pairs, and which of their readers read through them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.rules import predictions
from fusescope.graph.sites import quantize_sites
from fusescope.quant.constants import HIGH_PRECISION_NAMES
from fusescope.quant.weighted import Weighted

Placement = Literal["conv-inputs", "shared-skips", "fusable-only", "modelopt", "explicit"]

PLACEMENTS: Mapping[Placement, str] = {
    "conv-inputs": "all inputs of quantized convs and gemms; others read the tensor itself (the published study)",
    "shared-skips": "the same tensors, which all their readers read in 8 bits, a residual Add too",
    "fusable-only": "those whose Quantize the rules, or a run's verdicts, do not expect to stand alone",
    "modelopt": "where ModelOpt's ONNX quantizer put them into this model",
    "explicit": "the tensors that are listed",
}
"""Which tensors get pairs, by the name of the placement."""

Read: TypeAlias = tuple[str, int]
"""A node's name and the position of one of its inputs."""

CARRIED = frozenset({"fused", "epilogue", "merged", "absent"})
"""The verdicts on a Quantize that takes no kernel of its own (`fusescope.profiler.verdicts`)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a placement decided."""

    reads: Mapping[str, tuple[Read, ...]]
    """Each activation tensor with a Q/DQ pair, and the inputs that read through it; in graph order."""
    left: Mapping[str, str]
    """Convolutions and gemms that could be quantized and are not, with the reason; in graph order."""


def calibration_tensors(graph: ModelGraph, more: Iterable[str] = ()) -> tuple[str, ...]:
    """List the activations that a placement may quantize: what weighted operations and sums read, and what is listed.

    Args:
        graph: A model without Q/DQ nodes. Bodies of If and Loop are not looked into.
        more: Names of further tensors, or patterns, as for placement "explicit".

    Returns:
        Tensors in the order in which they are first read, each once, the listed ones last; constants and integers are
        none.

    Raises:
        UserError: A pattern matches no activation.
    """
    readers = ops.WEIGHTED | ops.SUMS
    read = [tensor for node in graph.nodes.values() if node.op in readers for tensor in graph.activations(node)]
    floats = [tensor for tensor in read if graph.tensors[tensor].dtype in HIGH_PRECISION_NAMES | {""}]
    return tuple(dict.fromkeys([*floats, *listed(graph, more)]))


def listed(graph: ModelGraph, patterns: Iterable[str]) -> tuple[str, ...]:
    """List the activations that names or patterns (fnmatch) name, each once.

    Raises:
        UserError: A pattern matches no activation.
    """
    floats = [name for name in graph.tensors if _is_activation(graph, name)]
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = [name for name in floats if fnmatchcase(name, pattern) or name == pattern]
        if not matched:
            near = get_close_matches(pattern, floats, n=3, cutoff=0.3) or floats[:3]
            remedy = f"tensors are called such as {', '.join(near)}"
            raise UserError(f"{pattern!r} matches no activation tensor", remedy=remedy)
        found.update(dict.fromkeys(matched))
    return tuple(found)


def conv_inputs(graph: ModelGraph, weighted: Iterable[Weighted], unfit: Mapping[str, str]) -> Placed:
    """Give each input of each convolution and gemm a pair that only those read through.

    Args:
        graph: The model.
        weighted: What can be quantized.
        unfit: Tensors that get no pair, with what is said of the convolutions and gemms that read them.
    """
    reads: dict[str, tuple[Read, ...]] = {}
    left: dict[str, str] = {}
    for node in weighted:
        inputs = {position: graph.nodes[node.name].inputs[position] for position in node.operands}
        reason = next((unfit[tensor] for tensor in inputs.values() if tensor in unfit), "")
        if reason:
            left[node.name] = reason
        for position, tensor in () if reason else inputs.items():
            reads[tensor] = (*reads.get(tensor, ()), (node.name, position))
    return Placed(reads, left)


def shared(graph: ModelGraph, placed: Placed, keep_ops: Collection[str]) -> Placed:
    """Let everything that reads a quantized tensor read through its pair, but for what keeps high precision.

    That is: other convolutions and gemms, which would be fed rounded values for nothing, `keep_ops`, and bodies.
    """
    reads = {tensor: (*those, *_other_reads(graph, tensor, keep_ops)) for tensor, those in placed.reads.items()}
    return Placed(reads, placed.left)


def explicit(
    graph: ModelGraph, weighted: Sequence[Weighted], patterns: Sequence[str], unfit: Mapping[str, str]
) -> Placed:
    """Give the listed tensors pairs.

    Convolutions and gemms all of whose inputs are listed read through them. A tensor that none of those reads is read
    through its pair by all else.

    Args:
        graph: The model.
        weighted: What can be quantized.
        patterns: Names of tensors, or patterns (fnmatch).
        unfit: As for `conv_inputs`.

    Raises:
        UserError: A pattern matches no activation.
    """
    chosen = listed(graph, patterns)
    activations = (name for name in graph.tensors if _is_activation(graph, name))
    others = {name: "its input is not listed" for name in activations if name not in chosen}
    placed = conv_inputs(graph, weighted, {**others, **unfit})
    more = {name: _other_reads(graph, name, ()) for name in chosen if name not in placed.reads and name not in unfit}
    return Placed({**placed.reads, **{name: reads for name, reads in more.items() if reads}}, placed.left)


def taken_over(
    graph: ModelGraph, weighted: Iterable[Weighted], positions: Mapping[str, Collection[Read]], unfit: Mapping[str, str]
) -> Placed:
    """Give tensors pairs where another tool had put them.

    Args:
        graph: The model without those.
        weighted: What can be quantized.
        positions: Each tensor that had a pair, and the inputs that read through it.
        unfit: As for `conv_inputs`.
    """
    read = {at for those in positions.values() for at in those}
    chosen = [node for node in weighted if all((node.name, position) in read for position in node.operands)]
    without = [node.name for node in weighted if node not in chosen]
    placed = conv_inputs(graph, chosen, unfit)
    reads = dict(placed.reads)
    for tensor, those in positions.items():
        others = tuple(at for at in those if at[0] in graph.nodes and graph.nodes[at[0]].op not in ops.WEIGHTED)
        if others and tensor not in unfit:
            reads[tensor] = (*reads.get(tensor, ()), *others)
    return Placed(reads, {**placed.left, **dict.fromkeys(without, "no Q/DQ pair stood before it")})


def unfused_by_rules(graph: ModelGraph) -> dict[str, str]:
    """Find the sites of a quantized model whose Quantize full TensorRT's documented rules do not expect to fuse.

    Returns:
        Tensor to what is said of the convolutions and gemms that read it.
    """
    sites = quantize_sites(graph)
    told = zip(sites, predictions(graph, sites), strict=True)
    return {
        site.tensor: f"the rules expect its input's Quantize to be {expected.prediction}: {expected.reason}"
        for site, expected in told
        if expected.prediction != "fuses"
    }


def unfused_by_verdicts(tensors: Iterable[str], verdicts: Mapping[str, str]) -> dict[str, str]:
    """Find the tensors whose Quantize stands alone in a run, or is not known there.

    Args:
        tensors: What could be quantized.
        verdicts: Tensor to the verdict on its Quantize site.

    Returns:
        Tensor to what is said of the convolutions and gemms that read it.

    Raises:
        UserError: The run judged none of the tensors.
    """
    tensors = tuple(tensors)
    if not any(tensor in verdicts for tensor in tensors):
        raise UserError("the run judged no tensor of this model", remedy="give a run of this very model, quantized")
    return {
        tensor: f"its input's Quantize is {verdicts.get(tensor, 'not')} in the run"
        for tensor in tensors
        if verdicts.get(tensor) not in CARRIED
    }


def _is_activation(graph: ModelGraph, tensor: str) -> bool:
    return tensor not in graph.constants and graph.tensors[tensor].dtype in HIGH_PRECISION_NAMES


def _other_reads(graph: ModelGraph, tensor: str, keep_ops: Collection[str]) -> tuple[Read, ...]:
    """List the inputs at which nodes read a tensor's values, other than convolutions and gemms."""
    out = ops.WEIGHTED | ops.SHAPE_READERS | frozenset(keep_ops)
    readers: list[Node] = [node for node in graph.readers(tensor) if node.op not in out]
    return tuple((node.name, at) for node in readers for at, name in enumerate(node.inputs) if name == tensor)
