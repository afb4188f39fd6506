"""How images are prepared: the settings that a file or a model carries, and what is wrong with them."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.settings import read_settings
from fusescope.quant.preprocessing import (
    PREPROCESSING_KEY,
    Preprocessing,
    preprocessing_of,
    record_preprocessing,
    timm_preprocessing,
)

SETTINGS = {
    "shape": "[3, 16, 16]",
    "interpolation": '"nearest"',
    "mean": "[0.5, 0.25, 0.0]",
    "std": "[0.5, 0.25, 1.0]",
    "crop_pct": "0.5",
    "crop_mode": '"center"',
}


def written(folder: Path, **other: str) -> Path:
    """Write the settings, some of them replaced."""
    lines = (f"{key} = {value}" for key, value in {**SETTINGS, **other}.items())
    (folder / "p.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "p.toml"


def test_a_model_carries_it(tmp_path: Path) -> None:
    """What is written into a model comes back; other metadata stay; a model may carry none."""
    settings, proto = read_settings(written(tmp_path), Preprocessing), onnx.ModelProto()
    assert preprocessing_of(proto) is None
    proto.metadata_props.add(key="other", value="stays")
    record_preprocessing(proto, settings)
    assert preprocessing_of(proto) == settings
    assert {entry.key for entry in proto.metadata_props} == {"other", PREPROCESSING_KEY}


def test_a_file_that_begins_with_a_mark(tmp_path: Path) -> None:
    """Some editors put a byte order mark first."""
    path = written(tmp_path)
    expected = read_settings(path, Preprocessing)
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert read_settings(path, Preprocessing) == expected


@pytest.mark.torch
def test_the_transform_is_that_of_the_settings(tmp_path: Path) -> None:
    """Half of the image is kept, the middle; each channel less its mean, over its std."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    found = read_settings(written(tmp_path), Preprocessing).transform()(image.fromarray(pixels))
    middle = pixels[8:24, 8:24].transpose(2, 0, 1) / 255
    mean, std = (np.array(each)[:, None, None] for each in ([0.5, 0.25, 0], [0.5, 0.25, 1]))
    assert found == pytest.approx((middle - mean) / std, abs=1e-5)


@pytest.mark.torch
def test_timm_knows_its_models() -> None:
    """ResNet-50 takes 224 pixels; a name that timm lacks is answered with the nearest."""
    assert timm_preprocessing("resnet50").shape == (3, 224, 224)
    with pytest.raises(UserError, match=r"resnet5: no timm model has this name; did you mean .*resnet50"):
        timm_preprocessing("resnet5")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shape", "[2, 16, 16]", r"p\.toml: images have 1 or 3 channels, not 2; "),
        ("shape", "[3, 0, 16]", r"shape\[1\]: Input should be greater than 0, not 0"),
        ("mean", "[0.0]", r"p\.toml: mean and std have one value for each of the 3 channels; "),
        ("mean", "[inf, 0.0, 0.0]", r"mean\[0\]: Input should be a finite number"),
        ("std", "[1.0, 0.0, 1.0]", r"std\[1\]: Input should be greater than 0"),
        ("crop_pct", "1e9", "crop_pct: Input should be less than or equal to 2"),
        ("crop_pct", "1e-9", r"crop_pct: Input should be greater than or equal to 0\.1"),
        ("crop_pct", "nan", "crop_pct: Input should be"),
        ("crop_mode", '"left"', "crop_mode: Input should be 'center', 'squash' or 'border', not 'left'"),
        ("croppct", "1", "unknown key 'croppct'; did you mean 'crop_pct'"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, key: str, value: str, message: str) -> None:
    """Each setting that makes no image is named, with what it may be."""
    with pytest.raises(UserError, match=message):
        read_settings(written(tmp_path, **{key: value}), Preprocessing)


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"shape": [3, 4]})])
def test_a_model_that_carries_something_else(text: str) -> None:
    """Damaged metadata are named."""
    proto = onnx.ModelProto()
    proto.metadata_props.add(key=PREPROCESSING_KEY, value=text)
    with pytest.raises(UserError, match=f"the model's metadata {PREPROCESSING_KEY}: "):
        preprocessing_of(proto)
