"""Accuracy of model variants against a reference, on the same images: `evaluate`.

Every batch is read once and goes through all models. Only counts are kept, so memory does not grow with the images.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusescope.graph.errors import UserError
from fusescope.quant.statistics import images_needed, mcnemar, paired_difference, wilson

if TYPE_CHECKING:
    from fusescope.quant.data import Batch
    from fusescope.quant.ort import Runner

Floats = NDArray[np.float64]

TOP = 5
"""How many of the largest logits may hold the label for the wider accuracy."""

NO_CLASS = -1
"""The class of an image whose logits are not all finite: no label, and no other model's class."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share of the images, with its 95 % interval (Wilson)."""

    count: int
    """Images that count."""
    percent: float
    """Their share of all images, 0 to 100."""
    low: float
    """Least share that the count is compatible with, in percent."""
    high: float
    """Largest share that the count is compatible with, in percent."""


@dataclass(frozen=True, slots=True)
class ModelAccuracy:
    """How one model did."""

    name: str
    """What the model is called."""
    top1: Proportion | None
    """Images whose largest logit is that of the label; None without labels or logits."""
    top5: Proportion | None
    """Images whose label is among the five largest logits; None as above, and for models of at most five classes."""
    agreement: Proportion | None
    """Images with the same largest logit as the reference's; None for the reference, and without logits."""
    nonfinite: int
    """Images with a NaN or an infinity among the outputs. Such an image is never right and never agrees."""
    equal: int
    """Images whose outputs are exactly the reference's. All of them, for the reference, unless some are NaN."""
    snr_db: float | None
    """Power of the reference's outputs over that of the difference to them, in decibels, over the images where both
    are finite; None for the reference, and where there is no difference or no such image."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Two models on the same images: by how much the second is better in top-1, and how sure that is."""

    first: str
    """Name of the first model."""
    second: str
    """Name of the second model."""
    images: int
    """Images that both saw."""
    first_only: int
    """Images that only the first gets right."""
    second_only: int
    """Images that only the second gets right."""
    points: float
    """Top-1 of the second less that of the first, in percentage points; negative where the second is worse."""
    low: float
    """Lower end of the difference's 95 % interval (Tango), in points."""
    high: float
    """Upper end of it, in points."""
    p: float
    """Exact p of McNemar's test: how often models that are right equally often would differ this much or more."""
    images_needed: int | None
    """Images that would show such a difference in 80 % of all tries; None where no difference was seen."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy of all models on the same images."""

    images: int
    """Images that every model saw."""
    labelled: bool
    """Whether the images have labels. Without them there is agreement with the reference and no accuracy."""
    models: tuple[ModelAccuracy, ...]
    """The reference first, then the variants in the order given."""
    pairs: tuple[PairedDifference, ...]
    """Every two models, in that order; empty without labels or logits."""
    notes: tuple[str, ...]
    """What could not be compared and why, as sentences; empty when all was."""


def paired(first: str, second: str, first_only: int, second_only: int, images: int) -> PairedDifference:
    """Compare two models by the images that exactly one of them gets right.

    Args:
        first: Name of the first model.
        second: Name of the second model.
        first_only: Images that only the first gets right.
        second_only: Images that only the second gets right.
        images: All images, at least one.
    """
    low, high = paired_difference(first_only, second_only, images)
    return PairedDifference(
        first=first,
        second=second,
        images=images,
        first_only=first_only,
        second_only=second_only,
        points=100 * (second_only - first_only) / images,
        low=100 * low,
        high=100 * high,
        p=mcnemar(first_only, second_only),
        images_needed=images_needed(first_only, second_only, images),
    )


def evaluate(
    reference: "Runner",
    variants: "Mapping[str, Runner]",
    batches: "Iterable[Batch]",
    *,
    reference_name: str = "reference",
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run a reference and its variants over the same images.

    Args:
        reference: The model that the others are held against.
        variants: Name to model: another precision of the reference, on whatever runs it.
        batches: Images with or without labels, read once.
        reference_name: What the reference is called; no variant may be.
        progress: Called with the number of images of each batch that is done.

    Raises:
        UserError: There are no images, only some have labels, a label is not a class of the model, or the outputs of a
            variant have another shape than the reference's.
    """
    runners = {reference_name: reference, **variants}
    if len(runners) != len(variants) + 1:
        raise ValueError(f"a variant is called {reference_name!r}, as the reference is")
    counts = _Counts(tuple(runners))
    for batch in batches:
        images = len(next(iter(batch.inputs.values())))
        counts.add([np.asarray(run(batch.inputs)).astype(np.float64) for run in runners.values()], batch.labels, images)
        if progress is not None:
            progress(images)
    if not counts.images:
        raise UserError("there is no image to evaluate", remedy="check --data and --images")
    return counts.evaluation()


class _Counts:
    """What is kept of the images seen so far.

    Args:
        names: The models, the reference first.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.images = 0
        self.labelled: bool | None = None
        self.shape: tuple[int, ...] = ()
        self.are_logits = True
        each = len(names)
        self.top1, self.top5, self.agreeing, self.nonfinite, self.equal = np.zeros((5, each), np.int64)
        self.signal, self.noise = np.zeros((2, each))
        # Images that the model of the row gets right and that of the column does not.
        self.only = np.zeros((each, each), np.int64)

    def add(self, outputs: list[Floats], labels: NDArray[np.int64] | None, images: int) -> None:
        """Count one batch.

        Args:
            outputs: The outputs of each model.
            labels: The class of each image; None if they are not known.
            images: How many there are.
        """
        self._check(outputs, labels is not None)
        self.images += images
        self.are_logits &= len(self.shape) == 2 and self.shape[0] == images and self.shape[1] > 1
        # Outputs that do not belong to images one by one are compared as one.
        rows = [output.reshape(images if self.shape[:1] == (images,) else 1, -1) for output in outputs]
        finite = np.array([np.isfinite(row).all(axis=1) for row in rows])
        self.nonfinite += (~finite).sum(axis=1)
        for model, row in enumerate(rows):
            both = finite[0] & finite[model]
            self.equal[model] += (row == rows[0]).all(axis=1).sum()
            self.signal[model] += np.square(rows[0][both]).sum()
            self.noise[model] += np.square(row[both] - rows[0][both]).sum()
        if self.are_logits:
            self._classify(rows, finite, labels)

    def _check(self, outputs: list[Floats], labelled: bool) -> None:
        """Refuse what cannot be compared, and remember what the outputs look like."""
        self.shape = outputs[0].shape
        for name, output in zip(self.names, outputs, strict=True):
            if output.shape != self.shape:
                raise UserError(
                    f"gives outputs of shape {list(output.shape)} where the reference gives {list(self.shape)}",
                    where=name,
                    remedy="evaluate variants of one model",
                )
        if self.labelled not in (None, labelled):
            raise UserError("some images have labels and others none", remedy="label all of --data, or none")
        self.labelled = labelled

    def _classify(self, rows: list[Floats], finite: NDArray[np.bool_], labels: NDArray[np.int64] | None) -> None:
        """Count who is right, and who agrees with the reference."""
        # Negated for a stable sort: of equal logits the first wins, as with argmax.
        ranked = np.array([np.argsort(-row, axis=1, kind="stable")[:, :TOP] for row in rows])
        ranked[~finite] = NO_CLASS
        largest = ranked[:, :, 0]
        self.agreeing += ((largest == largest[0]) & finite).sum(axis=1)
        if labels is None:
            return
        _check_labels(labels, classes=self.shape[1])
        right = largest == labels
        self.top1 += right.sum(axis=1)
        self.top5 += (ranked == labels[:, None]).any(axis=2).sum(axis=1)
        self.only += right.astype(np.int64) @ (~right).astype(np.int64).T

    def evaluation(self) -> Evaluation:
        """Draw up what was counted."""
        known = bool(self.labelled) and self.are_logits
        notes = []
        if not self.are_logits:
            notes.append(
                f"The outputs, of shape {list(self.shape)}, are no logits of images: there is no accuracy and no "
                "agreement, only the signal-to-noise ratio."
            )
        elif not known:
            notes.append("The images have no labels: there is agreement with the reference, but no accuracy.")
        pairs = combinations(range(len(self.names)), 2) if known else ()
        return Evaluation(
            images=self.images,
            labelled=bool(self.labelled),
            models=tuple(self._model(index, known=known) for index in range(len(self.names))),
            pairs=tuple(
                paired(self.names[a], self.names[b], int(self.only[a, b]), int(self.only[b, a]), self.images)
                for a, b in pairs
            ),
            notes=tuple(notes),
        )

    def _model(self, index: int, *, known: bool) -> ModelAccuracy:
        signal, noise = float(self.signal[index]), float(self.noise[index])
        return ModelAccuracy(
            name=self.names[index],
            top1=self._share(self.top1[index]) if known else None,
            top5=self._share(self.top5[index]) if known and self.shape[1] > TOP else None,
            agreement=self._share(self.agreeing[index]) if index and self.are_logits else None,
            nonfinite=int(self.nonfinite[index]),
            equal=int(self.equal[index]),
            snr_db=10 * math.log10(signal / noise) if signal and noise else None,
        )

    def _share(self, count: np.int64) -> Proportion:
        low, high = wilson(int(count), self.images)
        return Proportion(int(count), 100 * int(count) / self.images, 100 * low, 100 * high)


def _check_labels(labels: NDArray[np.int64], *, classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(
            f"label {wrong[0]} is none of the {classes} classes of the model",
            remedy="number the classes of --data from 0, as the model does",
        )
