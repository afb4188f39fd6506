"""From paths to a `Dataset`: what they are is told by their content."""

import tarfile
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fusescope.graph.errors import UserError
from fusescope.quant.data.arrays import ArraySource
from fusescope.quant.data.dataset import UNREADABLE_LIMIT, Dataset, Kind, Source
from fusescope.quant.data.images import ImageSource, folder_parts
from fusescope.quant.data.shards import shard_items
from fusescope.quant.extras import needs

if TYPE_CHECKING:
    from fusescope.quant.preprocessing import Preprocessing

KINDS = "an image folder, .tar shards or .npz arrays"


def open_data(
    paths: Sequence[Path],
    *,
    preprocessing: "Preprocessing | None" = None,
    every: int = 1,
    unreadable_limit: float = UNREADABLE_LIMIT,
) -> Dataset:
    """Find the items of a data set. Images are not read yet.

    Args:
        paths: Image folders, WebDataset shards (globs and brace ranges such as ``val-{00..63}.tar`` too) or npz files.
        preprocessing: How images are prepared; arrays are used as they are.
        every: Take every n-th item of each folder, shard or file.
        unreadable_limit: The share of the images that may be unreadable.

    Raises:
        UserError: There is no such data, it is damaged or of several kinds, or images come without a preprocessing.
    """
    try:
        found = [file for path in paths for file in _expanded(path)]
        kinds = {path: _kind(path) for path in found}
        if len(kinds) < len(found):
            twice = next(path for path in found if found.count(path) > 1)
            raise UserError("is given twice", where=twice, remedy="name it once")
        if len(set(kinds.values())) > 1:
            listed = ", ".join(f"{kind} in {path.name}" for path, kind in kinds.items())
            raise UserError(f"the data is of several kinds: {listed}", remedy="give data of one kind")
        source = _source(kinds[found[0]], found, preprocessing)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise UserError(what, where=error.filename, remedy="check the path and its permissions") from error
    starts = np.cumsum([0, *source.counts])
    order = np.concatenate([np.arange(a, b, every) for a, b in pairwise(starts)])
    return Dataset(source, order, {"every": every}, unreadable_limit)


def _source(kind: Kind, paths: Sequence[Path], preprocessing: "Preprocessing | None") -> Source:
    if kind == "arrays":
        return ArraySource(paths)
    if preprocessing is None:
        raise UserError(
            "the model does not say how images are prepared for it",
            remedy="pass --preprocessing with a timm model's name or a TOML file, or give ready-made inputs as .npz",
        )
    if kind == "images":
        return ImageSource(kind, folder_parts(paths), preprocessing)
    return ImageSource(kind, {path: shard_items(path) for path in paths}, preprocessing)


def _expanded(path: Path) -> list[Path]:
    """List the files that a path stands for: itself, those of a brace range or glob, or the shards in a folder."""
    if path.is_dir():
        return sorted(path.glob("*.tar")) or [path]
    if path.exists():
        return [path]
    names = [path]
    try:
        if "{" in str(path):
            names = [Path(name) for name in needs("webdataset.shardlists", "a brace range").expand_urls(str(path))]
        files = [file for name in names for file in (_globbed(name) or [name])]
    except (AssertionError, ValueError) as error:
        raise UserError("is no brace range such as {00..63}, and no glob", where=path, remedy="mend it") from error
    if missing := next((file for file in files if not file.exists()), None):
        raise UserError("does not exist", where=missing, remedy=f"name {KINDS}")
    return files


def _globbed(path: Path) -> list[Path]:
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _kind(path: Path) -> Kind:
    if path.is_dir():
        return "images"
    if zipfile.is_zipfile(path):
        return "arrays"
    if tarfile.is_tarfile(path):
        return "shards"
    raise UserError(f"is none of {KINDS}", where=path, remedy="name one of these")
