"""Runs from recorded files: kept as they came, read again each time, and never put together wrongly."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.explain import explain
from fusescope.profiler.imports import import_run
from fusescope.profiler.run import RECORD, RECORDED, Run, read_run
from fusescope.profiler.sources import EngineKey, chosen_key, engine_keys, read_sources

ALONE = EngineKey("", "")
LOG = """&&&& RUNNING TensorRT.trtexec [TensorRT v8401] # trtexec --loadEngine=net.plan
[I] === Model Options ===
[I] Format: *
[I] === Inference Options ===
[I] Batch: 4
[I] === Performance summary ===
[I] Throughput: 1000 qps
[I] GPU Compute Time: min = 0.5 ms, max = 2 ms, mean = 1 ms, median = 1 ms, percentile(99%) = 2 ms
&&&& PASSED TensorRT.trtexec [TensorRT v8401] # trtexec --loadEngine=net.plan
"""


def imported(*paths: Path, to: Path, **more: Any) -> Run:
    """The run of files that are about one engine."""
    sources, _ = read_sources(paths)
    return import_run(sources, chosen_key(sources, ""), to, **more)


def edited(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file with its JSON changed."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(document) or document), encoding="utf-8")
    return path


class TestOneEngine:
    """A folder as TREx leaves it."""

    def test_what_the_files_say(self, recorded: Path, tmp_path: Path) -> None:
        """Layers, times and facts are those of the files; the target follows from the compute capability."""
        run = imported(recorded, to=tmp_path / "run")
        origin = run.provenance
        assert [layer.kind for layer in run.engine.layers] == ["Reformat", "CaskConvolution", "Reformat"]
        assert run.profile is not None
        assert run.profile.total_ms == 0.25 + 0.5 + 0.125
        assert run.latency is not None
        assert run.latency.compute.median_ms == np.median([0.8125, 0.875, 0.84375])
        assert (origin.name, origin.target, origin.batch) == ("net", "sm80", 2)
        assert (origin.facts["gpu"], origin.runtime_version) == ("NVIDIA A100", "")
        assert origin.how.startswith("recorded elsewhere (layer information, ")

    def test_the_explanation(self, recorded: Path, tmp_path: Path) -> None:
        """Times are recorded ones, each in the group of its layer, and what the profiler adds is told apart."""
        explanation = explain(imported(recorded, to=tmp_path / "run"))
        groups = explanation.groups["quantized"]
        assert explanation.observed.endswith("an unknown version of TensorRT, on NVIDIA A100")
        assert groups["time_us"][["quantize", "conv", "reformat"]].to_list() == [250, 500, 125]
        assert groups["bytes"]["quantize"] == 2 * 4 * 8 * 8 * (4 + 1)
        side = explanation.quantized
        assert side.latency is not None
        assert side.layer_time is not None
        assert (side.latency.source, side.layer_time.source) == ("recorded", "recorded")
        assert side.profile_overhead_us == pytest.approx((875 - 843.75) / 3)
        assert explanation.quantize.time_alone_us == 250
        assert any("clocks" in warning for warning in explanation.warnings)

    def test_the_files_are_kept_as_they_came(self, recorded: Path, tmp_path: Path) -> None:
        """Byte for byte, and ``run.json`` says what each is for."""
        run = imported(recorded, to=tmp_path / "run")
        kept = {path.name: path.read_bytes() for path in (run.folder / RECORDED).iterdir()}
        assert kept == {path.name: path.read_bytes() for path in recorded.iterdir()}
        roles = {artifact.file.split(".")[1]: artifact.roles for artifact in run.provenance.artifacts}
        assert roles == {
            "graph": ("layers",),
            "profile": ("profile",),
            "timing": ("latency", "facts"),
            "metadata": ("facts",),
        }

    def test_all_is_derived_again(self, recorded: Path, tmp_path: Path) -> None:
        """Nothing but the files is read: another time in a file is another time in the run."""
        run = imported(recorded, to=tmp_path / "run")

        def slower(document: list[dict[str, Any]]) -> None:
            document[1]["averageMs"] = 1.25
            document[1]["timeMs"] = 12.5

        edited(run.folder / RECORDED / "net.profile.json", slower)
        again = read_run(run.folder)
        assert again.profile is not None
        assert again.profile.total_ms == 1.25 + 0.5 + 0.125
        assert again.engine == run.engine

    def test_with_its_model(self, recorded: Path, tmp_path: Path) -> None:
        """The Quantize is a site of the graph, judged by the recorded layer that writes its tensor."""
        run = imported(recorded, to=tmp_path / "run", model=tmp_path / "net.onnx")
        explanation = explain(run)
        assert (run.provenance.model_name, run.provenance.scales) == ("net.onnx", "as given")
        assert explanation.sites["tensor"].to_list() == ["x"]
        assert explanation.sites["verdict"].to_list() == ["alone"]
        assert explanation.layers["work"].to_list() == [(), ("Conv_7", "Relu_8"), ()]
        assert explanation.coverage.foreign_nodes == ()

    def test_with_the_model_of_another(self, recorded: Path, tmp_path: Path, tiny_model: Any) -> None:
        """Names that the graph lacks are counted."""
        import onnx

        onnx.save(tiny_model, tmp_path / "tiny.onnx")
        explanation = explain(imported(recorded, to=tmp_path / "run", model=tmp_path / "tiny.onnx"))
        assert "Conv_7" in explanation.coverage.foreign_nodes
        assert explanation.quantize.sites == 0


class TestPartsOfARecording:
    """What is known where only some of the files are there."""

    def test_a_profile_alone(self, recorded: Path, tmp_path: Path) -> None:
        """Layers are known by name; that is said, with what to do."""
        run = imported(recorded / "net.profile.json", to=tmp_path / "run")
        assert [layer.kind for layer in run.engine.layers] == ["", "", ""]
        assert run.engine.layers[1].members[-1] == "Relu_8"
        assert any("--profilingVerbosity=detailed" in warning for warning in run.warnings)
        explanation = explain(run)
        assert explanation.layers["grouped_by"].to_list() == ["names"] * 3
        assert explanation.groups["quantized"]["time_us"].sum() == 875

    def test_a_latency_alone(self, recorded: Path, tmp_path: Path) -> None:
        """It is a run without layers, of which nothing else is told."""
        explanation = explain(imported(recorded / "net.timing.json", to=tmp_path / "run"))
        assert (explanation.quantized.layers, explanation.quantized.layer_time) == (0, None)
        assert explanation.quantized.latency is not None
        assert any(warning.startswith("No layers are recorded") for warning in explanation.warnings)

    def test_facts_alone_are_no_run(self, recorded: Path, tmp_path: Path) -> None:
        """The message says what to give."""
        with pytest.raises(UserError, match=r"holds neither layers nor times; give a file of trtexec"):
            imported(recorded / "net.metadata.json", to=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_one_role_of_a_file(self, recorded: Path, tmp_path: Path) -> None:
        """A file that is given for its layers lends nothing else."""
        log = tmp_path / "log.txt"
        log.write_text(LOG, encoding="utf-8")
        sources, _ = read_sources([], [(recorded / "net.graph.json", "layers"), (log, "latency")])
        run = import_run(sources, ALONE, tmp_path / "run")
        assert [artifact.roles for artifact in run.provenance.artifacts] == [("layers",), ("latency", "facts")]
        with pytest.raises(UserError, match="holds no times of layers: it is a log; give it without an option"):
            read_sources([], [(log, "profile")])

    def test_one_optimization_profile(self, tmp_path: Path) -> None:
        """Of an engine with several, the layers of the one that was timed are the run's."""
        layers = [{"Name": name, "LayerType": "kgen", "Inputs": [], "Outputs": []} for name in ("a", "a [profile 1]")]
        (tmp_path / "l.json").write_text(json.dumps({"Layers": layers}), encoding="utf-8")
        (tmp_path / "p.json").write_text('{"a [profile 1]": [0.5, 1.5]}', encoding="utf-8")
        run = imported(tmp_path / "l.json", tmp_path / "p.json", to=tmp_path / "run")
        assert [(layer.index, layer.name) for layer in run.engine.layers] == [(0, "a [profile 1]")]
        assert any("this is profile 1, 1 layer of the others" in warning for warning in run.warnings)
        assert [layer.name for layer in imported(tmp_path / "l.json", to=tmp_path / "first").engine.layers] == ["a"]

    def test_regions_of_a_verbose_build(self, tmp_path: Path) -> None:
        """Kernels in the inspector's file get the name of their region from the log."""
        tensors = [{"Name": "t", "Dimensions": [1], "Format/Datatype": "Float"}]
        names = ("k_myl1_0", "k_myl1_1", "l_myl1_2")
        layers = [{"Name": name, "LayerType": "kgen", "Inputs": tensors, "Outputs": tensors} for name in names]
        (tmp_path / "l.json").write_text(json.dumps({"Layers": layers}), encoding="utf-8")
        listed = "Layer(Constant): c, Tactic: 0x0,  -> c (Float[1])\nLayer(Myelin): {ForeignNode[a...b]}, Tactic: 0x0, "
        log = f"[V] Engine Layer Information:\n{listed}x (Float[1]) -> y (Float[1])\n"
        (tmp_path / "b.log").write_text(log, encoding="utf-8")
        run = imported(tmp_path / "l.json", tmp_path / "b.log", to=tmp_path / "run")
        assert [layer.region for layer in run.engine.layers] == ["{ForeignNode[a...b]}"] * 3


class TestContradictions:
    """Files that do not say the same of an engine."""

    def test_layers_of_another_engine(self, recorded: Path, tmp_path: Path) -> None:
        """They are refused, and nothing is written."""
        other = tmp_path / "other.json"
        other.write_text('{"Layers": ["one", "two"]}', encoding="utf-8")
        with pytest.raises(UserError, match=r"other\.json: is of another engine than net\.graph\.json: 0 of its 2"):
            imported(recorded / "net.graph.json", other, to=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_the_profile_of_another_engine(self, recorded: Path, tmp_path: Path) -> None:
        """It is refused too."""
        other = tmp_path / "other.json"
        other.write_text('{"one": 0.5, "two": 0.5}', encoding="utf-8")
        with pytest.raises(UserError, match=r"other\.json: is the profile of another engine: 0 of its 2 entries"):
            imported(recorded / "net.graph.json", other, to=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_two_latencies(self, recorded: Path, tmp_path: Path) -> None:
        """The one of more inferences is taken, and both are told."""
        log = tmp_path / "log.txt"
        log.write_text(LOG, encoding="utf-8")
        run = imported(recorded, log, to=tmp_path / "run")
        assert run.latency is not None
        assert run.latency.compute.median_ms == 0.84375
        told = "The median latency is 0.8438 ms in net.timing.json and 1 ms in log.txt: the first is taken."
        assert told in run.warnings

    def test_two_gpus(self, recorded: Path, tmp_path: Path) -> None:
        """The first holds."""
        other = tmp_path / "other.metadata.json"
        shutil.copy(recorded / "net.metadata.json", other)
        edited(other, lambda found: found["device_information"].update({"Selected Device": "NVIDIA T4"}))
        run = imported(recorded, other, to=tmp_path / "run")
        assert run.provenance.facts["gpu"] == "NVIDIA A100"
        told = "Net.metadata.json says gpu NVIDIA A100, other.metadata.json says NVIDIA T4: the first is taken."
        assert told in run.warnings

    def test_one_name_twice(self, recorded: Path, tmp_path: Path) -> None:
        """Files of one name from two folders are both kept."""
        (tmp_path / "more").mkdir()
        shutil.copy(recorded / "net.graph.json", tmp_path / "more")
        run = imported(recorded / "net.graph.json", tmp_path / "more" / "net.graph.json", to=tmp_path / "run")
        assert {path.name for path in (run.folder / RECORDED).iterdir()} == {"net.graph.json", "2-net.graph.json"}


class TestSeveralEngines:
    """Which of them a file is about."""

    def test_a_folder_of_two(self, recorded: Path, tmp_path: Path) -> None:
        """They are told apart by what names begin with; what is named after none is about both."""
        for path in sorted(recorded.iterdir()):
            shutil.copy(path, recorded / path.name.replace("net.", "net-fp16."))
        shutil.move(recorded / "net.metadata.json", recorded / "metadata.json")
        (recorded / "net-fp16.metadata.json").unlink()
        (recorded / "net.plan").write_bytes(b"ptrt\0\0\0")
        (recorded / "notes.txt").write_text("to do", encoding="utf-8")
        sources, left = read_sources([recorded])
        assert [str(key) for key in engine_keys(sources)] == ["net-fp16", "net"]
        assert [line.partition(": ")[2].split(" that")[0] for line in left] == ["is no text", "is of no format"]
        with pytest.raises(UserError, match=r"hold 2 engines: net-fp16, net; choose one with --engine, or .*--all"):
            chosen_key(sources, "")
        with pytest.raises(UserError, match="there is no engine 'fp8'; they are net-fp16, net"):
            chosen_key(sources, "fp8")
        run = import_run(sources, chosen_key(sources, "net"), tmp_path / "run")
        assert run.provenance.name == "net"
        assert run.provenance.facts["gpu"] == "NVIDIA A100"
        assert {artifact.file for artifact in run.provenance.artifacts} == {
            "metadata.json",
            "net.graph.json",
            "net.profile.json",
            "net.timing.json",
        }

    def test_folders_in_a_folder(self, recorded: Path, tmp_path: Path) -> None:
        """An engine is called by the folder that it is in."""
        for name in ("int8", "fp16"):
            shutil.copytree(recorded, tmp_path / "all" / name)
        sources, _ = read_sources([tmp_path / "all"])
        assert [str(key) for key in engine_keys(sources)] == [str(Path("fp16/net")), str(Path("int8/net"))]

    def test_a_log_of_two(self, tmp_path: Path) -> None:
        """Each has its own latency, when it is read again too."""
        log = tmp_path / "two.log"
        log.write_text(LOG + LOG.replace("net.plan", "slow.plan").replace("median = 1 ", "median = 3 "), "utf-8")
        sources, _ = read_sources([log])
        assert [str(key) for key in engine_keys(sources)] == ["net.plan", "slow.plan"]
        import_run(sources, chosen_key(sources, "slow.plan"), tmp_path / "run")
        run = read_run(tmp_path / "run")
        assert run.latency is not None
        assert (run.latency.compute.median_ms, run.provenance.artifacts[0].section) == (3, "slow.plan")

    def test_two_logs_of_two(self, tmp_path: Path) -> None:
        """Engines of one label in two files are not one engine."""
        for name in ("a.log", "b.log"):
            (tmp_path / name).write_text(LOG + LOG, encoding="utf-8")
        sources, _ = read_sources([tmp_path / "a.log", tmp_path / "b.log"])
        assert [str(key) for key in engine_keys(sources)] == [
            "a.log, net.plan",
            "a.log, net.plan (2)",
            "b.log, net.plan",
            "b.log, net.plan (2)",
        ]

    def test_a_folder_without_any(self, tmp_path: Path) -> None:
        """Whatever else is in it is not guessed at."""
        (tmp_path / "notes.txt").write_text("to do", encoding="utf-8")
        with pytest.raises(UserError, match=r"holds no recording; the first of its files: .*notes\.txt: is of no"):
            read_sources([tmp_path])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / RECORDED / "net.graph.json").unlink(), r"lacks 'net\.graph\.json'; import the run again"),
        (lambda run: (run / RECORDED / "net.graph.json").write_text("{"), r"net\.graph\.json: is of no format"),
        (
            lambda run: edited(run / RECORD, lambda found: found["artifacts"][0].update(file="../../net.onnx")),
            r"lacks '\.\./\.\./net\.onnx'",
        ),
        (
            lambda run: edited(run / RECORD, lambda found: found["artifacts"][0].update(file=None)),
            r"run\.json: is damaged \(artifacts: ",
        ),
    ],
)
def test_a_damaged_run(recorded: Path, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    """It is refused in one line, and a name in its record leads out of its folder never."""
    run = imported(recorded, to=tmp_path / "run")
    damage(run.folder)
    with pytest.raises(UserError, match=message):
        read_run(run.folder)


def raw_layers(path: Path) -> int:
    """Layers of a file of the inspector."""
    return len(json.loads(path.read_text(encoding="utf-8"), strict=False)["Layers"])


def raw_times(path: Path) -> list[float]:
    """Average of each layer in a profile of trtexec or a mapping of names to times."""
    document = json.loads(path.read_text(encoding="utf-8"), strict=False)
    if isinstance(document, dict):
        return [float(np.mean(times)) for times in document.values()]
    return [entry["averageMs"] for entry in document[1:]]


SETS = {
    "fuzzylabs-trt10-trtexec": (3, ".graph.json", ".profile.json"),
    "fuzzylabs-trt10-pyapi-onnx": (3, ".engine_info.json", ".layer_latency.json"),
    "fuzzylabs-torchtrt": (2, ".engine_info.json", ".layer_latency.json"),
    "trex-a100-resnet18": (3, ".graph.json", ".profile.json"),
}
"""Folder of recordings to the engines in it and how its files end."""


@pytest.mark.artifacts
@pytest.mark.parametrize("name", SETS)
def test_complete_sets(name: str, tmp_path: Path) -> None:
    """Layers and times of every engine are those of the raw files, and every layer is in a group by its type."""
    number, layers, profile = SETS[name]
    folder = Path(os.environ["FUSESCOPE_ARTIFACTS"]) / name
    sources, left = read_sources([folder])
    keys = engine_keys(sources)
    assert (len(keys), left) == (number, ())
    for place, key in enumerate(keys):
        explanation = explain(import_run(sources, key, tmp_path / str(place)))
        times = raw_times(folder / f"{key}{profile}")
        assert explanation.quantized.layers == raw_layers(folder / f"{key}{layers}")
        assert explanation.quantized.layer_time is not None
        assert explanation.quantized.layer_time.total_ms == pytest.approx(sum(times))
        assert explanation.groups["quantized"]["time_us"].sum() == pytest.approx(1e3 * sum(times))
        assert explanation.quantized.executed_layers == sum(time > 0 for time in times)
        assert explanation.groups.loc["other", ("quantized", "layers")] == 0
        assert not explanation.coverage.unmatched_times
        assert not explanation.coverage.unknown_kinds


@pytest.mark.artifacts
@pytest.mark.parametrize("name", ["8.0.3", "8.2.3", "8.4.1", "8.6.0", "10.16.1", "11"])
def test_logs_of_every_version(name: str, tmp_path: Path) -> None:
    """Every engine of every log imports and explains; no type of layer is unknown."""
    folder = Path(os.environ["FUSESCOPE_ARTIFACTS"]) / f"cookbook-trt{name}"
    sources, _ = read_sources([folder])
    for place, key in enumerate(engine_keys(sources)):
        explanation = explain(import_run(sources, key, tmp_path / str(place)))
        assert explanation.quantized.layers or explanation.quantized.latency
        assert [kind for kind in explanation.coverage.unknown_kinds if kind] == []
        assert explanation.coverage.unread_lines == ()
