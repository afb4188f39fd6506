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
    try:
        onnx.load_external_data_for_model(proto, str(path.absolute().parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UserError(
            f"its external data cannot be read ({error})",
            where=path,
            remedy="put the data file beside the model, or use a structure-only model",
        ) from error
    return proto
