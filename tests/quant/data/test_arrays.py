"""Arrays in .npz files: used as they are, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusescope.graph.errors import UserError
from fusescope.quant.data import Dataset, open_data
from fusescope.quant.ort import InputSpec

INPUTS = (InputSpec("x", ("N", 2), np.dtype(np.float32)),)
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)


def written(folder: Path, **arrays: Any) -> Path:
    """Write arrays into a file."""
    np.savez(folder / "d.npz", **arrays)
    return folder / "d.npz"


def read(dataset: Dataset, inputs: tuple[InputSpec, ...] = INPUTS) -> dict[str, Any]:
    """Read all items."""
    (batch,) = dataset.batches(dataset.size, inputs)
    return dict(batch.inputs)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.uint8, np.int64])
def test_values_arrive_as_they_are(tmp_path: Path, kind: type[np.generic]) -> None:
    """In the model's type, whatever the file's; a single array serves a single input whatever its name."""
    path = written(tmp_path, other=VALUES.astype(kind), y=np.array([3, 1, 2]))
    found = read(open_data([path]))["x"]
    assert found.dtype == np.float32
    assert np.array_equal(found, VALUES)
    (batch,) = open_data([path]).batches(3, INPUTS)
    assert batch.labels is not None
    assert batch.labels.tolist() == [3, 1, 2]


def test_several_files_and_inputs(tmp_path: Path) -> None:
    """Each input has its array; the items of files follow each other."""
    inputs = (*INPUTS, InputSpec("z", ("N",), np.dtype(np.int64)))
    first = written(tmp_path, x=VALUES, z=np.arange(3)).rename(tmp_path / "one.npz")
    second = written(tmp_path, x=VALUES + 6, z=np.arange(3, 6))
    found = read(open_data([first, second]), inputs)
    assert np.array_equal(found["x"], np.arange(12).reshape(6, 2))
    assert np.array_equal(found["z"], np.arange(6))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds no arrays"),
        ({"x": np.array([{}, 1], object)}, "cannot be read as arrays .* without pickled objects"),
        ({"x": np.array(["a"])}, "'x' is no array of numbers"),
        ({"x": VALUES.astype(np.complex64)}, "'x' is no array of numbers"),
        ({"x": np.float32(1)}, "'x' is a single number"),
        ({"x": VALUES[:0]}, "its arrays are empty"),
        ({"x": VALUES, "labels": np.arange(2)}, "its arrays are not of one length: x 3, labels 2"),
        ({"labels": np.arange(3)}, "holds labels and nothing else"),
        ({"x": VALUES, "labels": np.array([0, -1, 2])}, "not one class number for each item"),
        ({"x": VALUES, "labels": np.ones(3)}, "'labels' is float64 of shape 3, not one class number"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_what_cannot_be_opened(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    """What is wrong with a file is said when it is opened."""
    with pytest.raises(UserError, match=message):
        open_data([written(tmp_path, **arrays)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (VALUES[:, :1], "the model takes 2 for each item of 'x', not 1"),
        (VALUES[:, 0], "the model takes 2 for each item of 'x', not no axis"),
        (np.where(VALUES == 3, np.nan, VALUES), r"d\.npz\[1\]: 'x' holds NaN; take that item out"),
        (VALUES.astype(np.float64) * 1e300, "the data holds 1e\\+300, which float32 of the input 'x' cannot"),
    ],
    ids=["narrow", "flat", "nan", "huge"],
)
def test_what_a_model_cannot_take(tmp_path: Path, values: Any, message: str) -> None:
    """Other shapes, numbers that its type lacks, and what is no number."""
    with pytest.raises(UserError, match=message):
        read(open_data([written(tmp_path, x=values)]))


def test_what_a_model_with_integers_cannot_take(tmp_path: Path) -> None:
    """Floats for integers, an integer that is too large, an input without an array."""
    whole = (InputSpec("x", ("N", 2), np.dtype(np.int8)),)
    with pytest.raises(UserError, match="takes int8 as 'x', and the data is float32"):
        read(open_data([written(tmp_path, x=VALUES)]), whole)
    with pytest.raises(UserError, match="the data holds 300, which int8 of the input 'x' cannot"):
        read(open_data([written(tmp_path, x=np.full((1, 2), 300))]), whole)
    with pytest.raises(UserError, match="no array for the model's input 'x'; it has 'a', 'b'"):
        read(open_data([written(tmp_path, a=VALUES, b=VALUES)]))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged(tmp_path: Path, damage: str) -> None:
    """A file that was cut short or changed is refused by its path."""
    path = written(tmp_path, x=np.arange(4000, dtype=np.float32).reshape(2000, 2))
    content = path.read_bytes()
    flipped = content[:5000] + bytes(byte ^ 255 for byte in content[5000:5010]) + content[5010:]
    path.write_bytes({"cut": content[:-50], "flipped": flipped, "empty": b""}[damage])
    with pytest.raises(UserError, match=r"d\.npz: (is none of an image folder|cannot be read as arrays)"):
        open_data([path])
