"""Placements on small networks whose right answers are drawn by hand."""

from collections.abc import Callable

import onnx

from fusescope.graph.model import graph_of
from fusescope.quant.placement import calibration_tensors

MakeNet = Callable[..., onnx.ModelProto]


def test_what_calibration_must_look_at(residual_net: MakeNet) -> None:
    """The inputs of convolutions and gemms and the operands of sums; no weights and no biases."""
    assert calibration_tensors(graph_of(residual_net())) == ("x", "sr", "fr", "d", "ar", "l", "r", "t")
