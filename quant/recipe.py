"""Recipes: what is quantized and how. A small TOML file, or the name of a built-in one."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from fusescope.graph.errors import UserError
from fusescope.graph.ops import WEIGHTED
from fusescope.graph.settings import Section, checked_settings, read_settings
from fusescope.quant.half import Dtype
from fusescope.quant.placement import Placement
from fusescope.quant.rewrite import Store
from fusescope.quant.scales import Granularity, format_named
from fusescope.quant.weighted import SHAPE_CLASSES

Method = Literal["max", "percentile", "entropy", "mse"]
"""How a range is found in what calibration sees of a tensor."""

_NOT_PLACING = frozenset({"name", "method"})


class Recipe(Section):
    """What is quantized and how."""

    name: str = ""
    """What to call it; the file's name if not given."""

    format: str = "fp8"
    """Number format: "fp8" or "int8"."""

    weights: Granularity = "per-channel"
    """One scale per output channel, or one per weight tensor."""

    method: Method = "max"
    """How calibration finds the ranges of activations."""

    placement: Placement = "conv-inputs"
    """Which tensors get Q/DQ pairs."""

    tensors: tuple[str, ...] = ()
    """For placement "explicit": names of tensors, or patterns."""

    ops: tuple[str, ...] = ("Conv",)
    """Operations to quantize: Conv, ConvTranspose, Gemm, MatMul."""

    keep: tuple[str, ...] = ()
    """Patterns of the names of convolutions and gemms that keep high precision."""

    keep_ops: tuple[str, ...] = ()
    """Operations that keep high precision; with placement "shared-skips" they read the tensor itself."""

    keep_shapes: tuple[str, ...] = ("stem",)
    """Shape classes of convolutions and gemms that keep high precision."""

    dtype: Dtype | None = None
    """High precision of all that is not quantized; as it is if not given."""

    store: Store = "folded"
    """Weights as 8-bit codes behind a Dequantize, or in high precision behind a Quantize and a Dequantize."""

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        try:
            return format_named(name).name
        except UserError as error:
            raise ValueError(f"{error.what}; {error.remedy}") from None

    @field_validator("ops")
    @classmethod
    def _weighted(cls, ops: tuple[str, ...]) -> tuple[str, ...]:
        return _all_in(ops, WEIGHTED)

    @field_validator("keep_shapes")
    @classmethod
    def _shape_classes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _all_in(names, SHAPE_CLASSES)

    def options(self) -> dict[str, Any]:
        """Return it as keywords of `fusescope.quant.insert.quantize`."""
        return self.model_dump(exclude=set(_NOT_PLACING))


def _all_in(names: tuple[str, ...], known: Any) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{hint}known are {', '.join(sorted(known))}")
    return names


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="study-fp8", dtype="fp16"),
        Recipe(name="study-fp8-per-tensor", dtype="fp16", weights="per-tensor"),
        Recipe(name="int8", format="int8"),
        Recipe(name="int8-per-tensor", format="int8", weights="per-tensor"),
    )
}
"""The built-in recipes, by name. `study-fp8` is that of the published HRNet study: every convolution but the stem in
FP8, weights per output channel, activations per tensor by max calibration, Dequantize to float16."""


def read_recipe(name_or_path: str) -> Recipe:
    """Return a built-in recipe, or read one from a TOML file.

    Raises:
        UserError: There is no such recipe or file, or the file does not fit.
    """
    if name_or_path in RECIPES:
        return RECIPES[name_or_path]
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.is_file():
        near = get_close_matches(name_or_path, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        remedy = f"{hint}built in are {', '.join(RECIPES)}; or give a TOML file"
        raise UserError("no recipe has this name", where=name_or_path, remedy=remedy)
    recipe = read_settings(path, Recipe)
    return recipe if recipe.name else recipe.model_copy(update={"name": path.stem})


def changed(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some of its settings replaced.

    Raises:
        UserError: A value does not fit.
    """
    return checked_settings({**recipe.model_dump(), **options}, Recipe, "the recipe")
