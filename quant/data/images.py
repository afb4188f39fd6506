"""Image files, in folders or in tar shards: decoded and prepared as timm does it."""

import hashlib
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fusescope.graph.errors import UserError
from fusescope.quant.data.dataset import Array, Labels
from fusescope.quant.extras import needs

if TYPE_CHECKING:
    from PIL import Image

    from fusescope.quant.ort import InputSpec
    from fusescope.quant.preprocessing import Preprocessing

EXTENSIONS = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff"})
"""Endings of image files."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
"""What an image file may hold, whatever its ending. Pillow knows formats that run other programs: they are not here."""

_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    LookupError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zlib.error,
)
"""What Pillow raises for damaged or vast images; `DecompressionBombError`, which is none of these, besides."""


@dataclass(frozen=True, slots=True)
class Item:
    """Where the bytes of an image lie."""

    path: Path
    """The file."""
    name: str
    """What to call the image: its path, or the shard's and its name there."""
    label: int | None
    """Its class, if it has one."""
    offset: int = 0
    """Where in the file it begins."""
    size: int = -1
    """How many bytes it has; -1 for all that follow."""

    def content(self) -> bytes:
        """Read the bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


class ImageSource:
    """Images that are read, decoded and prepared when they are asked for."""

    def __init__(
        self,
        kind: Literal["images", "shards"],
        parts: Mapping[Path, Sequence[Item]],
        preprocessing: "Preprocessing",
    ) -> None:
        self.kind: Literal["images", "shards"] = kind
        self.files = tuple(path.name for path in parts)
        self.counts = tuple(len(items) for items in parts.values())
        self.preprocessing = preprocessing
        self._items = [item for items in parts.values() for item in items]
        self.labels: Labels | None = _labels(self._items)
        self._transform = preprocessing.transform()
        self._digests: dict[int, bytes] = {}

    def name(self, item: int) -> str:
        """Say what an image is called."""
        return self._items[item].name

    def digest(self, item: int) -> bytes:
        """Return the SHA-256 of an image's file; that of no bytes for a file that cannot be read."""
        if item not in self._digests:
            try:
                self._content(item)
            except OSError:  # it is named and counted where it is read for a batch
                self._digests[item] = hashlib.sha256().digest()
        return self._digests[item]

    def check(self, inputs: "Sequence[InputSpec]") -> None:
        """Raise UserError if a model takes more than an image, or one of another shape or type."""
        if len(inputs) != 1:
            what = f"the model takes {len(inputs)} inputs, and the data are images"
            raise UserError(what, remedy="give an .npz file with an array for each input")
        shape, dtype = inputs[0].shape, inputs[0].dtype
        fits = len(shape) == 4 and all(
            want == have
            for want, have in zip(shape[1:], self.preprocessing.shape, strict=True)
            if isinstance(want, int)
        )
        if not fits or not np.can_cast(np.float32, dtype, "same_kind"):
            taken = "x".join("?" if extent is None else str(extent) for extent in shape)
            made = "x".join(str(extent) for extent in self.preprocessing.shape)
            what = f"the model takes {dtype.name} of shape {taken}, and its preprocessing gives float32 of Nx{made}"
            raise UserError(what, remedy="give the preprocessing of this model, or an .npz file of ready-made inputs")

    def read(self, items: Sequence[int], inputs: "Sequence[InputSpec]") -> tuple[Mapping[str, Array], dict[int, str]]:
        """Decode images in threads."""
        with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
            # Pillow warns of EXIF data and sizes that it does not like, once for each image.
            warnings.filterwarnings("ignore", module="PIL")
            done = list(pool.map(self._prepared, items))
        failed = {item: each for item, each in zip(items, done, strict=True) if isinstance(each, str)}
        arrays = [each for each in done if not isinstance(each, str)]
        wanted = inputs[0]
        return ({wanted.name: np.stack(arrays).astype(wanted.dtype, copy=False)} if arrays else {}), failed

    def _prepared(self, item: int) -> Array | str:
        """Return an image as the model takes it, or why it cannot be read."""
        image = needs("PIL.Image", "reading images")
        try:
            opened = image.open(BytesIO(self._content(item)), formats=FORMATS)
            opened.load()
            return self._transform(_in_8_bits(opened))
        except image.UnidentifiedImageError:
            return "no image of a known format"
        except (*_BROKEN, image.DecompressionBombError) as error:
            return f"{type(error).__name__}: {error}"

    def _content(self, item: int) -> bytes:
        content = self._items[item].content()
        self._digests.setdefault(item, hashlib.sha256(content).digest())
        return content


def _in_8_bits(image: "Image.Image") -> "Image.Image":
    """Return an image with 8 bits per channel: Pillow's own conversion makes all above 255 white."""
    if image.mode.startswith("I;16"):
        pixels = np.rint(np.asarray(image).astype(np.float64) / 257)  # 65535 / 255
        return needs("PIL.Image", "reading images").fromarray(pixels.astype(np.uint8))  # type: ignore[no-any-return]
    if image.mode in {"I", "F"}:
        raise ValueError(f"pixels of mode {image.mode}, whose range is not known")
    return image


def folder_parts(folders: Sequence[Path]) -> dict[Path, list[Item]]:
    """List the images of folders, in the order of their classes and names.

    Images in subfolders have the subfolder as their class, numbered by its name in natural order (2 before 10) over
    all the folders; those of a folder without subfolders have no class.

    Raises:
        UserError: There are no images, or some are beside the class folders, or all are a level deeper.
    """
    classes = {folder: [each.name for each in _subfolders(folder)] for folder in folders}
    numbers = {name: i for i, name in enumerate(sorted({n for names in classes.values() for n in names}, key=_natural))}
    return {folder: _images(folder, {name: numbers[name] for name in names}) for folder, names in classes.items()}


def _images(folder: Path, classes: Mapping[str, int]) -> list[Item]:
    loose = [path for path in folder.iterdir() if _is_image(path)]
    if classes and loose:
        what = f"holds {loose[0].name} beside the class folders"
        raise UserError(what, where=folder, remedy="put every image into the folder of its class")
    found = [(path, None) for path in sorted(loose, key=lambda path: _natural(path.name))]
    return [Item(path, str(path), label) for path, label in found] or _classified(folder, classes)


def _classified(folder: Path, classes: Mapping[str, int]) -> list[Item]:
    items = []
    for name in sorted(classes, key=_natural):
        paths = sorted(_walk(folder / name), key=lambda path: _natural(str(path)))
        items += [Item(path, str(path), classes[name]) for path in paths]
    if not items:
        endings = ", ".join(sorted(EXTENSIONS))
        raise UserError("holds no images", where=folder, remedy=f"name a folder with files that end in {endings}")
    if len(classes) == 1 and all(item.path.parent.parent != folder for item in items):
        remedy = f"name the folder that holds the class folders, such as {folder / next(iter(classes))}"
        raise UserError("holds its class folders a level deeper", where=folder, remedy=remedy)
    return items


def _walk(folder: Path) -> Iterable[Path]:
    """Find the images below a folder, each place once: a link back to a folder above is not followed."""
    seen = set(folder.resolve().parents)
    for root, inner, names in os.walk(folder, followlinks=True):
        place = Path(root).resolve()
        if place in seen:
            inner.clear()
            continue
        seen.add(place)
        yield from (path for path in (Path(root, name) for name in names) if _is_image(path))


def _subfolders(folder: Path) -> list[Path]:
    """List the class folders: those with an image somewhere in them."""
    inner = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path for path in inner if any(True for _ in _walk(path))]


def _is_image(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.suffix.lower().removeprefix(".") in EXTENSIONS and not path.is_dir()


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)]


def _labels(items: Sequence[Item]) -> Labels | None:
    labels = [item.label for item in items if item.label is not None]
    if labels and len(labels) < len(items):
        bare = next(item for item in items if item.label is None)
        what = f"{len(items) - len(labels)} of {len(items)} images have no class; the first is {bare.name}"
        raise UserError(what, remedy="give all of them a class, or none")
    return np.array(labels, np.int64) if labels else None
