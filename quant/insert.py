"""Q/DQ nodes into an ONNX model: `quantize`.

What is quantized (`fusescope.quant.weighted`), where pairs go (`fusescope.quant.placement`) and how they are written
(`fusescope.quant.rewrite`) are three steps. By default it is the recipe of the published HRNet study: both inputs of
every convolution but the stem are quantized, each activation tensor gets one QuantizeLinear and one DequantizeLinear,
which all its quantized readers share, and readers in high precision go on reading the tensor itself.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, check_proto, graph_of
from fusescope.graph.names import all_nodes
from fusescope.graph.ops import WEIGHTED
from fusescope.graph.structure import fill, is_structure_only, strip
from fusescope.quant.constants import HIGH_PRECISION, RECIPE_KEY, SCALES_KEY, constants_of
from fusescope.quant.half import Dtype, to_dtype
from fusescope.quant.placement import (
    Placed,
    Placement,
    conv_inputs,
    explicit,
    shared,
    taken_over,
    unfused_by_rules,
    unfused_by_verdicts,
)
from fusescope.quant.prepare import fold_norms, raise_opset, whole
from fusescope.quant.rewrite import Rewriter, Store
from fusescope.quant.scales import Granularity, format_named
from fusescope.quant.unquantize import Unquantized, quantizer_in, unquantized
from fusescope.quant.weighted import Keep, Weighted, select

SCALES_OPSET = 19
"""The oldest opset whose QuantizeLinear takes a tensor and a scale that are not float32."""

_NARROW = HIGH_PRECISION - {TensorProto.FLOAT}

GIVEN = "given: one amax per tensor"
UNCALIBRATED = "uncalibrated: each activation scale is a placeholder derived from the tensor's name"
"""What `SCALES_KEY` says of ranges that nothing more is known of, and of those that were made up."""

_DEFAULTS: Mapping[str, Any] = {
    "keep_ops": [],
    "keep_shapes": ["stem"],
    "ops": ["Conv"],
    "tensors": [],
    "verdicts": "",
    "store": "folded",
}
"""What `RECIPE_KEY` leaves out because it is nothing special."""


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model with Q/DQ nodes, and what was done to get there."""

    proto: onnx.ModelProto
    """The quantized model. It passes the ONNX checker."""
    quantized: tuple[str, ...]
    """The names of the convolutions and gemms that read 8-bit tensors, in graph order."""
    kept: Mapping[str, str]
    """Name of each other one of the operations asked for to the reason why it keeps high precision, in graph order."""
    tensors: tuple[str, ...]
    """The activation tensors with a Q/DQ pair, in graph order: one Quantize site each."""
    uncalibrated: bool
    """Whether the activation scales are placeholders."""
    zero_channels: Mapping[str, int]
    """Weight tensor to how many of its scales stand for zeros alone, and are 1; only where there are some."""
    folded: tuple[str, ...]
    """Names of the BatchNormalization nodes that were folded into convolutions."""
    notes: tuple[str, ...]
    """What a person should know of a model whose Q/DQ nodes were taken out first; empty for others."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The arguments of `quantize`, which says what they mean."""

    format: str
    placement: Placement
    weights: Granularity
    keep: Keep
    ops: Sequence[str]
    store: Store
    tensors: Sequence[str]
    verdicts: Mapping[str, str] | None
    dtype: Dtype | None
    amax: Mapping[str, float] | None
    source: str


def quantize(
    proto: onnx.ModelProto,
    *,
    format: str = "fp8",  # noqa: A002 - the word of the command and of the recipe
    placement: Placement = "conv-inputs",
    weights: Granularity = "per-channel",
    keep: Sequence[str] = (),
    keep_ops: Sequence[str] = (),
    keep_shapes: Sequence[str] = ("stem",),
    ops: Sequence[str] = ("Conv",),
    store: Store = "folded",
    tensors: Sequence[str] = (),
    verdicts: Mapping[str, str] | None = None,
    dtype: Dtype | None = None,
    amax: Mapping[str, float] | None = None,
    source: str = GIVEN,
    replace_pairs: bool = False,
    folder: Path = Path(),
    name: str = "the model",
) -> QuantizedModel:
    """Insert Q/DQ nodes.

    BatchNormalization behind a convolution is folded into it first. A structure-only model is filled, quantized and
    stripped again: its weight scales are those of seeded values.

    Args:
        proto: A model in float32, float16 or bfloat16. It is not changed.
        format: A name in `fusescope.quant.scales.FORMATS`.
        placement: Which tensors get Q/DQ pairs: a name in `fusescope.quant.placement.PLACEMENTS`.
        weights: Whether weights have one scale per output channel or one per tensor.
        keep: Patterns (fnmatch) of the names of convolutions and gemms that keep high precision. Those whose weights
            are computed and those in bodies always do.
        keep_ops: Operations that keep high precision, and that read a tensor itself in placement `shared-skips`.
        keep_shapes: What keeps high precision for its shape: names in `fusescope.quant.weighted.SHAPE_CLASSES`.
        ops: The operations to quantize, of `fusescope.graph.ops.WEIGHTED`.
        store: Whether weights are stored in 8 bits or in high precision with a Quantize behind them.
        tensors: For placement `explicit`: names of tensors, or patterns.
        verdicts: For placement `fusable-only`: tensor to the verdict on its Quantize site in an engine. Without it the
            rules of full TensorRT decide.
        dtype: High precision to convert the model to first; as it is if None.
        amax: The largest magnitude of each activation tensor, in the tensor's own unit. Without it each
            scale stands for a `placeholder_amax`, and the model's metadata say so.
        source: Where `amax` is from: text for the model's metadata.
        replace_pairs: Take the Q/DQ nodes of a quantized model out first; its ranges serve where `amax` is not given.
            Placement `modelopt` always does.
        folder: Where the files of external data lie.
        name: What to call the model in messages.

    Raises:
        UserError: The ONNX checker refuses the model, it has Q/DQ nodes already, a pattern matches nothing, nothing
            is left to quantize, `amax` lacks a tensor, a scale underflows in its dtype, or a file of external data
            is missing.
    """
    check_proto(proto, name)
    structure_only = is_structure_only(proto)
    model = whole(fill(proto) if structure_only else proto, folder, name)
    recipe = _Recipe(
        format=format,
        placement=placement,
        weights=weights,
        keep=Keep(keep, keep_ops, keep_shapes),
        ops=ops,
        store=store,
        tensors=tensors,
        verdicts=verdicts,
        dtype=dtype,
        amax=amax,
        source=source,
    )
    taken = _taken_out(model, placement, replace_pairs=replace_pairs, name=name)
    if taken is not None and amax is None:
        recipe = replace(recipe, **_recovered(taken))
    result = _quantized(model if taken is None else taken.proto, recipe, taken, name)
    return replace(result, proto=strip(result.proto)) if structure_only else result


def placeholder_amax(tensor: str) -> float:
    """Return the magnitude that stands for an uncalibrated activation tensor: 1 to 64, by its name.

    They differ as calibrated ones do. Were they equal, TensorRT for RTX 1.7.1 would build the same layers,
    but share its generated kernels: 39.3 MB of plan for HRNet-W18 instead of 61.5 MB.
    """
    return float(64.0 ** (zlib.crc32(tensor.encode()) / 2**32))


def _taken_out(model: onnx.ModelProto, placement: Placement, *, replace_pairs: bool, name: str) -> Unquantized | None:
    """Take the Q/DQ nodes out of a model that has some, if that was asked for."""
    pair = quantizer_in(model)
    if pair is not None:
        if not replace_pairs and placement != "modelopt":
            raise UserError(
                f"is quantized already (it is a {pair.op_type})",
                where=f"node {pair.name!r}",
                remedy="pass --replace to take its Q/DQ nodes out first, or quantize the high-precision model",
            )
        return unquantized(model)
    if placement == "modelopt":
        raise UserError("has no Q/DQ nodes to take over", where=name, remedy="give the model that ModelOpt quantized")
    return None


def _recovered(taken: Unquantized) -> dict[str, Any]:
    """Say what ranges a model that was quantized gives, and where they are from."""
    if taken.source.startswith("uncalibrated"):
        return {"amax": None, "source": UNCALIBRATED}
    before = f" ({taken.source})" if taken.source else ""
    return {"amax": taken.amax, "source": f"recovered from the scales that the model held{before}"}


def _notes(taken: Unquantized | None) -> tuple[str, ...]:
    """Say what a person should know of a model whose Q/DQ nodes were taken out."""
    notes: list[str] = []
    if taken is not None and taken.dequantized:
        stored = f"{len(taken.dequantized)} weight{'s'[: len(taken.dequantized) != 1]}"
        notes.append(f"stored in 8 bits only, so that their values are those of the codes: {stored}")
    if taken is not None and taken.largest_code is not None:
        largest = f"{taken.largest_code:.0f}"
        notes.append(
            f"no FP8 weight uses a code above {largest}: these are the scales of ModelOpt's ONNX quantizer, "
            f"and those of activations were read as amax / {largest} too"
        )
    return tuple(notes)


def _quantized(model: onnx.ModelProto, recipe: _Recipe, taken: Unquantized | None, name: str) -> QuantizedModel:
    """Quantize a model without Q/DQ nodes; it is changed."""
    form = format_named(recipe.format)
    folded = fold_norms(model.graph)
    if recipe.dtype:
        model = to_dtype(model, recipe.dtype)
    narrow = any(tensor.data_type in _NARROW for tensor in constants_of(model.graph).values())
    model = raise_opset(model, max(form.opset, SCALES_OPSET) if narrow else form.opset, form.name)
    graph, constants = graph_of(model), constants_of(model.graph)
    weighted, kept = select(graph, model.graph, constants, wanted=recipe.ops, keep=recipe.keep)
    placed = _place(model, graph, weighted, recipe, taken)
    kept |= placed.left
    if not placed.reads:
        raise _nothing_left(model, recipe, kept, name)
    _refuse_unranged(placed, recipe.amax)
    chosen = [node for node in weighted if node.name not in placed.left]
    rewriter = Rewriter(
        model.graph,
        form,
        store=recipe.store,
        ranges=placeholder_amax if recipe.amax is None else recipe.amax.__getitem__,
        dtypes=_dtypes(graph, placed, chosen, constants).__getitem__,
    )
    by_axis = recipe.weights == "per-channel"
    rewriter.run(
        frozenset(read for reads in placed.reads.values() for read in reads),
        {(node.name, node.weight): node.axis if by_axis else None for node in chosen if node.weight is not None},
    )
    model.ir_version = max(model.ir_version, form.ir_version)
    result = QuantizedModel(
        proto=model,
        quantized=tuple(node.name for node in chosen),
        kept={node.name: kept[node.name] for node in all_nodes(model.graph.node) if node.name in kept},
        tensors=tuple(rewriter.activations),
        uncalibrated=recipe.amax is None,
        zero_channels=rewriter.zero_channels,
        folded=folded,
        notes=_notes(taken),
    )
    _record(result, recipe)
    onnx.checker.check_model(model)
    return result


def _nothing_left(model: onnx.ModelProto, recipe: _Recipe, kept: Mapping[str, str], name: str) -> UserError:
    """Say why nothing can be quantized: what keeps the first node, or which operations were not asked for."""
    kind = "convolution" if set(recipe.ops) == {"Conv"} else "convolution or gemm"
    why = next((f" (the first, {node}: {reason})" for node, reason in kept.items()), "")
    others = {node.op_type for node in all_nodes(model.graph.node)} & WEIGHTED
    remedy = "check the model and the --keep patterns"
    if others and not kept:
        remedy = f"it has {', '.join(sorted(others))}: pass --op for what to quantize, or list it as ops in the recipe"
    return UserError(f"has no {kind} that can be quantized{why}", where=name, remedy=remedy)


def _place(
    model: onnx.ModelProto, graph: ModelGraph, weighted: Sequence[Weighted], recipe: _Recipe, taken: Unquantized | None
) -> Placed:
    """Decide which tensors get pairs, and who reads through them."""
    ranges = (recipe.amax or {}).items()
    unfit = {name: f"the range of its input is {top}" for name, top in ranges if not (np.isfinite(top) and top > 0)}
    match recipe.placement:
        case "conv-inputs":
            return conv_inputs(graph, weighted, unfit)
        case "shared-skips":
            return shared(graph, conv_inputs(graph, weighted, unfit), recipe.keep.ops)
        case "explicit":
            return explicit(graph, weighted, recipe.tensors, unfit)
        case "modelopt":
            return taken_over(graph, weighted, {} if taken is None else taken.reads, unfit)
        case "fusable-only" if recipe.verdicts is not None:
            everything = conv_inputs(graph, weighted, unfit).reads
            return conv_inputs(graph, weighted, unfused_by_verdicts(everything, recipe.verdicts) | unfit)
        case "fusable-only":
            tried = onnx.ModelProto()
            tried.CopyFrom(model)
            first = _quantized(tried, replace(recipe, placement="conv-inputs", amax=None, dtype=None), None, "")
            return conv_inputs(graph, weighted, unfused_by_rules(graph_of(first.proto)) | unfit)


def _refuse_unranged(placed: Placed, amax: Mapping[str, float] | None) -> None:
    for tensor, reads in placed.reads.items():
        if amax is not None and tensor not in amax:
            raise UserError(
                f"no range is given for tensor {tensor!r}",
                where=f"node {reads[0][0]!r}",
                remedy="calibrate this very model with --tensor, or keep the node with --keep",
            )


def _dtypes(
    graph: ModelGraph, placed: Placed, chosen: Sequence[Weighted], constants: Mapping[str, TensorProto]
) -> dict[str, np.dtype[np.generic]]:
    """Find the dtypes of activations: as inferred, else that of the kernels that they meet."""
    kinds: dict[str, int] = {}
    for node in chosen:
        inputs = graph.nodes[node.name].inputs
        if node.weight is not None:
            kinds |= {inputs[at]: constants[inputs[node.weight]].data_type for at in node.operands}
    for tensor in placed.reads:
        if dtype := graph.tensors[tensor].dtype:
            kinds[tensor] = TensorProto.DataType.Value(dtype.upper())
    return {tensor: helper.tensor_dtype_to_np_dtype(kind) for tensor, kind in kinds.items()}


def _record(result: QuantizedModel, recipe: _Recipe) -> None:
    """Write into the model's metadata what was done to it."""
    done = {
        "format": recipe.format,
        "placement": recipe.placement,
        "weights": recipe.weights,
        "keep_ops": list(recipe.keep.ops),
        "keep_shapes": list(recipe.keep.shapes),
        "ops": list(recipe.ops),
        "tensors": list(recipe.tensors),
        "verdicts": "those of a run" if recipe.verdicts is not None else "",
        "store": recipe.store,
        "kept": dict(result.kept),
    }
    told = {key: value for key, value in done.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}
    source = UNCALIBRATED if result.uncalibrated else recipe.source
    others = {entry.key: entry.value for entry in result.proto.metadata_props}
    helper.set_model_props(result.proto, {**others, RECIPE_KEY: json.dumps(told), SCALES_KEY: source})
