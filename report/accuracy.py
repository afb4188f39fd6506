"""An evaluation as a person reads it: tables for a terminal and Markdown, and how sure a difference is, in words."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from fusescope.graph.units import count, plural
from fusescope.quant.evaluate import Evaluation, ModelAccuracy, PairedDifference, Proportion
from fusescope.quant.sensitivity import IMAGES_FOR_ALL, SiteSensitivity
from fusescope.quant.statistics import FEWEST_DISCORDANT, LEVEL
from fusescope.report.documents import header
from fusescope.report.markdown_text import bullets, code, table, text
from fusescope.report.terminal import as_text, plain_console, plain_table

CONFIDENCE = f"{100 * LEVEL:.0f} %"
"""Of the intervals, as text."""

_CERTAIN = 1 - LEVEL
NOT_KNOWN = "-"
"""A cell without a figure."""

_FINE_IMAGES = 10_000
"""From this many images on a single one is less than a hundredth of a point: a third digit is shown."""


@dataclass(frozen=True, slots=True)
class AccuracyTables:
    """An evaluation as cells of text: what the terminal and Markdown have in common."""

    models_header: tuple[str, ...]
    """Columns of `models`."""
    models: tuple[tuple[str, ...], ...]
    """A row per model, its name first. Columns without any figure are left out."""
    pairs_header: tuple[str, ...]
    """Columns of `pairs`."""
    pairs: tuple[tuple[str, ...], ...]
    """A row per pair of models, the two names first; empty without labels."""
    sentences: tuple[str, ...]
    """How sure each difference to the reference is, then what could not be compared, and how to read the p values."""


def verdict_sentence(pair: PairedDifference) -> str:
    """Say in one plain sentence how two models differ in top-1, and how sure one can be of that."""
    first, second, images = pair.first, pair.second, plural(pair.images, "image")
    interval = f"{_points(pair.low, pair, signed=True)} to {_points(pair.high, pair, signed=True)} points"
    moved = f"{count(pair.first_only)} lost, {count(pair.second_only)} gained"
    if pair.first_only == pair.second_only:
        tie = f"{second} is right on as many of {images} as {first} ({moved})"
        if not pair.first_only:
            tie = f"{second} is right on the very images that {first} is right on, of {images} ({moved})"
        return f"{tie}: the true difference is {interval}, with {CONFIDENCE} confidence."
    way = "worse" if pair.points < 0 else "better"
    seen = f"{second} is {_points(abs(pair.points), pair)} points {way} than {first} on {images} ({moved})"
    chance = f"models that are equally good differ this much in {_share(pair.p)} of all tries"
    if pair.p < _CERTAIN:
        return (
            f"{seen}, more than chance explains: {chance}, "
            f"and the true difference is {interval}, with {CONFIDENCE} confidence."
        )
    if pair.low > 0 or pair.high < 0:
        doubt = "which is at the edge of what chance does"
    elif pair.images < FEWEST_DISCORDANT:
        doubt = "too few to show any difference"
    else:
        doubt = "which can be chance"
    return (
        f"{seen}, {doubt}: {chance}, and the true difference is {interval}, with {CONFIDENCE} confidence; "
        f"to show a difference of this size takes about {_about(pair.images_needed or 0)} images."
    )


def accuracy_tables(evaluation: Evaluation, against: Collection[str] | None = None) -> AccuracyTables:
    """Shape an evaluation into cells.

    Args:
        evaluation: All of it.
        against: Names of models that the others are compared with beside the reference, such as a study's baseline;
            None compares every two models.
    """
    shares = {title: share for title, share in _SHARES.items() if any(share(model) for model in evaluation.models)}
    reference = evaluation.models[0].name
    pairs = [pair for pair in evaluation.pairs if against is None or pair.first in {reference, *against}]
    sentences = [*(verdict_sentence(pair) for pair in pairs if pair.first == reference), *evaluation.notes]
    if len(pairs) > 1:
        sentences.append(
            f"Each p is for one pair by itself: of {1 / _CERTAIN:.0f} pairs of equally good models about one has a p "
            f"below {_CERTAIN:.2g}."
        )
    return AccuracyTables(
        models_header=(
            "model",
            *shares,
            "signal to noise",
            "not finite",
        ),
        models=tuple(
            (
                model.name,
                *(_proportion(share(model)) for share in shares.values()),
                NOT_KNOWN
                if model is evaluation.models[0]
                else _decibels(model.snr_db, model.equal < evaluation.images),
                count(model.nonfinite),
            )
            for model in evaluation.models
        ),
        pairs_header=(
            "model",
            "against",
            "top-1 points",
            f"{CONFIDENCE} interval",
            "lost",
            "gained",
            "p",
            "images to show it",
        ),
        pairs=tuple(
            (
                pair.second,
                pair.first,
                _points(pair.points, pair, signed=True),
                f"{_points(pair.low, pair, signed=True)} to {_points(pair.high, pair, signed=True)}",
                count(pair.first_only),
                count(pair.second_only),
                f"{pair.p:.2g}",
                NOT_KNOWN if pair.images_needed is None else _about(pair.images_needed),
            )
            for pair in pairs
        ),
        sentences=tuple(sentences),
    )


def accuracy_document(
    evaluation: Evaluation, sites: Sequence[SiteSensitivity] = (), *, data: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of ``fusescope evaluate --json``: the data, the evaluation, and a row for each ranked site."""
    ranked = [asdict(site) for site in sites]
    return {**header("evaluate"), **evaluation_document(evaluation), "data": dict(data), "sensitivity": ranked}


def evaluation_document(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as part of a document, with a sentence for each pair."""
    sentences = map(verdict_sentence, evaluation.pairs)
    pairs = [{**asdict(pair), "sentence": words} for pair, words in zip(evaluation.pairs, sentences, strict=True)]
    return {**asdict(evaluation), "pairs": pairs}


def print_accuracy(evaluation: Evaluation, against: Collection[str] | None = None) -> None:
    """Print an evaluation: the models, their differences (see `accuracy_tables`), and how sure those are."""
    console, cells = plain_console(), accuracy_tables(evaluation, against)
    console.print(
        _terminal_table(
            cells.models_header,
            cells.models,
            title=f"{plural(evaluation.images, 'image')}, with {CONFIDENCE} intervals",
        )
    )
    if cells.pairs:
        title = "\nDifferences on the same images (McNemar's exact test)"
        console.print(_terminal_table(cells.pairs_header, cells.pairs, title=title, left=2))
    console.print()
    for words in cells.sentences:
        console.print(as_text(words))


def print_sensitivity(sites: Sequence[SiteSensitivity]) -> None:
    """Print the Quantize sites, the most sensitive first."""
    plain_console().print(
        _terminal_table(*sensitivity_cells(sites), title="\nSites quantized alone, the worst first", left=2)
    )


def accuracy_markdown(evaluation: Evaluation, against: Collection[str] | None = None) -> str:
    """Write an evaluation as Markdown: two tables (see `accuracy_tables`) and the sentences."""
    cells = accuracy_tables(evaluation, against)
    parts = [table(cells.models_header, [(code(name), *rest) for name, *rest in cells.models])]
    if cells.pairs:
        rows = [(code(second), code(first), *rest) for second, first, *rest in cells.pairs]
        parts.append(table(cells.pairs_header, rows, left=2))
    parts.append(bullets(map(text, cells.sentences)))
    return "\n\n".join(parts)


def sensitivity_cells(
    sites: Sequence[SiteSensitivity],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Shape the sites into the header and the rows of a table; the tensor and its readers come first."""
    few, every = f"signal to noise, {IMAGES_FOR_ALL} images", "all images"
    columns = ("tensor", "readers", few, every, "same class", "top-1 points", "p")
    tried = any(site.alone for site in sites)
    rows = []
    for site in sites:
        cells = [site.tensor, ", ".join(site.readers), _decibels(site.snr_db, bool(site.nonfinite))]
        if tried:
            cells += _alone(site)
        rows.append(tuple(cells))
    return columns if tried else columns[:3], tuple(rows)


def _alone(site: SiteSensitivity) -> tuple[str, ...]:
    model, difference = site.alone, site.difference
    if model is None:
        return (NOT_KNOWN,) * 4
    return (
        _decibels(model.snr_db, bool(model.nonfinite)),
        NOT_KNOWN if model.agreement is None else f"{model.agreement.percent:.2f} %",
        NOT_KNOWN if difference is None else _points(difference.points, difference, signed=True),
        NOT_KNOWN if difference is None else f"{difference.p:.2g}",
    )


_SHARES: Mapping[str, Callable[[ModelAccuracy], Proportion | None]] = {
    "top-1": lambda model: model.top1,
    "top-5": lambda model: model.top5,
    "same class as reference": lambda model: model.agreement,
}
"""The shares of a model, by the title of their column."""


def _terminal_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str, left: int = 1) -> Table:
    shown = plain_table(*header, title=title, left=left)
    for row in rows:
        shown.add_row(*map(as_text, row))
    return shown


def _proportion(share: Proportion | None) -> str:
    return NOT_KNOWN if share is None else f"{share.percent:.2f} % ({share.low:.1f} to {share.high:.1f})"


def _decibels(ratio: float | None, differs: bool) -> str:
    """A ratio; where there is none, nothing differs, or what differs is not finite."""
    return f"{ratio:.1f} dB" if ratio is not None else NOT_KNOWN if differs else "equal"


def _points(points: float, pair: PairedDifference, *, signed: bool = False) -> str:
    digits = 3 if pair.images >= _FINE_IMAGES else 2
    return f"{round(points, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def _share(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _about(images: int) -> str:
    """A number of images with two digits that say something."""
    digits = len(str(images)) - 2
    return count(images if digits <= 0 else round(images, -digits))
