"""``fusescope export``."""

from pathlib import Path

import click

from fusescope.cli.options import FILE, force_option, say


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=FILE, required=True, help="ONNX file to write.")
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "fp16"]),
    default="fp32",
    show_default=True,
    help="Element type of weights and activations.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Batch size.")
@click.option("--image-size", type=click.IntRange(1), help="Height and width; the model's own by default.")
@click.option("--pretrained", is_flag=True, help="Take timm's trained weights from the hub.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of the trained weights.")
@click.option("--weights", type=FILE, help="Take the weights from this file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random weights and statistics.")
@click.option("--strip-weights", is_flag=True, help="Write a structure-only file: small, no values.")
@force_option
def command(
    model: str,
    output: Path,
    dtype: str,
    batch: int,
    image_size: int | None,
    pretrained: bool,
    revision: str | None,
    weights: Path | None,
    seed: int,
    strip_weights: bool,
    force: bool,
) -> None:
    """Export MODEL, a timm name or `module:callable`, to ONNX.

    BatchNorm is folded, nodes are named by their module path, the exporter's metadata is left out. Weights and
    BatchNorm statistics are seeded random unless `--pretrained` or `--weights` is given, so that the structure
    (every convolution with a bias) is that of the trained model. The file says where the weights come from, with
    the commit of trained ones, and how a timm model's images are prepared.
    """
    from fusescope.graph.files import refuse_existing, write_bytes
    from fusescope.graph.structure import strip
    from fusescope.quant.export import export

    refuse_existing(output, force=force)
    shape = None if image_size is None else (3, image_size, image_size)
    exported = export(
        model,
        dtype="float32" if dtype == "fp32" else "float16",
        batch=batch,
        shape=shape,
        pretrained=pretrained,
        revision=revision,
        weights=weights,
        seed=seed,
    )
    write_bytes(output, (strip(exported) if strip_weights else exported).SerializeToString())
    say(f"wrote {output}")
