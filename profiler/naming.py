"""What the names of layers say of the model, for recordings without metadata or without the ONNX model.

Names prove nothing: what rests on them is marked so (``grouped_by`` of the layer table).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.ops import DEQUANTIZE, POINTWISE, QUANTIZE, WEIGHTED
from fusescope.profiler.kinds import GENERATED, OPERATIONS, tokens
from fusescope.profiler.layers import Engine

REFORMAT_PREFIX = "Reformatting CopyNode for "
"""What TensorRT calls the layers that change a format before or after another one."""

# Words of torch, TensorFlow, Torch-TensorRT and TensorRT's network API for the operation of a node.
_WORDS: Mapping[str, str] = {
    **{op.lower(): op for op in (*OPERATIONS, *POINTWISE, *QUANTIZE, *DEQUANTIZE)},
    "activation": "Relu",
    "addmm": "Gemm",
    "avgpool2d": "AveragePool",
    "bmm": "MatMul",
    "conv1d": "Conv",
    "conv2d": "Conv",
    "conv3d": "Conv",
    "convolution": "Conv",
    "deconvolution": "ConvTranspose",
    "elementwise": "Add",
    "fullyconnected": "Gemm",
    "linear": "Gemm",
    "matrixmultiply": "MatMul",
    "maxpool2d": "MaxPool",
    "mm": "MatMul",
    "pooling": "MaxPool",
    "quantize": "QuantizeLinear",
    "dequantize": "DequantizeLinear",
    "reduce": "ReduceSum",
    "scale": "Mul",
    "shuffle": "Reshape",
}

_UNNAMED = re.compile(r"\(Unnamed Layer\*? \d+\) \[(?P<word>[^\]]*)\]")
_TORCH = re.compile(r"\[(?P<word>[A-Z_]+)\][-_]\[")
_WEIGHT = re.compile(r"(?P<stem>.+)(?:[._]weight|/read:0)", re.DOTALL)
_WEIGHT_OR_BIAS = re.compile(r".+(?:[._]weight|[._]bias|/read:0)", re.DOTALL)
_OF_TENSORRT = re.compile(
    r"\(Unnamed Layer\*? \d+\)|(?:copied_)?(?:un)?squeeze_(?:node_)?(?:after|before)_|reshape_(?:after|before)_"
    r"|shuffle_between_|ONNXTRT_|__my[el]|dummy_shape_call|Reformatt(?:ing CopyNode|ed (?:Input|Output) Tensor)"
)
_LAYER_NAMES: Mapping[re.Pattern[str], str] = {
    re.compile(REFORMAT_PREFIX): "reformat",
    re.compile(r"\{ForeignNode\["): "opaque",
    re.compile("_gemm_mha"): "attention",
    re.compile("dummy_shape_call|__my[el]"): "runtime",
    re.compile("(?:copied_)?(?:un)?squeeze_|reshape_(?:after|before)_|shuffle_between_"): "copy",
    re.compile(r"PWN\((?:[^+]|\+(?! ))*\)$"): "pointwise",
}


def operation_named(name: str) -> str:
    """The ONNX operation that a node's name speaks of; empty if it speaks of none.

    Exporters call a node by its operation: ``Conv_22``, ``/layer1/conv1/Conv``, ``node_conv2d_1``; TensorRT writes it
    behind a layer without a name: ``(Unnamed Layer* 3) [Convolution]``.
    """
    bracketed = _UNNAMED.fullmatch(name) or _TORCH.match(name)
    if bracketed:
        return _WORDS.get(re.sub("[ _]", "", bracketed["word"]).lower(), "")
    last = name.rpartition("/")[2]
    word = _unnumbered(last).removeprefix("node_").replace("_", "").lower()
    return _WORDS.get(word) or _WORDS.get(word.rstrip("0123456789"), "")


def _unnumbered(name: str) -> str:
    """A name without the numbers behind it: ``Conv`` of ``Conv_22_1``, ``conv2`` of ``conv2_1``."""
    stem = name.rstrip("0123456789_-")
    behind = name[len(stem) :].lstrip("0123456789")
    return name.removesuffix(behind) if name[-1:].isdecimal() else name


def name_group(name: str) -> str:
    """Group of a layer that has no LayerType, by what TensorRT calls such layers; `GENERATED` for a generated kernel.

    Empty where TensorRT's part of the name tells nothing: then its members do.
    """
    if tokens(name):
        return GENERATED
    return next((group for pattern, group in _LAYER_NAMES.items() if pattern.match(name)), "")


def is_of_tensorrt(name: str) -> bool:
    """Whether TensorRT made a name up: no ONNX node and no tensor has it."""
    return _OF_TENSORRT.match(name) is not None or name.endswith((" copy", "_clone")) or "_clone_" in name


def graph_by_name(engine: Engine) -> ModelGraph:
    """A graph of the nodes that an engine's layers name, without any edge: all that is known without the ONNX model.

    Operations are those that the names speak of; empty where they speak of none.
    """
    names = dict.fromkeys(name for layer in engine.layers for name in layer.onnx_nodes)
    nodes = (Node(name, operation_named(name), "", (), ()) for name in names)
    return ModelGraph("", nodes, inputs=(), outputs=())


def of_model(members: Iterable[str]) -> tuple[str, ...]:
    """Those of a layer's members that may be nodes of the model: without what TensorRT added, and weights.

    A Quantize behind a weight, as in ``conv1.weight + QuantizeLinear_7 + Conv_9``, quantizes that weight, which is
    none of the model's activations: it is left out too.
    """
    found: list[str] = []
    behind_weight = False
    for name in members:
        operation = operation_named(name)
        if not (behind_weight and operation in QUANTIZE | DEQUANTIZE):
            behind_weight = not operation and bool(_WEIGHT_OR_BIAS.fullmatch(name))
            if not behind_weight and (not is_of_tensorrt(name) or (operation and _UNNAMED.fullmatch(name))):
                found.append(name)
    return tuple(dict.fromkeys(found))


def weight_anchors(members: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Convs and gemms of a layer's members with the stem of the weight's name before them."""
    stem = ""
    for name in members:
        operation = operation_named(name)
        if found := weight_stem(name):
            stem = found
        elif operation in WEIGHTED and stem:
            yield name, stem
            stem = ""


def weight_stem(name: str) -> str:
    """What a weight is of: ``layer1.0.conv1`` of ``layer1.0.conv1.weight``; empty for any other name."""
    match = _WEIGHT.fullmatch(name)
    return match["stem"] if match else ""
