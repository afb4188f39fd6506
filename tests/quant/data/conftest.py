"""How the tests of data prepare images: pixels divided by 255, nothing else."""

import pytest

from fusescope.quant.preprocessing import Preprocessing

SIZE = 8
"""Height and width of the images."""


@pytest.fixture(name="plain")
def _plain() -> Preprocessing:
    """One channel, as large as the images are, so that neither resizing nor cropping changes a pixel."""
    return Preprocessing(
        shape=(1, SIZE, SIZE), interpolation="nearest", mean=(0.0,), std=(1.0,), crop_pct=1.0, crop_mode="center"
    )
