"""Element types, by the words that TensorRT's engine inspector and ONNX use for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str
    """fusescope's word for it."""

    bits: int
    """Size of one element in bits."""

    eight_bit: bool = False
    """Whether it is a quantized 8-bit type: what a QuantizeLinear writes and an 8-bit conv reads."""


_TYPES = (
    DType("fp32", 32),
    DType("fp16", 16),
    DType("bf16", 16),
    DType("fp8", 8, eight_bit=True),
    DType("int8", 8, eight_bit=True),
    DType("uint8", 8),
    DType("bool", 8),
    DType("fp64", 64),
    DType("int16", 16),
    DType("uint16", 16),
    DType("int32", 32),
    DType("uint32", 32),
    DType("int64", 64),
    DType("uint64", 64),
    DType("int4", 4),
    DType("fp4", 4),
    DType("e8m0", 8),
)
BY_NAME = {dtype.name: dtype for dtype in _TYPES}

# Words seen in dumps of TensorRT 8.2 to 11.4 and TensorRT-RTX 1.4 to 1.7, and ONNX's own, in lower case.
_WORDS = {
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8e4m3fn": "fp8",
    "boolean": "bool",
    "float4e2m1": "fp4",
}


def dtype_named(word: str) -> DType | None:
    """The element type that `word` means in a dump or an ONNX model, or None for a word never seen."""
    lower = word.lower()
    return BY_NAME.get(_WORDS.get(lower, lower))
