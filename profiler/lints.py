"""What an engine's own layers show to be amiss, whatever its model: the rules in the table `LINTS`.

The bytes of a lint are those that would not be moved without what it finds, so that no two findings tell the same
ones: a kernel that only runs on the wrong units costs none. A lint is silent where a recording does not tell.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fusescope.graph.units import plural
from fusescope.profiler.attribution import Attribution
from fusescope.profiler.convolutions import Convolution, convolutions
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Finding
from fusescope.profiler.layers import Layer, Tensor
from fusescope.profiler.reformats import NO_CHANGE, changed, is_at_input, is_at_output
from fusescope.profiler.rounding import rounding_kernels, weight_quantizes
from fusescope.profiler.tactics import has_tensor_cores, on_tensor_cores
from fusescope.profiler.traffic import traffic

ALIGNMENT = {"fp8": 16, "int8": 16, "fp16": 8, "bf16": 8, "tf32": 4}
"""Element type that tensor cores multiply to what channels should be a multiple of: 16 bytes."""

_IMAGE_CHANNELS = 4
"""Kernels of their own exist for convolutions that read an image of up to so many channels."""

_FEW_ROWS = 16
"""Pixels, over the whole batch, below which a convolution is a matrix times a few vectors, bound by its weights."""

TINY_BYTES = 1 << 18
"""Traffic up to which a kernel is small: a DRAM of 200 GB/s moves it in 1.3 us, about what a launch takes."""

_TINY_US = 10.0
"""Recorded time above which a kernel is not small, whatever it moves."""

_SHORTEST_RUN = 8
"""Small kernels in sequence from which they are told."""

_SORTS_SHOWN = 6
"""Kinds of hits that a detail lists."""

_OF_UNKNOWN_LENGTH = frozenset({"attention", "plugin", "opaque", "other"})
"""Groups of kernels that may compute much with few bytes."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One layer that a lint is about."""

    layer: Layer
    """The layer."""

    nodes: tuple[str, ...]
    """ONNX nodes or tensors to name as evidence."""

    sort: str = ""
    """What hits are counted by in the finding's detail, such as ``of 18 channels``; empty if they are all alike."""

    bytes: int = 0
    """Bytes that would not be moved without it."""


@dataclass(frozen=True, slots=True)
class Lint:
    """One rule about the layers of an engine."""

    key: str
    """Stable name of the finding."""

    one: str
    """What a single layer does, as the title says it behind ``1``."""

    many: str
    """What several do."""

    meaning: str
    """What it means, and why, in a sentence or two."""

    find: Callable[[Evidence], Iterable[Hit]]
    """Finds the layers."""

    remedy: str
    """What to do."""

    source: str
    """Where the rule or the remedy is documented."""

    caveat: Callable[[Evidence], str] = lambda _: ""
    """What is to be said of layers that do not tell, as a sentence; empty if there is none."""

    keeps: bool = False
    """Whether the remedy is to keep the nodes in high precision, which a study can try."""


def _misaligned(evidence: Evidence) -> Iterator[Hit]:
    """Convolutions that read channels off the multiple; the bytes are those by which a layout rounds them up."""
    for conv in convolutions(evidence.view):
        multiple = ALIGNMENT.get(conv.dtype)
        off = multiple and conv.channels and conv.channels > _IMAGE_CHANNELS and conv.channels % multiple
        if off and _fills_tiles(conv) and on_tensor_cores(conv.layer.tactic) is not False:
            sort = f"of {conv.channels} channels in {conv.dtype.upper()}"
            yield Hit(conv.layer, conv.nodes, sort, sum(map(_rounded_up, conv.layer.inputs)))


def _rounded_up(tensor: Tensor) -> int:
    """Bytes that the layout of a tensor adds to its channels."""
    if tensor.bytes is None or tensor.dtype is None:
        return 0
    return tensor.bytes - (math.prod(tensor.shape) * tensor.dtype.bits + 7) // 8


def _on_ordinary_units(evidence: Evidence) -> Iterator[Hit]:
    """Convolutions whose kernels' names say that they do not multiply on the tensor cores that the GPU has."""
    if has_tensor_cores(evidence.target, evidence.view.engine):
        for conv in _matrices(evidence):
            if on_tensor_cores(conv.layer.tactic) is False:
                yield Hit(conv.layer, conv.nodes, f"in {conv.dtype.upper()}")


def _untold_units(evidence: Evidence) -> str:
    untold = sum(on_tensor_cores(conv.layer.tactic) is None for conv in _matrices(evidence))
    return f" Of {plural(untold, 'more convolution')} no kernel's name tells." if untold else ""


def _matrices(evidence: Evidence) -> Iterator[Convolution]:
    return (conv for conv in convolutions(evidence.view) if not conv.is_depthwise and _fills_tiles(conv))


def _fills_tiles(conv: Convolution) -> bool:
    return conv.rows is None or conv.rows >= _FEW_ROWS


def _depthwise(evidence: Evidence) -> Iterator[Hit]:
    """Depthwise convolutions in 8 bits that have no good kernel; with a model, the documented limits tell of FP8."""
    for conv in convolutions(evidence.view):
        fp8 = conv.dtype == "fp8" and evidence.view.by_name
        int8 = conv.dtype == "int8" and ((conv.written or 0) % 8 or min(conv.kernel, default=3) < 3)
        if conv.is_depthwise and (fp8 or int8):
            yield Hit(conv.layer, conv.nodes, f"in {conv.dtype.upper()}")


def _wide_outputs(evidence: Evidence) -> Iterator[Hit]:
    """8-bit convolutions whose result another kernel takes to 8 bits; the bytes are those beyond 8 bits, as written.

    With a model, verdicts and reasons say it site by site.
    """
    view = evidence.view
    for conv in convolutions(view) if view.by_name else ():
        outputs = [tensor for tensor in conv.layer.outputs if tensor.dtype and tensor.dtype.bits > 8]
        readers = [reader for tensor in outputs for reader in view.engine.readers.get(tensor.name, ())]
        if conv.dtype in {"fp8", "int8"} and any(_narrows(view.attributions[reader.index]) for reader in readers):
            yield Hit(conv.layer, conv.nodes, f"in {outputs[0].dtype_name.upper()}", sum(map(_beyond_8_bits, outputs)))


def _beyond_8_bits(tensor: Tensor) -> int:
    bits = tensor.dtype.bits if tensor.dtype else 8
    return (tensor.bytes or 0) * (bits - 8) // bits


def _rounded(evidence: Evidence) -> Iterator[Hit]:
    return (_whole(each.layer, each.layer.onnx_nodes) for each in rounding_kernels(evidence.view))


def _quantized_weights(evidence: Evidence) -> Iterator[Hit]:
    return (_whole(each.layer, each.layer.onnx_nodes) for each in weight_quantizes(evidence.view))


def _at_borders(evidence: Evidence) -> Iterator[Hit]:
    """Kernels that only change the format of what the engine takes or gives."""
    engine = evidence.view.engine
    for attribution in evidence.view.attributions:
        layer = attribution.layer
        if attribution.group != "reformat" or not _same_elements(layer) or changed(layer) == NO_CHANGE:
            continue
        tensors = [
            *(tensor.name for tensor in layer.inputs if is_at_input(layer, engine)),
            *(tensor.name for tensor in layer.outputs if is_at_output(layer, engine)),
        ]
        if tensors:
            yield _whole(layer, tuple(tensors), f"of {changed(layer)}")


def _same_elements(layer: Layer) -> bool:
    """Whether a layer has one input and one output of as many elements: no padding, no slice."""
    counts = [math.prod(tensor.shape) for tensor in (*layer.inputs, *layer.outputs)]
    return len(layer.inputs) == len(layer.outputs) == 1 and counts[0] == counts[1]


def _whole(layer: Layer, nodes: tuple[str, ...], sort: str = "") -> Hit:
    """A layer that would not be there at all."""
    return Hit(layer, nodes, sort, traffic(layer).total_bytes)


def _narrows(attribution: Attribution) -> bool:
    """Whether a layer does nothing but take its input to 8 bits."""
    layer = attribution.layer
    converts = attribution.group in {"quantize", "reformat"} and any(tensor.is_eight_bit for tensor in layer.outputs)
    return converts and not any(tensor.is_eight_bit for tensor in layer.inputs)


def _tiny(evidence: Evidence) -> Iterator[Hit]:
    """Kernels in runs of small ones, each on one stream; what runs no kernel does not interrupt a run."""
    runs: dict[int, list[Attribution]] = {}
    for attribution, row in zip(evidence.view.attributions, evidence.layers.itertuples(index=False), strict=True):
        run = runs.setdefault(attribution.layer.stream, [])
        if attribution.is_kernel and _is_tiny(attribution, row):
            run.append(attribution)
        elif attribution.is_kernel:
            yield from _long_enough(run)
            run.clear()
    for run in runs.values():
        yield from _long_enough(run)


def _is_tiny(attribution: Attribution, row: Any) -> bool:
    told = not row.unsized and 0 < row.traffic_bytes <= TINY_BYTES and attribution.group not in _OF_UNKNOWN_LENGTH
    weighed = attribution.group not in {"conv", "gemm"} or bool(attribution.layer.constants)
    return told and weighed and not row.time_us > _TINY_US  # a missing time is larger than nothing


def _long_enough(run: Sequence[Attribution]) -> Iterator[Hit]:
    if len(run) >= _SHORTEST_RUN:
        yield from (Hit(each.layer, (), f"in runs of {len(run)}") for each in run)


LINTS: Sequence[Lint] = (
    Lint(
        key="channel-alignment",
        one="convolution reads channels that tensor cores have to fill up",
        many="convolutions read channels that tensor cores have to fill up",
        meaning="Tensor cores take 16 bytes of channels at once: 8 channels in FP16, 16 in 8 bits, 4 in TF32. What is "
        "missing is multiplied as zeros. The bytes here are those by which a layout that the engine tells rounds "
        "channels up.",
        find=_misaligned,
        remedy="train the model with widths that are multiples of 16 (8 in FP16)",
        source="TensorRT documentation, best practices: optimizing for tensor cores; cuBLAS documentation, tensor core "
        "usage",
    ),
    Lint(
        key="no-tensor-cores",
        one="convolution does not run on tensor cores",
        many="convolutions do not run on tensor cores",
        meaning="The kernel's name says that it multiplies on the ordinary units of the GPU; in FP32 the builder may "
        "have chosen it among TF32 ones. Depthwise convolutions, and those of a few pixels, are not counted: there is "
        "no matrix for tensor cores.",
        find=_on_ordinary_units,
        caveat=_untold_units,
        remedy="let them run in FP16, BF16 or TF32 (trtexec --fp16 up to TensorRT 10, the model's own type from 11 on; "
        "no --noTF32); keep a stem of 8-bit inputs that has no such kernel in high precision",
        source="TensorRT documentation, best practices: optimizing for tensor cores",
    ),
    Lint(
        key="depthwise-8-bit",
        one="depthwise convolution runs in 8 bits without a kernel made for it",
        many="depthwise convolutions run in 8 bits without a kernel made for it",
        meaning="There is no optimised FP8 kernel for grouped convolutions; in INT8 there are some where the channels "
        "written are a multiple of 8 and the kernel is at least 3 wide.",
        find=_depthwise,
        remedy="keep depthwise convolutions in high precision: --keep NAME",
        source="TensorRT 10.12 release notes; https://github.com/NVIDIA/TensorRT/issues/4524; NVIDIA Model Optimizer, "
        "modelopt/onnx/quantization/graph_utils.py, which leaves such convolutions out",
        keeps=True,
    ),
    Lint(
        key="conv-output-wide",
        one="8-bit convolution writes what another kernel takes to 8 bits",
        many="8-bit convolutions write what other kernels take to 8 bits",
        meaning="A convolution can write 8 bits by itself where all that read its result want them. The bytes here are "
        "those that it writes beyond 8 bits.",
        find=_wide_outputs,
        remedy="quantize every reader of the result, the skip of a residual sum above all",
        source="TensorRT documentation, Q/DQ placement: quantize the residual input of skip connections",
    ),
    Lint(
        key="dangling-quantize",
        one="kernel rounds to 8 bits for nothing that runs in 8 bits",
        many="kernels round to 8 bits for nothing that runs in 8 bits",
        meaning="Values are taken to 8 bits and back, and what reads them runs in high precision: they cost accuracy "
        "and kernels for nothing.",
        find=_rounded,
        remedy="take the Quantize and Dequantize away, or move them to where an 8-bit kernel reads them",
        source="TensorRT documentation, Q/DQ processing: quantizable layers",
    ),
    Lint(
        key="weights-quantized",
        one="kernel quantizes weights at every inference",
        many="kernels quantize weights at every inference",
        meaning="A constant in high precision is turned into 8 bits in a kernel of its own.",
        find=_quantized_weights,
        remedy="store the weights in 8 bits, with the Dequantize alone behind them",
        source="TensorRT documentation, explicit quantization: quantized weights",
    ),
    Lint(
        key="io-reformat",
        one="kernel only changes the format of an input or output of the engine",
        many="kernels only change the format of inputs or outputs of the engine",
        meaning="The engine takes or gives a tensor in another element type or layout than its own kernels use.",
        find=_at_borders,
        remedy="give the engine inputs and outputs of the type and layout that its kernels use (trtexec "
        "--inputIOFormats and --outputIOFormats, ITensor.allowed_formats, or the model's own types)",
        source="TensorRT documentation, reformat-free network I/O tensors",
    ),
    Lint(
        key="tiny-kernels",
        one="kernel moves next to nothing, among others like it",
        many="small kernels follow each other",
        meaning=f"Each moves {TINY_BYTES >> 10} KiB or less, so little that its launch bounds it and a narrower type "
        "changes little. What is lost are launches, not bytes.",
        find=_tiny,
        remedy="launch the engine as a CUDA graph, or run larger batches",
        source="TensorRT documentation, best practices: CUDA graphs, enqueue-bound workloads",
    ),
)
"""Every rule. To add one, write a function that finds its layers, and a row."""


def lint(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each lint that finds anything."""
    for rule in LINTS:
        hits = list(rule.find(evidence))
        if hits:
            yield _finding(rule, hits, evidence)


def _finding(rule: Lint, hits: Sequence[Hit], evidence: Evidence) -> Finding:
    sorts = Counter(hit.sort for hit in hits if hit.sort).most_common()
    shown = [f"{count} {sort}" for sort, count in sorts[:_SORTS_SHOWN]]
    shown += [f"{sum(count for _, count in sorts[_SORTS_SHOWN:])} others"] if len(sorts) > _SORTS_SHOWN else []
    listed = f" By kind: {', '.join(shown)}." if shown else ""
    nodes = tuple(dict.fromkeys(name for hit in hits for name in hit.nodes))
    return Finding(
        key=rule.key,
        title=f"{plural(len(hits), rule.one, rule.many)}",
        detail=f"{rule.meaning}{listed}{rule.caveat(evidence)}",
        kernels=len(hits),
        bytes=sum(hit.bytes for hit in hits),
        layers=tuple(hit.layer.index for hit in hits),
        nodes=nodes,
        remedy=rule.remedy,
        source=rule.source,
        change={"keep": nodes} if rule.keeps and not evidence.view.by_name else {},
    )
