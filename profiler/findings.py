"""What a person should know about a quantized engine: one function per kind of finding, in the table `FINDERS`.

A finding counts kernels and bytes of the engine, never seconds that nobody measured, and never sites as kernels.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from fusescope.graph.ops import WEIGHTED
from fusescope.graph.reader_rules import ReaderRule, node_findings
from fusescope.graph.rules import Prediction
from fusescope.graph.sites import conv_precision, weight_granularity
from fusescope.graph.units import megabytes, plural
from fusescope.profiler.attribution import shows_dtypes
from fusescope.profiler.baseline_findings import growth, left_convolutions
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Finding
from fusescope.profiler.layers import Layer
from fusescope.profiler.lints import lint
from fusescope.profiler.paddings import Padding, paddings
from fusescope.profiler.recorded_findings import opaque_regions, quantize_alone_by_name
from fusescope.profiler.tables import total_us
from fusescope.profiler.verdicts import Verdict

FULL_TENSORRT = "tensorrt"
"""The runtime whose documented rules are held beside what was compiled."""

MICROPROBE = "observed with TensorRT-RTX 1.7.1, compiled for sm89 and sm120"


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Everything found, most costly first: by time where a clock ran, then by bytes, then by kernels."""
    finders = FINDERS_BY_NAME if evidence.view.by_name else FINDERS
    found = [_timed(finding, evidence.layers) for finder in finders for finding in finder(evidence)]
    return tuple(sorted(found, key=_costly_first))


def _timed(finding: Finding, layers: pd.DataFrame) -> Finding:
    chosen = layers.loc[list(finding.layers)]
    return replace(finding, time_us=total_us(layers, chosen, "time_us")) if finding.layers else finding


def _costly_first(finding: Finding) -> tuple[float, int, int, str]:
    return (-(finding.time_us or 0), -finding.bytes, -finding.kernels, finding.key)


def quantize_alone(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that only quantize, one finding per reason."""
    by_reason: dict[str, list[tuple[Verdict, Prediction]]] = {}
    for verdict, prediction in zip(evidence.judged, evidence.predictions, strict=True):
        if verdict.verdict == "alone":
            by_reason.setdefault(prediction.reason, []).append((verdict, prediction))
    for reason, pairs in by_reason.items():
        layers = _indices(kernel for verdict, _ in pairs for kernel in verdict.kernels)
        rule = pairs[0][1]
        yield Finding(
            key="quantize-alone",
            title=f"{plural(len(layers), 'kernel only quantizes', 'kernels only quantize')}: {reason}",
            detail=f"{plural(len(pairs), 'site')}. Each tensor is read in high precision and written again in 8 bits. "
            + _EXPECTATION[rule.prediction],
            kernels=len(layers),
            bytes=_bytes(evidence.layers, layers),
            layers=layers,
            nodes=_distinct(verdict.site.tensor for verdict, _ in pairs),
            remedy=rule.remedy or UNQUANTIZED,
            source=rule.source,
            change=rule.change if rule.remedy else {"placement": "fusable-only"},
        )


UNQUANTIZED = "leave what this compiler does not fuse unquantized: --placement fusable-only --verdicts RUN"
"""The remedy of Quantizes that stand alone although the documented rules see nothing wrong with them."""

_EXPECTATION = {
    "fuses": "This compiler leaves apart what full TensorRT is documented to fuse into the producing convolution.",
    "separate": "Full TensorRT is documented to leave it apart as well.",
    "lost": "Of full TensorRT the documents expect that no reader runs in 8 bits at all.",
    "uncertain": "The documents do not say what full TensorRT does here.",
}


def quantize_merged(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that quantize on top of other work of the model."""
    found = [pair for pair in zip(evidence.judged, evidence.predictions, strict=True) if pair[0].verdict == "merged"]
    merged = [verdict for verdict, _ in found]
    layers = _indices(kernel for verdict in merged for kernel in verdict.kernels)
    if not layers:
        return
    second = evidence.layers.loc[list(layers)]
    writing_both = second[second["quantize_bytes"] > 0]
    shared = next((rule for _, rule in found if rule.change), None)
    yield Finding(
        key="quantize-merged",
        title=f"{plural(len(layers), 'kernel quantizes', 'kernels quantize')} on top of other work of the model",
        detail=f"{plural(len(merged), 'site')}. The kernel computes an addition, a resize or another operation too. "
        f"{plural(len(writing_both), 'of them writes', 'of them write')} the values in high precision as well, for "
        "other readers: the bytes here are those of the additional 8-bit tensors.",
        kernels=len(layers),
        bytes=int(second["quantize_bytes"].sum()),
        layers=layers,
        nodes=_distinct(verdict.site.tensor for verdict in merged),
        remedy=shared.remedy if shared else "",
        source=shared.source if shared else MICROPROBE,
        change=shared.change if shared else {},
    )


def split_epilogues(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that only finish what an 8-bit conv began, and the wide outputs that they read."""
    epilogues = evidence.layers[evidence.layers["group"] == "epilogue"]
    if epilogues.empty:
        return
    finishing = evidence.layers[(evidence.layers["finishes"] != "") & evidence.layers["kernel"]]
    layers = tuple(int(index) for index in epilogues["index"])
    convs = _distinct(epilogues["finishes"])
    why, remedy, change = _raw_accumulators(evidence, convs)
    yield Finding(
        key="epilogue-split",
        title=f"{plural(len(layers), 'epilogue is', 'epilogues are')} split off their convolutions",
        detail="The convolution writes raw accumulators; a kernel of its own reads them, dequantizes, adds the bias, "
        f"applies the activation and quantizes. In all {len(finishing)} kernels read raw accumulators. {why}",
        kernels=len(layers),
        bytes=int(epilogues["traffic_bytes"].sum()),
        layers=layers,
        nodes=convs,
        remedy=remedy,
        change=change,
        source=MICROPROBE,
    )


def wide_conv_outputs(evidence: Evidence) -> Iterator[Finding]:
    """8-bit convolutions that write fp32 although the model's tensors are narrower."""
    wide = [
        row
        for row in _conv_rows(evidence)
        if row.write_dtypes == "fp32" and _has_8_bits(row.read_dtypes) and _narrow(evidence, row.work)
    ]
    if not wide:
        return
    written = sum(row.write_bytes for row in wide)
    convs = _distinct(name for row in wide for name in row.work)
    why, remedy, change = _raw_accumulators(evidence, convs)
    yield Finding(
        key="conv-output-fp32",
        title=f"{plural(len(wide), '8-bit convolution writes', '8-bit convolutions write')} fp32",
        detail=f"Their outputs hold {megabytes(written)} where the model's own dtype would take "
        f"{megabytes(written // 2)}; each is read again by the kernel that finishes it. The bytes here are the "
        f"surplus, written and read. {why}",
        kernels=len(wide),
        bytes=written,  # half of what is written, and as much again when it is read
        layers=tuple(row.index for row in wide),
        nodes=convs,
        remedy=remedy,
        change=change,
        source=MICROPROBE,
    )


def _raw_accumulators(evidence: Evidence, convs: Iterable[str]) -> tuple[str, str, dict[str, str]]:
    """Why raw accumulators leave these convolutions, what to do, and what to change in the recipe for it."""
    graph = evidence.view.graph
    if any(weight_granularity(graph, graph.nodes[name]) == "per-channel" for name in convs):
        why = "Their weights are scaled per output channel; a per-tensor scale is applied inside the convolution."
        return why, PER_TENSOR, {"weights": "per-tensor"}
    if any(node.op == "BatchNormalization" for node in graph.nodes.values()):
        why = "Their weights are scaled per tensor; a BatchNormalization that is not folded scales channels."
        return why, "fold BatchNormalization into the convolutions before quantizing", {}
    return "Their weights are scaled per tensor: the cause is another one.", "", {}


def padded_channels(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that add channels of zeros, because an 8-bit conv wants a multiple."""
    found = [
        (layer.index, padding)
        for layer in evidence.view.engine.layers
        if any(tensor.is_eight_bit for tensor in layer.outputs)
        for padding in paddings(layer)
    ]
    for within_groups in (False, True):
        chosen = [(index, padding) for index, padding in found if padding.within_groups is within_groups]
        if chosen:
            yield _padding_finding(evidence, chosen, within_groups=within_groups)


def _padding_finding(evidence: Evidence, found: list[tuple[int, Padding]], *, within_groups: bool) -> Finding:
    layers = tuple(dict.fromkeys(index for index, _ in found))
    widths = Counter(f"{padding.channels} to {padding.padded_channels}" for _, padding in found)
    listed = ", ".join(f"{count} from {width}" for width, count in widths.most_common())
    carried = [name for index in layers for name in evidence.view.attributions[index].quantizes]
    depthwise = _grouped_readers(evidence, carried) if within_groups else ()
    what = "channels of depthwise convolutions" if within_groups else "channels"
    unit = "each channel of a depthwise 8-bit convolution" if within_groups else "the input of an 8-bit convolution"
    return Finding(
        key="depthwise-padding" if within_groups else "channel-padding",
        title=f"{plural(len(layers), 'kernel pads', 'kernels pad')} {what} with zeros",
        detail=f"Channels: {listed}. The compiler pads {unit} to a multiple of 4: the Quantize before it writes, and "
        "the convolution reads, more than the model holds. The bytes here are the zeros, written and read.",
        kernels=len(layers),
        bytes=2 * sum(padding.zero_bytes for _, padding in found),
        layers=layers,
        nodes=depthwise or tuple(carried),
        remedy="keep depthwise convolutions in high precision: --keep NAME"
        if within_groups
        else "train the model with widths that are multiples of 4, or keep these convolutions in high precision",
        source="TensorRT-RTX support matrix: FP8 convolutions need 4-byte alignment; " + MICROPROBE,
        change={"keep": depthwise} if depthwise else {},
    )


def _grouped_readers(evidence: Evidence, quantizes: Iterable[str]) -> tuple[str, ...]:
    """The grouped convs that read what `quantizes` write."""
    wanted = set(quantizes)
    readers = (
        reader for verdict in evidence.judged if wanted & set(verdict.site.quantize) for reader in verdict.site.readers
    )
    grouped = (name for name in readers if max(evidence.view.graph.nodes[name].integers("group"), default=1) > 1)
    return tuple(dict.fromkeys(grouped))


def lost_convs(evidence: Evidence) -> Iterator[Finding]:
    """Convs and gemms that the graph quantizes and the engine runs in high precision."""
    lost = [
        (node, layers)
        for node, layers in evidence.view.weighted.items()
        if conv_precision(evidence.view.graph, evidence.view.graph.nodes[node])
        and all(map(shows_dtypes, layers))
        and not any(tensor.is_eight_bit for layer in layers for tensor in layer.reads)
    ]
    if not lost:
        return
    layers = _indices(layer for _, computing in lost for layer in computing)
    yield Finding(
        key="lost-8-bits",
        title=f"{plural(len(lost), 'quantized convolution or gemm runs', 'quantized convolutions or gemms run')} "
        "in high precision",
        detail="Both operands stand behind a Dequantize in the graph, but the kernel reads no 8-bit tensor: values are "
        "rounded to 8 bits, which costs accuracy and kernels, without the 8-bit multiplication.",
        kernels=len(layers),
        bytes=_bytes(evidence.layers, layers),
        layers=layers,
        nodes=tuple(node for node, _ in lost),
        remedy="keep them in high precision: --keep NAME",
        source="dtypes of the engine's own tensors",
        change={"keep": tuple(node for node, _ in lost)},
    )


def documented_limits(evidence: Evidence) -> Iterator[Finding]:
    """8-bit convs and gemms that run in 8 bits, but badly, as documents say: grouped and depthwise ones above all."""
    concerned: dict[str, list[tuple[str, ReaderRule]]] = {}
    for found in node_findings(evidence.view.graph, FULL_TENSORRT, evidence.target):
        if not found.rule.blocks:
            concerned.setdefault(found.rule.name, []).append((found.node, found.rule))
    for pairs in concerned.values():
        nodes, rule = [node for node, _ in pairs], pairs[0][1]
        layers = _indices(layer for node in nodes for layer in evidence.view.computing(node))
        yield Finding(
            key="documented-limit",
            title=f"{plural(len(nodes), 'node')}: {rule.reason}",
            detail=rule.explanation,
            kernels=len(layers),
            bytes=_bytes(evidence.layers, layers),
            layers=layers,
            nodes=tuple(nodes),
            remedy=rule.remedy,
            source=rule.source,
        )


def weights_dequantized(evidence: Evidence) -> Iterator[Finding]:
    """Kernels that dequantize weights at run time, at every inference."""
    found = [
        layer
        for layer in evidence.view.engine.layers
        if evidence.layers.loc[layer.index, "direction"] == "dequantize"
        and not any(tensor.is_eight_bit for tensor in layer.inputs)
    ]
    if not found:
        return
    layers = _indices(found)
    yield Finding(
        key="weights-dequantized",
        title=f"{plural(len(layers), 'kernel dequantizes', 'kernels dequantize')} weights at every inference",
        detail="An 8-bit constant is turned into high precision in a kernel of its own, since its conv does not run in "
        "8 bits.",
        kernels=len(layers),
        bytes=_bytes(evidence.layers, layers),
        layers=layers,
        nodes=_distinct(name for layer in found for name in layer.onnx_nodes),
        remedy="keep their convolutions in high precision: --keep NAME",
        source=MICROPROBE,
    )


PER_TENSOR = "scale the weights per tensor (--weights per-tensor), and check the accuracy"
"""The remedy of raw accumulators that leave the convolution."""

FINDERS: Sequence[Callable[[Evidence], Iterable[Finding]]] = (
    growth,
    left_convolutions,
    quantize_alone,
    quantize_merged,
    split_epilogues,
    wide_conv_outputs,
    padded_channels,
    lost_convs,
    documented_limits,
    weights_dequantized,
    opaque_regions,
    lint,
)
"""Every kind of finding. To add one, write a function and list it here."""

FINDERS_BY_NAME: Sequence[Callable[[Evidence], Iterable[Finding]]] = (
    growth,
    left_convolutions,
    quantize_alone_by_name,
    padded_channels,
    weights_dequantized,
    opaque_regions,
    lint,
)
"""Those of a recording without the ONNX model."""


def _indices(layers: Iterable[Layer]) -> tuple[int, ...]:
    return tuple(sorted({layer.index for layer in layers}))


def _bytes(table: pd.DataFrame, indices: Sequence[int]) -> int:
    return int(table.loc[list(indices), "traffic_bytes"].sum())


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _conv_rows(evidence: Evidence) -> Iterator[Any]:
    convs = evidence.layers[evidence.layers["group"] == "conv"]
    return convs.itertuples(index=False)


def _has_8_bits(dtypes: str) -> bool:
    return not {"fp8", "int8"}.isdisjoint(dtypes.split(", "))


def _narrow(evidence: Evidence, work: Iterable[str]) -> bool:
    graph = evidence.view.graph
    outputs = (graph.nodes[name].outputs[0] for name in work if graph.nodes[name].op in WEIGHTED)
    return any(graph.tensors[tensor].dtype in {"float16", "bfloat16"} for tensor in outputs)
