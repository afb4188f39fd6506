"""torch models to ONNX."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.structure import strip
from fusescope.quant.export import export

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
pytestmark = pytest.mark.torch

SAMPLES = Path(__file__).parents[2] / "samples"

NET = '''
import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions with BatchNorm, a skip and an upsampled branch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.Conv2d(8, 8, 2, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x):
        x = self.stem(x)
        return torch.relu(x + self.up(self.norm(self.down(x)))).mean((2, 3))
'''


@pytest.fixture(name="block")
def _block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an importable torch model."""
    (tmp_path / "smallnet.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    yield "smallnet:Block"
    sys.modules.pop("smallnet", None)


def weights_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Read the initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def metadata(proto: onnx.ModelProto) -> dict[str, str]:
    """Read what the model says of itself."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def test_names_follow_the_torch_modules(block: str) -> None:
    """Nodes and weights are called after modules; there are no BatchNorms, Identities and Constants."""
    proto = export(block, shape=(3, 16, 16))
    nodes = {node.name: node for node in proto.graph.node}
    assert [node.op_type for node in nodes.values()] == ["Conv", "Relu", "Conv", "Resize", "Add", "Relu", "ReduceMean"]
    assert list(nodes)[:4] == ["/stem/stem.0/Conv", "/stem/stem.2/Relu", "/down/Conv", "/up/Resize"]
    assert list(nodes["/stem/stem.0/Conv"].input) == ["input", "stem.0.weight", "stem.0.bias"]
    assert list(nodes["/down/Conv"].input)[1:] == ["down.weight", "down.bias"]
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["input", "output"]


def test_the_export_computes_what_torch_computes(block: str, tmp_path: Path) -> None:
    """With a checkpoint of its own weights, ONNX Runtime gives torch's outputs for every sample of a batch."""
    runtime = pytest.importorskip("onnxruntime")
    __import__("smallnet")
    net = sys.modules["smallnet"].Block()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        for _ in range(5):
            net(torch.randn(4, 3, 16, 16))  # in training mode: the running statistics move
        x = torch.randn(2, 3, 16, 16)
        expected = net.eval()(x).numpy()
    torch.save(net.state_dict(), tmp_path / "net.pth")
    proto = export(block, shape=(3, 16, 16), batch=2, weights=tmp_path / "net.pth")
    session = runtime.InferenceSession(proto.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], expected, atol=1e-5)


def test_nothing_of_the_exporter_is_left(block: str) -> None:
    """No documentation, metadata, producer or path of this machine is in the file, only where its weights are from."""
    proto = export(block, shape=(3, 16, 16))
    assert not proto.producer_name
    assert metadata(proto) == {"fusescope.weights": "values of smallnet:Block, seed 0"}
    assert not any(node.doc_string or node.metadata_props for node in proto.graph.node)
    content = proto.SerializeToString()
    for place in (Path(torch.__file__).parent, Path(timm.__file__).parent, Path.cwd()):
        assert str(place).encode() not in content


def test_the_seed_decides_the_weights(block: str) -> None:
    """The same seed gives the same model, another gives another, and the caller's random state is not touched."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (export(block, shape=(3, 16, 16), seed=seed) for seed in (1, 1, 2))
    assert torch.rand(1) == expected
    assert first == again
    assert first != other


def test_every_conv_of_an_untrained_model_has_a_bias() -> None:
    """Folding random BatchNorms leaves biases that are not zero, and activations that float16 holds."""
    runtime = pytest.importorskip("onnxruntime")
    proto = export("resnet18", shape=(3, 64, 64), dtype="float16")
    weights = weights_of(proto)
    convs = [node for node in proto.graph.node if node.op_type == "Conv"]
    assert len(convs) == 20
    assert all(np.abs(weights[node.input[2]]).min() > 0 for node in convs)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float16)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = runtime.InferenceSession(proto.SerializeToString(), options).run(None, {"input": x})
    assert np.isfinite(y).all()
    assert y.dtype == np.float16


def test_half_differs_from_single_by_rounding_alone(block: str) -> None:
    """BatchNorm is folded in float32 and rounded once."""
    single, half = (weights_of(export(block, shape=(3, 16, 16), dtype=d)) for d in ("float32", "float16"))
    np.testing.assert_array_equal(half["stem.0.weight"], single["stem.0.weight"].astype(np.float16))


def test_a_timm_model_says_how_its_images_are_prepared() -> None:
    """The metadata hold timm's own configuration, with the size that is exported; half precision keeps them."""
    proto = export("resnet18", shape=(3, 64, 96), dtype="float16")
    assert metadata(proto)["fusescope.weights"] == "seeded values, seed 0"
    config = timm.get_pretrained_cfg("resnet18").to_dict()
    expected = {name: config[name] for name in ("interpolation", "crop_pct", "crop_mode")}
    expected |= {"shape": [3, 64, 96], "mean": list(config["mean"]), "std": list(config["std"])}
    assert json.loads(metadata(proto)["fusescope.preprocessing"]) == expected


def test_a_checkpoint_is_known_by_its_hash(block: str, tmp_path: Path) -> None:
    """The metadata hold the checkpoint's name and SHA-256, and not its path."""
    __import__("smallnet")
    torch.save(sys.modules["smallnet"].Block().state_dict(), tmp_path / "net.pth")
    proto = export(block, shape=(3, 16, 16), weights=tmp_path / "net.pth")
    digest = hashlib.sha256((tmp_path / "net.pth").read_bytes()).hexdigest()
    assert metadata(proto) == {"fusescope.weights": f"net.pth, SHA-256 {digest}"}


def test_a_sample_is_an_export() -> None:
    """Exporting and stripping EfficientNet-B0 again gives the sample's nodes and tensors."""
    made = strip(export("efficientnet_b0", dtype="float16"))
    stored = onnx.load(SAMPLES / "efficientnet_b0.onnx")
    assert list(made.graph.node) == list(stored.graph.node)
    assert list(made.graph.initializer) == list(stored.graph.initializer)


def test_an_unknown_timm_name() -> None:
    """The nearest names are suggested."""
    with pytest.raises(UserError, match="resnet5O: no timm model has this name; did you mean resnet50"):
        export("resnet5O")


@pytest.mark.parametrize("module", ["torch", "timm"])
def test_a_missing_extra_says_how_to_get_it(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch or timm the error is the pip command."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf'needs {module}, .* pip install "fusescope\[quantize\]"'):
        export("resnet18")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, I am no checkpoint"])
def test_a_broken_checkpoint(tmp_path: Path, suffix: str, content: bytes) -> None:
    """Whatever the loader raises ends as one line that names the file."""
    path = tmp_path / f"net{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"net{suffix}: cannot be loaded .*this very model"):
        export("resnet18", weights=path)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    """A state dictionary that does not fit is refused in one short line."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"a\.pth: cannot be loaded") as caught:
        export("resnet18", weights=tmp_path / "a.pth")
    assert len(str(caught.value)) < 400


def test_weights_that_do_not_go_together(block: str, tmp_path: Path) -> None:
    """A missing file, two sources of weights, and pretrained weights of what is no timm model."""
    with pytest.raises(UserError, match=r"none\.pth: does not exist"):
        export("resnet18", weights=tmp_path / "none.pth")
    with pytest.raises(UserError, match="exclude each other"):
        export("resnet18", weights=tmp_path / "none.pth", pretrained=True)
    with pytest.raises(UserError, match="only timm models have pretrained weights"):
        export(block, pretrained=True)


def test_a_shape_that_the_model_does_not_take(block: str) -> None:
    """torch's complaint becomes one line with the shape."""
    with pytest.raises(UserError, match=r"smallnet:Block: does not run on an input of shape \(2, 4, 16, 16\)"):
        export(block, shape=(4, 16, 16))


@pytest.mark.parametrize("path", ["no_such_module:make", "torch.nn:NoSuchThing", "torch.nn:Conv2d"])
def test_a_path_that_makes_no_model(path: str) -> None:
    """A wrong module, a wrong name and a callable with arguments are the user's mistakes."""
    with pytest.raises(UserError, match=rf"{path}: cannot make a model"):
        export(path)
    with pytest.raises(UserError, match=r"returned a dict, not a torch\.nn\.Module"):
        export("builtins:dict")
