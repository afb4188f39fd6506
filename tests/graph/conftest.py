"""A small hand for drawing ONNX graphs."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.shape_inference import infer_shapes

from fusescope.graph.model import ModelGraph, graph_of

ZERO_POINTS = {"fp8": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}


class Net:
    """Draws a model node by node; each method returns the tensor that it makes. Nodes are called after it."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, *shape: int) -> str:
        """Add a float32 graph input."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or [1, 8, 16, 16]))
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        """Add an initializer."""
        self.initializers[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def op(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def quantize(self, tensor: str, form: str = "fp8", *, name: str = "") -> str:
        """Add `<name>_q` and `<name>_dq`; the name is the tensor's unless given. Returns the dequantized tensor."""
        name = name or tensor
        self.constant("scale", 0.5)
        zero = helper.make_tensor(f"zero_{form}", ZERO_POINTS[form], [], b"\0", raw=True)
        self.initializers[zero.name] = zero
        codes = self.op("QuantizeLinear", tensor, "scale", zero.name, name=f"{name}_q")
        return self.op("DequantizeLinear", codes, "scale", zero.name, name=f"{name}_dq")

    def conv(
        self, tensor: str, *, name: str, form: str = "", shape: tuple[int, ...] = (8, 8, 3, 3), **attributes: Any
    ) -> str:
        """Add a conv whose weight has `shape`, in 8 bits with a Dequantize where `form` is given."""
        weight = self.constant(f"{name}_w", np.ones(shape))
        if form:
            weight = self.quantize(weight, form)
        attributes = {"pads": [shape[2] // 2, shape[3] // 2] * 2, **attributes}
        return self.op("Conv", tensor, weight, name=name, **attributes)

    def proto(self, *outputs: str, opset: int = 19) -> onnx.ModelProto:
        """Return the model with these outputs; the ONNX checker has passed it."""
        declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, declared, list(self.initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        for output, inferred in zip(proto.graph.output, infer_shapes(proto).graph.output, strict=True):
            output.CopyFrom(inferred)
            if not output.type.tensor_type.HasField("shape"):
                output.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * 4)
        onnx.checker.check_model(proto)
        return proto

    def graph(self, *outputs: str, opset: int = 19) -> ModelGraph:
        """Return the graph of the model with these outputs."""
        return graph_of(self.proto(*outputs, opset=opset))


@pytest.fixture
def net() -> Net:
    """An empty model to draw."""
    return Net()


@pytest.fixture
def new_net() -> type[Net]:
    """What makes an empty model, for tests that draw several."""
    return Net
