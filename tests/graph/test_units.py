"""Numbers and names as a person reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.units import count, mebibytes, megabytes, plural, printable

SCALES = {"MB": 10**6, "kB": 10**3, "MiB": 2**20, "KiB": 2**10, "B": 1}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 MB"),
        (1, "1 B"),
        (400, "400 B"),
        (1_040, "1.04 kB"),
        (91_400, "91.4 kB"),
        (160_000, "160.0 kB"),
        (3_760_000, "3.76 MB"),
        (131_530_000, "131.5 MB"),
        (12_345_678_000, "12,345.7 MB"),
        (-62_300_000, "-62.3 MB"),
    ],
)
def test_megabytes(size: int | None, text: str) -> None:
    """Three or four digits, and a unit that is not too large for them."""
    assert megabytes(size) == text


def test_mebibytes() -> None:
    """Plans are counted in powers of two."""
    assert mebibytes(43 << 20) == "43.0 MiB"
    assert mebibytes(3 << 19) == "1.50 MiB"
    assert mebibytes(50 << 10) == "50.0 KiB"
    assert mebibytes(None) == "-"


@pytest.mark.parametrize("write", [megabytes, mebibytes])
@given(size=st.integers(-(10**15), 10**15))
def test_sizes_are_not_bent(write: object, size: int) -> None:
    """What is written is the size to within half a percent, and never nothing for something."""
    assert callable(write)
    number, unit = write(size).replace(",", "").split()
    assert abs(float(number) * SCALES[unit] - size) <= abs(size) * 0.005
    assert (float(number) == 0) == (size == 0)


def test_signs() -> None:
    """A difference has its sign; no difference has none."""
    assert megabytes(2_000_000, signed=True) == "+2.00 MB"
    assert megabytes(-2_000_000, signed=True) == "-2.00 MB"
    assert megabytes(0, signed=True) == "0 MB"
    assert [count(number, signed=True) for number in (3, -3, 0)] == ["+3", "-3", "0"]


def test_counts() -> None:
    """Thousands are set apart, and nouns agree with their number."""
    assert count(1234567) == "1,234,567"
    assert [plural(number, "kernel") for number in (0, 1, 2000)] == ["0 kernels", "1 kernel", "2,000 kernels"]
    assert plural(2, "kernel does", "kernels do") == "2 kernels do"


def test_names_stay_as_they_are() -> None:
    """What can be seen is shown, in any script."""
    for name in ("/layer1/conv [3x3]", "層/конв", "emoji \U0001f600", "back\\slash"):
        assert printable(name) == name


@given(st.text(st.characters(codec=None)))
def test_nothing_drives_the_terminal(name: str) -> None:
    """Whatever a name holds, what is printed is visible characters of one line that can be encoded."""
    shown = printable(name)
    assert shown.isprintable()
    assert shown.encode("utf-8")[:0] == b""
    if name.isprintable():
        assert shown == name


def test_escapes_are_shown() -> None:
    """Control characters, line ends, bidirectional overrides and lone surrogates become their escapes."""
    assert printable("a\x1b[31m\r\n\x7f\u202e\udc80") == r"a\x1b[31m\r\n\x7f\u202e\udc80"
