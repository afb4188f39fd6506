"""A hand for drawing small quantized models, node by node."""

import math
import zlib
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

CHANNELS = 32
"""Channels of a tensor unless the question is about them: a multiple of what 8-bit kernels are aligned to."""
PIXELS = 16
"""Height and width of a tensor unless the question is about them."""
KERNEL_3X3 = (CHANNELS, CHANNELS, 3, 3)
KERNEL_1X1 = (CHANNELS, CHANNELS, 1, 1)
_OPSET = 20
_IR_VERSION = 9

_FORMATS: dict[str, tuple[int, DTypeLike, float]] = {
    "fp8": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, 448.0),
    "int8": (TensorProto.INT8, np.int8, 127.0),
}
"""Name to ONNX element type, numpy dtype and largest value."""


class Net:
    """A float16 model to draw into. Methods return the tensor that they make; its node goes by the same name.

    Args:
        form: "fp8" or "int8".
        weights: Granularity of weight scales, "per-tensor" or "per-channel".
    """

    def __init__(self, form: str, weights: str) -> None:
        self._element, self._dtype, self._largest = _FORMATS[form]
        self._per_channel = weights == "per-channel"
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._scales: dict[str, str] = {}
        """Codes to the name of their scale."""

    def input(
        self,
        name: str = "x",
        shape: tuple[int, ...] = (1, CHANNELS, PIXELS, PIXELS),
        element: int = TensorProto.FLOAT16,
    ) -> str:
        """Add a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def constant(self, name: str, values: ArrayLike, dtype: DTypeLike = np.float16) -> str:
        """Add an initializer."""
        self._initializers[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def op(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def relu(self, tensor: str, name: str = "relu") -> str:
        """Add a Relu."""
        return self.op("Relu", tensor, name=name)

    def silu(self, tensor: str, name: str = "silu") -> str:
        """Add a SiLU as exporters write it: a Sigmoid and a Mul."""
        return self.op("Mul", tensor, self.op("Sigmoid", tensor, name=f"{name}_sigmoid"), name=name)

    def split(self, tensor: str, *names: str) -> tuple[str, ...]:
        """Split the channels of a tensor evenly; the node goes by "split"."""
        self._nodes.append(helper.make_node("Split", [tensor], names, name="split", axis=1, num_outputs=len(names)))
        return names

    def resize(self, tensor: str, mode: str, name: str = "resize") -> str:
        """Double height and width as torch exports it; `mode` is "nearest" or "linear"."""
        scales = self.constant(f"{name}_scales", [1, 1, 2, 2], np.float32)
        how = {
            "nearest": {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            "linear": {"coordinate_transformation_mode": "half_pixel"},
        }
        return self.op("Resize", tensor, "", scales, name=name, mode=mode, **how[mode])

    def pad(self, tensor: str, name: str = "pad") -> str:
        """Add a border of one zero on each side of height and width."""
        return self.op("Pad", tensor, self.constant(f"{name}_pads", [0, 0, 1, 1] * 2, np.int64), name=name)

    def codes(self, tensor: str, *, name: str = "", largest: float = 0.0) -> str:
        """Add a Quantize of an activation.

        Args:
            tensor: What to quantize.
            name: What the node is called; `<tensor>_q` by default.
            largest: Absolute value that the largest code stands for; by default no two Quantizes have the same,
                as is usual after calibration.
        """
        name = name or f"{tensor}_q"
        largest = largest or 2.0 + 0.75 * len(self._scales)
        self._scales[name] = self.constant(f"{name}_scale", largest / self._largest)
        return self.op("QuantizeLinear", tensor, self._scales[name], self._zero_point(), name=name)

    def dequantized(self, codes: str) -> str:
        """Add a Dequantize for one more reader of some codes."""
        readers = sum(node.op_type == "DequantizeLinear" and node.input[0] == codes for node in self._nodes)
        name = f"{codes.removesuffix('_q')}_dq{readers + 1 if readers else ''}"
        return self.op("DequantizeLinear", codes, self._scales[codes], self._zero_point(), name=name)

    def quantized(self, tensor: str) -> str:
        """Read a tensor through its Quantize, one for all readers, and a Dequantize of the reader's own."""
        codes = f"{tensor}_q"
        return self.dequantized(codes if codes in self._scales else self.codes(tensor))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a weight in float16."""
        return self.constant(name, _values(name, shape))

    def weight8(self, name: str, shape: tuple[int, ...], *, axis: int = 0) -> str:
        """Add a weight in 8 bits and its Dequantize.

        Args:
            name: What the Dequantize and its result are called.
            shape: Extents.
            axis: The dimension of the output channels.
        """
        values = _values(name, shape)
        scale, stored_scale = self._weight_scale(name, values, axis)
        codes = np.clip(values / scale, -self._largest, self._largest)
        if self._element == TensorProto.INT8:
            codes = np.rint(codes)
        raw = codes.astype(self._dtype).tobytes()
        stored = helper.make_tensor(f"{name}_codes", self._element, shape, raw, raw=True)
        self._initializers[stored.name] = stored
        return self.op("DequantizeLinear", stored.name, stored_scale, name=name, **self._axis(axis))

    def run_time_weight8(self, name: str, shape: tuple[int, ...], *, axis: int = 0) -> str:
        """Add a weight in float16 that is quantized and dequantized when the model runs; see `weight8`."""
        _, scale = self._weight_scale(name, _values(name, shape), axis)
        zeros = np.zeros(self._initializers[scale].dims, self._dtype)
        zero = helper.make_tensor(f"{name}_zero", self._element, zeros.shape, zeros.tobytes(), raw=True)
        self._initializers[zero.name] = zero
        inputs = (self.constant(f"{name}_values", _values(name, shape)), scale, zero.name)
        codes = self.op("QuantizeLinear", *inputs, name=f"{name}_q", **self._axis(axis))
        return self.op("DequantizeLinear", codes, scale, zero.name, name=name, **self._axis(axis))

    def conv(
        self, tensor: str, name: str, shape: tuple[int, ...] = KERNEL_3X3, *, weight: str = "", **attributes: Any
    ) -> str:
        """Add a conv with a bias that keeps height and width.

        Args:
            tensor: What it reads, as it is.
            name: What it is called.
            shape: Extents of the weight.
            weight: The weight; by default one in float16.
            attributes: Attributes of the Conv.
        """
        dilation = attributes.get("dilations", (1, 1))
        pads = [(extent - 1) * step // 2 for extent, step in zip(shape[2:], dilation, strict=True)] * 2
        bias = self.constant(f"{name}_bias", _values(f"{name}_bias", shape[:1]))
        weight = weight or self.weight(f"{name}_weight", shape)
        return self.op("Conv", tensor, weight, bias, name=name, **{"pads": pads, **attributes})

    def conv8(self, tensor: str, name: str, shape: tuple[int, ...] = KERNEL_3X3, **attributes: Any) -> str:
        """Add a conv in 8 bits that reads `tensor` through Quantize and Dequantize."""
        weight = self.weight8(f"{name}_weight", shape)
        return self.conv(self.quantized(tensor), name, shape, weight=weight, **attributes)

    def conv_relu(self) -> str:
        """Draw what most patterns begin with: an input, a conv in 8 bits, "first", and its Relu, "relu"."""
        return self.relu(self.conv8(self.input(), "first"))

    def matmul8(self, tensor: str, name: str, shape: tuple[int, int]) -> str:
        """Add a MatMul in 8 bits by a weight of `shape`, K x N, and a bias; the sum goes by `name`."""
        weight = self.weight8(f"{name}_weight", shape, axis=1)
        product = self.op("MatMul", self.quantized(tensor), weight, name=f"{name}_product")
        bias = self.constant(f"{name}_bias", _values(f"{name}_bias", shape[1:]))
        return self.op("Add", product, bias, name=name)

    def gemm8(self, tensor: str, name: str, shape: tuple[int, int]) -> str:
        """Add a Gemm in 8 bits by a weight of `shape`, N x K, and a bias."""
        weight = self.weight8(f"{name}_weight", shape)
        bias = self.constant(f"{name}_bias", _values(f"{name}_bias", shape[:1]))
        return self.op("Gemm", self.quantized(tensor), weight, bias, name=name, transB=1)

    def model(self, name: str, outputs: Iterable[str]) -> onnx.ModelProto:
        """Return the model with these outputs, their dtypes and shapes inferred."""
        declared = [onnx.ValueInfoProto(name=output) for output in outputs]
        graph = helper.make_graph(self._nodes, name, self._inputs, declared, list(self._initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        inferred = shape_inference.infer_shapes(proto, strict_mode=True).graph.output
        for output, value in zip(proto.graph.output, inferred, strict=True):
            output.CopyFrom(value)
        return proto

    def _zero_point(self) -> str:
        self._initializers["zero"] = helper.make_tensor("zero", self._element, [], b"\0", raw=True)
        return "zero"

    def _axis(self, axis: int) -> dict[str, int]:
        return {"axis": axis} if self._per_channel else {}

    def _weight_scale(self, name: str, values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.float32], str]:
        """Add the scale of a weight: its largest absolute value, or each output channel's, over the largest code.

        Returns:
            The scale as it divides `values`, and the name of the initializer.
        """
        others = tuple(dim for dim in range(values.ndim) if dim != axis) if self._per_channel else None
        scale = np.abs(values).max(axis=others, keepdims=self._per_channel) / self._largest
        stored = np.asarray(scale, np.float16)
        name = self.constant(f"{name}_scale", stored.reshape(-1) if self._per_channel else stored)
        return stored.astype(np.float32), name


def _values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return seeded values that keep the magnitude of activations: the same for the same name and shape."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 100
    return (rng.standard_normal(shape) / math.sqrt(fan_in)).astype(np.float32)
