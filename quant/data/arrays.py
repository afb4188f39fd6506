"""Ready-made inputs in `.npz` files, used as they are."""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fusescope.graph.errors import UserError
from fusescope.graph.units import printable
from fusescope.quant.data.dataset import Array, Labels

if TYPE_CHECKING:
    from fusescope.quant.ort import InputSpec

LABELS = ("labels", "y")
"""What the array of classes may be called."""

_BROKEN = (OSError, EOFError, ValueError, LookupError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged, encrypted or pickled archive raises."""


class ArraySource:
    """Arrays by name, with the items along the first axis."""

    kind: Literal["arrays"] = "arrays"
    preprocessing = None

    def __init__(self, paths: Sequence[Path]) -> None:
        archives = [_read(path) for path in paths]
        names = list(archives[0])
        for path, archive in zip(paths, archives, strict=True):
            if sorted(archive) != sorted(names):
                what = f"holds {_listed(archive)}, and {paths[0]} holds {_listed(names)}"
                raise UserError(what, where=path, remedy="give files of one kind")
        counts = [_count(archive, path) for path, archive in zip(paths, archives, strict=True)]
        arrays = {name: _joined([archive[name] for archive in archives], name) for name in names}
        label = next((name for name in LABELS if name in arrays), None)
        self.labels: Labels | None = None if label is None else _labels(arrays.pop(label), label)
        if not arrays:
            raise UserError("holds labels and nothing else", where=paths[0], remedy="add an array for each input")
        self._arrays = arrays
        self._digests: dict[int, bytes] = {}
        self.files = tuple(path.name for path in paths)
        self.counts = tuple(counts)
        self._names = [f"{path}[{item}]" for path, count in zip(paths, counts, strict=True) for item in range(count)]

    def name(self, item: int) -> str:
        """Say what an item is called."""
        return self._names[item]

    def digest(self, item: int) -> bytes:
        """Return the SHA-256 of an item's values, and of their names, types and shapes."""
        if item not in self._digests:
            whole = hashlib.sha256()
            for name, array in sorted(self._arrays.items()):
                whole.update(f"{name} {array.dtype.str} {array.shape[1:]}\n".encode())
                whole.update(np.ascontiguousarray(array[item]).tobytes())
            self._digests[item] = whole.digest()
        return self._digests[item]

    def check(self, inputs: "Sequence[InputSpec]") -> None:
        """Raise UserError if an input has no array, or one of another shape or type."""
        for each in inputs:
            array = self._array(each, inputs)
            expected, given = each.shape[1:], array.shape[1:]
            fits = len(expected) == len(given) and all(
                want == have for want, have in zip(expected, given, strict=True) if isinstance(want, int)
            )
            if not each.shape or not fits:
                what = f"the model takes {_shape(expected)} for each item of {each.name!r}, not {_shape(given)}"
                raise UserError(what, remedy="give arrays as the model takes them, with the items along the first axis")
            if not np.can_cast(array.dtype, each.dtype, "same_kind"):
                what = f"the model takes {each.dtype.name} as {each.name!r}, and the data is {array.dtype.name}"
                raise UserError(what, remedy="give arrays of that type")

    def read(self, items: Sequence[int], inputs: "Sequence[InputSpec]") -> tuple[Mapping[str, Array], dict[int, str]]:
        """Return the items' arrays by the name of the model's input, in its type."""
        arrays = {each.name: self._array(each, inputs)[list(items)] for each in inputs}
        for name, values in arrays.items():
            if np.isnan(values).any():
                first = int(np.isnan(values).reshape(len(values), -1).any(axis=1).argmax())
                raise UserError(f"{name!r} holds NaN", where=self.name(items[first]), remedy="take that item out")
        return {each.name: _converted(arrays[each.name], each) for each in inputs}, {}

    def _array(self, wanted: "InputSpec", inputs: "Sequence[InputSpec]") -> Array:
        if wanted.name in self._arrays:
            return self._arrays[wanted.name]
        if len(inputs) == len(self._arrays) == 1:
            return next(iter(self._arrays.values()))
        what = f"the data has no array for the model's input {wanted.name!r}; it has {_listed(self._arrays)}"
        raise UserError(what, remedy="name the arrays after the model's inputs")


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _BROKEN as error:
        what = f"cannot be read as arrays ({printable(str(error)) or type(error).__name__})"
        raise UserError(what, where=path, remedy="write it with numpy.savez, without pickled objects") from error
    if not arrays:
        raise UserError("holds no arrays", where=path, remedy="write them with numpy.savez")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise UserError(f"{name!r} is no array of numbers", where=path, remedy="write arrays of numbers only")
        if not array.ndim:
            raise UserError(f"{name!r} is a single number", where=path, remedy="put the items along the first axis")
    return arrays


def _count(archive: Mapping[str, Array], path: Path) -> int:
    counts = {name: len(array) for name, array in archive.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{printable(name)} {count}" for name, count in counts.items())
        raise UserError(f"its arrays are not of one length: {listed}", where=path, remedy="give one row for each item")
    count = next(iter(counts.values()))
    if not count:
        raise UserError("its arrays are empty", where=path, remedy="give at least one item")
    return count


def _joined(arrays: Sequence[Array], name: str) -> Array:
    if len({(array.shape[1:], array.dtype) for array in arrays}) > 1:
        raise UserError(f"{name!r} is of several shapes or types", remedy="give files of one kind")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _labels(labels: Array, name: str) -> Labels:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
        what = f"{name!r} is {labels.dtype.name} of shape {_shape(labels.shape)}, not one class number for each item"
        raise UserError(what, remedy="give whole numbers from 0 on")
    return labels.astype(np.int64)


def _converted(values: Array, wanted: "InputSpec") -> Array:
    with np.errstate(over="ignore"):  # what overflows is found below
        converted = values.astype(wanted.dtype)
    integers = wanted.dtype.kind in "iu"
    lost = converted != values if integers else np.isfinite(values) & ~np.isfinite(converted)
    if lost.any():
        what = f"the data holds {values[lost].flat[0]}, which {wanted.dtype.name} of the input {wanted.name!r} cannot"
        raise UserError(what, remedy="give values that the model can take")
    return converted


def _shape(extents: Sequence[int | str | None]) -> str:
    return "x".join("?" if extent is None else printable(str(extent)) for extent in extents) or "no axis"


def _listed(names: Sequence[str] | Mapping[str, Array]) -> str:
    return ", ".join(printable(repr(name)) for name in names)
