"""``fusescope quantize``."""

from pathlib import Path
from typing import Literal

import click

from fusescope.cli.options import FILE, force_option, half_option, json_option, print_json, say
from fusescope.graph.units import printable
from fusescope.report.documents import header


@click.command()
@click.argument("model", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="ONNX file to write.")
@click.option(
    "--format",
    "number_format",
    type=click.Choice(["fp8", "int8"]),
    default="fp8",
    show_default=True,
    help="Number format.",
)
@click.option(
    "--placement",
    type=click.Choice(["conv-inputs"]),
    default="conv-inputs",
    show_default=True,
    help="Which tensors get Q/DQ pairs.",
)
@click.option(
    "--weights",
    type=click.Choice(["per-channel", "per-tensor"]),
    default="per-channel",
    show_default=True,
    help="One scale per output channel, or one per weight tensor.",
)
@click.option("--keep", multiple=True, metavar="PATTERN", help="Keep matching convolutions in high precision.")
@half_option
@force_option
@json_option
def command(
    model: Path,
    output: Path,
    number_format: str,
    placement: Literal["conv-inputs"],
    weights: Literal["per-channel", "per-tensor"],
    keep: tuple[str, ...],
    dtype: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Put Quantize/Dequantize pairs into MODEL, an ONNX file.

    Each activation tensor gets one pair that all its quantized readers share; weights are stored in 8 bits. The
    stem (up to 3 input channels) and the classifier stay in high precision. Without calibration the activation
    scales are placeholders, and the model says so. A structure-only model gives a structure-only model.
    """
    from fusescope.graph.files import refuse_existing, write_bytes
    from fusescope.graph.model import load_proto
    from fusescope.quant.half import to_half
    from fusescope.quant.insert import quantize

    refuse_existing(output, force=force)
    proto = load_proto(model)
    result = quantize(
        to_half(proto) if dtype else proto,
        format=number_format,
        placement=placement,
        weights=weights,
        keep=keep,
        folder=model.parent,
        name=model.name,
    )
    write_bytes(output, result.proto.SerializeToString())
    total = len(result.quantized) + len(result.kept)
    if as_json:
        print_json(
            {
                **header("quantize"),
                "output": str(output),
                "quantized": result.quantized,
                "kept": [{"node": node, "reason": reason} for node, reason in result.kept.items()],
                "tensors": result.tensors,
                "uncalibrated": result.uncalibrated,
                "zero_channels": dict(result.zero_channels),
            }
        )
    else:
        click.echo(
            f"{len(result.quantized)} of {total} convolutions in {number_format.upper()}, "
            f"{len(result.tensors)} Q/DQ pairs on activations"
        )
        for node, reason in result.kept.items():
            click.echo(printable(f"kept {node}: {reason}"))
    if result.uncalibrated:
        say("the activation scales are placeholders: not calibrated")
    say(f"wrote {output}")
