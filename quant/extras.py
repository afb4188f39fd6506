"""Packages of the extra `quantize`, imported where they are used."""

import importlib
from typing import Any

from fusescope.graph.errors import UserError


def needs(module: str, what: str) -> Any:
    """Import a module of the extra `quantize`, or say how to get it.

    Args:
        module: Its full name.
        what: What needs it, such as "exporting".

    Raises:
        UserError: Its package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        remedy = 'pip install "fusescope[quantize]"'
        raise UserError(f"{what} needs {package}, which is not installed", remedy=remedy) from error
