"""One colour per thing, everywhere the same: groups, verdicts, predictions.

The strong colours are those of Okabe and Ito (Color Universal Design, https://jfly.uni-koeln.de/color/), made to be
told apart by colour-blind people; they go to what most engines are made of. The rest is taken from Paul Tol's muted
scheme (https://sronpersonalpages.nl/~pault/). A colour never stands alone: there is always a word beside it.
"""

from collections.abc import Mapping

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#E5C93C"  # Okabe-Ito's yellow, darkened so that it is seen on white
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"

GROUP_COLORS: Mapping[str, str] = {
    "conv": BLUE,
    "gemm": SKY,
    "attention": "#AA4499",
    "norm": PURPLE,
    "pool": "#44AA99",
    "reduce": "#999933",
    "resize": YELLOW,
    "epilogue": ORANGE,
    "pointwise": GREEN,
    "quantize": VERMILLION,
    "reformat": "#882255",
    "copy": "#DDCC77",
    "plugin": "#332288",
    "runtime": "#BBBBBB",
    "sync": "#A6A6A6",
    "constant": "#D0D0D0",
    "opaque": "#555555",
    "other": "#777777",
}
"""Group of layers to its colour."""

VERDICT_COLORS: Mapping[str, str] = {
    "fused": BLUE,
    "epilogue": ORANGE,
    "merged": GREEN,
    "alone": VERMILLION,
    "lost": PURPLE,
    "absent": "#BBBBBB",
    "unknown": "#555555",
}
"""Verdict to its colour: that of the group whose kernel carries the Quantize."""

PREDICTION_COLORS: Mapping[str, str] = {"fuses": BLUE, "separate": VERMILLION, "lost": PURPLE, "uncertain": GREY}
"""Prediction to its colour: that of the verdict that would agree with it."""

CHANGE_SCALE = ((0.0, BLUE), (0.5, "#B9B9B9"), (1.0, VERMILLION))
"""Less, the same, more: a diverging scale whose ends differ for every eye."""
