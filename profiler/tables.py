"""The tables that analysis works on and reports show. Every column is documented here, once."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.chain import longest_chain
from fusescope.profiler.clock import NO_CLOCK, Clock
from fusescope.profiler.gpus import Gpu
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.reformats import reformat_reasons
from fusescope.profiler.traffic import NO_TRAFFIC, floor, flops, quantize_bytes, traffic
from fusescope.profiler.verdicts import VERDICTS, Verdict

LAYER_COLUMNS: Mapping[str, str] = {
    "index": "place in execution order, from 0",
    "name": "the engine's name for the layer; names may repeat",
    "kind": "the inspector's LayerType",
    "group": "the layer's heaviest work, a key of GROUPS",
    "grouped_by": "what the group rests on, a key of GROUPED_BY; empty for other",
    "kernel": "whether it runs on the GPU: false for sync, runtime and constant",
    "stream": "CUDA stream, from 0",
    "on_chain": "whether it is on the longest chain of kernels in which each waits for the one before",
    "read_dtypes": "element types of the activations that it reads, as a comma-separated text",
    "write_dtypes": "element types of what it writes",
    "shape": "dimensions of its first output",
    "read_bytes": "bytes of inputs and constants, each tensor once; 0 without a kernel, as below",
    "write_bytes": "bytes of outputs",
    "traffic_bytes": "read_bytes + write_bytes",
    "quantize_bytes": "those that are there for its Quantizes alone",
    "unsized": "tensors of unknown size, not in the sums",
    "flops": "multiplications and additions of its convs and gemms, unpadded; missing if a shape is unknown",
    "carries_quantize": "whether it writes the 8-bit tensor of a Quantize",
    "quantizes": "those Quantize nodes",
    "direction": "quantize, dequantize or both, for the group quantize; else empty",
    "finishes": "the 8-bit conv whose raw accumulators it reads; else empty",
    "pads": "whether it adds channels of zeros",
    "dequantizes": "whether it turns an 8-bit tensor into a high-precision one",
    "partial": "whether another layer computes a part of the same nodes, or its name is cut short",
    "work": "ONNX nodes that it computes",
    "onnx_nodes": "ONNX nodes that its metadata name, or its own name where there are none",
    "members": "what its name says that it is fused from",
    "why": "of a change of format: what is changed, and where; else empty",
    "time_us": "mean time per inference, as the profiler gives it; missing where no clock ran",
    "time_median_us": "median over iterations; missing where only a mean is known",
    "net_us": "time_us without profile_overhead_us, which may make it negative; missing where that is not known",
}
"""Column of `layer_table` to its meaning."""

_FLAGS = ("kernel", "on_chain", "carries_quantize", "pads", "dequantizes", "partial")

SITE_COLUMNS: Mapping[str, str] = {
    "tensor": "the activation tensor that is quantized",
    "format": "fp8 or int8",
    "producer": "the node that makes it, through activations and casts; empty for a graph input",
    "producer_kind": "what that node is",
    "readers": "nodes that read the quantized tensor",
    "high_precision_readers": "nodes that read it unquantized",
    "verdict": "what the engine made of it, a key of VERDICTS",
    "kernels": "indices of the kernels that write the 8-bit tensor",
    "lost_readers": "readers that do not run in 8 bits",
    "evidence": "what in the engine says so",
    "prediction": "what the documented rules of full TensorRT expect: fuses, separate, lost or uncertain",
    "reason": "why they do",
    "rule": "the rule that says so",
    "remedy": "what the rule's source advises",
}
"""Column of the site table to its meaning."""


def layer_table(view: EngineView, clock: Clock = NO_CLOCK) -> pd.DataFrame:
    """One row per layer, in execution order, with the columns of `LAYER_COLUMNS`."""
    rows = []
    reasons = reformat_reasons(view.engine, view.attributions)
    chain = frozenset(longest_chain(view.engine, view.attributions))
    for attribution, why in zip(view.attributions, reasons, strict=True):
        layer = attribution.layer
        moved = traffic(layer) if attribution.is_kernel else NO_TRAFFIC
        rows.append(
            {
                "index": layer.index,
                "name": layer.name,
                "kind": layer.kind,
                "group": attribution.group,
                "grouped_by": attribution.grouped_by,
                "kernel": attribution.is_kernel,
                "stream": layer.stream,
                "on_chain": layer.index in chain,
                "read_dtypes": ", ".join(dict.fromkeys(tensor.dtype_name for tensor in layer.inputs)),
                "write_dtypes": ", ".join(dict.fromkeys(tensor.dtype_name for tensor in layer.outputs)),
                "shape": layer.outputs[0].shape if layer.outputs else (),
                "read_bytes": moved.read_bytes,
                "write_bytes": moved.write_bytes,
                "traffic_bytes": moved.total_bytes,
                "quantize_bytes": quantize_bytes(attribution, moved),
                "unsized": moved.unsized,
                "flops": None if view.by_name else flops(view.graph, attribution.work),
                "carries_quantize": attribution.carries_quantize,
                "quantizes": attribution.quantizes,
                "direction": attribution.direction,
                "finishes": attribution.finishes,
                "pads": attribution.pads,
                "dequantizes": attribution.dequantizes,
                "partial": attribution.partial,
                "work": attribution.work,
                "onnx_nodes": layer.onnx_nodes,
                "members": layer.members,
                "why": why,
            }
        )
    table = pd.DataFrame(rows, columns=list(LAYER_COLUMNS)).astype(dict.fromkeys(_FLAGS, bool))
    return table.assign(**_times(len(table), clock))


def _times(layers: int, clock: Clock) -> Mapping[str, npt.NDArray[np.float64]]:
    """The columns of a clock; all missing where none ran."""
    mean, median = np.full(layers, np.nan), np.full(layers, np.nan)
    for index, time in enumerate(clock.times):
        if time is not None:
            mean[index] = 1e3 * time.average_ms
            median[index] = np.nan if time.median_ms is None else 1e3 * time.median_ms
    net = np.full(layers, np.nan) if clock.overhead_us is None else mean - np.where(mean > 0, clock.overhead_us, 0)
    return {"time_us": mean, "time_median_us": median, "net_us": net}


GROUP_FIGURES: Mapping[str, str] = {
    "layers": "entries of the engine inspector",
    "kernels": "layers that run on the GPU",
    "bytes": "traffic: bytes that they read and write",
    "floor_us": "lower bound of their time on the GPU that was named, in microseconds; missing if none was",
    "time_us": "mean time per inference, as the profiler gives it; missing where no clock ran",
    "net_us": "time_us without what the profiler adds; missing where that is not known",
    "share": "part of the sum of the profile, entries that match no layer included",
    "net_share": "part of that sum without what the profiler adds",
}
"""Column of `group_table` to its meaning."""


def group_table(view: EngineView, layers: pd.DataFrame, gpu: Gpu | None, clock: Clock = NO_CLOCK) -> pd.DataFrame:
    """Totals by group, with the columns of `GROUP_FIGURES`.

    Every group has a row, and the rows add up to the engine.
    """
    grouped = layers.groupby("group")
    table = pd.DataFrame(
        {
            "layers": grouped.size(),
            "kernels": grouped["kernel"].sum(),
            "bytes": grouped["traffic_bytes"].sum(),
        }
    )
    table = table.reindex(list(GROUPS), fill_value=0).astype(int)
    members: dict[str, list[Attribution]] = {group: [] for group in table.index}
    for attribution in view.attributions:
        members[attribution.group].append(attribution)
    table["floor_us"] = [
        None if gpu is None else floor(members[group], view.graph, gpu).floor_us for group in table.index
    ]
    for column in ("time_us", "net_us"):
        known = layers[column].notna().any()
        table[column] = grouped[column].sum().reindex(table.index, fill_value=0.0) if known else np.nan
    table["share"] = table["time_us"] / (clock.total_us or np.nan)
    table["net_share"] = table["net_us"] / (clock.net_total_us or np.nan)
    return table


def reason_table(judged: tuple[Verdict, ...], reasons: tuple[str, ...], layers: pd.DataFrame) -> pd.DataFrame:
    """Totals by reason: ``sites``, ``kernels``, ``kernels_alone``, ``bytes``, ``time_us`` and one column per verdict.

    A kernel that carries sites of several reasons is counted under that of its first site, so that kernels and bytes
    add up to those of all carrying kernels.
    """
    owner: dict[int, str] = {}
    for verdict, reason in zip(judged, reasons, strict=True):
        for kernel in verdict.kernels:
            if layers.loc[kernel.index, "carries_quantize"]:
                owner.setdefault(kernel.index, reason)
    sites = pd.DataFrame({"reason": reasons, "verdict": [verdict.verdict for verdict in judged]})
    kernels = layers.loc[list(owner)]
    counted = pd.DataFrame(
        {
            "reason": list(owner.values()),
            "kernels": 1,
            "kernels_alone": kernels["group"] == "quantize",
            "bytes": kernels["traffic_bytes"],
            "quantize_bytes": kernels["quantize_bytes"],
        }
    )
    table = pd.crosstab(sites["reason"], sites["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    table.insert(0, "sites", sites.groupby("reason").size())
    table = table.join(counted.groupby("reason").sum()).fillna(0).astype(int)
    known = layers["time_us"].notna().any()
    spent = kernels["time_us"].groupby(list(owner.values())).sum()
    table["time_us"] = spent.reindex(table.index, fill_value=0.0) if known else np.nan
    return table.sort_values(["sites"], ascending=False)


def total_us(layers: pd.DataFrame, chosen: pd.DataFrame, column: str) -> float | None:
    """Sum of `chosen` rows of a layer table in a column of a clock; None where no clock ran."""
    return float(chosen[column].sum()) if layers[column].notna().any() else None
