"""Which Quantize sites cost most accuracy: `sensitivity`.

What matters is what the whole network makes of a site's noise, and no figure of the site itself tells that: in FP8 all
sites have nearly the same noise, and the network passes it on with gains that differ manyfold. So every site is
quantized alone, its tensor and the weights of its readers, but on a few images only, the same for all: the
signal-to-noise ratio of the outputs shows there which sites are worst. One model does that, in which each image of a
batch says which site it wants. Top-1 needs many images, so only the worst sites then run on all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray

from fusescope.graph.errors import UserError
from fusescope.quant.evaluate import ModelAccuracy, PairedDifference, decibels, evaluate
from fusescope.quant.grafts import SWITCHES, Grafter

if TYPE_CHECKING:
    from fusescope.quant.data import Batch
    from fusescope.quant.ort import Runner

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
    """The model with only this site quantized, on all images; None where that was not run."""
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
        progress: Called with the number of images that are done, whatever they went through.

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
    quick = _on_few(run, onnx_runner(grafter.switchable()), len(grafter.sites), batches(), progress)
    order = sorted(range(len(quick)), key=lambda site: quick[site].badness)
    tried = {str(site): onnx_runner(grafter.alone(grafter.sites[site])) for site in order[:exact]}
    found: dict[str, ModelAccuracy] = {}
    differences: dict[str, PairedDifference] = {}
    if tried:
        done = evaluate(run, tried, batches(), reference_name=_REFERENCE, progress=progress)
        found = {model.name: model for model in done.models}
        differences = {pair.second: pair for pair in done.pairs if pair.first == _REFERENCE}
    return tuple(
        SiteSensitivity(
            tensor=grafter.sites[site].tensor,
            readers=grafter.sites[site].readers,
            snr_db=decibels(quick[site].signal, quick[site].noise),
            nonfinite=quick[site].nonfinite,
            alone=found.get(str(site)),
            difference=differences.get(str(site)),
        )
        for site in order
    )


@dataclass(slots=True)
class _Powers:
    """What a site does to the outputs of the images seen so far."""

    signal: float = 0.0
    noise: float = 0.0
    nonfinite: int = 0

    @property
    def badness(self) -> tuple[int, float]:
        """Sorts the worst first: what breaks outputs, then what changes them most."""
        return -self.nonfinite, -self.noise / self.signal if self.signal else 0.0

    def add(self, exact: NDArray[np.float64], found: NDArray[np.float64]) -> None:
        """Take in one image's outputs."""
        if np.isfinite(found).all() and np.isfinite(exact).all():
            self.signal += float(np.square(exact).sum())
            self.noise += float(np.square(found - exact).sum())
        else:
            self.nonfinite += 1


def _on_few(
    exact: "Runner",
    switchable: "Runner",
    sites: int,
    batches: "Iterable[Batch]",
    progress: Callable[[int], None] | None,
) -> list[_Powers]:
    """Run every site alone on the first images, which go through the switchable model once per site."""
    found = [_Powers() for _ in range(sites)]
    batch = next(iter(batches), None)
    if batch is None:
        raise UserError("there is no image to evaluate", remedy="check --data and --images")
    size = len(next(iter(batch.inputs.values())))
    for image in range(min(size, IMAGES_FOR_ALL)):
        (expected,) = _outputs(exact, _repeated(batch.inputs, image, 1), 1)
        for first in range(0, sites, size):
            chosen = range(first, min(first + size, sites))
            inputs = _repeated(batch.inputs, image, len(chosen))
            switches = np.eye(sites, dtype=np.float32)[chosen.start : chosen.stop]
            for site, outputs in zip(
                chosen, _outputs(switchable, {**inputs, SWITCHES: switches}, len(chosen)), strict=True
            ):
                found[site].add(expected, outputs)
        if progress is not None:
            progress(1)
    return found


def _repeated(inputs: Mapping[str, NDArray[np.generic]], image: int, times: int) -> dict[str, NDArray[np.generic]]:
    return {name: np.repeat(values[image : image + 1], times, axis=0) for name, values in inputs.items()}


def _outputs(run: "Runner", inputs: Mapping[str, NDArray[np.generic]], images: int) -> NDArray[np.float64]:
    """Return a row of outputs per image."""
    outputs = np.asarray(run(inputs)).astype(np.float64)
    if outputs.shape[:1] != (images,):
        raise UserError(
            f"gives outputs of shape {list(outputs.shape)} for {images} images: not a row for each",
            where="the reference",
            remedy="evaluate it without --sensitivity",
        )
    return outputs.reshape(images, -1)
