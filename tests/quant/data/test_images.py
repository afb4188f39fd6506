"""Image folders: what is found, which class it has, and that pixels are what the file holds."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fusescope.graph.errors import UserError
from fusescope.quant.data import Dataset, open_data
from fusescope.quant.ort import InputSpec
from fusescope.quant.preprocessing import Preprocessing

pytestmark = pytest.mark.torch

Image = pytest.importorskip("PIL.Image")

INPUTS = (InputSpec("x", ("N", 1, 8, 8), np.dtype(np.float32)),)
Open = Callable[..., Dataset]
Pixels = NDArray[np.uint8]


@pytest.fixture(name="opened")
def _opened(plain: Preprocessing, tmp_path: Path) -> Open:
    """Return a function that opens a folder below the test's own."""
    return lambda *names: open_data([tmp_path / name for name in names], preprocessing=plain)


@pytest.fixture(name="pixels")
def _pixels() -> Pixels:
    """The pixels of one image: all 64 of them differ."""
    return (np.random.default_rng(0).permutation(64).reshape(8, 8) * 4).astype(np.uint8)


def write(path: Path, pixels: Pixels) -> Path:
    """Write an image, in a format that loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def read(dataset: Dataset) -> NDArray[np.float32]:
    """Read all images of a set."""
    return np.concatenate([batch.inputs["x"] for batch in dataset.batches(3, INPUTS)])


def test_classes_are_the_folders_in_natural_order(opened: Open, pixels: Pixels, tmp_path: Path) -> None:
    """Folder 2 comes before 10, whichever was made first; images follow their classes."""
    for name in ("10/a.png", "2/b.png", "2/a.BMP", "10/more/c.tif"):
        write(tmp_path / "set" / name, pixels)
    found = opened("set")
    assert [Path(found.source.name(item)).name for item in range(found.size)] == ["a.BMP", "b.png", "a.png", "c.tif"]
    assert found.source.labels is not None
    assert found.source.labels.tolist() == [0, 0, 1, 1]


def test_pixels_are_those_of_the_file(opened: Open, pixels: Pixels, tmp_path: Path) -> None:
    """Gray pixels arrive divided by 255, in the order of the files; without class folders there are no labels."""
    write(tmp_path / "set" / "a.png", pixels)
    write(tmp_path / "set" / "b.png", pixels.T)
    found = opened("set")
    assert not found.labelled
    assert read(found) == pytest.approx(np.stack([pixels, pixels.T])[:, None] / 255, abs=1e-6)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_16_bits_are_scaled_and_not_cut_off(opened: Open, pixels: Pixels, tmp_path: Path, ending: str) -> None:
    """A 16-bit image is the 8-bit image whose pixels are those over 257."""
    (tmp_path / "set").mkdir()
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "set" / f"a.{ending}")
    with Image.open(tmp_path / "set" / f"a.{ending}") as written:
        assert written.mode == "I;16"
    assert read(opened("set")) == pytest.approx(pixels[None, None] / 255, abs=1e-6)


def test_other_modes_are_converted(opened: Open, pixels: Pixels, tmp_path: Path) -> None:
    """Gray images with a palette, in color, with transparency and in two colors give gray pixels."""
    (tmp_path / "set").mkdir()
    gray = Image.fromarray(pixels)
    for mode in ("P", "RGB", "RGBA", "LA"):
        gray.convert(mode).save(tmp_path / "set" / f"{mode}.png")
    gray.convert("CMYK").save(tmp_path / "set" / "CMYK.tif")
    assert read(opened("set")) == pytest.approx(np.broadcast_to(pixels / 255, (5, 1, 8, 8)), abs=1.5 / 255)


def spoiled(folder: Path, pixels: Pixels, how: str) -> None:
    """Put one image that cannot be read into a folder."""
    whole = write(folder / "zz.png", pixels).read_bytes()
    if how == "32 bits":
        Image.fromarray(pixels.astype(np.float32)).save(folder / "zz.tif")
        (folder / "zz.png").unlink()
    elif how == "a dangling link":
        (folder / "zz.png").unlink()
        (folder / "zz.png").symlink_to("nowhere")
    else:
        (folder / "zz.png").write_bytes({"cut": whole[:-30], "empty": b"", "text": b"no image"}[how])


@pytest.mark.parametrize("how", ["cut", "empty", "text", "32 bits", "a dangling link"])
def test_one_in_a_hundred_may_be_unreadable(opened: Open, pixels: Pixels, tmp_path: Path, how: str) -> None:
    """One of 100 images is named and left out; with one fewer it is more than 1 %, and the work ends."""
    for number in range(99):
        write(tmp_path / "set" / f"{number}.png", pixels)
    spoiled(tmp_path / "set", pixels, how)
    found = opened("set")
    assert len(read(found)) == 99
    (name,) = found.unreadable
    assert Path(name).stem == "zz"
    (tmp_path / "set" / "0.png").unlink()
    with pytest.raises(UserError, match=r"1 of 99 images cannot be read, which is more than 1%; the first is .*zz\."):
        read(opened("set"))


def test_a_vast_image_is_not_decoded(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of more pixels than Pillow allows is unreadable, not a way to fill the memory."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    write(tmp_path / "set" / "a.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(UserError, match=r"1 of 1 images .*DecompressionBombError"):
        read(opened("set"))


def test_a_link_to_a_folder_above_is_not_followed(opened: Open, pixels: Pixels, tmp_path: Path) -> None:
    """Links to other folders are; one that leads back up would count every image again and again."""
    for name in ("set/one/a.png", "set/two/b.png", "elsewhere/c.png"):
        write(tmp_path / name, pixels)
    (tmp_path / "set/one/up").symlink_to("..")
    (tmp_path / "set/one/self").symlink_to(".")
    (tmp_path / "set/two/more").symlink_to(tmp_path / "elsewhere")
    found = opened("set")
    assert [Path(found.source.name(item)).name for item in range(found.size)] == ["a.png", "b.png", "c.png"]


def test_what_is_no_image_set(opened: Open, plain: Preprocessing, pixels: Pixels, tmp_path: Path) -> None:
    """Folders without images, with images beside classes, or a level too high; a single file; no preprocessing."""
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    write(tmp_path / "mixed" / "one" / "a.png", pixels)
    write(tmp_path / "mixed" / "b.png", pixels)
    write(tmp_path / "high" / "train" / "one" / "a.png", pixels)
    for names, message in (
        (["nowhere"], "nowhere: does not exist; name an image folder, .tar shards or .npz arrays"),
        (["empty"], "empty: holds no images; name a folder with files that end in bmp, jpeg"),
        (["mixed"], "mixed: holds b.png beside the class folders"),
        (["high"], "high: holds its class folders a level deeper; name .*high/train"),
        (["mixed/b.png"], "b.png: is none of an image folder"),
        (["mixed/one", "mixed/one"], "one: is given twice"),
    ):
        with pytest.raises(UserError, match=message):
            opened(*names)
    with pytest.raises(UserError, match=re.escape("the model does not say how images are prepared")):
        open_data([tmp_path / "mixed" / "one"])
    assert plain.shape == (1, 8, 8)


def test_models_that_images_do_not_fit(opened: Open, pixels: Pixels, tmp_path: Path) -> None:
    """Two inputs, three channels, integers."""
    write(tmp_path / "set" / "a.png", pixels)
    found = opened("set")
    color = InputSpec("x", (1, 3, 8, 8), np.dtype(np.float32))
    whole = InputSpec("x", (1, 1, 8, 8), np.dtype(np.int64))
    for inputs, message in (
        ((*INPUTS, *INPUTS), "takes 2 inputs, and the data are images"),
        ((color,), "takes float32 of shape 1x3x8x8, and its preprocessing gives float32 of Nx1x8x8"),
        ((whole,), "takes int64 of shape 1x1x8x8"),
    ):
        with pytest.raises(UserError, match=message):
            found.batches(1, inputs)
