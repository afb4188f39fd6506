"""WebDataset shards: tar files in which an image and its label have one name and different endings."""

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fusescope.graph.errors import UserError
from fusescope.quant.data.images import EXTENSIONS, Item
from fusescope.quant.extras import needs

JSON_LABELS = ("label", "cls")
"""Where a sample's JSON may hold its class."""

_META = re.compile(r"__[^/]*__($|/)")
"""Members that describe the shard itself."""


def shard_items(path: Path) -> list[Item]:
    """List the images of a shard in its order. Only labels and the tar's own records are read.

    Raises:
        UserError: It is compressed or damaged, holds no images, or a label is no class number.
    """
    group = needs("webdataset.tariterators", "reading shards").group_by_keys
    try:
        with _opened(path) as tar:
            items = [item for sample in group(_members(tar)) if (item := _item(path, tar, sample))]
            _check_end(tar)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"cannot be read as tar ({error})", where=path, remedy="get it again") from error
    except ValueError as error:  # the name of a file comes twice
        what = str(error.args[0]).partition(" in tar file")[0]
        raise UserError(f"cannot be read as a shard ({what})", where=path, remedy="get it again") from error
    if not items:
        raise UserError("holds no images", where=path, remedy="name a shard with images such as 0001.jpg and 0001.cls")
    return items


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:")
    except tarfile.ReadError as error:
        what = "is compressed, and shards are read in any order"
        raise UserError(what, where=path, remedy="decompress it") from error


def _members(tar: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    """Yield what webdataset groups: names, each with its place in the tar for its content."""
    for member in tar:
        if member.isreg() and not _META.match(member.name):
            yield {"fname": member.name, "data": member, "__url__": tar.name}


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise ReadError unless the mark of a tar's end follows: tarfile takes a damaged header for the end."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"unexpected end at byte {tar.offset}")


def _item(path: Path, tar: tarfile.TarFile, sample: Mapping[str, Any]) -> Item | None:
    images = [ending for ending in sample if ending.rpartition(".")[2] in EXTENSIONS]
    if not images:
        return None
    key = sample["__key__"]
    if len(images) > 1:
        what = f"sample {key!r} holds several images ({', '.join(images)})"
        raise UserError(what, where=path, remedy="let names differ before their first dot")
    image: tarfile.TarInfo = sample[images[0]]
    return Item(path, f"{path}/{image.name}", _label(path, tar, sample), image.offset_data, image.size)


def _label(path: Path, tar: tarfile.TarFile, sample: Mapping[str, Any]) -> int | None:
    if (ending := next((each for each in ("cls", "json") if each in sample), None)) is None:
        return None
    content = tar.extractfile(sample[ending])
    assert content is not None
    text = content.read()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if ending == "json" and isinstance(value, dict):
        value = next((value[name] for name in JSON_LABELS if name in value), None)
        if value is None:
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        what = f"{sample[ending].name} holds {text[:40].decode(errors='replace')!a}, which is no class number"
        raise UserError(what, where=path, remedy="give a whole number from 0 on")
    return value
