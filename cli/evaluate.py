"""``fusescope evaluate``."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusescope.cli.data_options import DataOptions, data_options, say_unreadable
from fusescope.cli.options import FILE, json_option, print_json, say
from fusescope.cli.progress import progress_bar
from fusescope.graph.errors import UserError
from fusescope.graph.units import plural

if TYPE_CHECKING:
    import onnx

    from fusescope.quant.data import Batch, Dataset
    from fusescope.quant.evaluate import Evaluation
    from fusescope.quant.ort import InputSpec, Runner
    from fusescope.quant.sensitivity import SiteSensitivity


@click.command()
@click.argument("reference", type=FILE)
@click.argument("variants", type=FILE, nargs=-1)
@data_options(required=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Images that are run at once.")
@click.option(
    "--sensitivity",
    type=click.IntRange(1),
    metavar="N",
    help="Rank the first variant's Quantize sites and evaluate the N worst.",
)
@click.option("--reference-model", metavar="MODEL", help="Hold all files against this torch model in fp32.")
@click.option("--pretrained", is_flag=True, help="The torch model has timm's trained weights.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of these.")
@click.option("--weights", type=FILE, help="The torch model has the weights of this file.")
@json_option
def command(
    reference: Path,
    variants: tuple[Path, ...],
    data: DataOptions,
    batch: int,
    sensitivity: int | None,
    reference_model: str | None,
    pretrained: bool,
    revision: str | None,
    weights: Path | None,
    as_json: bool,
) -> None:
    """Hold VARIANTS of a model against REFERENCE, all of them ONNX files, on the same images.

    Top-1, agreement and signal-to-noise come with how sure they are: each two models are compared by the images
    that only one of them gets right. ONNX files run in ONNX Runtime on the CPU, with exact 8-bit arithmetic. Images
    that a variant was calibrated on are left out where its metadata tell.

    The reference can be a torch model, a timm name or `module:callable`, given as `--reference-model` with its
    weights; REFERENCE is then the first of the variants.
    """
    if not (variants or reference_model):
        raise click.UsageError("give a reference and at least one variant")
    if sensitivity and not variants:
        raise click.UsageError("--sensitivity needs REFERENCE, as an ONNX file, and a variant")
    if reference_model is None and (pretrained or revision or weights):
        raise click.UsageError("--pretrained, --revision and --weights are of --reference-model")
    from fusescope.quant.ort import signature
    from fusescope.quant.overlap import held_out
    from fusescope.report.accuracy import accuracy_document, print_accuracy, print_sensitivity

    started = time.monotonic()
    models = _models([reference, *variants])
    first = next(iter(models.values()))
    dataset, notes = held_out(replace(data, images=None).open(first, "held out"), models)
    if data.images is not None:
        dataset = dataset.take(data.images)
    runners = _runners(models)
    if reference_model is not None:
        loaded = _torch_model(reference_model, signature(first), pretrained, revision, weights)
        runners = {f"{reference_model} (torch)": loaded, **runners}
    say(f"running {plural(len(models), 'ONNX model')} on {plural(dataset.size, 'image')}, in ONNX Runtime on the CPU")
    found = _evaluated(runners, dataset.batches(batch, signature(first)), dataset.size)
    found = replace(found, notes=(*_other_outputs(models), *notes, *found.notes))
    ranked = _ranked(models, dataset, batch, sensitivity) if sensitivity is not None else ()
    say_unreadable(dataset)
    say(f"took {time.monotonic() - started:.0f} s")
    if as_json:
        print_json(accuracy_document(found, ranked, data=dataset.describe()))
        return
    print_accuracy(found)
    if ranked:
        print_sensitivity(ranked)


def _models(paths: Sequence[Path]) -> "Mapping[str, onnx.ModelProto]":
    """Read the models, the reference first, by name: the file's, or the path where two files have one name."""
    from fusescope.graph.external import load_with_weights
    from fusescope.graph.structure import is_structure_only

    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError("is given twice", where=twice[0], remedy="name each model once")
    models = {name: load_with_weights(path) for name, path in zip(names, paths, strict=True)}
    for name, proto in models.items():
        if is_structure_only(proto):
            remedy = "give the model with its weights"
            raise UserError("is structure-only and has no accuracy", where=name, remedy=remedy)
    return models


def _runners(models: "Mapping[str, onnx.ModelProto]") -> "dict[str, Runner]":
    from fusescope.quant.ort import onnx_runner

    return {name: onnx_runner(proto, name=name) for name, proto in models.items()}


def _torch_model(
    model: str, inputs: "Sequence[InputSpec]", pretrained: bool, revision: str | None, weights: Path | None
) -> "Runner":
    """Make a torch model for the inputs of an ONNX model: seeded weights depend on the size of an image."""
    from fusescope.quant.device import device, device_name
    from fusescope.quant.export import load_model
    from fusescope.quant.torch_runner import torch_runner

    sizes = [extent for extent in inputs[0].shape[1:] if isinstance(extent, int)]
    shape = tuple(sizes) if len(sizes) == len(inputs[0].shape) - 1 else None
    loaded = load_model(model, shape=shape, pretrained=pretrained, revision=revision, weights=weights)
    say(f"running {model} in torch on {device_name(device())}; its weights: {loaded.origin}")
    return torch_runner(loaded.net)


def _evaluated(runners: "Mapping[str, Runner]", batches: "Iterable[Batch]", images: int) -> "Evaluation":
    """Evaluate models of which the first is the reference."""
    from fusescope.quant.evaluate import evaluate

    name, *variants = runners
    with progress_bar("evaluating", images) as progress:
        return evaluate(
            runners[name],
            {variant: runners[variant] for variant in variants},
            batches,
            reference_name=name,
            progress=progress,
        )


def _ranked(
    models: "Mapping[str, onnx.ModelProto]", dataset: "Dataset", batch: int, tried: int
) -> "Sequence[SiteSensitivity]":
    from fusescope.quant.ort import signature
    from fusescope.quant.sensitivity import sensitivity

    reference, variant, *_ = models.values()
    inputs = signature(reference)
    with progress_bar("quantizing sites one by one", None) as progress:
        return sensitivity(reference, variant, lambda: dataset.batches(batch, inputs), exact=tried, progress=progress)


def _other_outputs(models: "Mapping[str, onnx.ModelProto]") -> list[str]:
    """Say which models have outputs that are not looked at."""
    return [
        f"{name} has {len(proto.graph.output)} outputs: only the first, {proto.graph.output[0].name}, was compared."
        for name, proto in models.items()
        if len(proto.graph.output) > 1
    ]
