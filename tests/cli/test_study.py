"""``fusescope study``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture(name="study")
def _study(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The TOML of a study that was run before, by the library, into ``out``: what is there is taken up."""
    folder, _ = request.getfixturevalue("tiny_study")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "out" / "study.toml").write_text("")
    return tmp_path / "tiny.toml"


@pytest.mark.compiles
class TestStudy:
    """A study from its TOML to its report."""

    def test_from_nothing(self, call: Call, study: Path, tmp_path: Path) -> None:
        """It goes into studies/NAME by default, tells of each engine, and the second time keeps all."""
        shutil.rmtree(tmp_path / "out")
        first = call("study", study)
        assert first.status == 0
        folder = tmp_path / "studies" / "tiny"
        assert {path.name for path in folder.iterdir()} == {
            "study.toml",
            "study.json",
            "report.html",
            "study.md",
            "runs",
        }
        assert (folder / "study.toml").read_text() == study.read_text()
        lines = first.err.splitlines()
        assert [line for line in lines if line.startswith("b1-fp16")] == [
            "b1-fp16: waiting",
            "b1-fp16: compiling",
            "b1-fp16: done",
        ]
        assert (
            lines[-1]
            == f"wrote {', '.join(f'studies/tiny/{name}' for name in ('study.json', 'report.html', 'study.md'))}"
        )
        again = call("study", study)
        assert again.status == 0
        assert again.out == first.out
        assert [line.split(": ")[1] for line in again.err.splitlines()[:-1]] == ["kept"] * 3

    def test_the_json(self, call: Call, study: Path, tmp_path: Path) -> None:
        """--json prints one document, the same as study.json, with an explanation per batch and variant."""
        called = call("study", study, "-o", "out", "--json")
        document = json.loads(called.out)
        assert called.out == (tmp_path / "out" / "study.json").read_text(encoding="utf-8")
        assert (document["schema"], document["version"], document["title"]) == ("fusescope.study", 1, "Tiny")
        assert [(each["batch"], each["variant"]) for each in document["explanations"]] == [
            (1, "fp8"),
            (1, "fp8-per-tensor"),
        ]
        keys = {"baseline", "quantized", "groups", "quantize", "reasons", "findings", "coverage"}
        assert all(keys <= each.keys() for each in document["explanations"])
        assert document["failures"] == []
        assert {Path(path).name for path in document["written"]} == {
            "study.json",
            "report.html",
            "study.md",
            "b1-fp16",
            "b1-fp8",
            "b1-fp8-per-tensor",
        }
        assert all((tmp_path / path).exists() for path in document["written"])

    def test_the_text(self, call: Call, study: Path) -> None:
        """A line per engine, then each explanation."""
        out = call("study", study, "-o", "out").out
        assert out.startswith("Engines")
        assert out.count("fp8-per-tensor against fp16, Tiny, batch 1") == 1
        assert out.count("fp8 against fp16, Tiny, batch 1") == 1

    def test_a_variant_that_fails(self, call: Call, study: Path, tmp_path: Path) -> None:
        """The others are explained and written; the failure is said last, in one line, and the status is 1."""
        study.write_text(study.read_text().replace('name = "fp8"', 'name = "fp8"\nkeep = ["no_such_node"]'))
        called = call("study", study, "-o", "out", "--json")
        assert called.status == 1
        document = json.loads(called.out)
        assert [each["variant"] for each in document["explanations"]] == ["fp8-per-tensor"]
        ((batch, variant, error),) = [tuple(failure.values()) for failure in document["failures"]]
        assert (batch, variant) == (1, "fp8")
        assert f"error: fp8, batch 1: {error}" in called.err.splitlines()
        assert (tmp_path / "out" / "report.html").is_file()
        assert "- Not built: fp8, batch 1: " in (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
        assert "Traceback" not in called.err

    def test_no_variant_is_left(self, call: Call, study: Path, tmp_path: Path) -> None:
        """FP8 for a target without it: the baseline is built, both failures are said, and no report is claimed."""
        study.write_text(study.read_text() + '\n[build]\ntarget = "sm86"\n')
        called = call("study", study, "-o", "new")
        assert called.status == 1
        assert not called.out
        errors = [line for line in called.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 2
        assert all("FP8" in line and "sm89" in line for line in errors)
        assert called.err.splitlines()[-1] == "wrote new/study.json"
        assert not (tmp_path / "new" / "report.html").exists()
        written = json.loads((tmp_path / "new" / "study.json").read_text())["written"]
        assert [Path(path).name for path in written] == ["study.json", "b1-fp16"]

    def test_no_engine_at_all(self, call: Call, study: Path) -> None:
        """If nothing can be built the last line is the error."""
        study.write_text(study.read_text() + "\n[build]\ntimeout_s = 0.001\n")
        called = call("study", study, "-o", "new", "--json")
        assert called.status == 1
        assert not called.out
        assert called.err.splitlines()[-1].startswith("error: Tiny: no engine could be built: ")

    def test_force(self, call: Call, study: Path) -> None:
        """--force builds all again."""
        called = call("study", study, "-o", "out", "--force", "--json")
        assert called.status == 0
        assert called.err.count(": done\n") == 3
        assert "kept" not in called.err

    def test_progress_on_a_terminal(self, call: Call, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a terminal there is a live line per engine, on stderr; stdout stays one document."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        called = call("study", study, "-o", "out", "--json")
        assert json.loads(called.out)["title"] == "Tiny"
        for engine in ("b1-fp16", "b1-fp8", "b1-fp8-per-tensor"):
            assert engine in called.err
        assert "b1-fp16: kept" not in called.err
        again = call("study", study, "-o", "new")
        assert "done" in again.err


def study_file(folder: Path, model: bytes) -> Path:
    """Write a study of a model with that content."""
    (folder / "net.onnx").write_bytes(model)
    path = folder / "net.toml"
    path.write_text('model = "net.onnx"\n[[variant]]\nname = "fp8"\n')
    return path


class TestBadInput:
    """Nothing is done, and nothing left behind, where a study cannot begin."""

    def test_the_file(self, refused: Callable[..., str], tmp_path: Path) -> None:
        """An unknown key is refused with the nearest name, and no folder is made."""
        path = study_file(tmp_path, b"")
        path.write_text(path.read_text().replace("model", "modle"))
        assert "modle" in refused("study", path)
        assert "nowhere.toml: cannot be read" in refused("study", "nowhere.toml")

    @pytest.mark.parametrize("model", [b"", b"text", b"\x08\x09"], ids=repr)
    def test_the_model(self, refused: Callable[..., str], tmp_path: Path, model: bytes) -> None:
        """A model that cannot be read is named before a folder is made."""
        assert "net.onnx" in refused("study", study_file(tmp_path, model))

    def test_a_folder_of_something_else(self, refused: Callable[..., str], tiny: Path, tmp_path: Path) -> None:
        """A folder that holds other things, or a file, is not taken for a study's."""
        path = study_file(tmp_path, tiny.read_bytes())
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter").write_text("precious")
        for name in ("thesis", "net.toml"):
            message = refused("study", path, "-o", name)
            assert f"{name}: exists and is no study; choose another folder with -o, or pass --force" in message
        assert "cannot be made" in refused("study", path, "-o", "net.onnx/below")

    @pytest.mark.compiles
    def test_force_adds_to_a_folder(self, call: Call, study: Path, tmp_path: Path) -> None:
        """With --force a study goes into any folder, and leaves what else is in it."""
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter").write_text("precious")
        assert call("study", study, "-o", "thesis", "--force").status == 0
        assert (tmp_path / "thesis" / "chapter").read_text() == "precious"
