"""The trained sample from images to the last trial: every figure of the study against something else."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

from fusescope.cli import main
from fusescope.graph.external import load_with_weights
from fusescope.quant.evaluate import Proportion
from fusescope.quant.ort import signature
from fusescope.study.config import read_config
from fusescope.study.data import StudyData
from fusescope.study.plan import plan
from fusescope.study.remedies import remedies
from fusescope.study.runner import StudyResult, run_study

pytestmark = pytest.mark.compiles
SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


def _study(folder: Path, states: dict[str, list[str]]) -> StudyResult:
    config = read_config(SAMPLES / "digits.toml")
    assert config.data is not None
    images = StudyData(config.data, load_with_weights(config.model), folder)

    def tell(name: str, state: str) -> None:
        states.setdefault(name, []).append(state)

    return run_study(config, plan(config, images.request), folder, progress=tell, data=images)


@pytest.fixture(name="result", scope="module")
def _result(folder: Path) -> StudyResult:
    return _study(folder, {})


def test_what_was_tried(result: StudyResult) -> None:
    """Each change that a finding of the two variants proposes was built, and says what came of it."""
    assert not result.failures
    engines = {each.quantized.provenance.name: each for each in result.explanations}
    assert set(engines) == {
        f"{name}{tried}" for name in ("fp8", "int8") for tried in ("", "-per-tensor", "-shared-skips")
    }
    told = 0
    for name in ("fp8", "int8"):
        for finding in engines[name].findings:
            for trial in finding.trials:
                before, after = engines[name].quantized, engines[trial.variant].quantized
                assert trial.kernels == after.kernels - before.kernels
                assert trial.bytes == after.traffic_bytes - before.traffic_bytes
                told += 1
    assert told >= 4


def test_a_trial_is_told_once(result: StudyResult) -> None:
    """Where two findings propose one change, the second names the first."""
    for each in result.explanations:
        first: dict[str, int] = {}
        for place, finding in enumerate(each.findings):
            for trial in finding.trials:
                assert trial.same_as == first.get(trial.variant)
                first.setdefault(trial.variant, place)


def test_nothing_is_left_to_try(result: StudyResult) -> None:
    """A study that has all those variants itself proposes no more."""
    config = read_config(SAMPLES / "digits.toml")
    first = remedies(result.explanations, config.variant)
    assert {each.variant.name for each in first} == {
        f"{name}-{tried}" for name in ("fp8", "int8") for tried in ("per-tensor", "shared-skips")
    }
    assert {each.of for each in first} == {"fp8", "int8"}
    again = remedies(result.explanations[:2], [*config.variant, *(each.variant for each in first)])
    assert again == ()


def test_the_accuracy_of_a_trial(result: StudyResult) -> None:
    """It is the difference of two models on the same images, seen from the variant that it was tried for."""
    assert result.accuracy is not None
    right = {model.name: _right(model.top1) for model in result.accuracy.models}
    explanation = next(each for each in result.explanations if each.quantized.provenance.name == "fp8")
    trials = [trial for finding in explanation.findings for trial in finding.trials]
    assert trials
    for trial in trials:
        assert trial.accuracy is not None
        assert trial.accuracy.points == pytest.approx(100 * (right[trial.variant] - right["fp8"]) / 1197)
        assert trial.accuracy.low <= trial.accuracy.points <= trial.accuracy.high


def _right(share: Proportion | None) -> int:
    assert share is not None
    return share.count


def test_accuracy_against_the_commands(result: StudyResult, folder: Path, tmp_path: Path) -> None:
    """What `quantize --scales` writes with the study's scale file is as often right, in a session of the test's own."""
    out = tmp_path / "digits.fp8.onnx"
    asked = ["quantize", str(SAMPLES / "digits.onnx"), "--scales", str(folder / "scales-max.json")]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--recipe", "study-fp8", "--dtype", "fp16", "-o", str(out)])
    assert not ended.value.code
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
    config = read_config(SAMPLES / "digits.toml")
    assert config.data is not None
    held_out = StudyData(config.data, onnx.load(SAMPLES / "digits.onnx"), tmp_path).held_out
    right = 0
    for batch in held_out.batches(1, signature(onnx.load(out))):
        (scores,) = session.run(None, batch.inputs)
        assert batch.labels is not None
        right += int(scores[0].argmax() == batch.labels[0])
    assert result.accuracy is not None
    (fp8,) = (model for model in result.accuracy.models if model.name == "fp8")
    assert _right(fp8.top1) == right


def test_again(result: StudyResult, folder: Path, no_compiler: None) -> None:
    """A second study of the same images calibrates, compiles and evaluates nothing."""
    states: dict[str, list[str]] = {}
    kept = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = _study(folder, states)
    assert again.accuracy == result.accuracy
    assert {name: told for name, told in states.items() if name.startswith("b1-")} == {
        f"b1-{each}": ["kept"]
        for each in ("fp16", *(explanation.quantized.provenance.name for explanation in result.explanations))
    }
    assert kept == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
