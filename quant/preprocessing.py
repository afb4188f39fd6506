"""How an image becomes a model's input: timm's own evaluation transform, as data that an ONNX file carries."""

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from pydantic import Field, FiniteFloat, PositiveFloat, PositiveInt, model_validator

from fusescope.graph.errors import UserError
from fusescope.graph.settings import Section, checked_settings
from fusescope.quant.extras import needs

if TYPE_CHECKING:
    from PIL import Image

PREPROCESSING_KEY = "fusescope.preprocessing"
"""The metadata property of an ONNX model that holds its preprocessing, as JSON."""

MODES = {1: "L", 3: "RGB"}
"""What an image is converted to, by the number of channels that the model takes."""


class Preprocessing(Section):
    """Resize, crop and normalization, in timm's terms."""

    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    """Channels, height and width of the model's input."""

    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
    """How pixels are resampled."""

    mean: tuple[FiniteFloat, ...]
    """What is subtracted from each channel, in 0 to 1."""

    std: tuple[PositiveFloat, ...]
    """What each channel is then divided by."""

    crop_pct: float = Field(ge=0.1, le=2)
    """The share of the resized edge that the crop keeps; above 1 the crop is padded."""

    crop_mode: Literal["center", "squash", "border"]
    """Whether the image is cropped, squeezed or padded into the input's aspect ratio."""

    @model_validator(mode="after")
    def _channels(self) -> "Preprocessing":
        if self.shape[0] not in MODES:
            raise ValueError(f"images have 1 or 3 channels, not {self.shape[0]}")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError(f"mean and std have one value for each of the {self.shape[0]} channels")
        return self

    def transform(self) -> "Callable[[Image.Image], NDArray[np.float32]]":
        """Return a function that turns a decoded image of any mode into an array of this `shape`.

        Raises:
            UserError: timm is not installed.
        """
        create_transform = needs("timm.data", "preparing images").create_transform
        settings = self.model_dump(exclude={"shape"})
        prepare = create_transform(input_size=self.shape, is_training=False, **settings)
        mode = MODES[self.shape[0]]

        def transform(image: "Image.Image") -> NDArray[np.float32]:
            array: NDArray[np.float32] = prepare(image.convert(mode)).numpy()
            return array

        return transform


def timm_preprocessing(model: str) -> Preprocessing:
    """Return the preprocessing that timm documents for a model.

    Args:
        model: A timm name, such as ``hrnet_w18`` or ``hrnet_w18.ms_aug_in1k``.

    Raises:
        UserError: timm is not installed or has no model of this name.
    """
    check_timm_name(model)
    return configured(needs("timm", "preparing images").get_pretrained_cfg(model).to_dict())


def check_timm_name(model: str) -> None:
    """Refuse a name that timm does not have.

    Raises:
        UserError: It does not, with the names that are nearest; or timm is not installed.
    """
    timm = needs("timm", "a timm model")
    if not timm.is_model(model):
        near = get_close_matches(model, timm.list_models(), n=3)
        remedy = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists the names"
        raise UserError("no timm model has this name", where=model, remedy=remedy)


def configured(config: dict[str, Any], shape: tuple[int, ...] | None = None) -> Preprocessing:
    """Return the preprocessing that a timm model's `pretrained_cfg` says.

    Args:
        config: The configuration, as a dictionary.
        shape: What the model takes, if it is not what the configuration says.
    """
    resolve = needs("timm.data", "preparing images").resolve_data_config
    found = resolve({} if shape is None else {"input_size": shape}, pretrained_cfg=config)
    settings = {"shape": found.pop("input_size"), **found}
    return checked_settings(settings, Preprocessing, "timm's configuration")


def preprocessing_of(proto: onnx.ModelProto) -> Preprocessing | None:
    """Return the preprocessing that a model carries, if it does.

    Raises:
        UserError: It carries one that cannot be read.
    """
    text = next((entry.value for entry in proto.metadata_props if entry.key == PREPROCESSING_KEY), None)
    if text is None:
        return None
    where = f"the model's metadata {PREPROCESSING_KEY}"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"is not JSON ({error})", where=where, remedy="export the model again") from error
    if not isinstance(document, dict):
        raise UserError("is no JSON object", where=where, remedy="export the model again")
    return checked_settings(document, Preprocessing, where)


def record_preprocessing(proto: onnx.ModelProto, preprocessing: Preprocessing) -> None:
    """Write a preprocessing into a model's metadata; the other entries stay."""
    others = {entry.key: entry.value for entry in proto.metadata_props}
    helper.set_model_props(proto, {**others, PREPROCESSING_KEY: preprocessing.model_dump_json()})
