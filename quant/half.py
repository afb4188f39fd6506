"""A float32 model to float16: `to_half`."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.names import subgraphs

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16

DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that hold an element type: of Cast, of EyeLike and the random sources, of DequantizeLinear."""


def to_half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a float32 model to float16: weights, activations, inputs and outputs.

    What an operator takes or gives in float32 but not in float16 (the scales of Resize, the values of Range)
    stays float32: the ONNX schemas say what that is.

    Args:
        proto: A model with its weights inside and without bodies (If, Loop, Scan). It is not changed.

    Raises:
        UserError: A weight overflows float16 (the message names it), or a node has a body.
    """
    for node in proto.graph.node:
        if any(True for _ in subgraphs(node)):
            raise UserError("a node with a body cannot be converted to float16", where=f"node {node.name!r}")
    half = onnx.shape_inference.infer_shapes(proto)
    _Halver(half).convert()
    # The option that does this, so that a report can say how to do it again.
    half.metadata_props.add(key="fusescope.dtype", value="fp16")
    return onnx.shape_inference.infer_shapes(half)


class _Halver:
    """One conversion, in place."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = graph = proto.graph
        self.opsets = {opset.domain: opset.version for opset in proto.opset_import}
        self.values = (*graph.input, *graph.output, *graph.value_info)
        self.floats = {value.name for value in self.values if value.type.tensor_type.elem_type == FLOAT}
        self.weights = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == FLOAT}
        self.singles: dict[str, TensorProto] = {}
        self.casts: set[str] = set()

    def convert(self) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            before = list(self._inputs_to_single(node))
            after = list(self._outputs_to_half(node))
            _halve_attributes(node)
            nodes += [*before, node, *after]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        self._convert_weights()
        for value in (*self.graph.input, *self.graph.output):
            if value.type.tensor_type.elem_type == FLOAT:
                value.type.tensor_type.elem_type = HALF
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

    def _outputs_to_half(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for index, name in enumerate(node.output):
            if name in self.floats and self._is_single(node, index, "outputs"):
                node.output[index] = f"{name}_float32"
                self.casts.add(node.output[index])
                yield _cast(node.output[index], name, HALF)

    def _is_single(self, node: onnx.NodeProto, index: int, side: str) -> bool:
        """Whether the operator knows float32 but not float16 at this place."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            return False  # a custom operator: what it takes is not known, so it gets what all get
        formal = getattr(schema, side)
        types = formal[min(index, len(formal) - 1)].types if formal else set()
        return "tensor(float)" in types and "tensor(float16)" not in types

    def _single_weight(self, name: str) -> str:
        single = TensorProto()
        single.CopyFrom(self.weights[name])
        single.name = f"{name}_float32"
        self.singles[single.name] = single
        return single.name

    def _convert_weights(self) -> None:
        read = {name for node in self.graph.node for name in node.input} | {v.name for v in self.graph.output}
        left = [_halve(t) for t in self.graph.initializer if t.name in read or t.name not in self.weights]
        del self.graph.initializer[:]
        self.graph.initializer.extend([*left, *self.singles.values()])


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_Cast", to=to)


def _halve(tensor: TensorProto, name: str = "") -> TensorProto:
    """Return a float32 tensor in float16, any other as it is."""
    if tensor.data_type != FLOAT:
        return tensor
    single = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore", under="ignore"):  # looked for just below
        half = single.astype(np.float16)
    overflow = np.isinf(half) & np.isfinite(single)
    if overflow.any():
        raise UserError(
            f"holds {single[overflow].flat[0]:.6g}, which overflows float16",
            where=tensor.name or name,
            remedy="keep the model in float32",
        )
    return numpy_helper.from_array(half, tensor.name)


def _halve_attributes(node: onnx.NodeProto) -> None:
    """Convert the constants and the element types that a node holds in its attributes."""
    attributes: Mapping[str, onnx.AttributeProto] = {a.name: a for a in node.attribute}
    for name in DTYPE_ATTRIBUTES:
        if name in attributes and attributes[name].i == FLOAT:
            attributes[name].i = HALF
    for attribute in list(attributes.values()):
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(_halve(attribute.t, node.name))
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = np.array(helper.get_attribute_value(attribute), dtype=np.float32)
            tensor = _halve(numpy_helper.from_array(value), node.name)
            attribute.CopyFrom(helper.make_attribute("value", tensor))
