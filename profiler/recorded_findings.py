"""Findings of recordings: what is told without the ONNX model, and what a recording does not open up."""

from collections.abc import Iterator

from fusescope.graph.units import plural
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Finding
from fusescope.profiler.rounding import rounding_kernels, weight_quantizes


def quantize_alone_by_name(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that only quantize or dequantize, where no graph tells why; those that lints tell of are left out."""
    told = {each.layer.index for each in (*rounding_kernels(evidence.view), *weight_quantizes(evidence.view))}
    quantizing = evidence.layers[evidence.layers["group"] == "quantize"]
    alone = quantizing[~quantizing["index"].isin(told)]
    if alone.empty:
        return
    ways = alone["direction"].value_counts()
    listed = ", ".join(f"{count} {way}" for way, count in ways.items())
    yield Finding(
        key="quantize-alone",
        title=f"{plural(len(alone), 'kernel only quantizes or dequantizes', 'kernels only quantize or dequantize')}",
        detail=f"By direction: {listed}. Each reads a tensor and writes it again in another type, and does nothing "
        "else. Why it stands alone cannot be told without the ONNX model.",
        kernels=len(alone),
        bytes=int(alone["traffic_bytes"].sum()),
        layers=tuple(int(index) for index in alone["index"]),
        nodes=tuple(dict.fromkeys(name for names in alone["onnx_nodes"] for name in names)),
        remedy="import the recording with --onnx: the graph tells which reader keeps each of them apart",
        source="type, origin and tensors of the recorded layers",
    )


def opaque_regions(evidence: Evidence) -> Iterator[Finding]:
    """Regions that the recording does not open up, with the ONNX nodes inside of them."""
    regions = evidence.layers[evidence.layers["group"] == "opaque"]
    if regions.empty:
        return
    nodes = tuple(dict.fromkeys(name for names in regions["onnx_nodes"] for name in names))
    inside = f"{plural(len(nodes), 'ONNX node')} inside" if nodes else "which ONNX nodes are inside is not told"
    yield Finding(
        key="opaque-region",
        title=f"{plural(len(regions), 'region is', 'regions are')} not opened up by the recording: {inside}",
        detail="A region that TensorRT compiled as a whole is one layer here. What its kernels are, and which of them "
        "quantize, cannot be told.",
        kernels=len(regions),
        bytes=int(regions["traffic_bytes"].sum()),
        layers=tuple(int(index) for index in regions["index"]),
        nodes=nodes,
        remedy="record with TensorRT 10 or later and --profilingVerbosity=detailed, which lists its kernels",
        source="the recorded layers; TensorRT documentation, engine inspector",
    )
