"""A model made ready for Q/DQ nodes: whole, its nodes named, BatchNormalization folded, its opset new enough."""

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from onnx import TensorProto, numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.external import load_weights
from fusescope.graph.names import name_nodes
from fusescope.quant.constants import HIGH_PRECISION, attributes_of, constants_of, drop_unread, read_counts, replace_all

_EPSILON = 1e-5
"""Default of BatchNormalization's attribute `epsilon` (ONNX operators)."""


def whole(proto: onnx.ModelProto, folder: Path, name: str) -> onnx.ModelProto:
    """Copy a model with all that belongs to it in its graph: external data, local functions; its nodes get names.

    Args:
        proto: The model; it is not changed.
        folder: Where the files of external data lie.
        name: What to call the model in messages.

    Raises:
        UserError: A file of external data is missing.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    load_weights(model, folder, name)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    name_nodes(model)
    return model


def fold_norms(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Fold each BatchNormalization into the convolution that it alone reads, as TensorRT does; in place.

    The scales of weights are then those of the kernels that run.

    Returns:
        Names of the BatchNormalization nodes that are gone.
    """
    constants, read = constants_of(graph), read_counts(graph)
    producers = {node.output[0]: node for node in graph.node if node.op_type in ("Conv", "ConvTranspose")}
    folded: list[onnx.NodeProto] = []
    unread: list[str] = []
    taken = {*constants, *read}
    for norm in graph.node:
        conv = producers.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if conv is None or read[norm.input[0]] > 1 or any(norm.output[1:]):
            continue
        kernels = _folded(conv, norm, constants)
        if kernels is None:
            continue
        unread += [*conv.input[1:], *norm.input[1:], conv.output[0]]
        for tensor, base in zip(kernels, (conv.input[1], norm.output[0]), strict=True):
            tensor.name = _free(f"{base}_folded", taken)
            constants[tensor.name] = tensor
        graph.initializer.extend(kernels)
        conv.input[1:] = [tensor.name for tensor in kernels]
        conv.output[0] = norm.output[0]
        folded.append(norm)
    names = tuple(norm.name for norm in folded)
    gone = frozenset(names)
    replace_all(graph.node, [node for node in graph.node if node.name not in gone])
    drop_unread(graph, unread)
    return names


def _free(base: str, taken: set[str]) -> str:
    """Return `base`, or that with a number if it is in use, and take it."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _folded(
    conv: onnx.NodeProto, norm: onnx.NodeProto, constants: dict[str, TensorProto]
) -> tuple[TensorProto, TensorProto] | None:
    """Compute kernel and bias with a BatchNormalization in them; None where that cannot be done."""
    attributes = attributes_of(norm)
    parameters = filter(None, (*conv.input[1:], *norm.input[1:]))
    if attributes.get("training_mode", 0) or any(tensor not in constants for tensor in parameters):
        return None
    weight = constants[conv.input[1]]
    kernel = numpy_helper.to_array(weight)
    written = kernel.shape[0] if conv.op_type == "Conv" else kernel.shape[1] * attributes_of(conv).get("group", 1)
    fits = all(list(constants[name].dims) == [written] for name in norm.input[1:5])
    if weight.data_type not in HIGH_PRECISION or not fits:
        return None
    gamma, beta, mean, variance = (
        numpy_helper.to_array(constants[name]).astype(np.float64) for name in norm.input[1:5]
    )
    with np.errstate(divide="ignore", invalid="ignore"):  # looked for below
        factor = gamma / np.sqrt(variance + attributes.get("epsilon", _EPSILON))
    bias = numpy_helper.to_array(constants[conv.input[2]]).astype(np.float64) if any(conv.input[2:]) else 0.0
    if conv.op_type == "Conv":
        factors = factor.reshape(-1, *[1] * (kernel.ndim - 1))
    else:  # (channels read, channels written per group, ...), where the first axis goes through the groups too
        group = attributes_of(conv).get("group", 1)
        factors = np.repeat(factor.reshape(group, -1), kernel.shape[0] // group, axis=0)
        factors = factors.reshape(*factors.shape, *[1] * (kernel.ndim - 2))
    with np.errstate(over="ignore", invalid="ignore"):  # looked for just below
        results = [array.astype(kernel.dtype) for array in (kernel * factors, beta + (bias - mean) * factor)]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in results):
        return None
    folded_kernel, folded_bias = (numpy_helper.from_array(array) for array in results)
    return folded_kernel, folded_bias


def raise_opset(model: onnx.ModelProto, needed: int, why: str) -> onnx.ModelProto:
    """Convert a model to the opset that its Q/DQ nodes need; return it as it is if it is new enough.

    Args:
        model: The model.
        needed: The oldest opset that will do.
        why: What needs it, such as the name of a number format.

    Raises:
        UserError: ONNX's version converter cannot do it.
    """
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if opset >= needed:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, needed)
        onnx.checker.check_model(converted)  # also of what it made of bodies
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise UserError(
            f"{why} needs ONNX opset {needed}, and converting from {opset} failed ({error})",
            where="the model",
            remedy=f"export it with opset {needed} or newer",
        ) from error
    converted.metadata_props.extend(model.metadata_props)
    name_nodes(converted)  # it may have added some
    return converted
