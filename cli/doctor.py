"""``fusescope doctor``."""

import importlib.metadata
import importlib.util
import platform
import shutil

import click

from fusescope.cli.options import json_option, print_json
from fusescope.report.documents import header

# Distribution, what it is for, and the command that brings it.
_PACKAGES = (
    ("tensorrt-rtx-cu13", "compile on a CPU", "pip install tensorrt-rtx-cu13   (Linux x86_64 and Windows)"),
    ("tensorrt", "compile and measure on a GPU", 'pip install "fusescope[tensorrt]"'),
    ("torch", "export and calibrate", 'pip install "fusescope[quantize]"'),
    ("timm", "export", 'pip install "fusescope[quantize]"'),
    ("nvidia-modelopt", "calibrate", 'pip install "fusescope[quantize]"'),
    ("onnxruntime", "evaluate", 'pip install "fusescope[quantize]"'),
)


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Say which runtimes and extras are here and what this machine can do."""
    versions = {name: _version(name) for name, _, _ in _PACKAGES}
    can = {
        "compile": versions["tensorrt-rtx-cu13"] is not None,
        "export": versions["torch"] is not None and versions["timm"] is not None,
        "gpu": shutil.which("nvidia-smi") is not None,
    }
    if as_json:
        print_json(
            {
                **header("doctor"),
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}",
                "packages": versions,
                "can": can,
            }
        )
        return
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name, purpose, remedy in _PACKAGES:
        version = versions[name]
        click.echo(f"{name:<18} {version or '-':<14} {purpose}" + ("" if version else f": {remedy}"))
    click.echo("compile: " + ("yes, for sm75 to sm121 with TensorRT for RTX" if can["compile"] else "no"))
    click.echo("measure: no; this version of fusescope does not time engines")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
