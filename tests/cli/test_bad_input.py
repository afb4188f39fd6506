"""Bad input ends with one line that says what is wrong, where and what to do, and leaves nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest

from fusescope.profiler import build as building
from fusescope.study.runner import StudyResult

Refused = Callable[..., str]
READERS: Sequence[Sequence[str]] = (("sites",), ("quantize", "-o", "out.onnx"), ("build", "-o", "out"))
"""Every command that reads an ONNX file, with the options that it needs."""


def write(path: Path, nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str] = (1, 4), kind: int = 1) -> Path:
    """Write a model of these nodes, from `x` to `y`, unchecked."""
    ends = [onnx.helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9), path)
    return path


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
class TestReading:
    """What cannot be read as an ONNX model."""

    def test_no_such_file(self, refused: Refused, command: Sequence[str]) -> None:
        """A path that leads nowhere is named."""
        assert "nowhere.onnx" in refused(*command, "nowhere.onnx")

    def test_a_folder(self, refused: Refused, tmp_path: Path, command: Sequence[str]) -> None:
        """A folder is called a folder."""
        assert "is a folder" in refused(*command, tmp_path)

    @pytest.mark.parametrize(
        "content", [b"", b"# Not a model\n", b"\x89PNG\r\n\x1a\n\0\0"], ids=["empty", "text", "png"]
    )
    def test_not_onnx(self, refused: Refused, tmp_path: Path, command: Sequence[str], content: bytes) -> None:
        """Other files are named, with what to pass instead."""
        (tmp_path / "other").write_bytes(content)
        message = refused(*command, "other")
        assert message.startswith("error: other: ")
        assert "; " in message

    def test_truncated(self, refused: Refused, tiny: Path, command: Sequence[str]) -> None:
        """A file that was cut short is no model, wherever the cut is."""
        content = tiny.read_bytes()
        for part in (10, 2, 1.01):
            tiny.write_bytes(content[: int(len(content) / part)])
            assert "cut short" in refused(*command, tiny.name)


@pytest.mark.compiles
class TestBuilding:
    """What cannot be compiled."""

    def test_the_checker_refuses(self, refused: Refused, tmp_path: Path) -> None:
        """A model that breaks ONNX's rules is refused with the checker's words."""
        write(tmp_path / "bad.onnx", [onnx.helper.make_node("Relu", ["nothing"], ["y"], name="r")])
        message = refused("build", "bad.onnx", "-o", "run")
        assert "bad.onnx: is not a valid ONNX model" in message
        assert "nothing" in message

    def test_the_parser_refuses(self, refused: Refused, tmp_path: Path) -> None:
        """The node that TensorRT's parser does not know is named, with its operator."""
        node = onnx.helper.make_node("Unheard", ["x"], ["y"], name="the_odd_one", domain="my.own")
        path = write(tmp_path / "odd.onnx", [node])
        proto = onnx.load(path)
        proto.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
        onnx.save(proto, path)
        message = refused("build", "odd.onnx", "-o", "run")
        assert "the_odd_one" in message
        assert "Unheard" in message

    def test_a_target_without_fp8(self, refused: Refused, tiny: Path, call: Callable[..., Any]) -> None:
        """FP8 for sm86 is refused with the targets that have FP8."""
        call("quantize", tiny, "-o", "fp8.onnx")
        message = refused("build", "fp8.onnx", "-o", "run", "--target", "sm86")
        assert "FP8" in message
        assert message.endswith("choose one of sm89, sm120, sm121\n")

    def test_an_unknown_target(self, refused: Refused, tiny: Path) -> None:
        """The nearest target is offered, and all others."""
        message = refused("build", tiny, "-o", "run", "--target", "sm12")
        assert "'sm12'" in message
        assert "did you mean sm12" in message
        assert "sm89" in message

    def test_an_unknown_runtime(self, refused: Refused, tiny: Path) -> None:
        """The runtimes that there are are listed."""
        assert "tensorrt-rtx" in refused("build", tiny, "-o", "run", "--runtime", "tensorflow")

    def test_dynamic_shapes(self, refused: Refused, tmp_path: Path, call: Callable[..., Any]) -> None:
        """The inputs without a size are named, and the option that gives it; that option then works."""
        write(tmp_path / "open.onnx", [onnx.helper.make_node("Relu", ["x"], ["y"], name="r")], ("n", 4))
        message = refused("build", "open.onnx", "-o", "run")
        assert "x [n, 4]" in message
        assert "--shape x=1x4" in message
        assert "does not fit" in refused("build", "open.onnx", "-o", "run", "--shape", "x=1x5")
        assert "no input 'z'" in refused("build", "open.onnx", "-o", "run", "--shape", "z=1x4")
        assert call("build", "open.onnx", "-o", "run", "--shape", "x=1x4").status == 0

    def test_missing_external_data(self, refused: Refused, tiny: Path, tmp_path: Path) -> None:
        """Weights in a file that is not there are missed by name; what needs no weights still works."""
        onnx.save(onnx.load(tiny), tiny, save_as_external_data=True, location="weights.bin", size_threshold=0)
        (tmp_path / "weights.bin").unlink()
        message = refused("build", tiny.name, "-o", "run")
        assert "weights.bin" in message
        assert "external data" in message

    @pytest.mark.parametrize(
        ("program", "expected"),
        [
            ("import os; os.abort()", "ended by SIGABRT"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, often for lack of memory"),
            ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
            ("raise SystemExit('no such driver')", "no such driver"),
            ("import time; time.sleep(60)", "did not finish within 0.5 s"),
        ],
        ids=["aborts", "killed", "crashes", "fails", "hangs"],
    )
    def test_a_compiler_that_ends_badly(
        self, refused: Refused, tiny: Path, monkeypatch: pytest.MonkeyPatch, program: str, expected: str
    ) -> None:
        """A crash, a kill, a failure and a hang of the compiling process are messages with the end of its log."""
        first = "import sys, pathlib; pathlib.Path(sys.argv[2], 'build.log').write_text('[I] its last words')\n"
        monkeypatch.setattr(building, "WORKER", (sys.executable, "-c", first + program))
        message = refused("build", tiny, "-o", "run", "--timeout", 0.5 if "sleep" in program else 60)
        assert expected in message
        assert "its last words" in message


class TestOutputs:
    """What cannot be written."""

    @pytest.mark.parametrize(
        "command",
        [
            ("quantize", "tiny.onnx", "-o", "there"),
            ("export", "resnet10t", "-o", "there"),
            pytest.param(("build", "tiny.onnx", "-o", "there"), marks=pytest.mark.compiles),
            ("explain", "run", "--html", "there"),
        ],
        ids=lambda command: command[0],
    )
    def test_exists(self, refused: Refused, tmp_path: Path, command: Sequence[str]) -> None:
        """An output that is there is refused at once, with the way out; so is one in a folder that is not there."""
        (tmp_path / "there").write_text("precious")
        assert refused(*command).endswith("there: already exists; choose another name or pass --force\n")
        elsewhere = [word.replace("there", "no/such/there") for word in command]
        assert "folder to write to does not exist" in refused(*elsewhere)

    def test_force(self, call: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
        """With --force the output is replaced."""
        (tmp_path / "out.onnx").write_text("old")
        assert call("quantize", tiny, "-o", "out.onnx", "--force").status == 0
        onnx.checker.check_model(tmp_path / "out.onnx")

    @pytest.mark.compiles
    @pytest.mark.parametrize("command", ["quantize", "build"])
    def test_a_full_disk(self, tiny: Path, tmp_path: Path, command: str) -> None:
        """The system's refusal to write (here: of more than 2 kB) is a message, and nothing is left behind."""
        resource = pytest.importorskip("resource")
        done = subprocess.run(
            [sys.executable, "-m", "fusescope", command, tiny.name, "-o", "out"],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if not key.startswith("COV")},  # it would write too
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
        )
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("\n") == 1
        assert "out: cannot be written (File too large)" in done.stderr
        assert list(tmp_path.iterdir()) == [tiny]


class TestRuns:
    """What is no run, or a damaged one."""

    def test_no_run(self, refused: Refused, tmp_path: Path) -> None:
        """A folder that is not there, another folder and a file are no runs; the command that makes one is named."""
        (tmp_path / "folder").mkdir()
        for path in ("nowhere", "folder"):
            assert refused("explain", path).startswith(f"error: {path}: is not a run")
        (tmp_path / "file").write_text("text")
        assert "file" in refused("explain", "file")

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("{", "cannot be read"),
            ("[]", "is not the record of a run"),
            ('{"schema": "fusescope.run", "version": 99}', "has version 99"),
            ('{"schema": "fusescope.run", "version": 1}', "is damaged"),
        ],
    )
    def test_a_damaged_record(self, refused: Refused, tmp_path: Path, content: str, expected: str) -> None:
        """A record that is no JSON, of something else, of another version or not whole is refused by its path."""
        run = tmp_path / "run"
        run.mkdir()
        (run / "run.json").write_text(content)
        (run / "layers.txt").write_text("Layers:\n")
        message = refused("explain", "run")
        assert message.startswith("error: run/run.json: ")
        assert expected in message

    @pytest.mark.compiles
    def test_an_unreadable_dump(self, refused: Refused, tiny_study: tuple[Path, StudyResult], tmp_path: Path) -> None:
        """A dump of which no line can be read is refused, and the line is shown."""
        run = copied(tiny_study, tmp_path)
        (run / "layers.txt").write_text("Layers:\nthis is no layer\n\nI/O Tensors:\n\nEngine Metadata:\n")
        message = refused("explain", run)
        assert "layers.txt" in message
        assert "this is no layer" in message

    @pytest.mark.compiles
    def test_a_line_of_the_dump(
        self, call: Callable[..., Any], tiny_study: tuple[Path, StudyResult], tmp_path: Path
    ) -> None:
        """A line that cannot be read is shown and counted; the other layers are explained."""
        run = copied(tiny_study, tmp_path)
        before = json.loads(call("explain", run, "--json").out)
        head, rest = (run / "layers.txt").read_text().split("\n", 1)
        (run / "layers.txt").write_text(f"{head}\nthis is no layer\n{rest}")
        document = json.loads(call("explain", run, "--json").out)
        assert document["coverage"]["unread_lines"] == ["this is no layer"]
        assert document["quantized"]["layers"] == before["quantized"]["layers"]
        assert "1 line of the dump could not be read (this is no layer)" in call("explain", run).out

    @pytest.mark.compiles
    def test_an_unknown_gpu(self, refused: Refused, tiny_study: tuple[Path, StudyResult], tmp_path: Path) -> None:
        """Floors for a GPU that is not in the table: the known ones are listed."""
        message = refused("explain", copied(tiny_study, tmp_path), "--gpu", "RTX-5091")
        assert "RTX-5091" in message
        assert "RTX-5090" in message


def copied(study: tuple[Path, StudyResult], folder: Path) -> Path:
    """Copy the FP8 run of the study, to be damaged."""
    return Path(shutil.copytree(study[0] / "out" / "runs" / "b1-fp8", folder / "run"))
