"""What a pattern and a case of it are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import TypeAlias

import onnx

from fusescope.graph.patterns.builder import Net

FORMATS = ("fp8", "int8")
GRANULARITIES = ("per-tensor", "per-channel")
RECOMMENDED = ("per-channel",)
"""The granularity that is recommended, for questions that how weights are scaled has nothing to do with."""

# https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html
PROPAGATION = "TensorRT, Explicit Quantization: Q/DQ propagation"
PLACEMENT = "TensorRT, Explicit Quantization: Q/DQ placement"
LIMITATIONS = "TensorRT, Explicit Quantization: Q/DQ limitations"
WEIGHTS = "TensorRT, Explicit Quantization: quantized weights"
# https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/fusion-catalog.html
FUSIONS = "TensorRT, Layer Fusion Catalog"

Draw: TypeAlias = Callable[[Net], str | Sequence[str]]
"""Draws a pattern into an empty model and returns its outputs."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The smallest graph that shows one fusion question."""

    name: str
    """Stable and unique, in lower case with dashes."""
    family: str
    """What the question is about, such as "residual"."""
    question: str
    """What is asked, in one sentence."""
    documented: str
    """What the documented rule of full TensorRT says, and where, in one sentence; empty for a user's own model."""
    tensors: tuple[str, ...]
    """The tensors whose Quantizes are in question; empty for a user's own model: all of them."""
    build: Callable[["Case"], onnx.ModelProto]
    """Makes the model of a case."""
    formats: tuple[str, ...] = FORMATS
    """Number formats that it is varied over."""
    granularities: tuple[str, ...] = GRANULARITIES
    """Granularities of weight scales that it is varied over."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pattern in one number format and with one granularity of weight scales."""

    pattern: Pattern
    """The pattern."""
    format: str
    """"fp8" or "int8"; empty for a user's own model."""
    weights: str
    """"per-tensor" or "per-channel"; empty for a user's own model."""

    @property
    def name(self) -> str:
        """Unique in the suite, such as "residual-add-fp16-skip/fp8/per-channel"."""
        return "/".join(filter(None, (self.pattern.name, self.format, self.weights)))

    def model(self) -> onnx.ModelProto:
        """Make the model: float16 but for what is in 8 bits, the same bytes every time."""
        return self.pattern.build(self)


def pattern(
    family: str, *tensors: str, documented: str, granularities: tuple[str, ...] = GRANULARITIES
) -> Callable[[Draw], Pattern]:
    """Make a pattern of the function that draws it: its name is the pattern's, its docstring the question.

    Args:
        family: What the question is about.
        tensors: The tensors whose Quantizes are in question.
        documented: What the documented rule of full TensorRT says, and where.
        granularities: Granularities of weight scales that the answer may depend on.
    """

    def make(draw: Draw) -> Pattern:
        def build(case: Case) -> onnx.ModelProto:
            net = Net(case.format, case.weights)
            outputs = draw(net)
            return net.model(case.name, (outputs,) if isinstance(outputs, str) else outputs)

        name = getattr(draw, "__name__", "").replace("_", "-")
        question = " ".join((getdoc(draw) or "").split())
        return Pattern(name, family, question, documented, tensors, build, granularities=granularities)

    return make
