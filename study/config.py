"""What a study is asked to do: a small TOML file, validated."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from fusescope.graph.errors import UserError
from fusescope.graph.settings import Section, read_settings
from fusescope.profiler.gpus import gpu_named
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S, runtime_named
from fusescope.profiler.targets import check_target


class Variant(Section):
    """One way of quantizing the model."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """What to call it; part of file names."""

    format: Literal["fp8", "int8"] = "fp8"
    """Number format."""

    placement: Literal["conv-inputs"] = "conv-inputs"
    """Which tensors get Q/DQ pairs."""

    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    """One scale per output channel, or one per weight tensor."""

    keep: tuple[str, ...] = ()
    """Patterns of convolutions to keep in high precision."""


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

    gpu: str = ""
    """GPU to give floors for; none if not given."""

    build: Build = Build()
    """What the builder is told."""

    variant: tuple[Variant, ...] = Field(min_length=1)
    """Ways of quantizing, each an ``[[variant]]`` section."""

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
    return config.model_copy(update={"model": model, "title": config.title or model.stem})
