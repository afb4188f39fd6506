"""The run folder: what is written is read back, and what is damaged is refused in one line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.run import MODEL, RECORD, Provenance, read_run, write_record

PROVENANCE = Provenance(
    name="fp8-per-channel",
    runtime="tensorrt-rtx",
    runtime_version="1.7.1.116",
    target="sm120",
    how="compiled ahead of time on a CPU",
    model_name="größe.onnx",
    model_sha256="0" * 64,
    weights="as given",
    scales="as given",
    recipe={"format": "fp8", "kept": {"stem": "reads 3 channels"}},
    request="",
    batch=None,
    options={"opt_level": 3, "aux_streams": None},
    plan_bytes=123,
    parse_s=0.5,
    build_s=None,
    created="2026-12-01T00:00:00+00:00",
    fusescope_version="0.1.0",
)
DUMP = (
    "Layers:\nName: relu_myl0_0, LayerType: kgen, Inputs: [ { Name: x, Dimensions: [8], Datatype: Half, Format: f }], "
    "Constants: [], Outputs: [], TacticName: , StreamId: 0, Metadata: [ONNX Layer: relu]\x1f[ONNX Layer: \udcff]\n"
    "what is this\n\nI/O Tensors:\n\nEngine Metadata:\n"
)


@pytest.fixture
def folder(tmp_path: Path, draw: SimpleNamespace) -> Path:
    """The folder of a run."""
    write_record(tmp_path, PROVENANCE)
    (tmp_path / "layers.txt").write_bytes(DUMP.encode("utf-8", "surrogateescape"))
    onnx.save_model(draw.model("n (float16[8] x) => (float16[8] y) { [relu] y = Relu (x) }"), tmp_path / MODEL)
    return tmp_path


def test_what_is_written_is_read_back(folder: Path) -> None:
    """Provenance, layers, unread lines and graph are those that were stored; bytes that are no UTF-8 survive."""
    run = read_run(folder)
    assert run.provenance == PROVENANCE
    assert [layer.onnx_nodes for layer in run.engine.layers] == [("relu", "\udcff")]
    assert [line.text for line in run.engine.unread] == ["what is this"]
    assert list(run.graph.nodes) == ["relu"]
    assert run.folder == folder


def test_a_record_is_json_with_a_schema(folder: Path) -> None:
    """Other tools can tell what it is."""
    document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    assert (document["schema"], document["version"]) == ("fusescope.run", 1)
    assert document["model_name"] == "größe.onnx"


def changed(**fields: Any) -> Callable[[Path], None]:
    """A function that changes fields of a record."""

    def change(folder: Path) -> None:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        (folder / RECORD).write_text(json.dumps({**document, **fields}), encoding="utf-8")

    return change


def without(field: str) -> Callable[[Path], None]:
    """A function that removes a field of a record."""

    def change(folder: Path) -> None:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        del document[field]
        (folder / RECORD).write_text(json.dumps(document), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / RECORD).unlink(), r"is not a run: it has no run\.json"),
        (lambda folder: (folder / "layers.txt").unlink(), r"is not a run: it has no layers\.txt"),
        (lambda folder: (folder / RECORD).write_text("{"), r"run\.json: cannot be read"),
        (lambda folder: (folder / RECORD).write_bytes(b"\xff\xfe"), r"run\.json: cannot be read"),
        (lambda folder: (folder / RECORD).write_text("[]"), "is not the record of a run"),
        (changed(schema="another"), "is not the record of a run"),
        (changed(version=99), "has version 99, this fusescope reads 1"),
        (without("target"), r"is damaged \(target: "),
        (changed(plan_bytes="many"), r"is damaged \(plan_bytes: "),
        (changed(recipe=[]), r"is damaged \(recipe: "),
        (lambda folder: (folder / "layers.txt").write_text("Layers:\n"), r"layers\.txt: is cut short"),
        (lambda folder: (folder / "layers.txt").write_text("garbage"), r"layers\.txt: is not an engine dump"),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    """The message names the file, what is wrong with it and what to do."""
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        read_run(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_folder_that_is_not_there_is_no_run(tmp_path: Path) -> None:
    """Nor is a file."""
    with pytest.raises(UserError, match="is not a run"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path / "file")


def test_a_run_without_its_model_still_has_its_layers(folder: Path) -> None:
    """The graph is read when it is asked for, and its absence is said then."""
    (folder / MODEL).unlink()
    run = read_run(folder)
    assert len(run.engine.layers) == 1
    with pytest.raises(UserError, match="cannot be read"):
        _ = run.graph


def test_a_run_can_be_renamed(folder: Path) -> None:
    """Runs are values."""
    run = read_run(folder)
    assert replace(run, folder=folder / "elsewhere").provenance == run.provenance
