"""Q/DQ nodes into an ONNX model: `quantize`.

The placement `conv-inputs` is that of the published HRNet study: both inputs of every convolution are
quantized. Each activation tensor gets one QuantizeLinear and one DequantizeLinear, which all its quantized
readers share; readers in high precision go on reading the tensor itself. Weights are stored as 8-bit codes
behind a DequantizeLinear. Gemm and MatMul (the classifier) keep high precision.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.model import check_proto
from fusescope.graph.names import all_nodes, name_nodes
from fusescope.graph.structure import fill, is_structure_only, strip
from fusescope.graph.weights import constant_tensor
from fusescope.quant.scales import FORMATS, Array, Format, Granularity, amax_of, encode, scales_of

STEM_CHANNELS = 3
"""Convolutions that read at most this many channels keep high precision: the published recipe keeps the stem,
and TensorRT 10 has no FP8 implementation of it on SM 12.0 (Model-Optimizer, examples/torch_onnx/README)."""

OUTPUT_AXIS = 0
"""The axis of the output channels in the weight of a Conv, grouped or not (ONNX operators, Conv, input W)."""

SCALES_OPSET = 19
"""The oldest opset whose QuantizeLinear takes a tensor and a scale that are not float32."""

HIGH_PRECISION = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
"""The element types that can be quantized."""

QDQ_OPS = ("QuantizeLinear", "DequantizeLinear", "TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear")
"""Operations that mark a quantized model: ONNX's and those of ModelOpt's torch exporter."""

Placement = Literal["conv-inputs"]
"""Which tensors get Q/DQ pairs."""

RECIPE_KEY, SCALES_KEY = "fusescope.recipe", "fusescope.scales"
"""Metadata of a quantized model: what was done (JSON), and where its activation scales are from (text)."""


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model with Q/DQ nodes, and what was done to get there."""

    proto: onnx.ModelProto
    """The quantized model. It passes the ONNX checker."""
    quantized: tuple[str, ...]
    """The names of the convolutions that read 8-bit tensors, in graph order."""
    kept: Mapping[str, str]
    """Convolution name to the reason why it keeps high precision, in graph order."""
    tensors: tuple[str, ...]
    """The activation tensors with a Q/DQ pair, in graph order: one Quantize site each."""
    uncalibrated: bool
    """Whether the activation scales are placeholders."""
    zero_channels: Mapping[str, int]
    """Weight tensor to how many of its scales stand for zeros alone, and are 1; only where there are some."""


def quantize(
    proto: onnx.ModelProto,
    *,
    format: str = "fp8",  # noqa: A002 - the word of the command and of the recipe
    placement: Placement = "conv-inputs",
    weights: Granularity = "per-channel",
    keep: Sequence[str] = (),
    amax: Mapping[str, float] | None = None,
    folder: Path = Path(),
    name: str = "the model",
) -> QuantizedModel:
    """Insert Q/DQ nodes.

    A structure-only model is filled, quantized and stripped again: its weight scales are those of seeded
    values.

    Args:
        proto: A model in float32, float16 or bfloat16. It is not changed.
        format: A name in `FORMATS`.
        placement: Which tensors get Q/DQ pairs.
        weights: Whether weights have one scale per output channel or one per tensor.
        keep: Patterns (fnmatch) of the names of convolutions that keep high precision. Convolutions that
            read at most 3 channels always do, and those whose weights are computed.
        amax: The largest magnitude of each activation tensor, in the tensor's own unit. Without it each
            scale stands for a `placeholder_amax`, and the model's metadata say so.
        folder: Where the files of external data lie.
        name: What to call the model in messages.

    Raises:
        UserError: The ONNX checker refuses the model, it has Q/DQ nodes already, a pattern matches nothing, nothing
            is left to quantize, `amax` lacks a tensor, a scale underflows in its dtype, or a file of external data
            is missing.
    """
    check_proto(proto, name)
    _refuse_quantized(proto.graph)
    if is_structure_only(proto):
        whole = quantize(
            fill(proto), format=format, placement=placement, weights=weights, keep=keep, amax=amax, name=name
        )
        return replace(whole, proto=strip(whole.proto))
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    _load_external(model, folder)
    name_nodes(model)
    form = FORMATS[format]
    convs = [node.name for node in model.graph.node if node.op_type == "Conv"]
    kept = _kept(model.graph, keep, amax)
    quantized = tuple(name for name in convs if name not in kept)
    if not quantized:
        remedy = "check the model and the --keep patterns"
        raise UserError("has no convolution that can be quantized", where=name, remedy=remedy)
    model = _raise_opset(model, form, quantized)
    inserter = _Inserter(model.graph, form, OUTPUT_AXIS if weights == "per-channel" else None, amax)
    inserter.run(frozenset(quantized))
    model.ir_version = max(model.ir_version, form.ir_version)
    result = QuantizedModel(
        proto=model,
        quantized=quantized,
        kept=kept,
        tensors=tuple(inserter.activations),
        uncalibrated=amax is None,
        zero_channels=inserter.zero_channels,
    )
    _record(result, {"format": format, "placement": placement, "weights": weights})
    onnx.checker.check_model(model)
    return result


def placeholder_amax(tensor: str) -> float:
    """Return the magnitude that stands for an uncalibrated activation tensor: 1 to 64, by its name.

    They differ as calibrated ones do. Were they equal, TensorRT for RTX 1.7.1 would build the same layers,
    but share its generated kernels: 39.3 MB of plan for HRNet-W18 instead of 61.5 MB.
    """
    return float(64.0 ** (zlib.crc32(tensor.encode()) / 2**32))


def _refuse_quantized(graph: onnx.GraphProto) -> None:
    for node in all_nodes(graph.node):
        if node.op_type in QDQ_OPS:
            raise UserError(
                f"is quantized already (it is a {node.op_type})",
                where=f"node {node.name!r}",
                remedy="quantize the high-precision model that it was made from",
            )


def _load_external(model: onnx.ModelProto, folder: Path) -> None:
    """Read the weights that lie in other files into the model."""
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise UserError(
                f"is missing or cannot be read; the weights of tensor {tensor.name!r} lie in it",
                where=folder / location,
                remedy="put it beside the model, or strip the model's weights to work on its structure",
            ) from error
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")


def _kept(graph: onnx.GraphProto, keep: Sequence[str], amax: Mapping[str, float] | None) -> dict[str, str]:
    """Say which convolutions keep high precision, and why."""
    constants = _constants(graph)
    main = {node.name: node for node in graph.node if node.op_type == "Conv"}
    names = [node.name for node in all_nodes(graph.node) if node.op_type == "Conv"]
    matches = {pattern: {name for name in names if fnmatchcase(name, pattern)} for pattern in keep}
    for pattern, matched in matches.items():
        if not matched:
            near = get_close_matches(pattern, names, n=3, cutoff=0.3)
            remedy = f"convolutions are called such as {', '.join(near or names[:3])}"
            raise UserError(f"--keep {pattern!r} matches no convolution", remedy=remedy)
    kept: dict[str, str] = {}
    for name in names:
        node = main.get(name)
        if asked := next((pattern for pattern, matched in matches.items() if name in matched), ""):
            kept[name] = f"--keep {asked}"
        elif node is None:
            kept[name] = "in the body of an If, Loop or Scan"
        elif reason := _unfit(node, constants.get(node.input[1]), amax):
            kept[name] = reason
    return kept


def _unfit(conv: onnx.NodeProto, weight: TensorProto | None, amax: Mapping[str, float] | None) -> str:
    """Return why a convolution is not quantized whatever the user asks for; empty when it is."""
    if weight is None:
        return "its weights are computed"
    if weight.data_type not in HIGH_PRECISION:
        return f"its weights are {TensorProto.DataType.Name(weight.data_type).lower()}"
    group = next((attribute.i for attribute in conv.attribute if attribute.name == "group"), 1)
    channels = weight.dims[1] * group
    if channels <= STEM_CHANNELS:
        return f"it reads {channels} channel{'s'[: channels != 1]}"
    if amax is not None:
        if conv.input[0] not in amax:
            raise UserError(
                f"no range is given for tensor {conv.input[0]!r}",
                where=f"node {conv.name!r}",
                remedy="calibrate this very model, or keep the convolution with --keep",
            )
        largest = amax[conv.input[0]]
        if not (np.isfinite(largest) and largest > 0):
            return f"the range of its input is {largest}"
    return ""


def _constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Find the tensors with known values: initializers, Constants and Identities of those."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        held = constant_tensor(node)
        if held is None and node.op_type == "Identity":
            held = constants.get(node.input[0])
        if held is not None:
            constants[node.output[0]] = held
    return constants


def _raise_opset(model: onnx.ModelProto, form: Format, quantized: Iterable[str]) -> onnx.ModelProto:
    """Convert a model to the opset that the Q/DQ nodes need, if it is older."""
    constants, names = _constants(model.graph), frozenset(quantized)
    weights = (constants[node.input[1]] for node in model.graph.node if node.name in names)
    wide = all(weight.data_type == TensorProto.FLOAT for weight in weights)
    needed = form.opset if wide else max(form.opset, SCALES_OPSET)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if opset >= needed:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, needed)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise UserError(
            f"{form.name} needs ONNX opset {needed}, and converting from {opset} failed ({error})",
            where="the model",
            remedy=f"export it with opset {needed} or newer",
        ) from error
    converted.metadata_props.extend(model.metadata_props)
    return converted


def _record(result: QuantizedModel, recipe: Mapping[str, str]) -> None:
    """Write into the model's metadata what was done to it."""
    source = "given: one amax per tensor"
    if result.uncalibrated:
        source = "uncalibrated: each activation scale is a placeholder derived from the tensor's name"
    ours = {RECIPE_KEY: json.dumps({**recipe, "kept": dict(result.kept)}), SCALES_KEY: source}
    others = {entry.key: entry.value for entry in result.proto.metadata_props}
    helper.set_model_props(result.proto, others | ours)


class _Inserter:
    """Rewrites one graph, in place.

    Args:
        graph: The main graph.
        form: The number format.
        axis: The axis of weight scales; None for one scale per tensor.
        amax: Magnitudes of activation tensors; None for placeholders.
    """

    def __init__(
        self, graph: onnx.GraphProto, form: Format, axis: int | None, amax: Mapping[str, float] | None
    ) -> None:
        self.graph = graph
        self.form = form
        self.axis = axis
        self.amax = amax
        self.activations: dict[str, str] = {}
        self.weights: dict[str, str] = {}
        self.zero_channels: dict[str, int] = {}
        self._constants = _constants(graph)
        self._taken = {value.name for value in (*graph.input, *graph.initializer)}
        for node in all_nodes(graph.node):
            self._taken.update((node.name, *node.input, *node.output))
        self._zero_point = self._constant(f"{form.name}_zero_point", np.zeros((), form.dtype))

    def run(self, quantized: frozenset[str]) -> None:
        """Give every convolution named in `quantized` 8-bit inputs."""
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            if node.name in quantized:
                dtype = helper.tensor_dtype_to_np_dtype(self._constants[node.input[1]].data_type)
                nodes += self._pair(node.input[0], dtype)
                nodes += self._folded(node.input[1])
                node.input[0] = self.activations[node.input[0]]
                node.input[1] = self.weights[node.input[1]]
            nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        _drop_unread(self.graph, self.weights)

    def _pair(self, tensor: str, dtype: np.dtype[np.generic]) -> list[onnx.NodeProto]:
        """Return the Q/DQ pair of an activation tensor; nothing when it has one."""
        if tensor in self.activations:
            return []
        largest = placeholder_amax(tensor) if self.amax is None else self.amax[tensor]
        scale = scales_of(np.array(largest, np.float64), self.form, dtype, tensor=tensor)
        parameters = [self._constant(f"{tensor}_scale", scale), self._zero_point]
        quantize = self._node("QuantizeLinear", tensor, [tensor, *parameters], f"{tensor}_quantized")
        dequantize = self._node("DequantizeLinear", tensor, [quantize.output[0], *parameters], f"{tensor}_dequantized")
        self.activations[tensor] = dequantize.output[0]
        return [quantize, dequantize]

    def _folded(self, tensor: str) -> list[onnx.NodeProto]:
        """Return the DequantizeLinear of a weight, its codes stored; nothing when it has one."""
        if tensor in self.weights:
            return []
        weight = numpy_helper.to_array(self._constants[tensor])
        amax = amax_of(weight, self.axis)
        if zeros := int((amax == 0).sum()):
            self.zero_channels[tensor] = zeros
        scale = scales_of(amax, self.form, weight.dtype, tensor=tensor)
        codes = encode(weight, scale, self.form, self.axis)
        inputs = [self._constant(f"{tensor}_quantized", codes), self._constant(f"{tensor}_scale", scale)]
        dequantize = self._node("DequantizeLinear", tensor, inputs, f"{tensor}_dequantized")
        if self.axis is not None:
            dequantize.attribute.append(helper.make_attribute("axis", self.axis))
        self.weights[tensor] = dequantize.output[0]
        return [dequantize]

    def _node(self, op: str, tensor: str, inputs: list[str], output: str) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [self._unique(output)], name=self._unique(f"{tensor}_{op}"))

    def _constant(self, name: str, value: Array) -> str:
        unique = self._unique(name)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), unique))
        return unique

    def _unique(self, name: str) -> str:
        """Return `name`, without control characters and with a number if it is in use."""
        base = "".join(character if character.isprintable() else "_" for character in name)
        unique, number = base, 1
        while unique in self._taken:
            number += 1
            unique = f"{base}_{number}"
        self._taken.add(unique)
        return unique


def _drop_unread(graph: onnx.GraphProto, tensors: Iterable[str]) -> None:
    """Remove weights that nothing reads any more, with the Constants and Identities that carried them."""
    read = Counter(name for node in all_nodes(graph.node) for name in node.input)
    read.update(value.name for value in graph.output)
    producers = {node.output[0]: node for node in graph.node if node.op_type in ("Constant", "Identity")}
    gone: set[str] = set()
    pending = [name for name in tensors if not read[name]]
    while pending:
        name = pending.pop()
        gone.add(name)
        for source in producers[name].input if name in producers else ():
            read[source] -= 1
            if not read[source]:
                pending.append(source)
    for values in (graph.initializer, graph.input, graph.value_info):
        left = [value for value in values if value.name not in gone]
        del values[:]
        values.extend(left)
    nodes = [node for node in graph.node if node.output[0] not in gone]
    del graph.node[:]
    graph.node.extend(nodes)
