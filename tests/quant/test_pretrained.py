"""Trained weights, pinned: against a hub on this machine, and against none."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fusescope.graph.errors import UserError
from fusescope.graph.structure import WEIGHTS, strip
from fusescope.quant.export import export
from fusescope.quant.pretrained import trained

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
constants = pytest.importorskip("huggingface_hub.constants")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.torch

REPOSITORY = "timm/resnet18.a1_in1k"
COMMITS = {"main": "a" * 40, "older": "b" * 40}
"""Branches of the repository, and the commit that each is at."""


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as downloading takes: what a revision is, and its files."""

    weights: bytes = b""

    def do_GET(self) -> None:
        """Answer a question about a revision, or send a file."""
        revision = next((part for part in re.split("[/?]", self.path) if part in {*COMMITS, *COMMITS.values()}), None)
        commit = COMMITS.get(str(revision), revision)
        if commit is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif self.path.startswith("/api/models/"):
            names = ("config.json", "model.safetensors")
            files = [{"rfilename": name, "type": "file", "path": name, "oid": "1", "size": 2} for name in names]
            is_tree = "/tree/" in self.path
            info = files if is_tree else {"id": REPOSITORY, "sha": commit, "siblings": files}
            self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        else:
            content = b"{}" if self.path.endswith(".json") else self.weights
            etag = hashlib.sha256(content).hexdigest()
            self._answer(200, content, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'})

    do_HEAD = do_GET  # noqa: N815 - the server calls it by this name

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


def point_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client ask another server."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture(name="hub")
def _hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, "torch.Tensor"]]:
    """A hub with weights of ResNet-18; what it serves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        state = timm.create_model("resnet18").state_dict()
    monkeypatch.setattr(Hub, "weights", safetensors.save(state))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    point_to(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def metadata(proto: onnx.ModelProto) -> dict[str, str]:
    """Read what the model says of itself."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def test_the_commit_is_recorded(hub: dict[str, "torch.Tensor"], monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are those that the hub serves, a branch becomes its commit; a structure-only copy forgets both.

    Once downloaded, they are there without the hub, under the same commit.
    """
    proto = export("resnet18", pretrained=True, shape=(3, 32, 32))
    assert metadata(proto)[WEIGHTS] == f"{REPOSITORY}@{COMMITS['main']}"
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    np.testing.assert_array_equal(weights["fc.weight"], hub["fc.weight"].numpy())
    assert WEIGHTS not in metadata(strip(proto))
    point_to("http://127.0.0.1:9", monkeypatch)
    again = export("resnet18", pretrained=True, shape=(3, 32, 32))
    assert again == proto


@pytest.mark.parametrize("revision", ["older", COMMITS["older"]])
def test_a_revision(hub: dict[str, "torch.Tensor"], revision: str) -> None:
    """A branch and its commit give the same record."""
    _, origin = trained("resnet18", revision)
    assert origin == f"{REPOSITORY}@{COMMITS['older']}"


def test_no_such_revision(hub: dict[str, "torch.Tensor"]) -> None:
    """The error names the revision and the repository."""
    with pytest.raises(UserError, match=rf"^nonesuch: the hub's {REPOSITORY} has no such revision; name one of"):
        export("resnet18", pretrained=True, revision="nonesuch")


def test_a_damaged_download(hub: dict[str, "torch.Tensor"], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no checkpoint is one line."""
    monkeypatch.setattr(Hub, "weights", b"half a file")
    with pytest.raises(UserError, match=r"resnet18: the pretrained weights could not be downloaded .*SafetensorError"):
        export("resnet18", pretrained=True)


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_cannot_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    """With a closed port and in the client's offline mode, the error says how to bring the weights by hand."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(UserError, match=r"resnet18: .*could not be downloaded from the hub.*--weights FILE"):
        export("resnet18", pretrained=True)


def test_a_model_without_weights_on_the_hub() -> None:
    """timm has names without weights: nothing is asked of the hub then."""
    name = next(name for name in timm.list_models("resnet*") if not timm.get_pretrained_cfg(name).hf_hub_id)
    with pytest.raises(UserError, match=rf"{name}: timm has no trained weights of it on the hub; pass --weights FILE"):
        export(name, pretrained=True)


def test_a_revision_of_what_is_not_pretrained() -> None:
    """A revision without pretrained weights would be silently without effect."""
    with pytest.raises(UserError, match="main: a revision is one of pretrained weights; pass --pretrained too"):
        export("resnet18", revision="main")
