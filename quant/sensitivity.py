"""Which Quantize sites cost most accuracy: `sensitivity`.

What matters is what the whole network makes of a site's noise, and no figure of the site itself tells that: in FP8 all
sites have nearly the same noise, and the network passes it on with gains that differ manyfold. So every site is
quantized alone, its tensor and the weights of its readers, but on a few images only, the same for all: the
signal-to-noise ratio of the outputs shows there which sites are worst. Top-1 needs many images, so only the worst sites
then run on all of them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from fusescope.graph.errors import UserError
from fusescope.quant.evaluate import ModelAccuracy, PairedDifference, evaluate
from fusescope.quant.grafts import Grafter

if TYPE_CHECKING:
    from fusescope.quant.data import Batch

IMAGES_FOR_ALL = 4
"""Images on which every site is tried."""

_REFERENCE = "the reference"


@dataclass(frozen=True, slots=True)
class SiteSensitivity:
    """What quantizing one site alone does."""

    tensor: str
    """The activation tensor that is quantized."""
    readers: tuple[str, ...]
    """Names of the nodes that read it in 8 bits; the weights of a conv or gemm among them are quantized too."""
    snr_db: float | None
    """Power of the reference's outputs over that of the difference to them, in decibels, on a few images; None where
    there is no difference, and where an output is not finite."""
    nonfinite: int
    """How many of those images had a NaN or an infinity among the outputs."""
    alone: ModelAccuracy | None
    """The model with only this site quantized, on all images; None where that was not run. Its name means nothing."""
    difference: PairedDifference | None
    """That model against the reference in top-1; None as above and without labels."""


def sensitivity(
    reference: onnx.ModelProto,
    variant: onnx.ModelProto,
    batches: "Callable[[], Iterable[Batch]]",
    *,
    exact: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[SiteSensitivity, ...]:
    """Rank the Quantize sites of a quantized model.

    Args:
        reference: The model that it was made from, with its weights inside.
        variant: The quantized model, with its weights inside.
        batches: Gives the images; called once, and once more if `exact`.
        exact: For how many of the worst sites the model runs on all images.
        progress: Called with the number of images that were done: those of each site, then those of each batch.

    Returns:
        A row per site, the worst first.

    Raises:
        UserError: The reference is quantized or lacks a tensor of the variant, the variant quantizes no activation, or
            the images do not fit (as `fusescope.quant.evaluate.evaluate`).
    """
    from fusescope.quant.ort import onnx_runner

    grafter = Grafter(reference, variant)
    if not grafter.sites:
        raise UserError("quantizes no activation", where="the variant", remedy="give a quantized model")
    run = onnx_runner(reference)
    few = _first(batches(), IMAGES_FOR_ALL)
    exact_outputs = run(few.inputs)
    sites = []
    for site in grafter.sites:
        done = evaluate(lambda _: exact_outputs, {site.tensor: onnx_runner(grafter.alone(site))}, [few])
        sites.append((site, done.models[1]))
        if progress is not None:
            progress(done.images)
    sites.sort(key=lambda pair: (-pair[1].nonfinite, math.inf if pair[1].snr_db is None else pair[1].snr_db))
    worst = {str(place): onnx_runner(grafter.alone(site)) for place, (site, _) in enumerate(sites[:exact])}
    alone: dict[str, ModelAccuracy] = {}
    differences: dict[str, PairedDifference] = {}
    if worst:
        done = evaluate(run, worst, batches(), reference_name=_REFERENCE, progress=progress)
        alone = {model.name: model for model in done.models}
        differences = {pair.second: pair for pair in done.pairs if pair.first == _REFERENCE}
    return tuple(
        SiteSensitivity(
            tensor=site.tensor,
            readers=site.readers,
            snr_db=model.snr_db,
            nonfinite=model.nonfinite,
            alone=alone.get(str(place)),
            difference=differences.get(str(place)),
        )
        for place, (site, model) in enumerate(sites)
    )


def _first(batches: "Iterable[Batch]", images: int) -> "Batch":
    """Return the first images as one batch without labels."""
    taken: list[Batch] = []
    for batch in batches:
        taken.append(batch)
        if sum(_size(each) for each in taken) >= images:
            break
    if not taken:
        raise UserError("there is no image to evaluate", remedy="check --data and --images")
    inputs = {name: np.concatenate([batch.inputs[name] for batch in taken])[:images] for name in taken[0].inputs}
    return replace(taken[0], inputs=inputs, labels=None)


def _size(batch: "Batch") -> int:
    return len(next(iter(batch.inputs.values())))
