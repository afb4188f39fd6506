"""The command line: one thin module per command. Errors become text and exit codes here, and only here."""

import importlib
import io
import sys
from collections.abc import Sequence

import click

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.units import printable

# Name, the module that has it, and the line that `fusescope --help` shows without importing that module.
COMMANDS = {
    "doctor": ("fusescope.cli.doctor", "What this machine can do: compile, measure, calibrate."),
    "export": ("fusescope.cli.export", "Export a timm model to ONNX."),
    "calibrate": ("fusescope.cli.calibrate", "Find the ranges of a model's activations from images."),
    "quantize": ("fusescope.cli.quantize", "Put Quantize/Dequantize pairs into an ONNX model."),
    "evaluate": ("fusescope.cli.evaluate", "Hold variants of a model against it, with how sure that is."),
    "sites": ("fusescope.cli.sites", "List the Quantize sites of a model and what the rules expect of them."),
    "build": ("fusescope.cli.build", "Compile a model and keep the engine as a run."),
    "import": ("fusescope.cli.import_", "Make a run of files that trtexec or the engine inspector wrote."),
    "explain": ("fusescope.cli.explain", "Explain what the compiler did with a quantized model."),
    "compare": ("fusescope.cli.compare", "Hold engines against each other, region by region."),
    "releases": ("fusescope.cli.releases", "Ask TensorRT releases which Quantizes they fuse."),
    "study": ("fusescope.cli.study", "From a model to a written study, in one command."),
}


class _LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fusescope")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; works anywhere.")
def fusescope() -> None:
    """Why quantizing a model does not make its TensorRT engine faster, and what would.

    Results go to stdout, progress and warnings to stderr. Exit status: 0 done, 1 the work failed or a check found
    what it looks for, 2 wrong usage.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Arguments without the program's name; those of the process by default.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name must not end a command where stdout is not UTF-8
    try:
        fusescope.main([word for word in words if word != "--debug"], prog_name="fusescope")
    except UserError as error:
        if "--debug" in words:
            raise
        click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(1)
