"""Whether a model is evaluated on the images that it was calibrated on: `held_out`."""

import json
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from fusescope.quant.data import Dataset, split

CALIBRATION_KEY = "fusescope.calibration"
"""The metadata property of a quantized model that says what data its ranges are from: `Dataset.describe`, as JSON."""


def record_calibration(proto: onnx.ModelProto, data: Mapping[str, Any]) -> None:
    """Write into a model's metadata what data it was calibrated on; the other entries stay.

    Args:
        proto: The quantized model, changed in place.
        data: What `Dataset.describe` says of the data.
    """
    others = {entry.key: entry.value for entry in proto.metadata_props}
    helper.set_model_props(proto, {**others, CALIBRATION_KEY: json.dumps(data)})


def calibration_of(proto: onnx.ModelProto) -> Mapping[str, Any]:
    """Return what data a model was calibrated on; empty if it does not say."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == CALIBRATION_KEY), "{}")
    try:
        data = json.loads(text)
    except ValueError:  # written by something else, which says nothing that could be compared
        return {}
    return data if isinstance(data, dict) else {}


def held_out(dataset: Dataset, models: Mapping[str, onnx.ModelProto]) -> tuple[Dataset, tuple[str, ...]]:
    """Leave out the images that models were calibrated on, where their metadata tell.

    Args:
        dataset: What to evaluate on.
        models: The models by name.

    Returns:
        The part that was held out when the set was split for calibration, or else the set as it is; and sentences about
        what was left out, and about models that were calibrated on what is left.
    """
    chosen: tuple[int, int] | None = None
    notes = []
    for name, proto in models.items():
        data = calibration_of(proto)
        parts = _split_of(data, dataset)
        if parts is not None:
            if chosen not in (None, parts):
                notes.append(f"{name} was calibrated on another part of these images: some of what is left is in it.")
            chosen = chosen or parts
        elif _is_calibrated_on(data, dataset):
            notes.append(f"{name} was calibrated on these very images: its accuracy on others may be lower.")
    if chosen is None:
        return dataset, tuple(notes)
    kept = split(dataset, every=chosen[0], seed=chosen[1])[1]
    left_out = f"Of {dataset.size} images the {dataset.size - kept.size} of the calibration part were left out."
    return kept, (left_out, *notes)


def _split_of(data: Mapping[str, Any], dataset: Dataset) -> tuple[int, int] | None:
    """Say how the set was split for what the data are: `every` and `seed`; None if they are of no split of it."""
    how = data.get("split")
    if not isinstance(how, dict) or how.get("of") != dataset.sha256:
        return None
    every, seed = how.get("every"), how.get("seed")
    if not (isinstance(every, int) and isinstance(seed, int)) or every < 2 or seed < 0:
        return None  # written by something else
    return every, seed


def _is_calibrated_on(data: Mapping[str, Any], dataset: Dataset) -> bool:
    """Whether the data is the set, or the part of it that asking for fewer images takes."""
    items = data.get("items")
    if not isinstance(items, int) or not 0 < items <= dataset.size:
        return False
    return bool(data.get("sha256") == dataset.take(items).sha256)
