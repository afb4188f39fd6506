"""A torch model as a function: `torch_runner`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusescope.quant.device import device
from fusescope.quant.extras import needs
from fusescope.quant.ort import Array, Runner

if TYPE_CHECKING:
    import torch


def torch_runner(net: "torch.nn.Module") -> Runner:
    """Make a function of a torch model in float32, on the GPU if torch has one, without TensorFloat-32.

    Its inputs are taken by position: the arrays in their order. Of several outputs it returns the first.

    Args:
        net: The model. It is moved to the device and set to evaluation.
    """
    torch = needs("torch", "running a torch model")
    where = device()
    net = net.to(where).float().eval()

    def run(inputs: Mapping[str, Array]) -> Array:
        tensors = [torch.from_numpy(np.ascontiguousarray(values)).to(where) for values in inputs.values()]
        floats = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            outputs = net(*floats)
        while not isinstance(outputs, torch.Tensor):
            outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
        found: Array = outputs.float().cpu().numpy()
        return found

    return run
