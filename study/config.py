"""What a study is asked to do: a small TOML file, validated."""

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fusescope.graph.errors import UserError
from fusescope.profiler.gpus import gpu_named
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S, runtime_named
from fusescope.profiler.targets import check_target


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # strict: "3" and true are no numbers


class Variant(_Section):
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


class Build(_Section):
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


class StudyConfig(_Section):
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
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path, remedy="check the path") from error
    except ValueError as error:
        raise UserError(f"is not TOML: {error}", where=path, remedy="mend that line") from error
    try:
        config = StudyConfig.model_validate_json(json.dumps(document, default=str))  # strict JSON takes paths and lists
    except ValidationError as error:
        raise _first_complaint(error, path) from error
    model = path.parent / config.model
    if not model.is_file():
        raise UserError(f"its model {config.model} does not exist", where=path, remedy="give a path relative to it")
    if config.gpu:
        gpu_named(config.gpu)
    check_target(config.build.target, runtime_named(config.build.runtime).TARGETS, ())
    return config.model_copy(update={"model": model, "title": config.title or model.stem})


def _first_complaint(error: ValidationError, path: Path) -> UserError:
    complaints = error.errors()
    # An unknown key first: it may be the one that is missing, misspelt.
    complaint = next((each for each in complaints if each["type"] == "extra_forbidden"), complaints[0])
    place = complaint["loc"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if complaint["type"] == "extra_forbidden":
        known = _keys_beside(place)
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return UserError(f"unknown key {key!r}", where=path, remedy=f"{hint}known here are {', '.join(known)}")
    if complaint["type"] == "missing":
        return UserError(f"lacks the key {key!r}", where=path, remedy="add it")
    given = f", not {complaint['input']!r}" if isinstance(complaint["input"], (str, int, float)) else ""
    problem = complaint["msg"].removeprefix("Value error, ")
    return UserError(f"{key}: {problem}{given}", where=path, remedy="mend the value")


def _keys_beside(place: Sequence[int | str]) -> list[str]:
    sections: Mapping[str, type[Any]] = {"build": Build, "variant": Variant}
    section = sections.get(str(place[0]), StudyConfig) if len(place) > 1 else StudyConfig
    return list(section.model_fields)
