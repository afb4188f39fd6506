"""Accuracy of models whose outputs are known, counted image by image."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fusescope.graph.errors import UserError
from fusescope.quant.data import Batch
from fusescope.quant.evaluate import Evaluation, ModelAccuracy, evaluate

Array = NDArray[np.generic]
Floats = NDArray[np.float64]


def table(logits: Array) -> Callable[[Mapping[str, Array]], Array]:
    """Make a model that knows its outputs by heart: its input is the number of the image."""
    return lambda inputs: logits[inputs["x"].astype(int)]


def batches(images: int, labels: NDArray[np.int64] | None = None, *, size: int = 7) -> Iterator[Batch]:
    """Yield images that are their own numbers; the last batch may be smaller."""
    for start in range(0, images, size):
        numbers = np.arange(start, min(start + size, images))
        names = tuple(f"{number}.png" for number in numbers)
        yield Batch({"x": numbers}, None if labels is None else labels[numbers], names)


def random_logits(images: int, classes: int, noise: float, seed: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Draw logits, the same with noise, and labels that the first often gets right."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((images, classes))
    labels = np.where(rng.random(images) < 0.7, first.argmax(axis=1), rng.integers(0, classes, images))
    return first, first + noise * rng.standard_normal(first.shape), labels


def by_name(evaluation: Evaluation) -> dict[str, ModelAccuracy]:
    """Find a model's row by its name."""
    return {model.name: model for model in evaluation.models}


def test_every_figure_by_hand() -> None:
    """Four images, six classes: written out, a reference and a variant that errs on one and gains one."""
    eye = np.eye(6)
    reference = eye[[0, 1, 2, 3]]
    variant = eye[[0, 1, 4, 5]].copy()
    variant[2, 2] = 0.5
    labels = np.array([0, 1, 2, 5])
    found = evaluate(table(reference), {"fp8": table(variant)}, batches(4, labels), reference_name="fp32")
    assert (found.images, found.labelled, found.notes) == (4, True, ())
    fp32, fp8 = found.models
    assert (fp32.name, fp8.name) == ("fp32", "fp8")
    assert fp32.top1 is not None
    assert fp8.top1 is not None
    assert (fp32.top1.count, fp32.top1.percent, fp8.top1.count) == (3, 75, 3)
    assert fp32.agreement is None
    assert fp8.agreement is not None
    assert fp8.agreement.count == 2
    assert (fp32.equal, fp8.equal, fp8.nonfinite) == (4, 2, 0)
    # The reference's power is 4; the difference is 1/4 + 1 at the third image and 1 + 1 at the fourth.
    assert fp8.snr_db == pytest.approx(10 * np.log10(4 / 3.25))
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.first_only, pair.second_only) == ("fp32", "fp8", 1, 1)
    assert (pair.points, pair.p, pair.images_needed) == (0, 1, None)
    assert pair.low == pytest.approx(-pair.high)


@given(st.integers(1, 60), st.integers(2, 12), st.integers(1, 9), st.integers(0, 10**6))
def test_counts_are_those_of_numpy(images: int, classes: int, size: int, seed: int) -> None:
    """Whatever the batch size: the figures are those of the whole arrays at once."""
    first, second, labels = random_logits(images, classes, 0.4, seed)
    found = evaluate(table(first), {"q": table(second)}, batches(images, labels, size=size))
    right = [logits.argmax(axis=1) == labels for logits in (first, second)]
    for model, correct, logits in zip(found.models, right, (first, second), strict=True):
        assert model.top1 is not None
        assert model.top1.count == correct.sum()
        if classes <= 5:
            assert model.top5 is None
            continue
        wide = [label in np.argpartition(row, -5)[-5:] for row, label in zip(logits, labels, strict=True)]
        assert model.top5 is not None
        assert model.top5.count == sum(wide)
    agreement = found.models[1].agreement
    assert agreement is not None
    assert agreement.count == (first.argmax(axis=1) == second.argmax(axis=1)).sum()
    assert found.models[1].snr_db == pytest.approx(10 * np.log10((first**2).sum() / ((first - second) ** 2).sum()))
    assert found.pairs[0].first_only == (right[0] & ~right[1]).sum()
    assert found.pairs[0].second_only == (right[1] & ~right[0]).sum()


def test_each_pair_and_each_batch_once() -> None:
    """Four models make six pairs, the reference first; the data is a stream that can be read only once."""
    first, second, labels = random_logits(30, 8, 0.3, 1)
    seen: list[int] = []
    found = evaluate(
        table(first),
        {"a": table(second), "b": table(first), "c": table(-first)},
        batches(30, labels, size=8),
        progress=seen.append,
    )
    assert [(pair.first, pair.second) for pair in found.pairs] == [
        ("reference", "a"),
        ("reference", "b"),
        ("reference", "c"),
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    assert seen == [8, 8, 8, 6]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_right(bad: float) -> None:
    """A NaN where the label is, which argmax would take for the largest, is counted and wrong."""
    reference = np.eye(3)
    broken = reference.copy()
    broken[1, 1] = bad
    found = by_name(evaluate(table(reference), {"fp16": table(broken)}, batches(3, np.arange(3))))["fp16"]
    assert found.nonfinite == 1
    assert found.top1 is not None
    assert found.agreement is not None
    assert (found.top1.count, found.agreement.count, found.equal) == (2, 2, 2)
    assert found.snr_db is None  # the finite images are equal


def test_a_broken_reference_agrees_with_nobody() -> None:
    """Where the reference is NaN, an equally broken variant does not agree, and the others' figures stand."""
    logits = np.eye(4)
    logits[0] = np.nan
    found = evaluate(table(logits), {"same": table(logits), "half": table(logits / 2)}, batches(4, np.arange(4)))
    same, half = found.models[1:]
    assert same.agreement is not None
    assert same.agreement.count == 3
    assert half.snr_db == pytest.approx(20 * np.log10(2))


def test_without_labels() -> None:
    """There is agreement and noise, and it is said that there is no accuracy."""
    first, second, _ = random_logits(20, 8, 0.1, 2)
    found = evaluate(table(first), {"q": table(second)}, batches(20))
    assert not found.labelled
    assert found.pairs == ()
    assert found.models[1].top1 is None
    assert found.models[1].agreement is not None
    assert found.models[1].snr_db is not None
    assert "no labels" in found.notes[0]


def test_what_are_no_logits() -> None:
    """A map of each image, as of a segmentation: only the noise is told, and why."""
    maps = np.random.default_rng(0).standard_normal((6, 3, 4, 4))
    found = evaluate(table(maps), {"q": table(maps * 1.1)}, batches(6, np.zeros(6, np.int64), size=2))
    assert found.models[1].agreement is None
    assert found.models[1].top1 is None
    assert found.models[1].snr_db == pytest.approx(20)
    assert "[2, 3, 4, 4]" in found.notes[0]


def test_outputs_that_belong_to_no_image() -> None:
    """One row for a whole batch is no logits of its images."""
    four = batches(4, np.zeros(4, np.int64), size=2)
    found = evaluate(lambda _: np.ones((1, 9)), {"q": lambda _: np.zeros((1, 9))}, four)
    assert found.images == 4
    assert found.pairs == ()
    assert found.notes


def test_low_precision_outputs() -> None:
    """Half-precision logits are squared in double precision: they do not overflow."""
    logits = (np.eye(3) * 60000).astype(np.float16)
    found = evaluate(table(logits), {"q": table(logits / np.float16(2))}, batches(3, np.arange(3)))
    assert found.models[1].snr_db == pytest.approx(20 * np.log10(2))


def test_it_is_plain_data() -> None:
    """A study writes it as JSON: no NaN, no infinity, no numpy."""
    first, _, labels = random_logits(9, 7, 0, 3)
    found = evaluate(table(first), {"same": table(first), "zero": table(first * 0)}, batches(9, labels))
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["models"][1]["equal"] == 9


@pytest.mark.parametrize(
    ("variant", "labels", "message"),
    [
        (np.zeros((4, 10)), np.arange(4), r"q: gives outputs of shape \[4, 10\] where the reference gives \[4, 5\]"),
        (np.zeros((4, 5)), np.array([0, 1, 2, 5]), "label 5 is none of the 5 classes"),
        (np.zeros((4, 5)), np.array([0, 1, 2, -1]), "label -1 is none of the 5 classes"),
    ],
)
def test_what_cannot_be_compared(variant: Floats, labels: NDArray[np.int64], message: str) -> None:
    """Another model, and labels of another data set, are one line."""
    with pytest.raises(UserError, match=message):
        evaluate(table(np.zeros((4, 5))), {"q": table(variant)}, batches(4, labels))


def test_no_images_and_mixed_labels() -> None:
    """Nothing to evaluate is an error, and so are labels for some images only."""
    model = table(np.eye(5))
    with pytest.raises(UserError, match="no image"):
        evaluate(model, {}, ())
    mixed = [*batches(2, np.arange(2)), *batches(2)]
    with pytest.raises(UserError, match="some images have labels"):
        evaluate(model, {}, mixed)
