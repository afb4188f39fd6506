"""Takes Q/DQ nodes out of a model, so that they can be placed anew: `unquantized`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.graph.names import all_nodes, name_nodes, subgraphs
from fusescope.graph.sites import number_format
from fusescope.quant.constants import (
    HIGH_PRECISION_NAMES,
    RECIPE_KEY,
    SCALES_KEY,
    attributes_of,
    constants_of,
    drop_unread,
    replace_all,
)
from fusescope.quant.placement import Read

Floats = NDArray[np.float64]

_GIVE = "give the high-precision model that it was made from"

_Q_DQ = ops.QUANTIZE | ops.DEQUANTIZE

_CODES: Mapping[str, tuple[float, float]] = {
    "fp8": (-448, 448),
    "float8e5m2": (-57344, 57344),
    "int8": (-127, 127),  # -128 is not used where the zero point is 0
    "uint8": (0, 255),
    "int16": (-32767, 32767),
    "uint16": (0, 65535),
}
"""The least and the largest code by number format, as `fusescope.graph.sites.number_format` calls it."""

MODELOPT_LARGEST = 127**2 / 448
"""The largest FP8 code in models of ModelOpt's ONNX quantizer, whose scales are amax * 448 / 127**2 (0.47): 36.0."""


@dataclass(frozen=True, slots=True)
class Unquantized:
    """A model without its Q/DQ nodes, and what those said."""

    proto: onnx.ModelProto
    """The model in high precision."""
    amax: Mapping[str, float]
    """Activation tensor to the largest magnitude that its scale had room for."""
    reads: Mapping[str, tuple[Read, ...]]
    """Activation tensor to the inputs that read through its pair."""
    dequantized: tuple[str, ...]
    """Constants that were there as codes only: their values are those of the codes."""
    largest_code: float | None
    """What `amax` was recovered with where that is not the format's largest code: `MODELOPT_LARGEST`, else None."""
    source: str
    """Where the model's metadata say that its scales are from; empty when they do not say."""


def quantizer_in(proto: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the first Q or DQ node of a model, of ONNX or of a tool's own domain, also in a body; None if none is."""
    return next((node for node in all_nodes(proto.graph.node) if node.op_type in _Q_DQ), None)


def unquantized(proto: onnx.ModelProto) -> Unquantized:
    """Copy a model without its Q/DQ nodes.

    Magnitudes are recovered from scales and zero points. Where the FP8 weights of a model use no code above 36, it has
    ModelOpt's ONNX scales, and so have its activations.

    Args:
        proto: A model with its weights inside. It is not changed.

    Raises:
        UserError: Q/DQ nodes are in the body of an If, Loop or Scan, a scale is computed, or codes have fewer than 8
            bits.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    name_nodes(model)
    stripper = _Stripper(model)
    stripper.run()
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {key: text for key, text in metadata.items() if key not in (RECIPE_KEY, SCALES_KEY)})
    used = {node.domain for node in all_nodes(model.graph.node)}
    replace_all(model.opset_import, [entry for entry in model.opset_import if not entry.domain or entry.domain in used])
    return Unquantized(
        proto=model,
        amax=stripper.amax,
        reads=stripper.reads,
        dequantized=tuple(stripper.dequantized),
        largest_code=stripper.largest_fp8 if stripper.largest_fp8 != _CODES["fp8"][1] else None,
        source=metadata.get(SCALES_KEY, ""),
    )


class _Stripper:
    """Takes the Q/DQ nodes out of one model, in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.amax: dict[str, float] = {}
        self.reads: dict[str, tuple[Read, ...]] = {}
        self.dequantized: list[str] = []
        self._graph = model.graph
        self._known = graph_of(model)
        self._constants = constants_of(model.graph)
        self._base: dict[str, str] = {}
        self._pairs: set[str] = set()
        self._unread: list[str] = []
        self.largest_fp8 = self._largest_fp8()

    def run(self) -> None:
        """Do it."""
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            if node.op_type in ops.QUANTIZE:
                self._base[node.output[0]] = self._of(node.input[0])
                self._unread += node.input[1:]
            elif node.op_type in ops.DEQUANTIZE:
                nodes += self._dequantize(node)
                self._unread += node.input
            else:
                self._redirect(node)
                nodes.append(node)
        nodes += [self._output(value.name) for value in self._graph.output if value.name in self._base]
        replace_all(self._graph.node, nodes)
        replace_all(self._graph.value_info, [value for value in self._graph.value_info if self._is_true(value.name)])
        drop_unread(self._graph, self._unread)

    def _is_true(self, tensor: str) -> bool:
        """Whether what the file says of a tensor's type holds without Q/DQ nodes; tools leave such words behind too."""
        known = self._known.tensors.get(tensor)
        return known is not None and known.dtype in HIGH_PRECISION_NAMES and tensor not in self._base

    def _of(self, tensor: str) -> str:
        """Return the tensor in high precision that stands for one."""
        return self._base.get(tensor, tensor)

    def _dequantize(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Note what stands for a Dequantize's output; return the node that makes it, if one has to."""
        codes, output = node.input[0], node.output[0]
        if node.input[1] not in self._constants:
            raise UserError("its scale is computed", where=f"node {node.name!r}", remedy=_GIVE)
        if codes in self._constants:
            self._base[output] = self._dequantized(node)
            return []
        if codes in self._known.constants and codes not in self._base:
            raise UserError("its codes are computed from constants", where=f"node {node.name!r}", remedy=_GIVE)
        tensor = self._of(codes)
        before, after = (self._known.tensors[name].dtype for name in (tensor, output))
        casts = codes in self._base and bool(before and after) and before != after
        self._base[output] = output if casts else tensor
        if tensor not in self._known.constants:
            self._pairs.add(output)
            self.amax[self._of(output)] = max(self._magnitude(node), self.amax.get(self._of(output), 0.0))
        to = TensorProto.DataType.Value(after.upper()) if casts else 0
        return [helper.make_node("Cast", [tensor], [output], name=node.name, to=to)] if casts else []

    def _magnitude(self, node: onnx.NodeProto) -> float:
        """Return the largest magnitude that the codes of an activation can stand for."""
        form = number_format(self._known, self._known.nodes[node.name])
        if form not in _CODES:
            raise UserError(f"its codes are {form or 'of an unknown type'}", where=f"node {node.name!r}", remedy=_GIVE)
        scale = self._values(node.input[1])
        if form == "fp8":
            return float(scale.max() * self.largest_fp8)
        least, most = _CODES[form]
        zero = self._zero_point(node)
        return float((scale * np.maximum(most - zero, zero - least)).max())

    def _zero_point(self, node: onnx.NodeProto) -> Floats:
        name = node.input[2] if len(node.input) > 2 else ""
        return self._values(name) if name else np.zeros(())

    def _values(self, name: str) -> Floats:
        return numpy_helper.to_array(self._constants[name]).astype(np.float64)

    def _dequantized(self, node: onnx.NodeProto) -> str:
        """Store the values of constant codes; return the tensor's name."""
        codes, scales = node.input[:2]
        values = self._values(codes)
        scale, zero = (_spread(each, node, values.shape) for each in (self._values(scales), self._zero_point(node)))
        dtype = helper.tensor_dtype_to_np_dtype(self._constants[scales].data_type)
        name: str = codes.removesuffix("_quantized")
        if name in self._known.tensors:
            name = f"{node.output[0]}_values"
        self._graph.initializer.append(numpy_helper.from_array(((values - zero) * scale).astype(dtype), name))
        self.dequantized.append(name)
        return name

    def _largest_fp8(self) -> float:
        """Return the largest FP8 code that this model's scales use: 448, or 36 if none of its weights uses more."""
        largest = 0.0
        for node in self._graph.node:
            if node.op_type not in _Q_DQ or node.input[0] not in self._constants:
                continue
            if node.input[1] in self._constants and number_format(self._known, self._known.nodes[node.name]) == "fp8":
                values = self._values(node.input[0])
                if node.op_type in ops.QUANTIZE:
                    values = values / _spread(self._values(node.input[1]), node, values.shape)
                largest = max(largest, float(np.abs(values).max(initial=0.0)))
        return MODELOPT_LARGEST if np.rint(largest) == np.rint(MODELOPT_LARGEST) else _CODES["fp8"][1]

    def _redirect(self, node: onnx.NodeProto) -> None:
        """Let a node, and the nodes in its bodies, read what was there before it was quantized."""
        for position, tensor in enumerate(node.input):
            if tensor in self._pairs:
                self.reads[self._of(tensor)] = (*self.reads.get(self._of(tensor), ()), (node.name, position))
            node.input[position] = self._of(tensor)
        for body in subgraphs(node):
            for inner in all_nodes(body.node):
                if inner.op_type in _Q_DQ:
                    raise UserError("is in the body of an If, Loop or Scan", where=f"node {inner.name!r}", remedy=_GIVE)
                inner.input[:] = [self._of(tensor) for tensor in inner.input]
            for value in body.output:
                value.name = self._of(value.name)

    def _output(self, name: str) -> onnx.NodeProto:
        """Return the node that writes an output of the model that was read from a Dequantize."""
        if self._known.tensors[name].dtype not in HIGH_PRECISION_NAMES:
            raise UserError("is an output of the model in 8 bits", where=f"tensor {name!r}", remedy=_GIVE)
        return helper.make_node("Identity", [self._of(name)], [name], name=f"{name}_Identity")


def _spread(parameter: Floats, node: onnx.NodeProto, shape: tuple[int, ...]) -> Floats:
    """Bring a scale or zero point to where it can be multiplied with a tensor: one, one per channel, or per block."""
    attributes = attributes_of(node)
    axis = attributes.get("axis", 1)
    if parameter.size == 1:
        return parameter.reshape(())
    if block := attributes.get("block_size", 0):
        return np.repeat(parameter, block, axis=axis).take(np.arange(shape[axis]), axis=axis)
    return parameter.reshape([-1 if at == axis % len(shape) else 1 for at in range(len(shape))])
