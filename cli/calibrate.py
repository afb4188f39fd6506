"""``fusescope calibrate``."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusescope.cli.data_options import DataOptions, data_options, say_unreadable
from fusescope.cli.options import FILE, PositiveFloat, force_option, json_option, print_json, say
from fusescope.cli.progress import progress_bar
from fusescope.graph.units import plural, printable
from fusescope.report.documents import header

if TYPE_CHECKING:
    import onnx

    from fusescope.quant.data import Dataset
    from fusescope.quant.ranges import Ranges
    from fusescope.quant.recipe import Method

METHODS = ("max", "percentile", "entropy", "mse")
"""The names that `fusescope.quant.recipe.Method` knows, typed here so that --help is instant."""

BATCH = 8
"""Images that are run at once, where the model takes any number."""


@dataclass(frozen=True, slots=True)
class TorchModel:
    """The torch model that an ONNX model was exported from."""

    name: str
    """A timm name, or `module:callable`."""
    pretrained: bool
    """Whether it has timm's trained weights."""
    revision: str | None
    """Which revision of them."""
    weights: Path | None
    """A checkpoint instead."""


@click.command()
@click.argument("model", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="Scale file (JSON) to write.")
@data_options(required=True)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="max",
    show_default=True,
    help="How a range is found in the values of a tensor.",
)
@click.option(
    "--percentile",
    type=PositiveFloat(100),
    metavar="P",
    help="Percent of the values that --method percentile keeps; 99.99 by default.",
)
@click.option(
    "--format",
    "number_format",
    type=click.Choice(["fp8", "int8"]),
    default="fp8",
    show_default=True,
    help="Number format that mse and entropy fit.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="PATTERN",
    help="Look at matching tensors too; by default at all that convolutions, gemms and sums read.",
)
@click.option("--batch", type=click.IntRange(1), default=BATCH, show_default=True, help="Images that are run at once.")
@click.option(
    "--model",
    "torch_model",
    metavar="NAME",
    help="Calibrate this timm model, which MODEL was exported from, with nvidia-modelopt in torch.",
)
@click.option("--pretrained", is_flag=True, help="With --model: take timm's trained weights from the hub.")
@click.option("--revision", metavar="NAME", help="With --pretrained: branch, tag or commit of them.")
@click.option("--weights", type=FILE, help="With --model: take the weights from this file.")
@force_option
@json_option
def command(
    model: Path,
    output: Path,
    data: DataOptions,
    method: "Method",
    percentile: float | None,
    number_format: str,
    tensors: tuple[str, ...],
    batch: int,
    torch_model: str | None,
    pretrained: bool,
    revision: str | None,
    weights: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Find the ranges of MODEL's activations, an ONNX file in high precision, for `fusescope quantize --scales`.

    It runs in ONNX Runtime on the CPU, or with --model in torch, on the GPU if there is one. A tensor whose range is
    zero, NaN or infinite is named, and what reads it is left unquantized.
    """
    from fusescope.graph.external import load_with_weights
    from fusescope.graph.files import refuse_existing
    from fusescope.quant.ranges import write_ranges

    if percentile is not None and method != "percentile":
        raise click.UsageError("--percentile is of --method percentile")
    if torch_model is None and (pretrained or revision or weights):
        raise click.UsageError("--pretrained, --revision and --weights are of --model")
    if torch_model is not None and method != "max":
        raise click.UsageError("--model calibrates with --method max, as ModelOpt's default is")
    if torch_model is not None and tensors:
        raise click.UsageError("--tensor is of calibration in ONNX Runtime: --model looks at what its layers read")
    refuse_existing(output, force=force)
    proto = load_with_weights(model)
    started = time.monotonic()
    if torch_model is None:
        found = calibrated(
            proto,
            data,
            tensors=tensors,
            method=method,
            percentile=percentile,
            number_format=number_format,
            batch=batch,
            name=model.name,
        )
    else:
        origin = TorchModel(torch_model, pretrained, revision, weights)
        found = _with_modelopt(proto, origin, data, number_format=number_format, batch=batch, name=model.name)
    seconds = time.monotonic() - started
    write_ranges(output, found)
    if as_json:
        print_json({**header("calibrate"), "output": str(output), "seconds": seconds, **_summary(found)})
    else:
        seen, images = plural(len(found.amax), "tensor"), plural(found.images, "image")
        click.echo(f"{seen}: {found.method} over {images}")
        for tensor, why in found.unusable.items():
            click.echo(printable(f"unusable {tensor}: {why}"))
    say(f"wrote {output}")


def calibrated(
    proto: "onnx.ModelProto",
    data: DataOptions,
    *,
    tensors: Iterable[str] = (),
    method: "Method",
    number_format: str,
    percentile: float | None = None,
    batch: int = BATCH,
    name: str,
) -> "Ranges":
    """Calibrate an ONNX model in ONNX Runtime, and say what is done and how long it took.

    Args:
        proto: The model with its weights.
        data: Which images.
        tensors: Names or patterns of tensors to look at besides those that convolutions, gemms and sums read.
        method: How a range is found.
        number_format: What `mse` and `entropy` fit.
        percentile: For the method of this name.
        batch: Images that are run at once.
        name: What to call the model in messages.
    """
    from fusescope.graph.model import graph_of
    from fusescope.quant.calibrate import PERCENTILE, calibrate
    from fusescope.quant.ort import signature
    from fusescope.quant.placement import calibration_tensors

    dataset = _opened(proto, data, "in ONNX Runtime on the CPU")
    started = time.monotonic()
    with progress_bar("calibrating", dataset.size) as progress:
        found = calibrate(
            proto,
            dataset.batches(batch, signature(proto)),
            tensors=calibration_tensors(graph_of(proto), tensors),
            method=method,
            percentile=PERCENTILE if percentile is None else percentile,
            format=number_format,
            progress=progress,
            name=name,
        )
    return _told(found, dataset, started)


def _with_modelopt(
    proto: "onnx.ModelProto", origin: TorchModel, data: DataOptions, *, number_format: str, batch: int, name: str
) -> "Ranges":
    """Calibrate the torch model that an ONNX model was exported from."""
    from fusescope.quant.calibrate_torch import calibrate_torch
    from fusescope.quant.device import device, device_name
    from fusescope.quant.export import load_model
    from fusescope.quant.ort import signature

    inputs = signature(proto)
    shape = tuple(extent for extent in inputs[0].shape[1:] if isinstance(extent, int))
    net = load_model(
        origin.name,
        shape=shape if len(shape) == len(inputs[0].shape) - 1 else None,
        pretrained=origin.pretrained,
        revision=origin.revision,
        weights=origin.weights,
    ).net
    dataset = _opened(proto, data, f"in torch on {device_name(device())}")
    started = time.monotonic()
    with progress_bar("calibrating", dataset.size) as progress:
        found = calibrate_torch(
            net, proto, dataset.batches(batch, inputs), format=number_format, progress=progress, name=name
        )
    return _told(found, dataset, started)


def _opened(proto: "onnx.ModelProto", data: DataOptions, where: str) -> "Dataset":
    """Open the images, and say what will be done with them."""
    from fusescope.graph.structure import WEIGHTS

    dataset = data.open(proto, "calibration")
    say(f"calibrating on {plural(dataset.size, 'image')}, {where}")
    origin = next((entry.value for entry in proto.metadata_props if entry.key == WEIGHTS), "")
    if origin.startswith("seeded"):
        say(f"its weights are {origin}: the ranges are not those of a trained model")
    return dataset


def _told(found: "Ranges", dataset: "Dataset", started: float) -> "Ranges":
    """Say what happened, and return the ranges with what the images are."""
    say_unreadable(dataset)
    say(f"calibrating took {time.monotonic() - started:.1f} s")
    return replace(found, data=dataset.describe())


def _summary(found: "Ranges") -> dict[str, object]:
    return {
        "tensors": len(found.amax),
        "unusable": dict(found.unusable),
        "method": found.method,
        "images": found.images,
        "data": dict(found.data),
        "tool": found.tool,
    }
