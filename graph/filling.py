"""Seeded values for weights that are not there.

Values are drawn so that activations keep their variance through the network: the filled model then behaves,
for a compiler and for a clock, like one that was trained. They mean nothing else.
"""

import math
import zlib

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from fusescope.graph.model import ModelGraph, Node

_KINDS = {
    ("Conv", 1): "kernel",
    ("ConvTranspose", 1): "kernel",
    ("Gemm", 0): "kernel",
    ("Gemm", 1): "kernel",
    ("MatMul", 0): "kernel",
    ("MatMul", 1): "kernel",
    ("BatchNormalization", 1): "factor",
    ("BatchNormalization", 4): "factor",
    ("InstanceNormalization", 1): "factor",
    ("GroupNormalization", 1): "factor",
    ("LayerNormalization", 1): "factor",
    ("RMSNormalization", 1): "factor",
    ("PRelu", 1): "factor",
    ("Mul", 0): "factor",
    ("Mul", 1): "factor",
    ("Div", 0): "factor",
    ("Div", 1): "factor",
    ("Pow", 0): "factor",
    ("Pow", 1): "factor",
    ("Sqrt", 0): "factor",
    ("Reciprocal", 0): "factor",
    ("Log", 0): "factor",
    ("Gather", 0): "embedding",
    ("QuantizeLinear", 1): "scale",
    ("DequantizeLinear", 1): "scale",
    ("QuantizeLinear", 2): "zero",
    ("DequantizeLinear", 2): "zero",
}
"""What a weight is, by the operation that reads it and the position it is read at. All others are a bias."""

_SPREAD = {"factor": (1.0, 0.05), "embedding": (0.0, 1.0), "scale": (0.01, 0.0), "bias": (0.0, 0.1)}
"""Mean and standard deviation by kind. Factors stay positive: a variance is one."""

_SUM_GAIN = 0.25
"""A branch that ends in a sum is made smaller, so that the sums of a deep network do not grow to infinity."""

_CARRIES = frozenset({"Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operations through which a weight reaches the one that it is for."""


class SeededValues:
    """Makes the weights of a graph.

    Args:
        graph: The structure-only model, which says what each weight is for.
        seed: Same seed, same values. It is combined with each tensor's name, so the order of tensors is free.
    """

    def __init__(self, graph: ModelGraph, seed: int) -> None:
        self._graph = graph
        self._seed = seed

    def tensor(self, name: str, shape: tuple[int, ...], element_type: int) -> onnx.TensorProto:
        """Make one weight.

        Args:
            name: The tensor's name.
            shape: Its extents.
            element_type: ONNX element type.

        Returns:
            Kernels are normal with variance 2 / fan-in, biases small, factors and variances near 1. Quantized
            types get codes over their whole range. Integers of 32 and 64 bits are zero: a valid index.
        """
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
        draw = np.random.default_rng([self._seed, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)
        operand, reader, kind = self._use(name)
        if kind == "zero" or (dtype.kind in "biu" and dtype.itemsize != 1 and operand == name):
            values = np.zeros(shape, np.float32)
        elif kind != "scale" and (largest := _largest_code(dtype)) is not None:
            values = np.clip(draw * (largest / 4), -largest, largest)
        elif kind == "kernel":
            values = draw * self._kernel_deviation(operand, reader, shape)
        else:
            mean, deviation = _SPREAD[kind]
            values = mean + deviation * draw
        if dtype.kind in "iu":
            values = np.round(np.abs(values) if dtype.kind == "u" else values)
        return onnx.numpy_helper.from_array(values.astype(dtype), name)

    def _use(self, name: str) -> tuple[str, Node | None, str]:
        """Follow a weight to what it is for: the operand there, the operation, and the kind of weight."""
        operand = name
        while readers := self._graph.readers(operand):
            reader = readers[0]
            position = reader.inputs.index(operand) if operand in reader.inputs else -1
            kind = _KINDS.get((reader.op, position))
            if kind is not None:
                return operand, reader, kind
            if reader.op not in _CARRIES or position != 0:
                return operand, reader, "bias"
            operand = reader.outputs[0]
        return operand, None, "bias"

    def _kernel_deviation(self, operand: str, reader: Node | None, shape: tuple[int, ...]) -> float:
        """Return the standard deviation that keeps activations' variance: 2 / fan-in, He et al. 2015."""
        known = self._graph.tensors[operand].shape or ()
        extents = tuple(extent for extent in known if isinstance(extent, int))
        if len(extents) != len(known) or not extents:
            extents = shape
        deviation = math.sqrt(2 / max(1, _fan_in(reader, operand, extents)))
        return deviation * _SUM_GAIN if reader and self._ends_in_sum(reader) else deviation

    def _ends_in_sum(self, node: Node) -> bool:
        for reader in self._graph.readers(node.outputs[0]):
            activations = [tensor for tensor in reader.reads if tensor not in self._graph.constants]
            if reader.op in {"Add", "Sum"} and len(activations) > 1:
                return True
            if reader.op in {"Add", "BatchNormalization", "Cast", "Identity"} and self._ends_in_sum(reader):
                return True
        return False


def _fan_in(reader: Node | None, operand: str, extents: tuple[int, ...]) -> int:
    """Return how many products each output element sums."""
    if reader is None or reader.op == "Conv":
        return math.prod(extents[1:])
    if reader.op == "ConvTranspose":
        taps_per_output = math.prod(extents[2:]) / math.prod(reader.integers("strides"))
        return int(extents[0] * taps_per_output / math.prod(reader.integers("group")))
    position = reader.inputs.index(operand)
    summed = -2 if position == 1 else -1
    if reader.attributes.get("transA" if position == 0 else "transB", 0):
        summed = -3 - summed
    return extents[summed] if len(extents) > 1 else extents[0]


def _largest_code(dtype: npt.DTypeLike) -> float | None:
    """Return the largest code of a quantized type; None for the types that weights are computed in."""
    dtype = np.dtype(dtype)
    if dtype.itemsize > 2 or dtype.name in {"bool", "float16", "bfloat16"}:
        return None
    return float((ml_dtypes.iinfo if "int" in dtype.name else ml_dtypes.finfo)(dtype).max)
