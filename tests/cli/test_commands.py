"""What each command does with good input: results on stdout, the rest on stderr, ``--json`` one document."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from fusescope.study.runner import StudyResult

Call = Callable[..., Any]
RUN_FILES = {"run.json", "build.log", "layers.txt", "engine.plan", "model.onnx"}


def document(called: Any, schema: str) -> dict[str, Any]:
    """Return the one JSON document that a command printed; asserts that it holds no NaN and says what it is."""
    found: dict[str, Any] = json.loads(called.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert called.out.isascii()
    assert (found["schema"], found["version"]) == (f"fusescope.{schema}", 1)
    return found


class TestQuantize:
    """``fusescope quantize``."""

    def test_the_file(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """It writes a valid model with one pair per tensor, says how many, and that nothing was calibrated."""
        called = call("quantize", tiny, "-o", "fp8.onnx")
        assert called.status == 0
        assert called.out.splitlines()[0] == "3 of 4 convolutions in FP8, 3 Q/DQ pairs on activations"
        assert called.out.splitlines()[1].startswith("kept stem: ")
        assert called.err.splitlines() == ["the activation scales are placeholders: not calibrated", "wrote fp8.onnx"]
        proto = onnx.load(tmp_path / "fp8.onnx")
        onnx.checker.check_model(proto, full_check=True)
        assert sum(node.op_type == "QuantizeLinear" for node in proto.graph.node) == 3

    def test_the_options(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """Format, granularity and what is kept reach the file."""
        words = ("--format", "int8", "--weights", "per-tensor", "--keep", "fir*", "--keep", "last")
        found = document(call("quantize", tiny, "-o", "int8.onnx", *words, "--json"), "quantize")
        assert found["quantized"] == ["second"]
        assert [kept["node"] for kept in found["kept"]] == ["stem", "first", "last"]
        assert found["uncalibrated"]
        proto = onnx.load(tmp_path / found["output"])
        weight = next(
            tensor for tensor in proto.graph.initializer if tensor.data_type == TensorProto.INT8 and tensor.dims
        )
        assert list(weight.dims) == [16, 16, 3, 3]

    def test_a_structure_only_model(self, call: Call, tmp_path: Path) -> None:
        """It takes the samples, which hold no weights, and the result holds none either."""
        sample = Path(__file__).parents[2] / "samples" / "resnet50.onnx"
        found = document(call("quantize", sample, "-o", "fp8.onnx", "--json"), "quantize")
        assert len(found["quantized"]) == 52
        assert (tmp_path / "fp8.onnx").stat().st_size < 1_000_000

    def test_half_precision_on_request(self, call: Call, tmp_path: Path, tiny: Path) -> None:
        """--dtype fp16 converts a float32 model first."""
        proto = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 19]> g (float[1,4,4,4] x) => (float[1,4,4,4] y)'
            "<float[4,4,1,1] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> { [c] y = Conv (x, w) }"
        )
        onnx.save(proto, tiny)
        assert call("quantize", tiny, "-o", "fp8.onnx", "--dtype", "fp16").status == 0
        kinds = {tensor.data_type for tensor in onnx.load(tmp_path / "fp8.onnx").graph.initializer}
        assert TensorProto.FLOAT not in kinds


class TestSites:
    """``fusescope sites``."""

    def test_the_rows(self, call: Call, tiny: Path) -> None:
        """A row per site with the keys that scripts rely on; what is expected follows from the graph drawn above."""
        call("quantize", tiny, "-o", "fp8.onnx")
        rows = {row["tensor"]: row for row in document(call("sites", "fp8.onnx", "--json"), "sites")["sites"]}
        assert {tensor: row["producer_kind"] for tensor, row in rows.items()} == {
            "sr": "conv",
            "fr": "conv",
            "a": "residual sum",
        }
        keys = {"quantize", "producer", "readers", "prediction", "reason", "rule", "remedy"}
        assert all(keys <= row.keys() for row in rows.values())
        assert rows["fr"]["prediction"] == "fuses"
        assert (rows["fr"]["producer"], rows["fr"]["readers"]) == ("first", ["second"])
        assert rows["sr"]["prediction"] == rows["a"]["prediction"] == "separate"

    def test_the_text(self, call: Call, tiny: Path) -> None:
        """Counts by reason, then the sites; nothing on stderr."""
        call("quantize", tiny, "-o", "fp8.onnx")
        called = call("sites", "fp8.onnx")
        assert "3 Quantize sites" in called.out
        assert not called.err

    def test_unnamed_nodes(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """The names that nodes were given are said on stderr."""
        proto = onnx.load(tiny)
        proto.graph.node[0].name = ""
        onnx.save(proto, tmp_path / "odd.onnx")
        assert call("sites", "odd.onnx").err == "renamed node '' to 'Conv_s'\n"

    def test_a_stdout_of_few_characters(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """Where stdout cannot show a name's letters, their codes are printed; the JSON is the same everywhere."""
        call("quantize", tiny, "-o", "fp8.onnx")
        renamed = onnx.compose.add_prefix(onnx.load(tmp_path / "fp8.onnx"), "層/")
        onnx.save(renamed, tmp_path / "fp8.onnx")
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        outputs = [
            subprocess.run(
                [sys.executable, "-m", "fusescope", "sites", "fp8.onnx", *words],
                env=environment, capture_output=True, check=True,
            ).stdout.decode("ascii")
            for words in ([], ["--json"])
        ]  # fmt: skip
        assert r"\u5c64/sr" in outputs[0]
        assert "層/sr" in {row["tensor"] for row in json.loads(outputs[1])["sites"]}


@pytest.mark.compiles
class TestBuildAndExplain:
    """``fusescope build``, then ``fusescope explain``."""

    def test_from_a_model_to_an_explanation(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """Two builds and an explanation: the README's way by hand."""
        call("quantize", tiny, "-o", "fp8.onnx")
        called = call("build", tiny, "-o", "fp16", "--target", "sm89", "--aux-streams", "0", "--opt-level", "1")
        assert called.status == 0
        assert called.out.count("\n") == 1
        assert "for sm89" in called.out
        assert called.err == "wrote fp16\n"
        assert {path.name for path in (tmp_path / "fp16").iterdir()} == RUN_FILES
        build = document(call("build", "fp8.onnx", "-o", "fp8", "--target", "sm89", "--json"), "run")
        assert build["target"] == "sm89"
        assert build["plan_bytes"] == (tmp_path / "fp8" / "engine.plan").stat().st_size
        called = call("explain", "fp8", "--baseline", "fp16", "--html", "report.html")
        assert called.status == 0
        assert "fp8 against tiny" in called.out
        assert called.err == "wrote report.html\n"
        assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        found = document(call("explain", "fp8", "--baseline", "fp16", "--json"), "explanation")
        assert found["baseline"]["provenance"]["options"]["aux_streams"] == 0
        assert found["baseline"]["streams"] == 1

    def test_what_the_builder_is_told(self, call: Call, tiny: Path) -> None:
        """Every option of the builder is in the run's record, in its own unit."""
        words = (
            "--opt-level",
            1,
            "--aux-streams",
            0,
            "--avg-timing-iterations",
            2,
            "--workspace",
            64,
            "--name",
            "mine",
        )
        found = document(call("build", tiny, "-o", "run", *words, "--json"), "run")
        assert found["name"] == "mine"
        assert found["options"] == {
            "opt_level": 1,
            "aux_streams": 0,
            "avg_timing_iterations": 2,
            "workspace_bytes": 64 * 1024 * 1024,
        }

    def test_nameless_nodes_and_unread_lines_are_said(
        self, call: Call, tiny: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was renamed, and what of the dump could not be read, is said on stderr."""
        from fusescope.profiler import run

        proto = onnx.load(tiny)
        proto.graph.node[0].name = ""
        onnx.save(proto, tiny)
        read = run.read_oneline
        monkeypatch.setattr(
            run, "read_oneline", lambda text, **how: read(text.replace("\n", "\nno \x1blayer\n", 1), **how)
        )
        called = call("build", tiny, "-o", "run")
        assert called.status == 0
        assert called.err.splitlines() == [
            "renamed node '' to 'Conv_s'",
            "1 line of the dump could not be read; the first: no \\x1blayer",
            "wrote run",
        ]

    def test_one_run_alone(self, call: Call, tiny_study: tuple[Path, StudyResult]) -> None:
        """Without a baseline its side is `quantized` and there is no difference."""
        run = tiny_study[0] / "out" / "runs" / "b1-fp8"
        found = document(call("explain", run, "--json"), "explanation")
        assert found["baseline"] is None
        assert all(row["difference"] is None for row in found["groups"])
        assert "difference" not in call("explain", run).out

    def test_floors(self, call: Call, tiny_study: tuple[Path, StudyResult]) -> None:
        """--gpu adds floors; without it there are none."""
        run = tiny_study[0] / "out" / "runs" / "b1-fp8"
        found = document(call("explain", run, "--gpu", "RTX-5090", "--json"), "explanation")
        assert sum(row["quantized"]["floor_us"] for row in found["groups"]) > 0
        plain = document(call("explain", run, "--json"), "explanation")
        assert {row["quantized"]["floor_us"] for row in plain["groups"]} == {None}

    def test_force_replaces_a_run(self, call: Call, tiny: Path, tmp_path: Path) -> None:
        """With --force an older run gives way as a whole, nothing of it stays."""
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "old").write_text("old")
        refused = call("build", tiny, "-o", "run", "--force")
        assert (refused.status, (tmp_path / "run" / "old").read_text()) == (1, "old"), "a folder that is no run stays"
        (tmp_path / "run" / "run.json").write_text("{}")
        assert call("build", tiny, "-o", "run", "--force").status == 0
        assert {path.name for path in (tmp_path / "run").iterdir()} == RUN_FILES

    def test_without_the_runtime(self, call: Call, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where TensorRT for RTX has no wheels, `build` says why it cannot."""
        monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
        called = call("build", tiny, "-o", "run")
        assert called.status == 1
        assert "its wheels exist for Linux x86_64 and Windows only" in called.err


class TestExport:
    """``fusescope export``."""

    def test_without_the_extra(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        """The extra that is missing is named with the command that brings it."""
        monkeypatch.setitem(sys.modules, "timm", None)
        monkeypatch.setitem(sys.modules, "torch", None)
        called = call("export", "resnet10t", "-o", "out.onnx")
        assert called.status == 1
        assert 'pip install "fusescope[quantize]"' in called.err
        assert called.err.count("\n") == 1

    @pytest.mark.torch
    def test_a_model(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A torch model becomes an ONNX file; --strip-weights makes it small, and `quantize` takes it."""
        layers = "nn.Conv2d(3, 64, 9), nn.Conv2d(64, 8, 1)"
        (tmp_path / "clinet.py").write_text(f"from torch import nn\ndef net(): return nn.Sequential({layers})\n")
        monkeypatch.syspath_prepend(tmp_path)
        words = ("clinet:net", "--dtype", "fp16", "--batch", "2", "--image-size", "32")
        for output, option in (("full.onnx", ()), ("light.onnx", ("--strip-weights",))):
            called = call("export", *words, "-o", output, *option)
            assert called.status == 0
            assert not called.out
            assert called.err.endswith(f"wrote {output}\n")
            value = onnx.load(tmp_path / output).graph.input[0].type.tensor_type
            assert value.elem_type == TensorProto.FLOAT16
            assert [dim.dim_value for dim in value.shape.dim] == [2, 3, 32, 32]
        assert (tmp_path / "full.onnx").stat().st_size > 64 * 3 * 81 * 2
        assert (tmp_path / "light.onnx").stat().st_size < 4000
        assert call("quantize", "light.onnx", "-o", "q.onnx").status == 0
