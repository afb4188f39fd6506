"""ONNX protos without their weights: what analysis, shape inference and the checker need of a model."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnx.numpy_helper

from fusescope.graph.names import subgraphs

LARGE_ELEMENTS = 1024
"""Tensors with more elements are weights to us: their values are never looked at."""


def is_large(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's values lie in another file or are too many to shape the graph's structure."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL or math.prod(tensor.dims) > LARGE_ELEMENTS


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor that a Constant node holds; None for other nodes and for Constants of other kinds."""
    if node.op_type != "Constant":
        return None
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            tensor: onnx.TensorProto = attribute.t
            return tensor
        if attribute.name == "value_floats":
            return onnx.numpy_helper.from_array(np.array(attribute.floats, np.float32))
    return None


def copy_node(
    node: onnx.NodeProto,
    copy: onnx.NodeProto,
    copy_body: Callable[[onnx.GraphProto, onnx.GraphProto], None],
) -> None:
    """Copy a node, and its bodies by `copy_body(body, copy)`."""
    if not any(True for _ in subgraphs(node)):
        copy.CopyFrom(node)
        return
    for field in ("name", "op_type", "domain", "overload"):
        if node.HasField(field):
            setattr(copy, field, getattr(node, field))
    copy.input.extend(node.input)
    copy.output.extend(node.output)
    for attribute in node.attribute:
        target = copy.attribute.add()
        if attribute.type == onnx.AttributeProto.GRAPH:
            target.name, target.type = attribute.name, attribute.type
            copy_body(attribute.g, target.g)
        else:
            target.CopyFrom(attribute)


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model so that its large constants are graph inputs of the same dtype and shape.

    The copy is small, valid where the model is, and infers the same shapes. The weights are not copied on the
    way, and external data is not opened.
    """
    light = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            _copy_graph(value, light.graph, light.graph)
        elif isinstance(value, (str, int, bytes)):
            setattr(light, field.name, value)
        elif field.name != "training_info":
            getattr(light, field.name).extend(value)
    return light


def _copy_graph(graph: onnx.GraphProto, light: onnx.GraphProto, hoisted: onnx.GraphProto) -> None:
    """Copy `graph`; its large constants become inputs of `hoisted`, the main graph; bodies read them too."""
    light.name = graph.name
    light.input.extend(graph.input)
    light.output.extend(graph.output)
    light.value_info.extend(graph.value_info)
    light.sparse_initializer.extend(graph.sparse_initializer)
    declared = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if not is_large(tensor):
            light.initializer.append(tensor)
        elif tensor.name not in declared:
            hoisted.input.append(_value_info(tensor.name, tensor))
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None and is_large(tensor):
            hoisted.input.append(_value_info(node.output[0], tensor))
        elif any(True for _ in subgraphs(node)):
            nodes.append(onnx.NodeProto())
            copy_node(node, nodes[-1], partial(_copy_graph, hoisted=hoisted))
        else:
            nodes.append(node)
    light.node.extend(nodes)  # Far quicker than node by node.


def _value_info(name: str, tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
