"""WebDataset shards: images and labels as tarfile wrote them, and damaged ones."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fusescope.graph.errors import UserError
from fusescope.quant.data import open_data
from fusescope.quant.data.shards import shard_items
from fusescope.quant.ort import InputSpec
from fusescope.quant.preprocessing import Preprocessing

pytestmark = pytest.mark.torch

Image = pytest.importorskip("PIL.Image")

INPUTS = (InputSpec("x", ("N", 1, 8, 8), np.dtype(np.float32)),)
Members = Sequence[tuple[str, bytes]]


def png(shade: int) -> bytes:
    """An image of one shade of gray."""
    file = io.BytesIO()
    Image.new("L", (8, 8), shade).save(file, "PNG")
    return file.getvalue()


def shard(path: Path, members: Members, mode: str = "w") -> Path:
    """Write a tar file."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def samples(count: int) -> Members:
    """Images of shade 0, 1, 2 and so on, of the classes 5, 6, 7 and so on."""
    each = ((f"{number:04}.png", png(number)) for number in range(count))
    return [member for n, image in enumerate(each) for member in (image, (f"{n:04}.cls", str(n + 5).encode()))]


def test_images_and_labels(tmp_path: Path, plain: Preprocessing) -> None:
    """Every second image of two shards: shades and classes are those of the members."""
    paths = [shard(tmp_path / f"s-{number}.tar", samples(3)) for number in range(2)]
    for given in (paths, [tmp_path / "s-{0..1}.tar"], [tmp_path / "s-*.tar"], [tmp_path]):
        found = open_data(given, preprocessing=plain, every=2)
        (batch,) = found.batches(9, INPUTS)
        assert (batch.inputs["x"][:, 0, 0, 0] * 255).round().tolist() == [0, 2, 0, 2]
        assert batch.labels is not None
        assert batch.labels.tolist() == [5, 7, 5, 7]


def test_labels_in_json(tmp_path: Path) -> None:
    """A class may be in a sample's JSON, under either name; other members are not looked at."""
    members = [("a.png", png(0)), ("a.json", b'{"label": 3, "x": []}'), ("b.png", png(0)), ("b.json", b'{"cls": 4}')]
    assert [item.label for item in shard_items(shard(tmp_path / "s.tar", members))] == [3, 4]


NO_CLASSES = (
    b"-1",
    b"cat",
    b"",
    b"1.5",
    b"true",
    b'"3"',
    b"[1]",
    b"\xff\xfe",
    b"1e400",
    b"NaN",
    b"9" * 5000,
    b"[" * 10**5,
)


@pytest.mark.parametrize("text", NO_CLASSES, ids=lambda text: text[:8].decode(errors="replace"))
def test_what_is_no_class(tmp_path: Path, text: bytes) -> None:
    """The member is named, and what it holds is shown, shortened."""
    path = shard(tmp_path / "s.tar", [("a.png", png(0)), ("a.cls", text)])
    with pytest.raises(UserError, match=r"s\.tar: a\.cls holds '.{0,250}', which is no class number; give a whole"):
        shard_items(path)


@pytest.mark.parametrize("where", ["in an image", "in a header", "between images"])
def test_cut_short(tmp_path: Path, where: str) -> None:
    """A shard that ends too early is called damaged, not compressed: no image is quietly missing."""
    path = shard(tmp_path / "s.tar", samples(3))
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-2]
    ends = {"in an image": last.offset_data + 10, "in a header": last.offset + 100, "between images": last.offset}
    path.write_bytes(path.read_bytes()[: ends[where]])
    with pytest.raises(UserError, match=r"s\.tar: cannot be read as tar \(.*\); get it again"):
        shard_items(path)


def test_what_is_refused(tmp_path: Path, plain: Preprocessing) -> None:
    """Compressed shards, names that come twice, several images in a sample, images without a class, no images."""
    image = png(0)
    cases: Sequence[tuple[Members, str, str]] = (
        (samples(2), "w:gz", "is compressed, and shards are read in any order; decompress it"),
        ([("a.png", image), ("a.png", image)], "w", r"cannot be read as a shard \(a\.png: duplicate file name\)"),
        ([("a.png", image), ("a.jpg", image)], "w", r"sample 'a' holds several images \(png, jpg\)"),
        (samples(2)[:-1], "w", r"1 of 2 images have no class; the first is .*/0001\.png"),
        (samples(2)[1::2], "w", "holds no images; name a shard with images"),
    )
    for members, mode, message in cases:
        path = shard(tmp_path / "s.tar", members, mode)
        with pytest.raises(UserError, match=message):
            open_data([path], preprocessing=plain)
    path.write_bytes(b"no tar")
    with pytest.raises(UserError, match=r"s\.tar: is none of an image folder, \.tar shards or \.npz arrays"):
        open_data([path], preprocessing=plain)
    with pytest.raises(UserError, match="is no brace range"):
        open_data([tmp_path / "s-{0..1.tar"], preprocessing=plain)
