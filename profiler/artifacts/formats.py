"""What the inspector says of a tensor's format, in the words of TensorRT 8.2 to 11.

Up to 10.x one text holds element type and memory format: a sentence such as ``Channel major FP16 format where channel
% 8 == 0``, or a bare type such as ``Half`` for kernels of Myelin and for engines without an execution context.
TensorRT rounds the channels of such a format up to the multiple: 3 channels of half in multiples of 8 take 16 bytes per
pixel, which bytes here include. Rows that are padded (``column stride % 32 == 0``, on DLA only) are not.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from fusescope.profiler.dtypes import dtype_named

LARGEST = 2**48
"""Elements from which a tensor is not believed: no memory holds it."""

UNKNOWN = "unknown"
"""Element type of a tensor whose format depends on a size that the inspector did not know."""

_WIDTHS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_WIDTH = re.compile(rf"(?P<width>{'|'.join(_WIDTHS)}) wide channel vectorized", re.IGNORECASE)
_MULTIPLE = re.compile(r"channel (?:%|==) (?P<multiple>[0-9]{1,4})\b")
_IN_BRACKETS = re.compile(r"\(k?(?P<name>\w+)\)")
_DYNAMIC = "N/A due to dynamic shapes"


@dataclass(frozen=True, slots=True)
class Format:
    """A tensor's element type and memory format."""

    dtype_text: str
    """The element type in the inspector's own word; the whole text if no word of it is a type."""

    layout: str
    """The memory format in the inspector's own words, without the type; empty if not said."""

    channel_multiple: int = 1
    """What the channels are rounded up to a multiple of."""


@lru_cache(maxsize=1024)
def read_format(text: str) -> Format:
    """Take a text of ``Format/Datatype`` apart."""
    words = text.rstrip(".").split(" ")
    dtype = next((word for word in words if dtype_named(word)), None)
    if text == _DYNAMIC:
        return Format(UNKNOWN, text)
    if dtype is None:
        return Format(text, "")
    layout = " ".join(word for word in words if word not in {dtype, "format", ""})
    # 8-bit tensors are said to be "Row major" where others are "Row major linear": the format is the same.
    return Format(dtype, "Row major linear" if layout == "Row major" else layout, channel_multiple(text))


@lru_cache(maxsize=1024)
def channel_multiple(layout: str) -> int:
    """What a memory format rounds channels up to a multiple of; 1 if it does not."""
    width = _WIDTH.search(layout)
    if width:
        return _WIDTHS[width["width"].lower()]
    multiple = _MULTIPLE.search(layout)
    return max(1, int(multiple["multiple"])) if multiple else 1


@lru_cache(maxsize=1024)
def layout_name(layout: str) -> str:
    """A memory format by the name that `TensorFormat` has for it, such as ``HWC8``, the same for every version.

    TensorRT 11 and TensorRT for RTX give a name in brackets; before, the sentence tells it.
    """
    if told := _IN_BRACKETS.search(layout):
        name = told["name"].removeprefix("N")
        return "linear" if name.lower() == "linear" else name
    depth, multiple = "D" if "3 spatial" in layout else "", channel_multiple(layout)
    if _WIDTH.search(layout):
        return f"C{depth}HW{multiple}"
    if layout.startswith("Channel major"):
        return f"{depth}HWC{multiple if multiple > 1 else ''}"
    return "linear" if layout.startswith("Row major linear") else layout
