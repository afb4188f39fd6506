"""Scale files: what is written is read again, and what is no scale file is refused in one line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.quant.ranges import Ranges, read_ranges, sorted_out, write_ranges

MAGNITUDES = st.floats(0) | st.just(math.nan)


def ranges(amax: dict[str, float] | None = None, unusable: dict[str, str] | None = None) -> Ranges:
    """Make the result of a calibration."""
    return Ranges(
        amax={"a": 1.5} if amax is None else amax,
        unusable=unusable or {},
        method="max",
        images=16,
        data={"sha256": "0123456789abcdef", "items": 16},
        model_sha256="f" * 64,
        tool="ONNX Runtime 1.32.0 on the CPU",
    )


@given(st.dictionaries(st.text(), MAGNITUDES, max_size=5))
def test_every_magnitude_is_kept(tmp_path_factory: pytest.TempPathFactory, magnitudes: dict[str, float]) -> None:
    """Each number comes back exactly, and what is zero, NaN or infinite is so again for `quantize`."""
    path = tmp_path_factory.mktemp("scales") / "scales.json"
    magnitudes = {**magnitudes, "usable": 1.0}
    amax, unusable = sorted_out(magnitudes, "net")
    assert set(amax) == {name for name, value in magnitudes.items() if value > 0 and math.isfinite(value)}
    written = ranges(amax, unusable)
    write_ranges(path, written)
    read = read_ranges(path)
    assert read == written
    assert {name: repr(value) for name, value in read.by_tensor().items()} == {
        name: repr(value + 0.0) for name, value in magnitudes.items()
    }


def test_no_range_at_all() -> None:
    """Where no tensor has a range there is nothing to write down: the first is named."""
    with pytest.raises(
        UserError, match="net: no tensor has a range that makes a scale; that of the first, b, is NaN; "
    ):
        sorted_out({"b": math.nan, "a": 0.0}, "net")
    assert sorted_out({}, "net") == ({}, {})


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """Other tools can read it: the names that the documentation gives."""
    write_ranges(tmp_path / "s.json", ranges(unusable={"b": "NaN"}))
    document = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert (document["schema"], document["version"]) == ("fusescope.scales", 1)
    assert document["amax"] == {"a": 1.5}
    assert document["unusable"] == {"b": "NaN"}
    assert (document["method"], document["images"], document["model_sha256"]) == ("max", 16, "f" * 64)


def test_what_a_model_says_of_its_scales() -> None:
    """Method, images, the beginning of their hash, and the tool."""
    expected = "calibrated: max over 16 images (SHA-256 0123456789ab...) with ONNX Runtime 1.32.0 on the CPU"
    assert ranges().source() == expected


def damaged(**changes: Any) -> str:
    """Return a scale file with some of its entries replaced; None takes one out."""
    document = {
        "schema": "fusescope.scales",
        "version": 1,
        "amax": {"a": 1.5},
        "unusable": {},
        "method": "max",
        "images": 1,
        "data": {},
        "model_sha256": "",
        "tool": "",
    }
    return json.dumps({key: value for key, value in (document | changes).items() if value is not None})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no scale file"),
        ('{"schema": "fusescope.run"}', "is no scale file"),
        (damaged(version=2), "has another version than 1"),
        (damaged(amax=None), "is damaged (amax"),
        (damaged(amax={"a": "much"}), "is damaged (amax.a"),
        (damaged(amax={"a": "1.5"}), "is damaged (amax.a"),
        (damaged(amax={"a": True}), "is damaged (amax.a"),
        (damaged(images=-1), "is damaged (images: -1)"),
        (damaged(images="1"), "is damaged (images"),
        (damaged(amax={"a": 0}), "the magnitude of tensor 'a' is 0"),
        (damaged(amax={"a": -1}), "the magnitude of tensor 'a' is -1"),
        (damaged(amax={"a": math.nan}), "the magnitude of tensor 'a' is nan"),
        (damaged(unusable={"a": "ugly"}), "says 'ugly' of a tensor; known are zero, NaN, infinite"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The file is named, and what is wrong with it."""
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_ranges(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_no_such_file(tmp_path: Path) -> None:
    """A path that leads nowhere, and a folder."""
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_ranges(path)
