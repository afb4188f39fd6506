"""Against nvidia-modelopt's own fake-quantized torch model, with the same scales."""

import copy
import sys
import types
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
import pytest

from fusescope.quant.export import export
from fusescope.quant.insert import quantize

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # of torch and modelopt, which warn at import

Run = Callable[..., dict[str, np.ndarray]]


def folded_resnet(torch):  # noqa: ANN001, ANN201 - torch's types are not there without torch
    """A residual network of timm with four blocks, seeded, BatchNorm folded into its convolutions."""
    import timm.models.resnet as timm_resnet
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    torch.manual_seed(0)
    block = timm_resnet.BasicBlock
    net = timm_resnet.ResNet(block, (1, 1, 1, 1), num_classes=10, channels=(16, 32, 64, 128)).eval()
    for parent in list(net.modules()):
        children = list(parent.named_children())
        for (conv, first), (norm, second) in pairwise(children):
            if isinstance(first, torch.nn.Conv2d) and isinstance(second, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(second.weight, 0.5, 1.5)
                torch.nn.init.normal_(second.bias, std=0.2)
                setattr(parent, conv, fuse_conv_bn_eval(first, second))
                setattr(parent, norm, torch.nn.Identity())
    return net


@pytest.mark.parametrize(("weights", "axis"), [("per-channel", 0), ("per-tensor", None)])
def test_the_outputs_agree(run: Run, monkeypatch: pytest.MonkeyPatch, weights: str, axis: int | None) -> None:
    """The 12 quantized convolutions give the logits of ModelOpt's torch model.

    Measured: most images differ by less than 1e-6, while FP8 itself moves their logits by 0.04 to 0.09. In some, a
    value
    on the border between two FP8 codes falls to the other side, since the sums before it are rounded differently: such
    an image differs by up to 0.01. In resnet18 with random weights that happens in every image, and the difference
    stays 10 dB below the noise of FP8.
    """
    torch = pytest.importorskip("torch")
    mtq = pytest.importorskip("modelopt.torch.quantization")
    net = folded_resnet(torch)
    images = torch.randn(8, 3, 64, 64)
    config = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    scaling = {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": (4, 3), "axis": axis}}
    config["quant_cfg"] = [*config["quant_cfg"], scaling]
    with torch.no_grad():
        fake = mtq.quantize(copy.deepcopy(net), config, forward_loop=lambda model: model(images))
        for module in fake.modules():
            if hasattr(module, "input_quantizer") and getattr(module, "in_channels", 0) <= 3:
                module.input_quantizer.disable()  # the stem, the classifier and pools
                if hasattr(module, "weight_quantizer"):
                    module.weight_quantizer.disable()
        exact, theirs = (model(images).numpy() for model in (net, fake))

    holder = types.ModuleType("folded")
    holder.make = lambda: net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "folded", holder)
    proto = export("folded:make", shape=(3, 64, 64), batch=8)
    amax = ranges_of(fake, proto)
    model = quantize(proto, amax=amax, weights=weights)  # type: ignore[arg-type]
    assert len(model.quantized) == 12
    ours = run(model.proto, images.numpy(), ["output"])["output"]
    noise, difference = (np.abs(each - theirs).max(axis=1) for each in (exact, ours))
    assert noise.min() > 0.02
    assert np.median(difference) < 1e-5
    assert np.sqrt((difference**2).mean()) < np.sqrt((noise**2).mean()) / 4


def ranges_of(fake, proto: onnx.ModelProto) -> dict[str, float]:  # noqa: ANN001
    """Read the magnitudes that ModelOpt found, by the tensors of the ONNX model: weights are named after modules."""
    modules = dict(fake.named_modules())
    amax: dict[str, float] = {}
    for node in proto.graph.node:
        module = modules.get(node.input[1].removesuffix(".weight")) if node.op_type == "Conv" else None
        if module is not None and module.input_quantizer.is_enabled:
            tensor = node.input[0]
            amax[tensor] = max(amax.get(tensor, 0.0), float(module.input_quantizer.amax))
    return amax
