"""A torch model as the reference: against ONNX Runtime and plain numpy."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from fusescope.quant.ort import onnx_runner
from fusescope.quant.torch_runner import torch_runner

pytestmark = pytest.mark.torch


def test_a_convolution_is_that_of_onnx() -> None:
    """The same weights give the same outputs in ONNX Runtime."""
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[N,3,9,9] x) => (float[N,8,9,9] y) {'
    proto = onnx.parser.parse_model(text + "c = Conv <pads = [1,1,1,1]> (x, w, b) y = Relu (c) }")
    for name, values in (("w", net[0].weight), ("b", net[0].bias)):
        proto.graph.initializer.append(numpy_helper.from_array(values.detach().numpy(), name))
    images = np.random.default_rng(0).standard_normal((4, 3, 9, 9)).astype(np.float32)
    found = torch_runner(net)({"x": images})
    assert found == pytest.approx(onnx_runner(proto)({"x": images}), abs=1e-5)


def test_inputs_by_position_and_the_first_output() -> None:
    """Two inputs of half precision, two outputs in a dictionary: float32 of the first."""
    import torch

    class Two(torch.nn.Module):
        """Adds its inputs."""

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
            """Return the sum first."""
            return {"sum": first + 2 * second, "other": first}

    first, second = (np.full((2, 3), value, np.float16) for value in (1, 4))
    found = torch_runner(Two())({"b": first, "a": second})
    assert found.dtype == np.float32
    assert found.tolist() == [[9, 9, 9]] * 2


def test_dropout_is_off() -> None:
    """The model is set to evaluation, whatever it was."""
    import torch

    net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Identity()).train()
    assert torch_runner(net)({"x": np.ones((4, 50), np.float32)}).min() == 1
