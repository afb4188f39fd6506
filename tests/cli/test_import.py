"""``fusescope import``: recorded files become a run, or are refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
Refused = Callable[..., str]


class TestImport:
    """What it does with good files."""

    def test_a_folder(self, call: Call, recorded: Path) -> None:
        """It says what it found on stdout, and what each file is for on stderr."""
        called = call("import", recorded, "-o", "run")
        assert called.status == 0
        assert called.out == (
            "net: 3 layers, 0.875 ms in 3 layer times, median latency 0.844 ms; recorded elsewhere (layer information, "
            "metadata of TREx, a layer profile, times of inferences)\n"
        )
        assert "net.profile.json: profile\n" in called.err
        assert "note: The clocks that the GPU ran at are not recorded.\n" in called.err
        assert called.err.endswith("wrote run\n")

    def test_explained(self, call: Call, recorded: Path) -> None:
        """The terminal shows recorded times, and what they do not tell."""
        assert call("import", recorded, "-o", "run").status == 0
        told = call("explain", "run").out
        assert "net, batch 2\n" in told
        assert "recorded elsewhere" in told
        assert "on NVIDIA A100" in told
        assert "latency, recorded" in told
        assert "sum of layer times, recorded; not the latency" in told
        assert "1 kernel only quantizes or dequantizes" in told

    def test_json(self, call: Call, recorded: Path) -> None:
        """One document with the provenance of each run."""
        document = json.loads(call("import", recorded, "-o", "run", "--name", "int8", "--json").out)
        (run,) = document["runs"]
        assert (document["schema"], run["name"], run["layers"]) == ("fusescope.import", "int8", 3)
        assert run["facts"]["gpu"] == "NVIDIA A100"
        assert run["artifacts"][0] == {
            "file": "net.graph.json",
            "format": "inspector",
            "roles": ["layers"],
            "section": "",
        }

    def test_the_options(self, call: Call, recorded: Path, tmp_path: Path) -> None:
        """Each file for what it is given as, with the model."""
        options = [
            (f"--{name}", recorded / f"net.{file}.json")
            for name, file in (("layers", "graph"), ("profile", "profile"), ("times", "timing"), ("log", "metadata"))
        ]
        words = [word for option in options for word in option]
        called = call("import", *words, "--onnx", tmp_path / "net.onnx", "-o", "run", "--json")
        assert json.loads(called.out)["runs"][0]["model_name"] == "net.onnx"
        sites = json.loads(call("explain", "run", "--json").out)["sites"]
        assert [(site["tensor"], site["verdict"]) for site in sites] == [("x", "alone")]

    def test_every_engine(self, call: Call, recorded: Path, tmp_path: Path) -> None:
        """--all gives each a folder of its own, named after it, without what a name may not hold."""
        shutil.copytree(recorded, tmp_path / "all" / "a b")
        shutil.copytree(recorded, tmp_path / "all" / "a;b")
        called = call("import", "all", "-o", "run", "--all")
        assert called.status == 0
        assert sorted(path.name for path in tmp_path.glob("run*")) == ["run-a-b-net", "run-a-b-net-2"]
        assert len(called.out.splitlines()) == 2

    def test_a_baseline(self, call: Call, recorded: Path, tmp_path: Path) -> None:
        """Recordings are held against each other; one of another GPU is refused."""
        shutil.copytree(recorded, tmp_path / "other")
        assert call("import", recorded, "-o", "run").status == 0
        assert call("import", "other", "-o", "base").status == 0
        assert call("explain", "run", "--baseline", "base").status == 0
        metadata = tmp_path / "other" / "net.metadata.json"
        metadata.write_text(metadata.read_text("utf-8").replace("A100", "T4"), encoding="utf-8")
        assert call("import", "other", "-o", "t4").status == 0
        called = call("explain", "run", "--baseline", "t4")
        assert (called.status, called.out) == (1, "")
        assert "cannot be the baseline of net: GPU NVIDIA T4, not NVIDIA A100" in called.err


class TestRefusals:
    """What it does not take: one line, and nothing written."""

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (b" \n", "is empty"),
            (b"hello", "is of no format that fusescope reads"),
            (b"\x80\x00\xff", "is of no format that fusescope reads"),
            (b'{"Layers": [{"Name": "a", "LayerType": "Reformat"', "is cut short"),
            (b'{"Layers": []}', "holds no layers"),
            (b'[{"count": 0}, {"name": "a", "timeMs": 1, "averageMs": 1}]', "counts 0 inferences"),
            (b'{"a": -1}', "is -1"),
            (b'{"a": NaN}', "is no time"),
            (b'{"a": Infinity}', "is no time"),
            (b'{"Layers": [{"Name": ' + b"[" * 100_000, "is nested too deeply"),
        ],
    )
    def test_a_bad_file(self, refused: Refused, tmp_path: Path, content: bytes, message: str) -> None:
        """The line names the file."""
        (tmp_path / "bad.json").write_bytes(content)
        told = refused("import", "bad.json", "-o", "run")
        assert message in told
        assert "bad.json" in told

    def test_cut_anywhere(self, refused: Refused, recorded: Path, tmp_path: Path) -> None:
        """No part of a file passes for the whole."""
        for path in sorted(recorded.iterdir()):
            content = path.read_bytes()
            for end in range(0, len(content) - 1, 97):
                (tmp_path / "cut.json").write_bytes(content[:end])
                refused("import", "cut.json", "-o", "run")

    def test_an_output_that_exists(self, call: Call, refused: Refused, recorded: Path) -> None:
        """It is replaced with --force only, and only if it is a run."""
        assert call("import", recorded, "-o", "run").status == 0
        assert "run: already exists" in refused("import", recorded, "-o", "run")
        assert call("import", recorded, "-o", "run", "--force").status == 0
        assert "is a folder of something else" in refused("import", recorded, "-o", recorded, "--force")

    def test_no_file(self, call: Call) -> None:
        """That is wrong usage, as are --engine and --all together."""
        assert call("import", "-o", "run").status == 2
        assert call("import", "x", "-o", "run", "--engine", "a", "--all").status == 2

    def test_a_file_that_is_not_there(self, refused: Refused) -> None:
        """It is named."""
        assert "nowhere.json: cannot be read" in refused("import", "nowhere.json", "-o", "run")


def test_hostile_names(call: Call, tmp_path: Path) -> None:
    """Names in a file reach neither the terminal as commands, nor a page as markup."""
    names = ["\x1b[2J\x1b]0;owned\x07", "<script>alert(1)</script>", "../../etc/passwd", "a\nb", "\udcff", "\u202eabc"]
    layers = [{"Name": name, "LayerType": name, "Inputs": [], "Outputs": []} for name in names]
    (tmp_path / "hostile.json").write_text(json.dumps({"Layers": layers}), encoding="utf-8")
    assert call("import", "hostile.json", "-o", "run", "--name", names[0]).status == 0
    called = call("explain", "run", "--html", "x.html", "--markdown", "x.md")
    assert called.status == 0
    assert "\x1b" not in called.out + called.err
    assert "\u202e" not in called.out
    assert "<script>alert" not in (tmp_path / "x.html").read_text(encoding="utf-8")
    assert len(json.loads(call("explain", "run", "--json").out)["layers"]) == len(names)
