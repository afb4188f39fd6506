"""ONNX files whose weights lie in files beside them."""

from pathlib import Path

import onnx
import onnx.checker

from fusescope.graph.errors import UserError
from fusescope.graph.model import load_proto


def load_with_weights(path: Path) -> onnx.ModelProto:
    """Load an ONNX file with its external data.

    Raises:
        UserError: It is not an ONNX file, or a file of its external data is missing or too short.
    """
    proto = load_proto(path)
    load_weights(proto, path.absolute().parent, path)
    return proto


def load_weights(proto: onnx.ModelProto, folder: Path, where: object) -> None:
    """Read the external data of a model into it.

    Args:
        proto: The model; changed in place. One that has all its weights inside stays as it is.
        folder: Where the files of external data lie.
        where: What to call the model in messages.

    Raises:
        UserError: A file of its external data is missing or too short.
    """
    try:
        onnx.load_external_data_for_model(proto, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UserError(
            f"its external data cannot be read ({error})",
            where=where,
            remedy="put the data file beside the model, or use a structure-only model",
        ) from error
