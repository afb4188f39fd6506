"""Images of the calibration part are left out, and models calibrated on what is left are named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fusescope.quant.data import Dataset, open_data, split
from fusescope.quant.overlap import CALIBRATION_KEY, calibration_of, held_out, record_calibration


@pytest.fixture(name="dataset")
def _dataset(tmp_path: Path) -> Dataset:
    """Twenty labelled items, each another value."""
    np.savez(tmp_path / "d.npz", x=np.arange(20, dtype=np.float32)[:, None], labels=np.arange(20) % 3)
    return open_data([tmp_path / "d.npz"])


def calibrated_on(data: Dataset | None) -> onnx.ModelProto:
    """Make a model that says what it was calibrated on."""
    proto = onnx.ModelProto()
    proto.metadata_props.add(key="other", value="stays")
    if data is not None:
        record_calibration(proto, data.describe())
    return proto


def numbers(data: Dataset) -> set[int]:
    """Return the numbers of the items in a set."""
    return set(data.order.tolist())


def test_the_calibration_part_is_left_out(dataset: Dataset) -> None:
    """The model's metadata name the whole set and how it was split: the same split gives what was held out."""
    calibration, expected = split(dataset, every=5, seed=3)
    models = {"fp32": calibrated_on(None), "fp8": calibrated_on(calibration)}
    kept, notes = held_out(dataset, models)
    assert kept.order.tolist() == expected.order.tolist()
    assert not numbers(kept) & numbers(calibration)
    assert notes == ("Of 20 images the 4 of the calibration part were left out.",)


def test_fewer_images_of_the_calibration_part(dataset: Dataset) -> None:
    """Calibrating on some of the part leaves out all of it: it may serve another variant."""
    calibration = split(dataset, every=4)[0]
    kept, _ = held_out(dataset, {"fp8": calibrated_on(calibration.take(2))})
    assert not numbers(kept) & numbers(calibration)


@pytest.mark.parametrize("images", [20, 7])
def test_calibrated_on_the_whole_set(dataset: Dataset, images: int) -> None:
    """Without a split there is nothing to hold out, and that is said: for all images, and for some of them."""
    kept, notes = held_out(dataset, {"int8": calibrated_on(dataset.take(images))})
    assert kept is dataset
    assert notes == ("int8 was calibrated on these very images: its accuracy on others may be lower.",)


def test_two_splits(dataset: Dataset) -> None:
    """One set cannot be held out for both: the second is named."""
    models = {f"every{every}": calibrated_on(split(dataset, every=every)[0]) for every in (4, 5)}
    kept, notes = held_out(dataset, models)
    assert numbers(kept) == numbers(split(dataset, every=4)[1])
    assert notes[1].startswith("every5 was calibrated on another part of these images")


def test_other_images(dataset: Dataset, tmp_path: Path) -> None:
    """Nothing is left out where the data is other data, or where nothing can be read from the metadata."""
    np.savez(tmp_path / "e.npz", x=np.arange(20, dtype=np.float32)[:, None] + 1)
    other = open_data([tmp_path / "e.npz"])
    broken = onnx.ModelProto()
    broken.metadata_props.add(key=CALIBRATION_KEY, value="no json")
    models = {"a": calibrated_on(split(other)[0]), "b": calibrated_on(other), "c": broken, "d": calibrated_on(None)}
    assert held_out(dataset, models) == (dataset, ())


@pytest.mark.parametrize(
    "split_", [5, [1], {}, {"every": 4}, {"every": 1, "seed": 0}, {"every": "4", "seed": 0}, {"every": 4, "seed": -1}]
)
def test_a_split_that_something_else_wrote(dataset: Dataset, split_: Any) -> None:
    """What is no split of this set says nothing, and is no error."""
    proto = onnx.ModelProto()
    told = {**split_, "of": dataset.sha256} if isinstance(split_, dict) else split_
    record_calibration(proto, {"items": "many", "sha256": 7, "split": told})
    assert held_out(dataset, {"odd": proto}) == (dataset, ())


def test_the_metadata_are_added(dataset: Dataset) -> None:
    """Other entries of the metadata stay, and what was written is read."""
    proto = calibrated_on(dataset)
    assert calibration_of(proto)["sha256"] == dataset.sha256
    assert next(entry.value for entry in proto.metadata_props if entry.key == "other") == "stays"
