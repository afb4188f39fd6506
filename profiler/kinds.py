"""What the words of an engine dump mean: layer kinds, tokens of generated kernels, ONNX operations, and the groups.

To teach fusescope a new layer kind, token or operation, add a row here.
"""

import re
from collections.abc import Mapping

GROUPS: Mapping[str, str] = {
    "conv": "convolutions, 1x1 convolutions run as gemm among them",
    "gemm": "matrix multiplications",
    "attention": "fused attention",
    "norm": "normalizations and softmax",
    "pool": "pooling",
    "reduce": "reductions",
    "resize": "resizing",
    "epilogue": "dequantize, bias and activation split off an 8-bit conv",
    "pointwise": "additions, activations and other elementwise work",
    "quantize": "kernels that only quantize, dequantize, or do both",
    "reformat": "changes of layout, padding or dtype",
    "copy": "concat, slice, transpose",
    "plugin": "plugins",
    "runtime": "bookkeeping of the runtime: no kernel",
    "sync": "signals and waits between streams: no kernel",
    "constant": "constants: no kernel",
    "opaque": "a region that the dump does not open up",
    "other": "a kind that fusescope does not know",
}
"""Group of a layer and what is in it, heaviest work first."""

WEIGHT = {group: weight for weight, group in enumerate(GROUPS)}
"""Group to its place in the order of heaviness: the smallest wins."""

NOT_KERNELS = frozenset({"runtime", "sync", "constant"})
"""Groups whose layers do not run on the GPU."""

GENERATED = "generated"
"""Kind of a kernel that the compiler generates: what it does is told by its tokens, tensors and ONNX nodes."""

# LayerType in lower case. Seen in dumps of TensorRT 8.2 to 11.0 and TensorRT-RTX 1.6 and 1.7, except those marked *,
# which public threads report.
KINDS: Mapping[str, str] = {
    "correlation": "conv",
    "deconv": "conv",
    "caskconvolution": "conv",
    "caskgemmconvolution": "conv",
    "caskdeconvolutionv2": "conv",
    "gemmdeconvolution": "conv",
    "cublasconvolution": "conv",
    "cudnnconvolution": "conv",
    "cudadepthwiseconvolution": "conv",
    "fusedconvactconvolution": "conv",
    "convactpool": "conv",
    "caskconvactpool": "conv",
    "gemm": "gemm",
    "matrixmultiply": "gemm",
    "kgen_mha": "attention",  # *
    "cudasoftmax": "norm",
    "casksoftmaxv2": "norm",
    "logsoftmaxtopk": "norm",
    "maxpool": "pool",
    "avgpool": "pool",
    "caskpooling": "pool",
    "cudapooling": "pool",
    "cudnnpooling": "pool",
    "tiledpooling": "pool",
    "reduce": "reduce",
    "resize": "resize",
    "pointwisev2": "pointwise",
    "elementwise": "pointwise",
    "scale": "pointwise",
    "add": "pointwise",  # *
    "kgen": GENERATED,
    "fusion": GENERATED,  # *
    "runtime_fusion": GENERATED,
    "runtime_function": GENERATED,
    "reformat": "reformat",
    "myelinreformat": "reformat",
    "padding": "reformat",
    "shuffle": "copy",
    "slice": "copy",
    "reshape": "copy",  # *
    "copy": "copy",
    "pluginv2": "plugin",
    "pluginv3": "plugin",
    "noop": "runtime",
    "shape_call": "runtime",
    "custom_layer": "runtime",
    "memset": "runtime",  # *
    "jmp": "runtime",
    "cjmp": "runtime",
    "signal": "sync",
    "wait": "sync",
    "constant": "constant",
    "myelin": "opaque",
}

# Tokens in the names of generated kernels, such as Corr, Add and Relu in __myl_CorrAddRelu_myl0_80. Only those that
# say something about weight are listed; the rest is elementwise arithmetic.
TOKENS: Mapping[str, str] = {
    "Corr": "conv",
    "Fc": "gemm",
    "Gemm": "gemm",
    "Soft": "norm",
    "Mean": "reduce",
    "Sum": "reduce",
    "Resi": "resize",
    "Conc": "copy",
    "Slic": "copy",
    "Spli": "copy",
    "Tran": "copy",
    "Resh": "copy",
    "Gath": "copy",
    "Move": "copy",
    "Cast": "copy",
}

_MYELIN_NAME = re.compile(r"__my[el]+_(?P<tokens>[A-Z]\w*?)(?:_0x[0-9a-f]+)?(?:_my[el]+\d+)?(?:_\d+)?")
_TOKEN = re.compile("[A-Z][a-z0-9]*")

OPERATIONS: Mapping[str, str] = {
    "Conv": "conv",
    "ConvTranspose": "conv",
    "Gemm": "gemm",
    "MatMul": "gemm",
    "Softmax": "norm",
    "LogSoftmax": "norm",
    "LayerNormalization": "norm",
    "InstanceNormalization": "norm",
    "GroupNormalization": "norm",
    "RMSNormalization": "norm",
    "MaxPool": "pool",
    "AveragePool": "pool",
    "GlobalAveragePool": "pool",
    "GlobalMaxPool": "pool",
    "LpPool": "pool",
    "ReduceMean": "reduce",
    "ReduceSum": "reduce",
    "ReduceMax": "reduce",
    "ReduceMin": "reduce",
    "ReduceL2": "reduce",
    "ArgMax": "reduce",
    "TopK": "reduce",
    "Resize": "resize",
    "Upsample": "resize",
    "Concat": "copy",
    "Slice": "copy",
    "Split": "copy",
    "Transpose": "copy",
    "Gather": "copy",
    "Pad": "copy",
    "Expand": "copy",
    "Tile": "copy",
    "DepthToSpace": "copy",
    "SpaceToDepth": "copy",
    "Reshape": "copy",
    "Flatten": "copy",
    "Squeeze": "copy",
    "Unsqueeze": "copy",
    "Cast": "reformat",
    "Identity": "reformat",
}
"""ONNX operation to the group of its work; an operation that is not listed is elementwise: ``pointwise``."""


def kind_group(kind: str) -> str:
    """Group of a LayerType, `GENERATED` for a generated kernel, ``other`` for one that is not known."""
    lower = kind.lower()
    return KINDS.get(lower, "plugin" if lower.startswith("plugin") else "other")


def tokens(name: str) -> tuple[str, ...]:
    """Operation tokens in the name of a generated kernel; empty for any other name.

    A long name is cut by the compiler and ends in the token ``Etc``.
    """
    match = _MYELIN_NAME.fullmatch(name)
    return tuple(_TOKEN.findall(match["tokens"])) if match else ()
