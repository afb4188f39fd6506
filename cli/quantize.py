"""``fusescope quantize``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusescope.cli.calibrate import METHODS, calibrated
from fusescope.cli.data_options import DataOptions, data_options
from fusescope.cli.options import FILE, F, force_option, json_option, print_json, say
from fusescope.graph.units import plural, printable
from fusescope.report.documents import header

if TYPE_CHECKING:
    import onnx

    from fusescope.quant.insert import QuantizedModel
    from fusescope.quant.ranges import Ranges
    from fusescope.quant.recipe import Recipe

# The names that `fusescope.quant` knows, typed here so that --help is instant; a test holds them to it.
PLACEMENTS = ("conv-inputs", "shared-skips", "fusable-only", "modelopt", "explicit")
SHAPE_CLASSES = (
    "stem",
    "depthwise",
    "grouped",
    "small-channels",
    "unaligned-channels",
    "large-kernels",
    "classifier",
)
OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class FormatType(click.ParamType[str]):
    """``fp8`` or ``int8``; formats that no convolution has are refused with the reason."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Look the name up."""
        from fusescope.graph.errors import UserError
        from fusescope.quant.scales import format_named

        try:
            return format_named(value).name
        except UserError as error:
            self.fail(f"{error.what}; {error.remedy}", param, ctx)


def recipe_options(function: F) -> F:
    """What a recipe holds: one that is given replaces the recipe's."""
    options = (
        click.option(
            "--recipe", metavar="NAME|FILE", help="study-fp8, study-fp8-per-tensor, int8, int8-per-tensor or TOML."
        ),
        click.option("--format", type=FormatType(), metavar="[fp8|int8]", help="Number format; fp8 by default."),
        click.option(
            "--placement",
            type=click.Choice(PLACEMENTS),
            help="Which tensors get Q/DQ pairs; conv-inputs by default.",
        ),
        click.option(
            "--weights",
            type=click.Choice(["per-channel", "per-tensor"]),
            help="One scale per output channel, or one per weight tensor; per-channel by default.",
        ),
        click.option("--keep", multiple=True, metavar="PATTERN", help="Keep matching convolutions in high precision."),
        click.option("--keep-op", "keep_ops", multiple=True, metavar="OP", help="Keep operations in high precision."),
        click.option(
            "--keep-shape",
            "keep_shapes",
            multiple=True,
            type=click.Choice([*SHAPE_CLASSES, "none"]),
            help="Keep convolutions of a shape in high precision; stem by default.",
        ),
        click.option("--op", "ops", multiple=True, type=click.Choice(OPS), help="Quantize these; Conv by default."),
        click.option("--tensor", "tensors", multiple=True, metavar="PATTERN", help="With --placement explicit."),
        click.option(
            "--store",
            type=click.Choice(["folded", "qdq"]),
            help="Store weights in 8 bits, the default, or behind Q/DQ.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(["fp16", "bf16", "fp32"]),
            help="Convert the model to this high precision first; as it is by default.",
        ),
        click.option("--method", type=click.Choice(METHODS), help="With --data: how ranges are found; max by default."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("model", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="ONNX file to write.")
@recipe_options
@click.option("--scales", type=FILE, metavar="FILE", help="Ranges of the activations, of `fusescope calibrate`.")
@data_options(required=False)
@click.option("--verdicts", type=FILE, metavar="RUN", help="With --placement fusable-only: a run that says what fused.")
@click.option("--replace", is_flag=True, help="Take the Q/DQ nodes of a quantized MODEL out first.")
@force_option
@json_option
def command(
    model: Path,
    output: Path,
    recipe: str | None,
    scales: Path | None,
    data: DataOptions,
    verdicts: Path | None,
    replace: bool,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Put Quantize/Dequantize pairs into MODEL, an ONNX file.

    By default the inputs of all convolutions but the stem (up to 3 input channels) are quantized: each activation
    tensor gets one pair that all its quantized readers share, and weights are stored in 8 bits. A recipe says
    otherwise, and an option replaces what the recipe says. Ranges of the activations are from --scales, or from --data,
    which calibrates first. Without either the activation scales are placeholders, and the model says so. A
    structure-only model gives a structure-only model.
    """
    from fusescope.graph.external import load_with_weights
    from fusescope.graph.files import refuse_existing, write_bytes
    from fusescope.quant.insert import quantize
    from fusescope.quant.overlap import record_calibration
    from fusescope.quant.recipe import Recipe, changed, read_recipe

    if scales is not None and data.data:
        raise click.UsageError("--scales and --data exclude each other")
    if given["method"] and not data.data:
        raise click.UsageError("--method is of --data: a scale file has its own")
    refuse_existing(output, force=force)
    asked = changed(read_recipe(recipe) if recipe else Recipe(), _asked(given))
    _check_placement(asked, tensors=bool(given["tensors"]), verdicts=verdicts is not None)
    proto = load_with_weights(model)
    ranges = _ranges(proto, asked, scales, data, replace=replace, name=model.name)
    calibration: dict[str, Any] = {}
    if ranges is not None:
        calibration = {"amax": ranges.by_tensor(), "source": ranges.source()}
    result = quantize(
        proto,
        **asked.options(),
        **calibration,
        verdicts=None if verdicts is None else _verdicts(verdicts),
        replace_pairs=replace,
        name=model.name,
    )
    if ranges is not None:
        record_calibration(result.proto, ranges.data)
    write_bytes(output, result.proto.SerializeToString())
    if as_json:
        print_json(_document(output, result, ranges))
    else:
        _print(result, asked)
    if result.folded:
        say(f"folded into convolutions: {len(result.folded)} BatchNormalization")
    for note in result.notes:
        say(note)
    if result.uncalibrated:
        say("the activation scales are placeholders: not calibrated")
    say(f"wrote {output}")


def _check_placement(recipe: "Recipe", *, tensors: bool, verdicts: bool) -> None:
    """Refuse options that the placement would not look at."""
    if tensors and recipe.placement != "explicit":
        raise click.UsageError("--tensor is of --placement explicit")
    if verdicts and recipe.placement != "fusable-only":
        raise click.UsageError("--verdicts is of --placement fusable-only")


def _document(output: Path, result: "QuantizedModel", ranges: "Ranges | None") -> dict[str, Any]:
    return {
        **header("quantize"),
        "output": str(output),
        "quantized": result.quantized,
        "kept": [{"node": node, "reason": reason} for node, reason in result.kept.items()],
        "tensors": result.tensors,
        "uncalibrated": result.uncalibrated,
        "scales": None if ranges is None else ranges.source(),
        "zero_channels": dict(result.zero_channels),
        "folded": result.folded,
    }


def _print(result: "QuantizedModel", recipe: "Recipe") -> None:
    kind = ("convolution",) if set(recipe.ops) == {"Conv"} else ("convolution or gemm", "convolutions and gemms")
    click.echo(
        f"{len(result.quantized)} of {plural(len(result.quantized) + len(result.kept), *kind)} "
        f"in {recipe.format.upper()}, {plural(len(result.tensors), 'Q/DQ pair')} on activations"
    )
    for node, reason in result.kept.items():
        click.echo(printable(f"kept {node}: {reason}"))


def _ranges(
    proto: "onnx.ModelProto", recipe: "Recipe", scales: Path | None, data: DataOptions, *, replace: bool, name: str
) -> "Ranges | None":
    """Return the ranges that were given or that the images give; None without either."""
    from fusescope.quant.calibrate import model_hash
    from fusescope.quant.ranges import read_ranges
    from fusescope.quant.unquantize import quantizer_in, unquantized

    if scales is not None:
        ranges = read_ranges(scales)
        if ranges.model_sha256 != model_hash(proto):
            say(f"{scales} was made from another model than {name}, or from other weights")
        return ranges
    if not data.data:
        return None
    tensors: Iterable[str] = recipe.tensors
    if quantizer_in(proto) is not None and (replace or recipe.placement == "modelopt"):
        given = unquantized(proto)
        proto, tensors = given.proto, (*tensors, *given.reads)
    return calibrated(proto, data, tensors=tensors, method=recipe.method, number_format=recipe.format, name=name)


def _asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as settings of a recipe."""
    asked = {key: value for key, value in given.items() if value not in (None, ())}
    if "none" in asked.get("keep_shapes", ()):
        if len(asked["keep_shapes"]) > 1:
            raise click.UsageError("--keep-shape none excludes the others")
        asked["keep_shapes"] = ()
    return asked


def _verdicts(run: Path) -> dict[str, str]:
    """Read what became of each Quantize site in a run."""
    from fusescope.graph.sites import quantize_sites
    from fusescope.profiler.attribution import EngineView
    from fusescope.profiler.run import read_run
    from fusescope.profiler.verdicts import verdicts

    record = read_run(run)
    judged = verdicts(EngineView(record.engine, record.graph), quantize_sites(record.graph))
    return {verdict.site.tensor: verdict.verdict for verdict in judged}
