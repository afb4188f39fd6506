"""The result of calibration: the magnitude of each activation tensor, and where it comes from; a small JSON file."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.files import write_text
from fusescope.graph.units import plural

SCHEMA, VERSION = "fusescope.scales", 1
_USELESS = {"zero": 0.0, "NaN": math.nan, "infinite": math.inf}


@dataclass(frozen=True)
class Ranges:
    """Magnitudes of the activations of one model."""

    amax: Mapping[str, float]
    """Tensor to the magnitude that the largest code is to stand for, in the tensor's own unit: finite, above zero."""
    unusable: Mapping[str, str]
    """Tensors that cannot be quantized, to what their magnitude is: zero, NaN or infinite."""
    method: str
    """How it was found, such as ``max`` or ``percentile 99.99``."""
    images: int
    """Images, or other items, that were run."""
    data: Mapping[str, Any]
    """What they are: `Dataset.describe`."""
    model_sha256: str
    """Hash of the ONNX model with its weights: `model_hash`."""
    tool: str
    """What ran the model."""
    fusescope_version: str = __version__
    """The fusescope that calibrated."""

    def by_tensor(self) -> dict[str, float]:
        """Every tensor's magnitude, the useless ones too, as `quantize` takes them."""
        return {**self.amax, **{tensor: _USELESS[why] for tensor, why in self.unusable.items()}}

    def source(self) -> str:
        """Where the scales of a model come from, in words for its metadata."""
        digest = str(self.data.get("sha256", ""))[:12]
        which = f" (SHA-256 {digest}...)" if digest else ""
        return f"calibrated: {self.method} over {plural(self.images, 'image')}{which} with {self.tool}"


def sorted_out(magnitudes: Mapping[str, float], name: str) -> tuple[dict[str, float], dict[str, str]]:
    """Part magnitudes that make a scale from those that do not, with what these are.

    Args:
        magnitudes: That of each tensor.
        name: What to call the model in messages.

    Raises:
        UserError: None makes a scale.
    """
    amax: dict[str, float] = {}
    unusable: dict[str, str] = {}
    for tensor, value in magnitudes.items():
        if math.isnan(value):
            unusable[tensor] = "NaN"
        elif math.isinf(value):
            unusable[tensor] = "infinite"
        elif value == 0:
            unusable[tensor] = "zero"
        else:
            amax[tensor] = value
    if unusable and not amax:
        tensor, why = next(iter(unusable.items()))
        what = f"no tensor has a range that makes a scale; that of the first, {tensor}, is {why}"
        raise UserError(what, where=name, remedy="check the images and the weights")
    return amax, unusable


def write_ranges(path: Path, ranges: Ranges) -> None:
    """Write a scale file."""
    document = {"schema": SCHEMA, "version": VERSION, **asdict(ranges)}
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read_ranges(path: Path) -> Ranges:
    """Read a scale file.

    Raises:
        UserError: It cannot be read, is no scale file, or holds a magnitude that no scale can be made of.
    """
    remedy = "make one with `fusescope calibrate`"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path, remedy="check the path") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not JSON ({error})", where=path, remedy=remedy) from error
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise UserError("is no scale file", where=path, remedy=remedy)
    if document.pop("version", None) != VERSION:
        raise UserError(f"has another version than {VERSION}", where=path, remedy="calibrate again")
    try:
        ranges = TypeAdapter(Ranges).validate_json(json.dumps(document), strict=True)  # strict: "3" is no number
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"is damaged ({place}: {first['msg']})", where=path, remedy=remedy) from error
    if ranges.images < 1:
        raise UserError(f"is damaged (images: {ranges.images})", where=path, remedy=remedy)
    for tensor, value in ranges.amax.items():
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"the magnitude of tensor {tensor!r} is {value}", where=path, remedy=remedy)
    if odd := next((why for why in ranges.unusable.values() if why not in _USELESS), None):
        raise UserError(f"says {odd!r} of a tensor; known are {', '.join(_USELESS)}", where=path, remedy=remedy)
    return ranges
