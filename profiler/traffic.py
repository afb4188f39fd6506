"""Bytes and operations of a layer, exact from shapes and dtypes, and the floor that they set on a named GPU.

A floor is a lower bound and nothing else: at batch 1 it is far below any measurement and cannot rank designs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fusescope.graph.model import ModelGraph, Node
from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.attribution import Attribution
from fusescope.profiler.gpus import Gpu
from fusescope.profiler.layers import Layer, Tensor


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a layer moves, as the engine lists its tensors: each once."""

    read_bytes: int
    """Inputs and constants."""

    write_bytes: int
    """Outputs."""

    eight_bit_write_bytes: int
    """Those of the outputs that are 8-bit tensors."""

    unsized: int
    """Tensors of unknown size or type, which are not in the sums."""

    @property
    def total_bytes(self) -> int:
        """Reads and writes together."""
        return self.read_bytes + self.write_bytes


NO_TRAFFIC = Traffic(0, 0, 0, 0)
"""Of a layer that runs no kernel, such as the view of a tensor in another shape."""


def traffic(layer: Layer) -> Traffic:
    """Bytes that a layer reads and writes: product of dimensions times dtype size, each tensor once."""
    reads, writes = _each_once(layer.reads), _each_once(layer.outputs)
    sizes = [tensor.bytes for tensor in (*reads, *writes)]
    return Traffic(
        read_bytes=sum(tensor.bytes or 0 for tensor in reads),
        write_bytes=sum(tensor.bytes or 0 for tensor in writes),
        eight_bit_write_bytes=sum(tensor.bytes or 0 for tensor in writes if tensor.is_eight_bit),
        unsized=sizes.count(None),
    )


def quantize_bytes(attribution: Attribution, moved: Traffic) -> int:
    """Bytes of a layer that are there for its Quantizes alone.

    All bytes of a kernel that does nothing else; of a kernel that does other work too, its 8-bit output where it
    writes a high-precision one beside it, else nothing: it would have to write its result anyway.
    """
    if attribution.group == "quantize":
        return moved.total_bytes
    if attribution.carries_quantize and moved.eight_bit_write_bytes < moved.write_bytes:
        return moved.eight_bit_write_bytes
    return 0


def flops(graph: ModelGraph, nodes: Iterable[str]) -> int | None:
    """Multiplications and additions of the convs and gemms among `nodes`, unpadded.

    Returns:
        2 x outputs x (input channels per group x kernel taps, or inner dimension); 0 if there is no conv or gemm,
        None if a shape is not known.
    """
    counts = [_flops(graph, graph.nodes[name]) for name in nodes if graph.nodes[name].op in WEIGHTED]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True)
class Floor:
    """What a set of layers needs at least, on one GPU."""

    compute_us: float
    """Operations over the highest published dense rate at the operand dtype."""

    memory_us: float
    """Bytes that must come from DRAM over its bandwidth: only of tensors larger than L2, and only what is read."""

    unknown: int
    """Layers whose operations or rate are not known and that are counted as nothing."""

    @property
    def floor_us(self) -> float:
        """The larger of the two. Layers may overlap, so sums are compared, not the layers one by one."""
        return max(self.compute_us, self.memory_us)


def floor(attributions: Iterable[Attribution], graph: ModelGraph, gpu: Gpu) -> Floor:
    """Lower bound in microseconds of running the layers on `gpu`.

    Args:
        attributions: The layers.
        graph: The ONNX graph that they come from.
        gpu: Peaks from the table.
    """
    compute_s = memory_s = 0.0
    unknown = 0
    for attribution in attributions:
        operations = flops(graph, attribution.work)
        rate = _operations_per_s(gpu, attribution.layer)
        if operations is None or (operations and rate is None):
            unknown += 1
        elif rate is not None:
            compute_s += operations / rate
        memory_s += _dram_bytes(attribution, graph, gpu) / (gpu.bandwidth_gb_per_s * 1e9)
    return Floor(compute_s * 1e6, memory_s * 1e6, unknown)


def _each_once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({(tensor.name, tensor.shape): tensor for tensor in tensors}.values())


def _flops(graph: ModelGraph, node: Node) -> int | None:
    if not node.outputs or len(node.inputs) < 2:
        return None  # known by its name only
    output, weight = _sizes(graph, node.outputs[0]), _sizes(graph, node.inputs[1])
    first = _sizes(graph, node.inputs[0])
    if output is None or weight is None or first is None:
        return None
    match node.op:
        case "Conv":
            return 2 * math.prod(output) * math.prod(weight[1:])
        case "ConvTranspose":
            return 2 * math.prod(first) * math.prod(weight[1:])
        case "Gemm":
            return 2 * math.prod(output) * (first[0] if node.attributes.get("transA") else first[1])
        case _:
            return 2 * math.prod(output) * first[-1]


def _sizes(graph: ModelGraph, tensor: str) -> tuple[int, ...] | None:
    info = graph.tensors.get(tensor)
    shape = info.shape if info else None
    sizes = tuple(size for size in shape or () if isinstance(size, int) and size >= 0)
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _operations_per_s(gpu: Gpu, layer: Layer) -> float | None:
    """Highest published rate at the dtype of the layer's operands; FP32 may run as TF32, bounded by the FP16 rate."""
    names = {tensor.dtype_name for tensor in layer.reads}  # a conv may quantize its own input: then its weights tell
    peak = gpu.fp8_tflops if "fp8" in names else gpu.int8_tops if "int8" in names else gpu.fp16_tflops
    return None if peak is None else peak * 1e12


def _dram_bytes(attribution: Attribution, graph: ModelGraph, gpu: Gpu) -> float:
    """Bytes of tensors larger than L2; of the input of a strided 1x1 conv only the pixels that it reads."""
    if gpu.l2_bytes is None:
        return 0.0
    share = _share_read(attribution, graph)
    reads = sum(
        _unpadded_bytes(tensor, attribution, graph) * share
        for tensor in attribution.layer.inputs
        if (tensor.bytes or 0) > gpu.l2_bytes
    )
    others = (*attribution.layer.constants, *attribution.layer.outputs)
    return reads + sum(size for tensor in others if (size := tensor.bytes or 0) > gpu.l2_bytes)


def _share_read(attribution: Attribution, graph: ModelGraph) -> float:
    shares = []
    for node in (graph.nodes[name] for name in attribution.work):
        weight = _sizes(graph, node.inputs[1]) if node.op == "Conv" and node.inputs else None
        strides = node.attributes.get("strides", ())
        if weight is None or not isinstance(strides, tuple):
            continue
        pairs = zip(weight[2:], strides, strict=False)
        shares.append(math.prod(min(1.0, taps / int(stride)) for taps, stride in pairs))
    return min(shares, default=1.0)


def _unpadded_bytes(tensor: Tensor, attribution: Attribution, graph: ModelGraph) -> float:
    size = float(tensor.bytes or 0)
    for node in (graph.nodes[name] for name in attribution.work):
        read = _sizes(graph, node.inputs[0]) if node.op == "Conv" and node.inputs else None
        if read and len(read) == len(tensor.shape) and tensor.shape[1] > read[1]:
            return size * read[1] / tensor.shape[1]
    return size
