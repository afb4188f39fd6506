"""Colours: one for each thing, and told apart by colour-blind people."""

from itertools import combinations

import numpy as np
import pytest

from fusescope.graph.rules import PREDICTIONS
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report.palette import CHANGE_SCALE, GROUP_COLORS, PREDICTION_COLORS, VERDICT_COLORS

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009,
# severity 1.0, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)
MOST_OF_AN_ENGINE = ("conv", "gemm", "epilogue", "pointwise", "quantize")


def _lab(color: str, deficiency: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a hex colour as an eye with the deficiency sees it."""
    encoded = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    ratio = TO_XYZ @ np.clip(deficiency @ linear, 0, 1) / WHITE
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_everything_has_a_colour() -> None:
    """A new group, verdict or prediction cannot be forgotten, and no two groups share a colour."""
    assert list(GROUP_COLORS) == list(GROUPS)
    assert list(VERDICT_COLORS) == list(VERDICTS)
    assert list(PREDICTION_COLORS) == list(PREDICTIONS)
    assert len(set(GROUP_COLORS.values())) == len(GROUPS)


def test_a_verdict_has_the_colour_of_its_kernel() -> None:
    """The same colour means the same thing in every figure."""
    pairs = {"fused": "conv", "epilogue": "epilogue", "merged": "pointwise", "alone": "quantize"}
    assert {verdict: VERDICT_COLORS[verdict] for verdict in pairs} == {
        verdict: GROUP_COLORS[group] for verdict, group in pairs.items()
    }


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colour_blind_people_tell_the_large_groups_apart(deficiency: str) -> None:
    """Groups that engines are made of differ by far more than the just noticeable (about 2.3 in L*a*b*)."""
    seen = {group: _lab(GROUP_COLORS[group], DEFICIENCIES[deficiency]) for group in MOST_OF_AN_ENGINE}
    distances = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(distances.values()) > 15, distances
    ends = [_lab(CHANGE_SCALE[place][1], DEFICIENCIES[deficiency]) for place in (0, -1)]
    assert np.linalg.norm(ends[0] - ends[1]) > 40
