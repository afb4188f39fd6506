"""The options of commands that read images or arrays."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

from fusescope.cli.options import FILE, say
from fusescope.graph.units import plural

if TYPE_CHECKING:
    import onnx

    from fusescope.quant.data import Dataset
    from fusescope.quant.preprocessing import Preprocessing

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Which images or arrays a command is to use."""

    data: tuple[Path, ...]
    """Paths of image folders, shards or npz files; none if the command was given none."""
    every: int
    """Take every n-th item of each folder, shard or file."""
    calibration_every: int | None
    """Which of those calibrate; the others are held out. None: all of them do both."""
    seed: int
    """Of the shuffle of the two parts."""
    images: int | None
    """How many to use; None for all."""
    preprocessing: str | None
    """A timm model or a TOML file that says how images are prepared; None for what the model says."""

    def open(self, proto: "onnx.ModelProto", part: Literal["calibration", "held out"]) -> "Dataset":
        """Open the data for a model.

        Args:
            proto: The model, which may say how images are prepared for it.
            part: Which part to return if the data is split.

        Raises:
            UserError: There is no such data, it is damaged, or it is not known how to prepare it.
        """
        from fusescope.quant.data import open_data, split

        dataset = open_data(self.data, preprocessing=self._preprocessing(proto), every=self.every)
        if self.calibration_every is not None:
            calibration, held_out = split(dataset, every=self.calibration_every, seed=self.seed)
            dataset = calibration if part == "calibration" else held_out
        return dataset if self.images is None else dataset.take(self.images)

    def _preprocessing(self, proto: "onnx.ModelProto") -> "Preprocessing | None":
        from fusescope.graph.settings import read_settings
        from fusescope.quant.preprocessing import Preprocessing, preprocessing_of, timm_preprocessing

        if self.preprocessing is None:
            return preprocessing_of(proto)
        if self.preprocessing.endswith(".toml"):
            return read_settings(Path(self.preprocessing), Preprocessing)
        return timm_preprocessing(self.preprocessing)


def data_options(*, required: bool) -> Callable[[F], F]:
    """Add the options; the command gets them as one `DataOptions` in its argument `data`."""
    options = (
        click.option(
            "--data",
            type=FILE,
            multiple=True,
            required=required,
            metavar="PATH",
            help="Image folder, .tar shards or .npz arrays; repeatable.",
        ),
        click.option(
            "--every",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help="Take every N-th image of each folder or shard.",
        ),
        click.option(
            "--calibration-every",
            type=click.IntRange(2),
            metavar="K",
            help="Calibrate with every K-th of them, evaluate on the others; by default all do both.",
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the shuffle of the two parts."
        ),
        click.option("--images", type=click.IntRange(1), metavar="N", help="Use N images, spread over all of them."),
        click.option(
            "--preprocessing",
            metavar="MODEL|TOML",
            help="Prepare images as for this timm model; by default as the ONNX model says.",
        ),
    )

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(**given: Any) -> Any:
            mine = {name: given.pop(name) for name in DataOptions.__slots__}
            source = click.get_current_context().get_parameter_source
            alone = [name for name in mine if not mine["data"] and source(name) is ParameterSource.COMMANDLINE]
            if alone:
                raise click.UsageError(f"--{alone[0].replace('_', '-')} is of --data")
            return function(data=DataOptions(**mine), **given)

        for option in reversed(options):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorate


def say_unreadable(dataset: "Dataset") -> None:
    """Say how many images could not be read, and which is the first."""
    if dataset.unreadable:
        name, reason = next(iter(dataset.unreadable.items()))
        say(f"left out {plural(len(dataset.unreadable), 'unreadable image')}; the first is {name} ({reason})")
