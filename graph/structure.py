"""Structure-only models: ONNX files that say everything about a model but its weights.

A weight becomes the output of a ConstantOfShape node, so that the file stays a valid ONNX model, of a few
hundred kilobytes, that can be shared. `fill` turns each back into a constant with seeded values.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.filling import SeededValues
from fusescope.graph.model import graph_of
from fusescope.graph.names import all_nodes, subgraphs
from fusescope.graph.weights import constant_tensor, copy_node, is_large

STRUCTURE_ONLY = "fusescope.structure_only"
"""Metadata key of a structure-only model; its value is "true"."""
WEIGHTS = "fusescope.weights"
"""Metadata key that says where the weights of a filled model come from."""

_OURS = "fusescope."
_SHAPE = "fusescope.shape/"  # initializer: the shape of the weights that ConstantOfShape makes
_WEIGHT = "fusescope.weight/"  # node name: makes what was an initializer; a Constant's node keeps its name
_UNCAST = "fusescope.uncast/"  # tensor: float32 zeros on the way to a dtype that ConstantOfShape lacks

_INDEX_TYPES = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL})
_INDEX_ELEMENTS = 4096
"""Integers up to this many are shapes, axes and index tables, which belong to the structure."""

_PARAMETERS = {
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
}
"""Inputs, by position, that belong to the structure: a wrong value there makes another model, or none."""

_CARRIES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Concat"})
"""Operations through which a constant stays the same parameter."""


def filled_mark(seed: int) -> str:
    """Say of a filled model where its weights come from: the value of the metadata key `WEIGHTS`."""
    return f"seeded values of a structure-only model, seed {seed}"


def is_structure_only(proto: onnx.ModelProto) -> bool:
    """Whether a model has no weights and must be filled before it is compiled."""
    return any(entry.key == STRUCTURE_ONLY and entry.value == "true" for entry in proto.metadata_props)


def strip(proto: onnx.ModelProto, *, folder: Path | None = None) -> onnx.ModelProto:
    """Copy a model without its weights, and without the texts that an exporter leaves behind.

    Scalars, integers that are shapes or indices, per-tensor and per-channel scales and zero points, and the
    parameters of Resize, Clip and Pad stay. Names, dtypes, shapes and the opset stay too.

    Args:
        proto: The model; it is not changed. External data that holds only weights may be missing.
        folder: Where external data lies, for parameters of the structure that were stored there.

    Raises:
        UserError: A parameter of the structure is in external data that is not there, or weights cannot be
            taken out: they are in a local function, an attribute or a sparse tensor.
    """
    _refuse_hidden_weights(proto)
    stripped = onnx.ModelProto(ir_version=max(proto.ir_version, 4), opset_import=proto.opset_import)
    stripped.functions.extend(proto.functions)
    stripper = _Stripper(proto, folder)
    stripper.copy_graph(proto.graph, stripped.graph)
    stripped.graph.initializer.extend(stripper.shapes.values())
    for entry in proto.metadata_props:
        if entry.key.startswith(_OURS) and entry.key not in {WEIGHTS, STRUCTURE_ONLY}:
            stripped.metadata_props.append(entry)
    stripped.metadata_props.add(key=STRUCTURE_ONLY, value="true")
    return stripped


def fill(proto: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Copy a structure-only model with seeded values for its weights; see `fusescope.graph.filling`.

    Nodes, tensors, names, dtypes and shapes are those of the model that was stripped.

    Args:
        proto: A structure-only model; it is not changed.
        seed: Same seed, same values, whatever the order of the tensors.

    Raises:
        ValueError: The model has its weights.
    """
    if not is_structure_only(proto):
        raise ValueError("only a structure-only model can be filled")
    filled = onnx.ModelProto()
    filled.CopyFrom(proto)
    filler = _Filler(proto, seed)
    filler.fill_graph(filled.graph)
    for body in [body for node in all_nodes(filled.graph.node) for body in subgraphs(node)]:
        filler.fill_graph(body)
    mark = next(entry for entry in filled.metadata_props if entry.key == STRUCTURE_ONLY)
    mark.key, mark.value = WEIGHTS, filled_mark(seed)
    return filled


class _Stripper:
    """Copies graphs without weights.

    Args:
        proto: The whole model.
        folder: Where its external data lies, if anywhere.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path | None) -> None:
        self.shapes: dict[str, onnx.TensorProto] = {}
        self._folder = folder
        nodes = list(all_nodes(proto.graph.node))
        self._parameters = _parameters(nodes)
        self._integer_weights = {node.input[0] for node in nodes if node.op_type == "DequantizeLinear"}
        self._makes = _constant_of_shape_dtypes(proto)

    def copy_graph(self, graph: onnx.GraphProto, copy: onnx.GraphProto) -> None:
        """Copy `graph`, or the body of a node, with each weight made by a node."""
        copy.name = graph.name
        copy.output.extend(graph.output)
        copy.value_info.extend(graph.value_info)
        copy.sparse_initializer.extend(graph.sparse_initializer)
        weights = {tensor.name for tensor in graph.initializer if self._is_weight(tensor, tensor.name)}
        copy.input.extend(value for value in graph.input if value.name not in weights)
        for tensor in graph.initializer:
            if tensor.name in weights:
                copy.node.extend(self._made(tensor, tensor.name, _WEIGHT + tensor.name))
            else:
                copy.initializer.append(self._kept(tensor))
        for node in graph.node:
            held = constant_tensor(node)
            if held is not None and self._is_weight(held, node.output[0]):
                copy.node.extend(self._made(held, node.output[0], node.name))
            else:
                copy_node(node, copy.node.add(), self.copy_graph)
        for part in (*copy.input, *copy.output, *copy.value_info, *copy.node, *copy.initializer):
            part.ClearField("doc_string")
            part.ClearField("metadata_props")

    def _is_weight(self, tensor: onnx.TensorProto, name: str) -> bool:
        elements = math.prod(tensor.dims)
        if elements <= 1 or tensor.data_type == onnx.TensorProto.STRING:
            return False
        if tensor.data_type in _INDEX_TYPES:
            return elements > _INDEX_ELEMENTS or name in self._integer_weights
        return name not in self._parameters or len(tensor.dims) > 1

    def _made(self, tensor: onnx.TensorProto, output: str, name: str) -> list[onnx.NodeProto]:
        """Return the nodes that make a tensor of zeros like `tensor`, called `output`."""
        shape = _SHAPE + "x".join(map(str, tensor.dims))
        self.shapes.setdefault(shape, onnx.numpy_helper.from_array(np.array(tensor.dims, np.int64), shape))
        if tensor.data_type in self._makes:
            zero = onnx.helper.make_tensor("", tensor.data_type, [1], [0])
            return [onnx.helper.make_node("ConstantOfShape", [shape], [output], name=name, value=zero)]
        uncast = _UNCAST + output
        return [
            onnx.helper.make_node("ConstantOfShape", [shape], [uncast], name=uncast),
            onnx.helper.make_node("Cast", [uncast], [output], name=name, to=tensor.data_type),
        ]

    def _kept(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            try:
                if self._folder is None:
                    raise FileNotFoundError
                onnx.external_data_helper.load_external_data_for_tensor(copy, str(self._folder))
            except (OSError, ValueError, onnx.checker.ValidationError):
                raise UserError(
                    f"tensor {tensor.name!r} is part of the structure, but its file {location!r} is missing",
                    remedy="put the file beside the model",
                ) from None
            copy.ClearField("data_location")
            copy.ClearField("external_data")
        return copy


class _Filler:
    """Turns the nodes that make weights back into constants.

    Args:
        proto: The structure-only model.
        seed: What the values are drawn from, together with the tensors' names.
    """

    def __init__(self, proto: onnx.ModelProto, seed: int) -> None:
        self._values = SeededValues(graph_of(proto), seed)
        self._shapes = {
            tensor.name: tuple(onnx.numpy_helper.to_array(tensor).tolist())
            for tensor in proto.graph.initializer
            if tensor.name.startswith(_SHAPE)
        }

    def fill_graph(self, graph: onnx.GraphProto) -> None:
        """Fill one graph, in place; not the bodies in it."""
        nodes, tensors = list(graph.node), list(graph.initializer)
        del graph.node[:], graph.initializer[:]
        graph.initializer.extend(tensor for tensor in tensors if tensor.name not in self._shapes)
        for node in nodes:
            made = self._made(node)
            if made is None:
                graph.node.append(node)
            elif node.output[0].startswith(_UNCAST):
                self._shapes[node.output[0]] = self._shapes[node.input[0]]
            elif node.name.startswith(_WEIGHT):
                graph.initializer.append(made)
            else:
                made.ClearField("name")
                outputs = list(node.output)
                graph.node.append(onnx.helper.make_node("Constant", [], outputs, name=node.name, value=made))

    def _made(self, node: onnx.NodeProto) -> onnx.TensorProto | None:
        """Return the values for what a node of ours makes; None for a node of the model."""
        if not node.input or node.input[0] not in self._shapes:
            return None
        attribute = node.attribute[0] if node.attribute else None
        if attribute is None:
            element_type = onnx.TensorProto.FLOAT
        else:
            element_type = attribute.i if node.op_type == "Cast" else attribute.t.data_type
        return self._values.tensor(node.output[0], self._shapes[node.input[0]], element_type)


def _parameters(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Find the tensors that belong to the structure, also behind operations that carry them."""
    parameters: set[str] = set()
    for node in reversed(list(nodes)):
        carried = node.op_type in _CARRIES and any(tensor in parameters for tensor in node.output)
        for position, tensor in enumerate(node.input):
            if carried or position in _PARAMETERS.get(node.op_type, ()):
                parameters.add(tensor)
    return frozenset(parameters)


def _constant_of_shape_dtypes(proto: onnx.ModelProto) -> frozenset[int]:
    """Return the element types that ConstantOfShape makes in the model's opset, from ONNX's own schema."""
    opset = next((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    schema = onnx.defs.get_schema("ConstantOfShape", max(opset, 9), "")
    allowed = {kind for types in schema.type_constraints for kind in types.allowed_type_strs}
    names = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}
    return frozenset(names[kind] for kind in allowed)


def _refuse_hidden_weights(proto: onnx.ModelProto) -> None:
    graphs = [proto.graph, *(body for node in all_nodes(proto.graph.node) for body in subgraphs(node))]
    for graph in graphs:
        for sparse in graph.sparse_initializer:
            raise _hidden(f"tensor {sparse.values.name!r} is sparse")
    for node in all_nodes(node for function in proto.functions for node in function.node):
        held = constant_tensor(node)
        if held is not None and math.prod(held.dims) > 1 and held.data_type not in _INDEX_TYPES:
            raise _hidden(f"node {node.name!r} is inside a local function")
    for node in all_nodes(proto.graph.node):
        for attribute in node.attribute:
            if node.op_type != "Constant" and is_large(attribute.t):
                raise _hidden(f"node {node.name!r} holds them in its attribute {attribute.name!r}")


def _hidden(where: str) -> UserError:
    return UserError(
        f"has weights that cannot be taken out: {where}",
        remedy="export the model with its weights as initializers and without local functions",
    )
