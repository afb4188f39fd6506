"""nvidia-modelopt's torch PTQ against ONNX Runtime: the same ranges for the same model and images."""

import sys
import types
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.quant.calibrate import calibrate
from fusescope.quant.calibrate_torch import calibrate_torch
from fusescope.quant.data import Batch
from fusescope.quant.export import export, load_model
from fusescope.quant.placement import calibration_tensors

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # of torch and modelopt, which warn at import

Floats = NDArray[np.float32]

ROUNDING = 1e-4
"""Most that ranges may differ, relative: float32 sums in another order, and BatchNorm folded or not. Measured: 7e-6."""


@pytest.fixture(autouse=True)
def _modelopt() -> None:
    pytest.importorskip("modelopt.torch.quantization")
    pytest.importorskip("onnxruntime")


def batched(images: Floats, size: int) -> Iterator[Batch]:
    """Give images in batches, as a data set does."""
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield Batch({"input": part}, None, tuple(f"image {start + place}" for place in range(len(part))))


def net() -> object:
    """A network with BatchNorm, a residual sum and a linear layer on top, with seeded weights and statistics."""
    import torch

    class Net(torch.nn.Module):
        """Three convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
            self.inner = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
            self.norm = torch.nn.BatchNorm2d(8)
            self.last = torch.nn.Conv2d(8, 16, 1)
            self.head = torch.nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Classify."""
            x = self.stem(x).relu()
            x = (self.norm(self.inner(x)) + x).relu()
            return self.head(self.last(x).relu().mean((2, 3)))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval()


@pytest.fixture(name="module")
def _module(monkeypatch: pytest.MonkeyPatch) -> str:
    """The network by the name that `export` takes."""
    holder = types.ModuleType("own_net")
    holder.make = net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_net", holder)
    return "own_net:make"


@pytest.mark.parametrize("format_name", ["fp8", "int8"])
def test_a_network_with_batch_norms(module: str, format_name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What every convolution and gemm reads, by the names in the ONNX model; the torch model stays as it was."""
    import torch

    loaded = load_model(module, shape=(3, 12, 12)).net
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    proto = export(module, shape=(3, 12, 12))
    images = np.random.default_rng(0).standard_normal((7, 3, 12, 12)).astype(np.float32)
    done: list[int] = []
    theirs = calibrate_torch(loaded, proto, batched(images, 3), format=format_name, progress=done.append)
    ours = calibrate(proto, batched(images, 3), tensors=calibration_tensors(graph_of(proto)))
    read = {node.input[0] for node in proto.graph.node if node.op_type in {"Conv", "Gemm"}}
    assert set(theirs.amax) == read
    assert theirs.amax == pytest.approx({name: ours.amax[name] for name in read}, rel=ROUNDING)
    assert done == [3, 3, 1]
    assert (theirs.images, theirs.method, theirs.model_sha256) == (7, "max", ours.model_sha256)
    assert theirs.tool.startswith("nvidia-modelopt ")
    after = loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not capfd.readouterr().out


def test_a_timm_model() -> None:
    """resnet18 with seeded weights: 18 tensors are read by its 20 convolutions and its classifier."""
    proto = export("resnet18", shape=(3, 64, 64))
    images = np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype(np.float32)
    theirs = calibrate_torch(load_model("resnet18", shape=(3, 64, 64)).net, proto, batched(images, 2))
    ours = calibrate(proto, batched(images, 2), tensors=calibration_tensors(graph_of(proto)))
    assert len(theirs.amax) == 18
    assert theirs.amax == pytest.approx({name: ours.amax[name] for name in theirs.amax}, rel=ROUNDING)


def test_what_is_refused(module: str) -> None:
    """Another model's ONNX file, nodes that are not named after modules, images with NaN, and no image."""
    loaded = load_model(module, shape=(3, 12, 12)).net
    proto = export(module, shape=(3, 12, 12))
    images = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
    other = export(module, shape=(3, 12, 12), seed=1)
    with pytest.raises(UserError, match="net: does not compute what the torch model does"):
        calibrate_torch(loaded, other, batched(images, 2), name="net")
    renamed = onnx.ModelProto()
    renamed.CopyFrom(proto)
    for number, node in enumerate(renamed.graph.node):
        node.name = f"node_{number}"
    with pytest.raises(UserError, match="no convolution of it is named after a module"):
        calibrate_torch(loaded, renamed, batched(images, 2))
    later = np.concatenate([images, np.full((1, 3, 12, 12), np.nan, np.float32)])
    with pytest.raises(UserError, match=r"ModelOpt cannot calibrate it \(detected nan"):
        calibrate_torch(loaded, proto, batched(later, 2))
    with pytest.raises(UserError, match="no image to calibrate with"):
        calibrate_torch(loaded, proto, ())
