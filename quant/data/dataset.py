"""A set of images or arrays, read in batches; subsets and splits of it; what it is known by.

A `Source` knows where the items lie. A `Dataset` is a choice of them in an order, so that subsets cost nothing, and
memory does not grow with the images: only their places, labels and digests are kept.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fusescope.graph.errors import UserError

if TYPE_CHECKING:
    from fusescope.quant.ort import InputSpec
    from fusescope.quant.preprocessing import Preprocessing

Array = NDArray[Any]
Labels = NDArray[np.int64]
Kind = Literal["images", "shards", "arrays"]

UNREADABLE_LIMIT = 0.01
"""The share of the images that may be unreadable."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some items, ready for a model."""

    inputs: Mapping[str, Array]
    """An array for each of the model's inputs, with the items along the first axis."""
    labels: Labels | None
    """The class of each item; None if the data has no labels."""
    names: tuple[str, ...]
    """What each item is called."""


class Source(Protocol):
    """Where items lie and how they are read."""

    @property
    def kind(self) -> Kind:
        """What the files are: an image folder, tar shards or npz arrays."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files or folders, without the path."""
        ...

    @property
    def counts(self) -> tuple[int, ...]:
        """How many items each of the files has; items are numbered in this order."""
        ...

    @property
    def labels(self) -> Labels | None:
        """The class of each item; None if they have none."""
        ...

    @property
    def preprocessing(self) -> "Preprocessing | None":
        """What is done to an image; None where nothing is."""
        ...

    def name(self, item: int) -> str:
        """Say what an item is called."""
        ...

    def digest(self, item: int) -> bytes:
        """Return the SHA-256 of an item's bytes, which are read if they have not been yet."""
        ...

    def check(self, inputs: "Sequence[InputSpec]") -> None:
        """Raise UserError if the items are not what a model with these inputs takes."""
        ...

    def read(self, items: Sequence[int], inputs: "Sequence[InputSpec]") -> "tuple[Mapping[str, Array], dict[int, str]]":
        """Read items: the arrays of those that could be read, in order, and why others could not, by number."""
        ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Items in an order."""

    source: Source
    """Where they lie."""
    order: Labels
    """Their numbers in the source."""
    made: Mapping[str, Any]
    """How they were chosen, for the record."""
    unreadable_limit: float = UNREADABLE_LIMIT
    """The share of them that may be unreadable."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Those found to be unreadable, with the reason; filled while the items are read."""

    @property
    def kind(self) -> Kind:
        """What the files are."""
        return self.source.kind

    @property
    def size(self) -> int:
        """How many items there are, unreadable ones among them."""
        return len(self.order)

    @property
    def labelled(self) -> bool:
        """Whether every item has a class."""
        return self.source.labels is not None

    @property
    def preprocessing(self) -> "Preprocessing | None":
        """What is done to an image; None for arrays, which are used as they are."""
        return self.source.preprocessing

    @cached_property
    def sha256(self) -> str:
        """A hash of the items' bytes and labels in their order. Names, paths and the preprocessing are not in it."""
        labels = self.source.labels
        whole = hashlib.sha256()
        for item in self.order.tolist():
            whole.update(self.source.digest(item))
            whole.update(b"-" if labels is None else int(labels[item]).to_bytes(8, "little", signed=True))
        return whole.hexdigest()

    def batches(self, size: int, inputs: "Sequence[InputSpec]") -> Iterator[Batch]:
        """Read the items.

        Args:
            size: Most items of a batch. The last one has fewer, and so has one with unreadable items.
            inputs: What the model takes.

        Raises:
            UserError: The items are not what the model takes; or, while reading, too many are unreadable.
        """
        self.source.check(inputs)
        return self._read(size, inputs)

    def _read(self, size: int, inputs: "Sequence[InputSpec]") -> Iterator[Batch]:
        labels = self.source.labels
        for start in range(0, self.size, size):
            items = self.order[start : start + size].tolist()
            arrays, failed = self.source.read(items, inputs)
            self._count(failed)
            if read := [item for item in items if item not in failed]:
                names = tuple(self.source.name(item) for item in read)
                yield Batch(arrays, None if labels is None else labels[read], names)

    def _count(self, failed: Mapping[int, str]) -> None:
        self.unreadable.update({self.source.name(item): reason for item, reason in failed.items()})
        if len(self.unreadable) > self.unreadable_limit * self.size:
            name, reason = next(iter(self.unreadable.items()))
            what = f"{len(self.unreadable)} of {self.size} images cannot be read, which is more than "
            what += f"{self.unreadable_limit:.0%}; the first is {name} ({reason})"
            raise UserError(what, remedy="mend them or take them out")

    def take(self, which: int | Sequence[int]) -> "Dataset":
        """Return a smaller set.

        Args:
            which: How many items, spread evenly over the order (the first ones of a folder are all of one class), or
                their positions.

        Raises:
            UserError: There are not as many items.
        """
        positions = which
        if isinstance(positions, int):
            if not 0 < positions <= self.size:
                raise UserError(f"{positions} images are asked for, and there are {self.size}", remedy="ask for fewer")
            positions = [position * self.size // positions for position in range(positions)]
        return self._chosen(self.order[list(positions)], taken=len(positions))

    def _chosen(self, order: Labels, **how: Any) -> "Dataset":
        return replace(self, order=order, made={**self.made, **how}, unreadable={})

    def describe(self) -> dict[str, Any]:
        """Return what a run records of its data, as plain data. It reads what has not been read yet, for the hash."""
        preprocessing = self.preprocessing
        return {
            "kind": self.kind,
            "files": list(self.source.files),
            "items": self.size,
            "labelled": self.labelled,
            "sha256": self.sha256,
            "preprocessing": None if preprocessing is None else preprocessing.model_dump(mode="json"),
            "unreadable": dict(self.unreadable),
            **self.made,
        }


def split(dataset: Dataset, *, every: int = 4, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split a set as the published study did: every k-th item calibrates, the others are held out.

    Both parts are shuffled. An item that is byte for byte one of the calibration part's is left out of the other.

    Args:
        dataset: What to split.
        every: The k.
        seed: Of the shuffles.

    Returns:
        The calibration part and the one that is held out.

    Raises:
        UserError: A part would be empty.
    """
    if every < 2 or dataset.size < 2:
        what = f"every {every}. of {dataset.size} images for calibration leaves none to hold out"
        raise UserError(what, remedy="give more images, or a number from 2 on")
    digest = dataset.source.digest
    chosen = dataset.order[::every]
    taken = {digest(item) for item in chosen.tolist()}
    others = [item for position, item in enumerate(dataset.order.tolist()) if position % every]
    held = np.array([item for item in others if digest(item) not in taken], np.int64)
    if not held.size:
        raise UserError("all images to hold out are copies of calibration images", remedy="give other images")
    random = np.random.default_rng(seed)
    how = {"of": dataset.sha256, "every": every, "seed": seed, "copies_left_out": len(others) - len(held)}
    calibration = dataset._chosen(random.permutation(chosen), split={"part": "calibration", **how})  # noqa: SLF001
    return calibration, dataset._chosen(random.permutation(held), split={"part": "held out", **how})  # noqa: SLF001
