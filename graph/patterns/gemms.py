"""Gemms and MatMuls: heads of CNNs, blocks of transformers."""

from collections.abc import Callable

import numpy as np

from fusescope.graph.patterns.builder import Net
from fusescope.graph.patterns.pattern import FUSIONS, PLACEMENT, Pattern, pattern

_TOKENS = 64
_FEATURES = 64
_HEADS = 2
_SQUARE = (_FEATURES, _FEATURES)
_SEQUENCE = (1, _TOKENS, _FEATURES)

_FUSES = f"Gemms fuse with bias, activation and Quantize as convs do ({PLACEMENT})."
_NORM = f"A layer without weights takes up a Quantize only behind a Dequantize ({FUSIONS})."


@pattern("gemm", "relu", documented=_FUSES)
def gemm_chain(net: Net) -> str:
    """Does a Gemm with Relu write the 8-bit tensor that the next Gemm reads?"""
    x = net.input("x", (_TOKENS, _FEATURES))
    return net.gemm8(net.relu(net.gemm8(x, "first", _SQUARE)), "second", _SQUARE)


@pattern(
    "gemm",
    "gelu",
    documented=f"The catalog names a Gelu behind convs, not behind gemms, so the rule is silent ({FUSIONS}).",
)
def matmul_gelu(net: Net) -> str:
    """Does a MatMul with bias and Gelu, as in a transformer, write the 8-bit tensor that the next MatMul reads?"""
    hidden = net.op("Gelu", net.matmul8(net.input("x", _SEQUENCE), "first", _SQUARE), name="gelu")
    return net.matmul8(hidden, "second", _SQUARE)


@pattern("gemm", "norm", documented=_NORM)
def layer_norm(net: Net) -> str:
    """Does the kernel of a LayerNormalization write the 8-bit tensor that a MatMul reads?"""
    return net.matmul8(_norm(net, net.input("x", _SEQUENCE)), "first", _SQUARE)


@pattern(
    "attention",
    "context",
    documented=f"Gemms between Dequantizes and a Quantize fuse with them; of others nothing is said ({FUSIONS}).",
)
def attention_fp16_scores(net: Net) -> str:
    """What becomes of the Quantize behind attention whose two products are in float16?"""
    return _attention(net, lambda tensor: tensor)


@pattern("attention", "q", "k", "v", "weights", "context", documented=f"{_FUSES} {_NORM}")
def attention_quantized(net: Net) -> str:
    """Does attention run in 8 bits when both of its products have quantized operands?"""
    return _attention(net, net.quantized)


def _norm(net: Net, tensor: str) -> str:
    parameters = net.weight("norm_scale", (_FEATURES,)), net.weight("norm_bias", (_FEATURES,))
    return net.op("LayerNormalization", tensor, *parameters, name="norm")


def _attention(net: Net, operand: Callable[[str], str]) -> str:
    """Draw projections in 8 bits and the attention between them.

    Args:
        net: What to draw into.
        operand: Makes an operand of the two products of the attention.
    """
    x = net.input("x", _SEQUENCE)
    query, key = _heads(net, x, "q", (0, 2, 1, 3)), _heads(net, x, "k", (0, 2, 3, 1))
    scores = net.op("MatMul", operand(query), operand(key), name="scores")
    scaled = net.op("Mul", scores, net.constant("temperature", (_FEATURES / _HEADS) ** -0.5), name="scaled")
    weights = net.op("Softmax", scaled, name="weights", axis=-1)
    mixed = net.op("MatMul", operand(weights), operand(_heads(net, x, "v", (0, 2, 1, 3))), name="mixed")
    mixed = net.op("Transpose", mixed, name="mixed_tokens", perm=(0, 2, 1, 3))
    context = net.op("Reshape", mixed, net.constant("sequence", _SEQUENCE, np.int64), name="context")
    return net.matmul8(context, "out", _SQUARE)


def _heads(net: Net, tensor: str, name: str, order: tuple[int, ...]) -> str:
    """Draw a projection and part its features into heads."""
    projected = net.matmul8(tensor, f"{name}_projected", _SQUARE)
    extents = net.constant("heads", (1, _TOKENS, _HEADS, _FEATURES // _HEADS), np.int64)
    return net.op("Transpose", net.op("Reshape", projected, extents, name=f"{name}_heads"), name=name, perm=order)


PATTERNS: tuple[Pattern, ...] = (gemm_chain, matmul_gelu, layer_norm, attention_fp16_scores, attention_quantized)
