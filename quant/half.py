"""A model to another high-precision type: `to_dtype`, and `to_half` for float16."""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.names import subgraphs
from fusescope.quant.constants import HIGH_PRECISION
from fusescope.quant.prepare import raise_opset

FLOAT = TensorProto.FLOAT

Dtype = Literal["fp16", "bf16", "fp32"]
DTYPES: Mapping[Dtype, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": FLOAT}
"""ONNX element types by the names of options."""

BFLOAT16_OPSET = 22
"""The first opset whose convolutions and pools take bfloat16."""

DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that hold an element type: of Cast, of EyeLike and the random sources, of DequantizeLinear."""


def to_half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a float32 model to float16; see `to_dtype`."""
    return to_dtype(proto, "fp16")


def to_dtype(proto: onnx.ModelProto, dtype: Dtype) -> onnx.ModelProto:
    """Convert a model to one high-precision type: weights, activations, inputs and outputs.

    What an operator takes or gives in float32 but not in that type (the scales of Resize, the values of Range) is
    float32: the ONNX schemas say what that is. For bfloat16 the opset is raised to 22, if it is older.

    Args:
        proto: A model with its weights inside, without Q/DQ nodes and bodies (If, Loop, Scan). It is not changed.
        dtype: The type to convert to.

    Raises:
        UserError: A weight overflows (the message names it), a node has a body, or the opset cannot be raised.
    """
    for node in proto.graph.node:
        if any(True for _ in subgraphs(node)):
            raise UserError(f"a node with a body cannot be converted to {_NAMES[dtype]}", where=f"node {node.name!r}")
    if dtype == "bf16":
        proto = raise_opset(proto, BFLOAT16_OPSET, "bfloat16")
    converted = onnx.shape_inference.infer_shapes(proto)
    _Converter(converted, dtype).convert()
    # The option that does this, so that a report can say how to do it again.
    others = {entry.key: entry.value for entry in converted.metadata_props}
    helper.set_model_props(converted, {**others, "fusescope.dtype": dtype})
    return onnx.shape_inference.infer_shapes(converted)


_NAMES: Mapping[Dtype, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class _Converter:
    """One conversion, in place."""

    def __init__(self, proto: onnx.ModelProto, dtype: Dtype) -> None:
        self.graph = graph = proto.graph
        self.to = DTYPES[dtype]
        self.sources = HIGH_PRECISION - {self.to}
        self.opsets = {opset.domain: opset.version for opset in proto.opset_import}
        self.values = (*graph.input, *graph.output, *graph.value_info)
        self.floats = {value.name for value in self.values if value.type.tensor_type.elem_type in self.sources}
        self.weights = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in self.sources}
        self.singles: dict[str, TensorProto] = {}
        self.casts: set[str] = set()

    def convert(self) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            before = list(self._inputs_to_single(node))
            after = list(self._outputs_converted(node))
            self._convert_attributes(node)
            nodes += [*before, node, *after]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        self._convert_weights()
        for value in (*self.graph.input, *self.graph.output):
            if value.type.tensor_type.elem_type in self.sources:
                value.type.tensor_type.elem_type = self.to
        del self.graph.value_info[:]

    def _inputs_to_single(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Give the node's float32-only inputs such tensors: a copy of a weight, a Cast of anything else."""
        for index, name in enumerate(node.input):
            if not self._is_single(node, index, "inputs"):
                continue
            if name in self.weights:
                node.input[index] = self._single_weight(name)
            elif name in self.floats:
                node.input[index] = f"{name}_float32"
                if node.input[index] not in self.casts:
                    self.casts.add(node.input[index])
                    yield _cast(name, node.input[index], FLOAT)

    def _outputs_converted(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for index, name in enumerate(node.output):
            if name in self.floats and self._is_single(node, index, "outputs"):
                node.output[index] = f"{name}_float32"
                self.casts.add(node.output[index])
                yield _cast(node.output[index], name, self.to)

    def _is_single(self, node: onnx.NodeProto, index: int, side: str) -> bool:
        """Whether the operator knows float32 but not the type that all else gets at this place."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            return False  # a custom operator: what it takes is not known, so it gets what all get
        formal = getattr(schema, side)
        types = formal[min(index, len(formal) - 1)].types if formal else set()
        return "tensor(float)" in types and f"tensor({TensorProto.DataType.Name(self.to).lower()})" not in types

    def _single_weight(self, name: str) -> str:
        single = f"{name}_float32"
        self.singles[single] = _converted(self.weights[name], FLOAT, single)
        return single

    def _convert_weights(self) -> None:
        read = {name for node in self.graph.node for name in node.input} | {v.name for v in self.graph.output}
        left = [
            self._convert(t, t.name) for t in self.graph.initializer if t.name in read or t.name not in self.weights
        ]
        del self.graph.initializer[:]
        self.graph.initializer.extend([*left, *self.singles.values()])

    def _convert(self, tensor: TensorProto, name: str) -> TensorProto:
        """Return a tensor of another high-precision type in the new one, any other as it is."""
        return _converted(tensor, self.to, name) if tensor.data_type in self.sources else tensor

    def _convert_attributes(self, node: onnx.NodeProto) -> None:
        """Convert the constants and the element types that a node holds in its attributes."""
        attributes: Mapping[str, onnx.AttributeProto] = {a.name: a for a in node.attribute}
        for name in DTYPE_ATTRIBUTES:
            if name in attributes and attributes[name].i in self.sources:
                attributes[name].i = self.to
        for attribute in list(attributes.values()):
            if attribute.type == onnx.AttributeProto.TENSOR:
                attribute.t.CopyFrom(self._convert(attribute.t, node.name))
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                value = np.array(helper.get_attribute_value(attribute), dtype=np.float32)
                tensor = self._convert(numpy_helper.from_array(value), node.name)
                attribute.CopyFrom(helper.make_attribute("value", tensor))


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_Cast", to=to)


def _converted(tensor: TensorProto, to: int, name: str) -> TensorProto:
    """Return a tensor in another type, under a name that its messages have too."""
    before = numpy_helper.to_array(tensor).astype(np.float32)
    dtype = helper.tensor_dtype_to_np_dtype(to)
    with np.errstate(over="ignore", under="ignore"):  # looked for just below
        after = before.astype(dtype)
    overflow = np.isinf(after.astype(np.float32)) & np.isfinite(before)
    if overflow.any():
        raise UserError(
            f"holds {before[overflow].flat[0]:.6g}, which overflows {dtype.name}",
            where=name,
            remedy="keep the model in float32",
        )
    return numpy_helper.from_array(after, name if tensor.name else "")
