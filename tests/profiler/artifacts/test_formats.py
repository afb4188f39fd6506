"""Texts of ``Format/Datatype``: type, layout and padding out of every one that TensorRT writes."""

import pytest

from fusescope.profiler.artifacts.formats import Format, channel_multiple, layout_name, read_format
from fusescope.profiler.layers import Tensor

TEXTS = {
    "Half": ("fp16", "", 1),
    "Float": ("fp32", "", 1),
    "FP8": ("fp8", "", 1),
    "BFloat16": ("bf16", "", 1),
    "UInt64": ("uint64", "", 1),
    "Int16": ("int16", "", 1),
    "Double": ("fp64", "", 1),
    "Row major linear FP32": ("fp32", "Row major linear", 1),
    "Row major linear FP16 format": ("fp16", "Row major linear", 1),
    "Row major linear FP16 format.": ("fp16", "Row major linear", 1),
    "Row major Int8 format": ("int8", "Row major linear", 1),
    "Row major linear BOOL": ("bool", "Row major linear", 1),
    "Row major linear Int64 format": ("int64", "Row major linear", 1),
    "Row major linear UInt8 format": ("uint8", "Row major linear", 1),
    "Row major linear FP4 format": ("fp4", "Row major linear", 1),
    "Channel major FP32 format": ("fp32", "Channel major", 1),
    "Channel major FP16 format where channel % 8 == 0": ("fp16", "Channel major where channel % 8 == 0", 8),
    "Channel major BFloat16 format where channel % 4 == 0": ("bf16", "Channel major where channel % 4 == 0", 4),
    "Channel major INT8 format where channel % 16 == 0": ("int8", "Channel major where channel % 16 == 0", 16),
    "Channel major FP16 format where channel == 4 and column stride % 32 == 0": (
        "fp16",
        "Channel major where channel == 4 and column stride % 32 == 0",
        4,
    ),
    "Row major INT8 format where column stride % 64 == 0": ("int8", "Row major where column stride % 64 == 0", 1),
    "Two wide channel vectorized row major FP16 format": ("fp16", "Two wide channel vectorized row major", 2),
    "Four wide channel vectorized row major Int8 format": ("int8", "Four wide channel vectorized row major", 4),
    "Thirty-two wide channel vectorized row major Int8 format": (
        "int8",
        "Thirty-two wide channel vectorized row major",
        32,
    ),
    "N/A due to dynamic shapes": ("unknown", "N/A due to dynamic shapes", 1),
    "Unknown format": ("Unknown format", "", 1),
    "Sparse Int3 lattice": ("Sparse Int3 lattice", "", 1),
    "": ("", "", 1),
}


@pytest.mark.parametrize(("text", "told"), TEXTS.items())
def test_a_text_is_taken_apart(text: str, told: tuple[str, str, int]) -> None:
    """What no word of is a type is kept as it is."""
    found = read_format(text)
    tensor = Tensor("t", (1,), found.dtype_text)
    assert (tensor.dtype_name, found.layout, found.channel_multiple) == told


def test_unknown_texts_have_no_size() -> None:
    """Bytes of a type that is not known are not known."""
    assert read_format("Sparse Int3 lattice") == Format("Sparse Int3 lattice", "")
    assert Tensor("t", (1, 3), "Sparse Int3 lattice").bytes is None


@pytest.mark.parametrize(
    ("shape", "layout", "elements"),
    [
        ((1, 3, 8, 8), "Channel major where channel % 8 == 0", 8 * 8 * 8),
        ((2, 33, 4, 4), "Thirty-two wide channel vectorized row major", 2 * 64 * 4 * 4),
        ((1, 64, 4, 4), "Thirty-two wide channel vectorized row major", 64 * 4 * 4),
        ((3, 8, 8), "Channel major where channel % 8 == 0", 8 * 8 * 8),
        ((1, 3, 2, 4, 4), "Channel major where channel % 4 == 0 with 3 spatial dimensions", 4 * 2 * 4 * 4),
        ((1, 0, 8, 8), "Channel major where channel % 8 == 0", 0),
        ((5, 3), "Channel major where channel % 8 == 0", 15),
    ],
)
def test_bytes_hold_the_padding_of_channels(shape: tuple[int, ...], layout: str, elements: int) -> None:
    """Channels are rounded up to what the layout says, the other dimensions are as they are."""
    tensor = Tensor("t", shape, "Half", layout, channel_multiple=channel_multiple(layout))
    assert tensor.bytes == 2 * elements


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("Row major linear", "linear"),
        ("(Linear) Row major linear format", "linear"),
        ("Row major linear format (kLINEAR)", "linear"),
        ("Channel major", "HWC"),
        ("(NHWC) Channel major format", "HWC"),
        ("Channel major where channel % 8 == 0", "HWC8"),
        ("Channel major where channel % 8 == 0 with 3 spatial dimensions", "DHWC8"),
        ("Thirty-two wide channel vectorized row major", "CHW32"),
        ("Thirty-two wide channel vectorized row major with 3 spatial dimensions", "CDHW32"),
        ("(Transposed) Transposed format", "Transposed"),
        ("Some new format", "Some new format"),
        ("", ""),
    ],
)
def test_one_name_in_every_version(layout: str, name: str) -> None:
    """The names of `TensorFormat`, for which versions have different sentences."""
    assert layout_name(layout) == name
