"""Building: what is refused and how, what survives a failure, and what a run remembers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import helper

from fusescope.graph.errors import UserError
from fusescope.graph.external import load_with_weights
from fusescope.graph.structure import strip
from fusescope.profiler import build as building
from fusescope.profiler.build import CompileError, build, prepare
from fusescope.profiler.run import read_run
from fusescope.profiler.runtimes import CompileOptions, runtime_named
from fusescope.quant.insert import quantize

CONV = "net (float16[1,16,8,8] x) => (float16[1,16,6,6] y) { [c1] y = Conv (x, w) }"
SM120 = CompileOptions("sm120")


@pytest.fixture
def conv(draw: SimpleNamespace) -> onnx.ModelProto:
    """One fp16 conv."""
    proto: onnx.ModelProto = draw.model(CONV, w=(16, 16, 3, 3))
    return proto


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run from before, which a failed build must leave as it is."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "good.txt").write_text("good work")
    (folder / "run.json").write_text("{}")
    return folder


def assert_kept(kept: Path) -> None:
    """The run from before is there, and nothing else is."""
    assert [path.name for path in kept.parent.iterdir()] == ["run"]
    assert sorted(path.name for path in kept.iterdir()) == ["good.txt", "run.json"]


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    """The message, which is one line."""
    text = str(error.value)
    assert "\n" not in text
    return text


class TestPrepare:
    """Making a model ready for the compiler."""

    def test_a_model_that_the_checker_refuses(self, conv: onnx.ModelProto) -> None:
        """The checker's complaint names the node."""
        conv.graph.node[0].input[0] = "nobody"
        with pytest.raises(UserError, match=r"bad\.onnx: is not a valid ONNX model: .*nobody.*c1") as caught:
            prepare(conv, "bad.onnx")
        one_line(caught)

    def test_unnamed_nodes_are_named(self, conv: onnx.ModelProto) -> None:
        """Every node gets a name, since the engine's metadata go by it; which ones is recorded."""
        conv.graph.node[0].name = ""
        ready = prepare(conv, "net")
        assert all(node.name for node in ready.proto.graph.node)
        assert len(ready.renamed) == 1

    def test_a_structure_only_model_is_filled_and_says_so(self, conv: onnx.ModelProto) -> None:
        """Its weights are seeded values, and what comes of it says that."""
        ready = prepare(strip(conv), "net")
        assert ready.weights != "as given"
        assert [tensor.name for tensor in ready.proto.graph.initializer] == ["w"]
        assert prepare(conv, "net").weights == "as given"

    def test_formats_and_batch_are_read_off_the_model(self, conv: onnx.ModelProto) -> None:
        """They decide whether a target will do."""
        assert prepare(conv, "net").formats == ()
        assert prepare(quantize(conv, format="int8").proto, "net").formats == ("int8",)
        assert prepare(quantize(conv).proto, "net").formats == ("fp8",)
        assert prepare(conv, "net").batch == 1


@pytest.fixture
def dynamic(draw: SimpleNamespace) -> onnx.ModelProto:
    """Two inputs whose batch is symbolic, one of which has an unknown height as well."""
    text = "net (float16[N,4,8] x, float16[N,4,{}] z) => (float16[N,4,8] y) {{ [add] y = Add (x, z) }}"
    proto: onnx.ModelProto = draw.model(text.format("H"))
    return proto


class TestDynamicShapes:
    """A compiled dump of a dynamic model would have no sizes: they are fixed first."""

    def test_without_shapes_the_open_inputs_are_listed(self, dynamic: onnx.ModelProto) -> None:
        """With the option that gives them."""
        with pytest.raises(UserError) as caught:
            prepare(dynamic, "net.onnx")
        assert one_line(caught) == (
            "net.onnx: has inputs of no fixed size: x [N, 4, 8], z [N, 4, H]; "
            "give them with --shape x=1x4x8 --shape z=1x4xN"
        )

    def test_a_part_of_the_shapes_is_not_enough(self, dynamic: onnx.ModelProto) -> None:
        """Those still open are listed."""
        with pytest.raises(UserError, match=r"no fixed size: z \[N, 4, H\]"):
            prepare(dynamic, "net.onnx", {"x": (2, 4, 8)})

    def test_with_shapes_the_model_is_fixed(self, dynamic: onnx.ModelProto) -> None:
        """All sizes of its inputs are those given."""
        ready = prepare(dynamic, "net.onnx", {"x": (2, 4, 8), "z": (2, 4, 1)})
        shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in ready.proto.graph.input]
        assert shapes == [[2, 4, 8], [2, 4, 1]]
        assert ready.batch == 2
        assert ready.changed == {"shape": "x=2x4x8 z=2x4x1"}

    def test_a_size_of_minus_one_is_open(self, dynamic: onnx.ModelProto) -> None:
        """Some exporters write -1 for what is not fixed."""
        dynamic.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
        ready = prepare(dynamic, "net.onnx", {"x": (3, 4, 8), "z": (3, 4, 8)})
        assert ready.batch == 3

    @pytest.mark.parametrize("shape", [(2, 5, 8), (2, 4), (0, 4, 8), (-1, 4, 8)])
    def test_a_shape_that_does_not_fit_is_refused(self, dynamic: onnx.ModelProto, shape: tuple[int, ...]) -> None:
        """The message shows both."""
        with pytest.raises(UserError, match=r"does not fit input 'x', which is \[N, 4, 8\]"):
            prepare(dynamic, "net.onnx", {"x": shape})

    def test_a_shape_for_no_input_is_refused(self, dynamic: onnx.ModelProto) -> None:
        """The message lists the inputs."""
        with pytest.raises(UserError, match="has no input 'q'; it has x, z"):
            prepare(dynamic, "net.onnx", {"q": (1,)})


class TestExternalData:
    """Weights in a file beside the model."""

    @pytest.fixture
    def stored(self, tmp_path: Path, conv: onnx.ModelProto) -> Path:
        """A model whose weights lie in w.bin."""
        path = tmp_path / "net.onnx"
        copy = onnx.ModelProto()
        copy.CopyFrom(conv)
        onnx.save_model(copy, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        return path

    def test_it_is_loaded(self, stored: Path, conv: onnx.ModelProto) -> None:
        """The weights are those that were stored."""
        loaded = load_with_weights(stored)
        assert loaded.graph.initializer[0].raw_data == conv.graph.initializer[0].raw_data

    def test_a_missing_file_is_named(self, stored: Path) -> None:
        """And structure-only models are offered instead."""
        (stored.parent / "w.bin").unlink()
        with pytest.raises(UserError, match=r"net\.onnx: its external data cannot be read .*w\.bin") as caught:
            load_with_weights(stored)
        one_line(caught)

    def test_a_short_file_is_refused(self, stored: Path) -> None:
        """A model is never compiled with a part of its weights."""
        data = (stored.parent / "w.bin").read_bytes()
        (stored.parent / "w.bin").write_bytes(data[: len(data) // 2])
        with pytest.raises(UserError, match=r"net\.onnx: "):
            prepare(load_with_weights(stored), stored.name)


@pytest.mark.parametrize(("content", "message"), [(b"text", "not an ONNX file"), (b"", "is empty")])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Not an ONNX file, or nothing at all."""
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_with_weights(path)


def test_a_truncated_model_is_refused(tmp_path: Path, conv: onnx.ModelProto) -> None:
    """A download that broke off."""
    path = tmp_path / "net.onnx"
    path.write_bytes(conv.SerializeToString()[:-500])
    with pytest.raises(UserError, match="not an ONNX file, or was cut short"):
        load_with_weights(path)


def test_an_unknown_runtime_is_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(UserError, match="unknown runtime 'tensorflow'; choose one of tensorrt-rtx"):
        runtime_named("tensorflow")


def test_a_runtime_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, conv: onnx.ModelProto, tmp_path: Path
) -> None:
    """Where its wheels do not exist, the rest of fusescope still works."""
    monkeypatch.setattr("fusescope.profiler.runtimes.tensorrt_rtx.MODULE", "no_such_module")
    with pytest.raises(UserError, match="tensorrt-rtx is not installed: its wheels exist for"):
        build(prepare(conv, "net"), tmp_path / "run", runtime="tensorrt-rtx", options=SM120)
    assert list(tmp_path.iterdir()) == []


needs_compiler = pytest.mark.compiles


@needs_compiler
class TestCompiler:
    """The real compiler, in its own process."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("tensorrt_rtx")

    def test_a_run_remembers_where_it_comes_from(self, conv: onnx.ModelProto, tmp_path: Path) -> None:
        """Runtime, target, model, recipe, options and sizes are recorded; nothing else is left beside it."""
        quantized = quantize(conv, weights="per-tensor")
        run = build(
            prepare(quantized.proto, "net.onnx"),
            tmp_path / "run",
            runtime="tensorrt-rtx",
            options=CompileOptions(
                "sm89", opt_level=1, aux_streams=0, avg_timing_iterations=2, workspace_bytes=1 << 30
            ),
            name="fp8",
            request="r1",
        )
        origin = run.provenance
        assert (origin.name, origin.model_name, origin.request) == ("fp8", "net.onnx", "r1")
        assert (origin.runtime, origin.target, origin.batch) == ("tensorrt-rtx", "sm89", 1)
        assert origin.recipe["weights"] == "per-tensor"
        assert "uncalibrated" in origin.scales
        assert origin.options == {
            "opt_level": 1,
            "aux_streams": 0,
            "avg_timing_iterations": 2,
            "workspace_bytes": 1 << 30,
        }
        assert origin.plan_bytes == (run.folder / "engine.plan").stat().st_size
        assert len(origin.model_sha256) == 64
        assert {path.name for path in tmp_path.iterdir()} == {"run"}
        assert {path.name for path in run.folder.iterdir()} == {
            "run.json",
            "layers.txt",
            "build.log",
            "engine.plan",
            "model.onnx",
        }
        again = read_run(run.folder)
        assert again == run

    def test_a_model_without_quantizes_has_no_scales(self, conv: onnx.ModelProto, tmp_path: Path) -> None:
        """Nor a recipe."""
        run = build(prepare(conv, "net"), tmp_path / "run", runtime="tensorrt-rtx", options=SM120)
        assert (run.provenance.scales, run.provenance.recipe, run.provenance.name) == ("", {}, "net")

    def test_the_run_keeps_the_structure_and_not_the_weights(self, draw: SimpleNamespace, tmp_path: Path) -> None:
        """The model beside the layers is small, and has the nodes that the layers name."""
        proto = draw.model(CONV.replace("16,8,8", "256,8,8").replace("16,6,6", "256,6,6"), w=(256, 256, 3, 3))
        run = build(prepare(proto, "net"), tmp_path / "run", runtime="tensorrt-rtx", options=SM120)
        assert (run.folder / "model.onnx").stat().st_size < 10_000 < proto.ByteSize()
        assert set(run.engine.naming) <= set(run.graph.nodes)

    def test_an_op_that_the_parser_refuses_is_named(self, kept: Path) -> None:
        """Node and operation."""
        value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
        result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
        node = helper.make_node("Mystery", ["x"], ["y"], name="what/is this", domain="my.ops")
        graph = helper.make_graph([node], "net", [value], [result])
        opsets = [helper.make_opsetid("", 19), helper.make_opsetid("my.ops", 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        with pytest.raises(
            CompileError, match=r"net: the ONNX parser refuses node 'what/is this' \(Mystery\): "
        ) as caught:
            build(prepare(proto, "net"), kept, runtime="tensorrt-rtx", options=SM120)
        one_line(caught)
        assert_kept(kept)

    def test_fp8_for_a_target_without_it(self, conv: onnx.ModelProto, kept: Path) -> None:
        """Refused before the compiler is started, with the targets that have it."""
        ready = prepare(quantize(conv).proto, "net")
        with pytest.raises(UserError, match=r"sm86 .* has no FP8 instructions; choose one of sm89, sm120, sm121"):
            build(ready, kept, runtime="tensorrt-rtx", options=CompileOptions("sm86"))
        assert_kept(kept)

    def test_int8_builds_for_such_a_target(self, conv: onnx.ModelProto, tmp_path: Path) -> None:
        """INT8 has been there since Turing."""
        ready = prepare(quantize(conv, format="int8").proto, "net")
        run = build(ready, tmp_path / "run", runtime="tensorrt-rtx", options=CompileOptions("sm86"))
        assert run.provenance.target == "sm86"

    def test_an_unknown_target(self, conv: onnx.ModelProto, kept: Path) -> None:
        """Refused with those that there are: RTX has no sm90."""
        with pytest.raises(UserError, match=r"cannot be built for 'sm90'; .*choose one of sm75, "):
            build(prepare(conv, "net"), kept, runtime="tensorrt-rtx", options=CompileOptions("sm90"))
        assert_kept(kept)

    def test_a_good_build_replaces_the_run_as_a_whole(self, conv: onnx.ModelProto, kept: Path) -> None:
        """Nothing of the old one stays."""
        build(prepare(conv, "net"), kept, runtime="tensorrt-rtx", options=SM120)
        assert not (kept / "good.txt").exists()
        assert (kept / "run.json").exists()

    def test_the_disk_is_full(self, conv: onnx.ModelProto, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What cannot be written is said in one line."""

        def full(*_: Any) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(building, "write_record", full)
        with pytest.raises(UserError, match=r"run: cannot be written \(No space left on device\); check free space"):
            build(prepare(conv, "net"), kept, runtime="tensorrt-rtx", options=SM120)
        assert_kept(kept)


GOOD = {"version": "1", "parse_s": 0.0, "build_s": 0.0, "plan_bytes": 1, "parser_errors": []}
WRITE = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[2])
(folder / "build.log").write_text("[I] one\\n[E] Error Code 4: no\\n[I] last words\\n")
"""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, conv: onnx.ModelProto, kept: Path) -> Callable[..., str]:
    """A function that builds with another worker and returns the one line that comes of it."""
    monkeypatch.setattr(building, "_require_installed", lambda *_: None)

    def fail(code: str, timeout_s: float = 60) -> str:
        monkeypatch.setattr(building, "WORKER", (sys.executable, "-c", WRITE + code))
        with pytest.raises(CompileError) as caught:
            build(prepare(conv, "net"), kept, runtime="tensorrt-rtx", options=SM120, timeout_s=timeout_s)
        assert_kept(kept)
        return one_line(caught)

    return fail


SAID = "; it said: [I] one | [E] Error Code 4: no | [I] last words"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "net: the compiler was ended by SIGSEGV, a defect of the compiler" + SAID,
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "net: the compiler was ended by SIGKILL, often for lack of memory" + SAID,
        ),
        (
            "os.kill(os.getpid(), signal.SIGABRT)",
            "net: the compiler was ended by SIGABRT, a defect of the compiler" + SAID,
        ),
    ],
)
def test_a_compiler_that_crashes_is_a_message(failing: Callable[..., str], code: str, message: str) -> None:
    """The signal, and the tail of what the compiler said."""
    assert failing(code) == message


def test_a_compiler_that_hangs_is_ended(failing: Callable[..., str]) -> None:
    """After the timeout, with what to do."""
    message = failing("time.sleep(600)", timeout_s=2)
    assert message.startswith("net: the compiler did not finish within 2 s")
    assert message.endswith("; give it longer with --timeout")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit(1)", "net: the compiling process failed: no message" + SAID),
        ("print('a' * 200000, file=sys.stderr); raise MemoryError('all')", "failed: MemoryError: all" + SAID),
        ("open('/dev/full', 'w').write('x' * 100000)", "No space left on device"),
        ("sys.exit(0)", "net: the compiling process left no result" + SAID),
        ("(folder / 'outcome.json').write_text('{')", "net: the compiling process left no result" + SAID),
        ("(folder / 'outcome.json').write_bytes(b'\\xff')", "net: the compiling process left no result" + SAID),
        (
            "print('\\x00garbage'); sys.stderr.buffer.write(b'\\xff\\xfe'); sys.exit(3)",
            "net: the compiling process failed",
        ),
    ],
)
def test_a_compiling_process_that_fails_is_a_message(failing: Callable[..., str], code: str, message: str) -> None:
    """What it said last, and the tail of the log."""
    assert message in failing(code)


def outcome(**changes: Any) -> str:
    """Code that writes an outcome."""
    return f"(folder / 'outcome.json').write_text({json.dumps({**GOOD, **changes})!r});"


def test_a_builder_that_refuses_says_its_errors(failing: Callable[..., str]) -> None:
    """Only the lines of severity E."""
    assert failing(outcome(plan_bytes=None)) == "net: the builder refuses the model; it said: [E] Error Code 4: no"


def test_a_parser_that_names_no_node(failing: Callable[..., str]) -> None:
    """Its words are all there is."""
    errors = [{"message": "no weights", "node": "", "operator": ""}]
    assert failing(outcome(plan_bytes=None, parser_errors=errors)) == "net: the ONNX parser refuses no weights"


def test_a_builder_that_prints_no_dump(failing: Callable[..., str]) -> None:
    """A plan alone cannot be explained."""
    assert failing(outcome()) == "net: the builder printed no engine dump" + SAID


def test_a_dump_that_cannot_be_read_replaces_nothing(failing: Callable[..., str]) -> None:
    """The line is shown, and the run from before is still there."""
    dump = "Layers:\\nNames: are gone\\n\\nI/O Tensors:\\n"
    message = failing(outcome() + f"(folder / 'layers.txt').write_text('{dump}')")
    assert message == "net: the builder's engine dump holds no layer that can be read: line 2 reads 'Names: are gone'"


def test_the_worker_starts_light() -> None:
    """It imports neither onnx nor networkx nor pandas, so that it starts fast and leaves memory to the compiler."""
    code = "import sys, fusescope.profiler.worker; print([m for m in sys.modules if '.' not in m])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert loaded.isdisjoint({"onnx", "networkx", "numpy", "pandas", "pydantic", "torch", "tensorrt_rtx"})
