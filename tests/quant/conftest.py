"""A small residual network, and how the tests run and read models."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

Floats = NDArray[np.float32]

RESIDUAL_NET = """
<ir_version: 9, opset_import: ["" : {opset}]>
residual ({dtype}[1,3,16,16] x) => ({dtype}[1,10] y)
{{
    [stem]       s  = Conv <pads = [1,1,1,1]> (x, stem_w, stem_b)
    [stem_act]   sr = Relu (s)
    [first]      f  = Conv <pads = [1,1,1,1]> (sr, first_w, first_b)
    [first_act]  fr = Relu (f)
    [second]     d  = Conv <pads = [1,1,1,1]> (fr, second_w, second_b)
    [sum]        a  = Add (d, sr)
    [sum_act]    ar = Relu (a)
    [left]       l  = Conv (ar, left_w, left_b)
    [right]      r  = Conv <pads = [1,1,1,1], group = 4> (ar, right_w, right_b)
    [both]       b  = Add (l, r)
    [pool]       p  = GlobalAveragePool (b)
    [flat]       t  = Flatten (p)
    [classifier] y  = Gemm <transB = 1> (t, fc_w, fc_b)
}}
"""
"""Two convolutions read `ar`, an Add and a convolution read `sr`, and one convolution is grouped."""

SHAPES = {
    "stem_w": (8, 3, 3, 3),
    "first_w": (12, 8, 3, 3),
    "second_w": (8, 12, 3, 3),
    "left_w": (16, 8, 1, 1),
    "right_w": (16, 2, 3, 3),
    "fc_w": (10, 16),
    "stem_b": (8,),
    "first_b": (12,),
    "second_b": (8,),
    "left_b": (16,),
    "right_b": (16,),
    "fc_b": (10,),
}


@pytest.fixture(name="residual_net")
def _residual_net() -> Callable[..., onnx.ModelProto]:
    """Return a function that makes the network with seeded weights that keep the variance."""

    def make(dtype: str = "float", opset: int = 19) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(RESIDUAL_NET.format(dtype=dtype, opset=opset))
        rng = np.random.default_rng(7)
        for name, shape in SHAPES.items():
            values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            kind = np.float16 if dtype == "float16" else np.float32
            proto.graph.initializer.append(numpy_helper.from_array(values.astype(kind), name))
        return proto

    return make


@pytest.fixture(name="image")
def _image() -> Floats:
    """One input of the network."""
    return np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)


@pytest.fixture(name="run")
def _run() -> Callable[..., dict[str, Floats]]:
    """Return a function that runs a model in ONNX Runtime, unoptimized, and gives the tensors asked for."""
    runtime = pytest.importorskip("onnxruntime")

    def run(proto: onnx.ModelProto, x: Floats, outputs: list[str]) -> dict[str, Floats]:
        shown = onnx.ModelProto()
        shown.CopyFrom(proto)
        there = {value.name for value in shown.graph.output}
        shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in there)
        options = runtime.SessionOptions()
        # ONNX Runtime's optimizer changes the results of FP8 models.
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(shown.SerializeToString(), options)
        kind = onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
        values = session.run(outputs, {proto.graph.input[0].name: x.astype(kind)})
        return dict(zip(outputs, (value.astype(np.float32) for value in values), strict=True))

    return run
