"""The batch of a model: `with_batch`."""

from collections.abc import Iterator

import onnx
import onnx.numpy_helper
import onnx.shape_inference

from fusescope.graph.errors import UserError
from fusescope.graph.names import all_nodes
from fusescope.graph.weights import constant_tensor

_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""Operations that are told the whole shape of their output, and the input that tells it (ONNX operators)."""


def with_batch(proto: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Copy a model with another batch: the first dimension of its inputs and of all that follows from them.

    Args:
        proto: A model whose inputs all have the same first dimension, fixed or dynamic. It is not changed.
        batch: The new one, at least 1.

    Raises:
        UserError: The inputs have no common batch, or a node holds the old batch in a constant (the message
            names it), so that the model must be exported anew.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    old = _common_batch(inputs)
    if old == batch:
        return copy
    for node in _told_batch(graph, old) if old else ():
        raise _baked(f"node {node.name!r} ({node.op_type}) holds the batch {old} in a constant", batch)
    symbol = inputs[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*inputs, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and (dims[0].dim_value, dims[0].dim_param) == (old, symbol):
            dims[0].dim_value = batch
    del graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(copy, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise _baked(f"shapes do not fit ({error})", batch) from error


def _common_batch(inputs: list[onnx.ValueInfoProto]) -> int:
    """Return the first dimension of all inputs; 0 where it is dynamic."""
    batches = {value.name: value.type.tensor_type.shape.dim[:1] for value in inputs}
    common = {(dim.dim_value, dim.dim_param) for dims in batches.values() for dim in dims}
    if len(common) != 1 or not all(batches.values()):
        sizes = {name: dims[0].dim_value or dims[0].dim_param or "?" for name, dims in batches.items() if dims}
        found = ", ".join(f"{name}: {sizes.get(name, 'none')}" for name in batches)
        raise UserError(
            f"the inputs have no common batch ({found})",
            where="the model",
            remedy="export the model with the batch that is wanted",
        )
    return int(common.pop()[0])


def _told_batch(graph: onnx.GraphProto, batch: int) -> Iterator[onnx.NodeProto]:
    """Find the nodes whose output shape is a constant that begins with the batch."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    weights = set(constants)  # they have no batch
    for node in all_nodes(graph.node):
        held = constant_tensor(node)
        if held is not None:
            constants[node.output[0]] = held
        if held is not None or (node.op_type == "ConstantOfShape" and node.input[0] in weights):
            weights.add(node.output[0])
        position = _SHAPE_INPUTS.get(node.op_type)
        if position is None or position >= len(node.input):
            continue
        shape = constants.get(node.input[position])
        if shape is not None and node.input[0] not in weights and _first(shape) == batch:
            yield node


def _first(shape: onnx.TensorProto) -> int:
    values = onnx.numpy_helper.to_array(shape).ravel()
    return int(values[0]) if values.size else 0


def _baked(what: str, batch: int) -> UserError:
    return UserError(f"cannot be changed to batch {batch}: {what}", remedy="export it with that batch")
