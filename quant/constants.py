"""What a model holds as constants and as metadata, and taking out constants that nothing reads any more."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.names import all_nodes
from fusescope.graph.weights import constant_tensor

RECIPE_KEY, SCALES_KEY = "fusescope.recipe", "fusescope.scales"
"""Metadata of a quantized model: what was done (JSON), and where its activation scales are from (text)."""

HIGH_PRECISION = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""The element types that can be quantized."""

HIGH_PRECISION_NAMES = frozenset(TensorProto.DataType.Name(kind).lower() for kind in HIGH_PRECISION)
"""The same as a graph calls them."""

_CARRIES = ("Constant", "Identity", "Cast", "Transpose")
"""Operations that weights are found behind."""


def constants_of(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Find the tensors with known values: initializers, Constants, and Identities, Casts and Transposes of those."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        held = constant_tensor(node)
        if held is None and node.op_type in _CARRIES and node.input and node.input[0] in constants:
            held = _carried(node, constants[node.input[0]])
        if held is not None:
            constants[node.output[0]] = held
    return constants


def _carried(node: onnx.NodeProto, tensor: TensorProto) -> TensorProto | None:
    """Compute an Identity, Cast or Transpose of a constant; None where the result is nothing to quantize."""
    if node.op_type == "Identity":
        return tensor
    attributes = attributes_of(node)
    if tensor.data_type not in HIGH_PRECISION or attributes.get("to", tensor.data_type) not in HIGH_PRECISION:
        return None
    array = numpy_helper.to_array(tensor)
    if node.op_type == "Transpose":
        return numpy_helper.from_array(np.ascontiguousarray(array.transpose(attributes.get("perm"))))
    with np.errstate(over="ignore"):  # infinity is found where the scale is computed
        return numpy_helper.from_array(array.astype(helper.tensor_dtype_to_np_dtype(attributes["to"])))


def attributes_of(node: onnx.NodeProto) -> Mapping[str, Any]:
    """Read the attributes of a node: numbers, texts, tensors and lists of them."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def read_counts(graph: onnx.GraphProto) -> Counter[str]:
    """Count how often each tensor is read: by nodes, also those in bodies, and as an output of the graph."""
    read = Counter(name for node in all_nodes(graph.node) for name in node.input)
    read.update(value.name for value in graph.output)
    for node in all_nodes(graph.node):
        for attribute in node.attribute:
            read.update(value.name for value in attribute.g.output)
    return read


def drop_unread(graph: onnx.GraphProto, tensors: Iterable[str]) -> None:
    """Remove those of some constants that nothing reads any more, with the nodes that carried them; in place."""
    read = read_counts(graph)
    producers = {node.output[0]: node for node in graph.node if node.op_type in _CARRIES}
    gone: set[str] = set()
    pending = [name for name in dict.fromkeys(tensors) if not read[name]]
    while pending:
        name = pending.pop()
        gone.add(name)
        for source in producers[name].input if name in producers else ():
            read[source] -= 1
            if not read[source]:
                pending.append(source)
    for values in (graph.initializer, graph.input, graph.value_info):
        replace_all(values, [value for value in values if value.name not in gone])
    replace_all(graph.node, [node for node in graph.node if node.output[0] not in gone])


def replace_all(repeated: Any, values: Iterable[Any]) -> None:
    """Set a repeated field of a proto."""
    values = list(values)
    del repeated[:]
    repeated.extend(values)
