"""Running a study: what it finds, what it keeps, and what survives a failure."""

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.structure import strip
from fusescope.profiler import build as building
from fusescope.study import runner
from fusescope.study.config import read_config
from fusescope.study.plan import plan
from fusescope.study.runner import run_study

if TYPE_CHECKING:
    from fusescope.study.runner import StudyResult

pytestmark = pytest.mark.compiles
ENGINES = {"b1-fp16", "b1-fp8", "b1-fp8-per-tensor"}
BUILT = ["waiting", "compiling", "done"]


def test_what_it_finds(tiny_study: "tuple[Path, StudyResult]") -> None:
    """An explanation per variant, against the baseline of the batch, and a run per engine."""
    folder, result = tiny_study
    assert [each.quantized.provenance.name for each in result.explanations] == ["fp8", "fp8-per-tensor"]
    assert {each.baseline.provenance.name for each in result.explanations if each.baseline} == {"fp16"}
    assert {each.quantized.provenance.model_name for each in result.explanations} == {"Tiny"}
    assert set(result.runs) == {folder / "out" / "runs" / name for name in ENGINES}
    assert not result.failures


def test_a_remedy_that_was_tried(tiny_study: "tuple[Path, StudyResult]") -> None:
    """Per-channel and per-tensor engines stand beside each other: what per-tensor saves is the engines' difference."""
    per_channel, per_tensor = tiny_study[1].explanations
    finding = next(finding for finding in per_channel.findings if finding.change == {"weights": "per-tensor"})
    (trial,) = finding.trials
    assert trial.variant == "fp8-per-tensor"
    assert trial.kernels == per_tensor.quantized.kernels - per_channel.quantized.kernels
    assert trial.bytes == per_tensor.quantized.traffic_bytes - per_channel.quantized.traffic_bytes
    assert trial.bytes < 0
    assert finding.status == "proved"
    assert not any(finding.trials for finding in per_tensor.findings if finding.change != {"weights": "per-channel"})


def test_a_second_run_keeps_all(study: Any, no_compiler: None) -> None:
    """Nothing is compiled again, and the explanations are the same."""
    before = study.stamps()
    result = study.run()
    assert study.states == {engine: ["kept"] for engine in ENGINES}
    assert study.stamps() == before
    for each, run in zip(result.explanations, ("b1-fp8", "b1-fp8-per-tensor"), strict=True):
        dump = (study.runs / run / "layers.txt").read_text(encoding="utf-8")
        assert len(each.layers) == dump.count(", LayerType: ")
    assert not result.failures


def test_a_new_title(study: Any, no_compiler: None) -> None:
    """What is kept goes by the present title."""
    study.change('"Tiny"', '"Small"')
    result = study.run()
    assert not result.failures
    assert {each.quantized.provenance.model_name for each in result.explanations} == {"Small"}


def test_a_changed_variant(study: Any) -> None:
    """Only the variant that changed is built again."""
    study.change('name = "fp8"', 'name = "fp8"\nkeep = ["last"]')
    before = study.stamps()
    result = study.run()
    assert study.states.pop("b1-fp8") == BUILT
    assert set(map(tuple, study.states.values())) == {("kept",)}
    assert {name for name, stamp in study.stamps().items() if stamp != before[name]} == {"b1-fp8"}
    assert result.explanations[0].quantize.sites == 2


def test_force(study: Any) -> None:
    """With force all are built again."""
    before = study.stamps()
    study.run(force=True)
    assert study.states == dict.fromkeys(ENGINES, BUILT)
    assert not before.items() & study.stamps().items()


@pytest.mark.parametrize("file", ["run.json", "layers.txt", "model.onnx"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_run(study: Any, file: str, damage: str) -> None:
    """A run of which a file is missing or cut short is built again; the others are kept."""
    path = study.runs / "b1-fp8" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:40])
    result = study.run()
    assert study.states.pop("b1-fp8") == BUILT
    assert set(map(tuple, study.states.values())) == {("kept",)}
    assert len(result.explanations) == 2


def test_a_variant_that_fails(study: Any) -> None:
    """A variant that cannot be quantized leaves the others, and says why."""
    study.change('name = "fp8"', 'name = "fp8"\nkeep = ["no_such_node"]')
    result = study.run()
    (failure,) = result.failures
    assert (failure.batch, failure.variant) == (1, "fp8")
    assert "no_such_node" in failure.error
    assert study.states["b1-fp8"] == ["waiting", "failed"]
    assert [each.quantized.provenance.name for each in result.explanations] == ["fp8-per-tensor"]


def test_a_baseline_that_fails(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a baseline the variants are explained by themselves."""
    shutil.rmtree(study.runs / "b1-fp16")
    monkeypatch.setattr(building, "WORKER", ("false",))
    result = study.run()
    assert study.states["b1-fp16"] == ["waiting", "compiling", "failed"]
    assert [failure.variant for failure in result.failures] == ["fp16"]
    assert [each.baseline for each in result.explanations] == [None, None]


def test_an_older_run_outlives_a_failure(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that fails does not take away the run that was there."""
    before = study.stamps()
    monkeypatch.setattr(building, "WORKER", ("false",))
    with pytest.raises(UserError, match="no engine could be built"):
        study.run(force=True)
    assert study.stamps() == before


def test_no_engine(study: Any) -> None:
    """If no engine can be built the first reason is the study's."""
    study.change('title = "Tiny"', 'title = "Tiny"\nbuild = { timeout_s = 0.001 }')
    with pytest.raises(UserError, match=r"^Tiny: no engine could be built: .* did not finish within 0\.001 s"):
        study.run(force=True)


def test_an_interrupted_study(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is interrupted, engines that wait are not built any more; what was built is kept the next time."""
    monkeypatch.setattr(runner, "_workers", lambda: 1)
    states: list[tuple[str, str]] = []

    def interrupt(engine: str, state: str) -> None:
        states.append((engine, state))
        if (engine, state) == ("b1-fp8-per-tensor", "waiting"):
            raise KeyboardInterrupt

    config = read_config(study.config)
    with pytest.raises(KeyboardInterrupt):
        run_study(config, plan(config), study.folder / "new", progress=interrupt)
    assert ("b1-fp16", "done") in states
    assert "b1-fp8-per-tensor" not in {engine for engine, state in states if state != "waiting"}
    states.clear()
    run_study(config, plan(config), study.folder / "new", progress=lambda *state: states.append(state))
    assert ("b1-fp16", "kept") in states
    assert ("b1-fp8-per-tensor", "done") in states


def test_several_batches(study: Any) -> None:
    """Each batch has its own baseline; the engines' first dimension is the batch."""
    study.change('title = "Tiny"', 'title = "Tiny"\nbatches = [1, 3]')
    result = study.run()
    assert set(study.states) == {f"b{batch}-{name}" for batch in (1, 3) for name in ("fp16", "fp8", "fp8-per-tensor")}
    assert [each.quantized.provenance.batch for each in result.explanations] == [1, 1, 3, 3]
    for each in result.explanations:
        assert each.baseline
        assert each.baseline.provenance.batch == each.quantized.provenance.batch
    small, _, large, _ = result.explanations
    # Activations are three times as large, weights as large as they were.
    assert small.quantized.conv_write_bytes * 3 == large.quantized.conv_write_bytes
    trials = [len(finding.trials) for each in result.explanations for finding in each.findings if finding.trials]
    assert set(trials) == {1}, "a trial has the batch of its finding"


def test_a_structure_only_model(study: Any) -> None:
    """A model without weights is filled, and everything made from it says so."""
    path = study.folder / "tiny.onnx"
    onnx.save(strip(onnx.load(path)), path)
    result = study.run()
    assert set(map(tuple, study.states.values())) == {tuple(BUILT)}
    assert all("seeded" in each.quantized.provenance.weights for each in result.explanations)


def test_a_float_model_in_half_precision(study: Any) -> None:
    """With dtype the model is converted first: no tensor of the baseline's convolutions is float32."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19]> g (float[1,8,8,8] x) => (float[1,8,8,8] y){ [c] y = Conv (x, w) }'
    )
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 8, 1, 1], [0.5] * 64)
    proto.graph.initializer.append(weight)
    onnx.save(proto, study.folder / "tiny.onnx")
    study.change('title = "Tiny"', 'dtype = "fp16"')
    shutil.rmtree(study.runs)
    (explanation, _) = study.run().explanations
    assert explanation.baseline_layers is not None
    convs = explanation.baseline_layers[explanation.baseline_layers["group"] == "conv"]
    assert set(convs["read_dtypes"]) == set(convs["write_dtypes"]) == {"fp16"}


@pytest.mark.parametrize(
    ("available_gib", "cores", "expected"), [(64, 8, 8), (7, 8, 2), (1, 8, 1), (64, None, 1), (None, 8, 2)]
)
def test_how_many_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_gib: int | None, cores: int | None, expected: int
) -> None:
    """As many as there are cores and 3 GiB of available memory each, at least one; two where memory is not known."""
    meminfo = tmp_path / "meminfo"
    if available_gib is not None:
        kib = available_gib << 20
        meminfo.write_text(f"MemTotal:       {9 * kib} kB\nMemFree:        10 kB\nMemAvailable:   {kib} kB\n")
    monkeypatch.setattr(runner, "_MEMORY", meminfo)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert runner._workers() == expected


def test_without_the_runtime(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TensorRT for RTX is not installed, a study that is done can be looked at, and no other made."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert len(study.run().explanations) == 2
    with pytest.raises(UserError, match="the runtime tensorrt-rtx is not installed"):
        study.run(force=True)
