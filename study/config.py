"""What a study is asked to do: a small TOML file, validated."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from fusescope.graph.errors import UserError
from fusescope.graph.settings import Section, read_settings
from fusescope.profiler.gpus import gpu_named
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S, runtime_named
from fusescope.profiler.targets import check_target
from fusescope.quant.recipe import RECIPES, Recipe, read_recipe


class Variant(Recipe):
    """One way of quantizing the model: a recipe, or what differs from one."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """What to call it; part of file names."""

    recipe: str = ""
    """A built-in recipe, or a recipe's TOML file relative to the study's; the other keys replace its settings."""

    def options(self) -> dict[str, Any]:
        """Return it as keywords of `fusescope.quant.insert.quantize`."""
        return {key: value for key, value in super().options().items() if key != "recipe"}

    def resolved(self, folder: Path) -> "Variant":
        """Return it with the settings of its recipe, which lies in `folder` if it is a file."""
        if not self.recipe:
            return self
        base = read_recipe(self.recipe if self.recipe in RECIPES else str(folder / self.recipe))
        own = self.model_dump(include=self.model_fields_set)
        return Variant.model_validate({**base.model_dump(), **own})


class Data(Section):
    """Images to calibrate with and to evaluate on."""

    path: str | tuple[str, ...]
    """Image folders, tar shards or npz arrays, relative to the TOML file."""

    every: int = Field(default=1, ge=1)
    """Take every n-th image of each folder, shard or file."""

    calibration_every: int = Field(default=4, ge=2)
    """Every k-th of these calibrates; the others are held out to evaluate on."""

    seed: int = 0
    """Of the shuffles of both parts."""

    calibration_images: int | None = Field(default=None, ge=1)
    """Images to calibrate with; all of their part if not given."""

    images: int | None = Field(default=None, ge=1)
    """Images to evaluate on; all of their part if not given."""

    preprocessing: str = ""
    """A timm model's name; what the ONNX file says if not given."""

    evaluate: bool = True
    """Whether to evaluate all engines' models."""


class Build(Section):
    """What the builder is told."""

    runtime: Literal["tensorrt-rtx"] = "tensorrt-rtx"
    """Which TensorRT compiles."""

    target: str = "sm120"
    """What to compile for."""

    opt_level: int | None = Field(default=None, ge=0, le=5)
    """Builder optimization level; the runtime's default if not given."""

    aux_streams: int | None = Field(default=None, ge=0)
    """Most auxiliary streams; the runtime's default if not given."""

    avg_timing_iterations: int | None = Field(default=None, ge=1)
    """Timings to average per tactic; the runtime's default if not given."""

    workspace_mib: int | None = Field(default=None, ge=1)
    """Workspace limit in MiB; the runtime's default if not given."""

    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0, le=LONGEST_TIMEOUT_S)
    """Seconds after which a compiler is ended."""


class StudyConfig(Section):
    """A study's TOML file."""

    model: Path
    """ONNX file of the unquantized model, relative to the TOML file."""

    dtype: Literal["fp16"] | None = None
    """Convert a float32 model to this first; the model as it is if not given."""

    title: str = ""
    """Title of the report; the model's name if not given."""

    batches: tuple[int, ...] = Field(default=(1,), min_length=1)
    """Batch sizes to compile."""

    data: Data | None = None
    """Images; without them scales are placeholders, and nothing is said of accuracy."""

    remedies: Literal["", "try"] = ""
    """"try": build the remedies too that the findings propose, and say what came of each."""

    gpu: str = ""
    """GPU to give floors for; none if not given."""

    build: Build = Build()
    """What the builder is told."""

    variant: tuple[Variant, ...] = Field(min_length=1)
    """Ways of quantizing, each an ``[[variant]]`` section."""

    @property
    def evaluates(self) -> bool:
        """Whether models are evaluated."""
        return self.data is not None and self.data.evaluate

    @field_validator("batches")
    @classmethod
    def _positive(cls, batches: tuple[int, ...]) -> tuple[int, ...]:
        if min(batches) < 1 or len(set(batches)) < len(batches):
            raise ValueError("batches must be positive and different from each other")
        return batches

    @field_validator("variant")
    @classmethod
    def _distinct(cls, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
        if len({variant.name.casefold() for variant in variants}) < len(variants):  # they name folders
            raise ValueError("two variants have the same name")
        return variants


def read_config(path: Path) -> StudyConfig:
    """Read a study's TOML file.

    Raises:
        UserError: It cannot be read, is no TOML, has an unknown key (with the nearest name) or a value that does not
            fit, names an unknown GPU or target, or its model does not exist.
    """
    config = read_settings(path, StudyConfig)
    model = path.parent / config.model
    if not model.is_file():
        raise UserError(f"its model {config.model} does not exist", where=path, remedy="give a path relative to it")
    if config.gpu:
        gpu_named(config.gpu)
    check_target(config.build.target, runtime_named(config.build.runtime).TARGETS, ())
    variants = tuple(variant.resolved(path.parent) for variant in config.variant)
    data = config.data and config.data.model_copy(update={"path": _beside(path, config.data.path)})
    found = {"model": model, "title": config.title or model.stem, "variant": variants, "data": data}
    return config.model_copy(update=found)


def _beside(path: Path, names: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(path.parent / name) for name in ((names,) if isinstance(names, str) else names))
