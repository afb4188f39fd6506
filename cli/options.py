"""What several commands share: options, printing JSON, saying what was done."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusescope.graph.units import printable
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S

if TYPE_CHECKING:
    from fusescope.graph.names import Renamed

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
"""A path; what is wrong with it is said by the reader, which knows more than click."""


class ShapeType(click.ParamType[tuple[str, tuple[int, ...]]]):
    """``NAME=1x3x224x224``."""

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        """Split at the last ``=``, since input names may hold one."""
        name, equals, sizes = str(value).rpartition("=")
        parts = sizes.lower().split("x")
        if not (name and equals and all(part.isdecimal() for part in parts)):
            self.fail(f"{value!r} is not of the form x=1x3x224x224", param, ctx)
        return name, tuple(int(part) for part in parts)


class PositiveFloat(click.FloatRange):
    """A number above zero and up to a limit; ``nan``, which no comparison refuses, is none."""

    def __init__(self, largest: float) -> None:
        super().__init__(0, largest, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to a float within the range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Seconds(PositiveFloat):
    """How long a compiler may take."""

    def __init__(self) -> None:
        super().__init__(LONGEST_TIMEOUT_S)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
force_option = click.option("--force", is_flag=True, help="Replace an output that exists.")
half_option = click.option(
    "--dtype", type=click.Choice(["fp16"]), help="Convert a float32 model to this first; as it is by default."
)
gpu_option = click.option("--gpu", metavar="NAME", help="Give floors for this GPU, such as RTX-5090.")


def build_options(function: F) -> F:
    """What a builder can be told."""
    options = (
        click.option("--runtime", default="tensorrt-rtx", show_default=True, help="Which TensorRT compiles."),
        click.option("--target", default="sm120", show_default=True, help="What to compile for, such as sm89."),
        click.option("--opt-level", type=click.IntRange(0, 5), help="Builder optimization level."),
        click.option("--aux-streams", type=click.IntRange(0), help="Most auxiliary streams; 0 for a single stream."),
        click.option("--avg-timing-iterations", type=click.IntRange(1), help="Timings to average per tactic."),
        click.option("--workspace", type=click.IntRange(1), metavar="MIB", help="Workspace limit in MiB."),
        click.option(
            "--timeout",
            type=Seconds(),
            default=DEFAULT_TIMEOUT_S,
            show_default=True,
            metavar="SECONDS",
            help="End the compiler after this long.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def dumps(document: Mapping[str, Any]) -> str:
    """A document as JSON text, in ASCII. A number that JSON lacks (NaN) is a defect and raises ValueError."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document to stdout."""
    click.echo(dumps(document), nl=False)


def say(message: str) -> None:
    """Say what was done or is being done, in one line on stderr."""
    click.echo(printable(message), err=True)


def say_renamed(renamed: "Sequence[Renamed]") -> None:
    """Say which nodes go by another name than in the file: the first by name, the others by their number."""
    if renamed:
        more = f" and {len(renamed) - 1} more" if len(renamed) > 1 else ""
        say(f"renamed node {renamed[0].old!r} to {renamed[0].new!r}{more}")
