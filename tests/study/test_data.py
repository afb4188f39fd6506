"""The images of a study: two parts that never overlap, calibrated with once, evaluated on once."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from fusescope.quant.ort import signature
from fusescope.quant.recipe import RECIPES
from fusescope.study.config import Data
from fusescope.study.data import StudyData

SAMPLES = Path(__file__).parents[2] / "samples"
IMAGES = np.load(SAMPLES / "digits.npz")


@pytest.fixture(name="model", scope="module")
def _model() -> onnx.ModelProto:
    return onnx.load(SAMPLES / "digits.onnx")


@pytest.fixture(name="images")
def _images(model: onnx.ModelProto, tmp_path: Path) -> StudyData:
    return StudyData(_asked(), model, tmp_path)


def _asked(**changed: object) -> Data:
    return Data.model_validate({"path": (str(SAMPLES / "digits.npz"),), **changed})


def _pictures(images: StudyData, model: onnx.ModelProto, part: str) -> tuple[np.ndarray, np.ndarray]:
    """All pictures and labels of a part."""
    (given,) = signature(model)
    batches = list(getattr(images, part).batches(64, [given]))
    assert all(batch.labels is not None for batch in batches)
    return (
        np.concatenate([batch.inputs[given.name] for batch in batches]),
        np.concatenate([batch.labels for batch in batches if batch.labels is not None]),
    )


def test_the_parts_are_all_images_and_share_none(images: StudyData, model: onnx.ModelProto) -> None:
    """By content, not by place: no picture is in both parts, and together they are the file."""
    calibration, held_out = (_pictures(images, model, part)[0] for part in ("calibration", "held_out"))
    assert (len(calibration), len(held_out)) == (400, 1197)
    first, second = ({picture.tobytes() for picture in part} for part in (calibration, held_out))
    assert not first & second
    (pictures,) = (array for array in IMAGES.values() if array.ndim == 4)
    assert first | second == {picture.astype(np.float32).tobytes() for picture in pictures}


def test_fewer_images(model: onnx.ModelProto, tmp_path: Path) -> None:
    """Each part may be cut."""
    images = StudyData(_asked(calibration_images=20, images=30), model, tmp_path)
    assert (images.calibration.size, images.held_out.size) == (20, 30)


def test_ranges_are_those_of_the_calibration_part(images: StudyData, model: onnx.ModelProto) -> None:
    """The largest magnitude of the model's input is numpy's, over the calibration part alone."""
    pictures, _ = _pictures(images, model, "calibration")
    found = images.ranges(RECIPES["study-fp8"])
    assert found.images == 400
    assert found.amax[model.graph.input[0].name] == np.abs(pictures).max()


def test_calibrated_once(images: StudyData, model: onnx.ModelProto, tmp_path: Path) -> None:
    """A second study of the same images reads the scale file; other images, or a damaged record of it, do not."""
    images.ranges(RECIPES["study-fp8"])
    written = (tmp_path / "scales-max.json").stat().st_mtime_ns
    StudyData(_asked(), model, tmp_path).ranges(RECIPES["int8"])
    assert (tmp_path / "scales-max.json").stat().st_mtime_ns == written, "max knows no number format"
    other = StudyData(_asked(seed=1), model, tmp_path)
    assert other.request != images.request
    other.ranges(RECIPES["study-fp8"])
    again = (tmp_path / "scales-max.json").stat().st_mtime_ns
    assert again > written
    (tmp_path / "kept.json").write_text("{", encoding="utf-8")
    other.ranges(RECIPES["study-fp8"])
    assert (tmp_path / "scales-max.json").stat().st_mtime_ns > again


def test_accuracy_is_that_of_onnx_runtime(images: StudyData, model: onnx.ModelProto, tmp_path: Path) -> None:
    """Right answers of the held-out part, counted by numpy from a session of the test's own; kept for the next time."""
    pictures, labels = _pictures(images, model, "held_out")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    scores = np.concatenate([session.run(None, {name: picture[None]})[0] for picture in pictures])
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    last = next(tensor for tensor in reversed(broken.graph.initializer) if len(tensor.dims) == 2)
    last.CopyFrom(onnx.numpy_helper.from_array(np.zeros(last.dims, np.float32), last.name))
    found = images.accuracy({"broken": ("x", broken)}, reference_name="the original")
    reference, variant = found.models
    assert found.images == 1197
    assert reference.top1 is not None
    assert variant.top1 is not None
    assert reference.top1.count == int((scores.argmax(axis=1) == labels).sum())
    assert variant.top1.count < 300, "one class for all"
    assert found.pairs[0].points == pytest.approx(variant.top1.percent - reference.top1.percent)
    kept = (tmp_path / "accuracy.json").read_bytes()
    assert images.accuracy({"broken": ("x", broken)}, reference_name="the original") == found
    assert (tmp_path / "accuracy.json").read_bytes() == kept
    assert json.loads(kept)["images"] == 1197
