"""``fusescope evaluate``."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusescope.cli.data_options import DataOptions, data_options, say_unreadable
from fusescope.cli.options import FILE, json_option, print_json, say
from fusescope.cli.progress import progress_bar
from fusescope.graph.errors import UserError

if TYPE_CHECKING:
    import onnx

    from fusescope.quant.data import Dataset
    from fusescope.quant.evaluate import Evaluation
    from fusescope.quant.sensitivity import SiteSensitivity


@click.command()
@click.argument("reference", type=FILE)
@click.argument("variants", type=FILE, nargs=-1, required=True)
@data_options(required=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Images that are run at once.")
@click.option(
    "--sensitivity",
    type=click.IntRange(1),
    metavar="N",
    help="Rank the first variant's Quantize sites and evaluate the N worst.",
)
@json_option
def command(
    reference: Path,
    variants: tuple[Path, ...],
    data: DataOptions,
    batch: int,
    sensitivity: int | None,
    as_json: bool,
) -> None:
    """Hold VARIANTS of a model against REFERENCE, all of them ONNX files, on the same images.

    Top-1, agreement and signal-to-noise come with how sure they are: each two models are compared by the images
    that only one of them gets right. Everything runs in ONNX Runtime on the CPU, with exact 8-bit arithmetic. Images
    that a variant was calibrated on are left out where its metadata tell.
    """
    from fusescope.quant.overlap import held_out
    from fusescope.report.accuracy import accuracy_document, print_accuracy, print_sensitivity

    started = time.monotonic()
    models = _models([reference, *variants])
    first = next(iter(models.values()))
    dataset, notes = held_out(replace(data, images=None).open(first, "held out"), models)
    if data.images is not None:
        dataset = dataset.take(data.images)
    say(f"running {len(models)} models on {dataset.size} images, in ONNX Runtime on the CPU")
    found = _evaluated(models, dataset, batch)
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


def _evaluated(models: "Mapping[str, onnx.ModelProto]", dataset: "Dataset", batch: int) -> "Evaluation":
    from fusescope.quant.evaluate import evaluate
    from fusescope.quant.ort import onnx_runner, signature

    name, *variants = models
    runners = {each: onnx_runner(proto, name=each) for each, proto in models.items()}
    with progress_bar("evaluating", dataset.size) as progress:
        return evaluate(
            runners[name],
            {variant: runners[variant] for variant in variants},
            dataset.batches(batch, signature(models[name])),
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
