"""Two engines side by side: the smallest pieces of the model that both compute in whole kernels."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import networkx as nx
import pandas as pd

from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.alignment import Piece, aligned_names, kernel_graph
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.verdicts import Verdict

BLOCK_COLUMNS: Mapping[str, str] = {
    "convs": "convs and gemms that the block computes",
    "kernels": "indices of its kernels; those that only quantize belong to no block of convs",
    "baseline_kernels": "indices of the baseline's kernels for the same ONNX nodes",
    "bytes": "bytes of its kernels, without those that are there for Quantizes alone",
    "baseline_bytes": "bytes of the baseline's kernels",
    "quantize_kernels": "indices of the kernels that write the 8-bit tensors which its convs and gemms read",
    "feeding_bytes": "bytes of those kernels that are there for the Quantizes alone",
    "fed_verdicts": "verdicts of the Quantize sites which its convs and gemms read",
    "shared": "whether other blocks read one of those tensors too: feeding_bytes is then theirs as well",
    "time_us": "time of its kernels; missing where no clock ran",
    "baseline_time_us": "time of the baseline's kernels; missing where no clock ran",
}
"""Column of `block_table` to its meaning."""


def block_table(
    view: EngineView,
    baseline: EngineView,
    layers: pd.DataFrame,
    baseline_layers: pd.DataFrame,
    judged: Sequence[Verdict],
) -> pd.DataFrame:
    """Align two engines: a row per block, with the columns of `BLOCK_COLUMNS`.

    Kernels that compute one ONNX node, or finish it, are in one block. So a block is compared as a whole: a conv with
    its split-off epilogue, and with a sum that one of the engines computes inside of it. The bytes of all blocks, with
    those for Quantizes alone, add up to each engine.

    Args:
        view: The explained engine.
        baseline: The engine that it is held against.
        layers: Layer table of `view`.
        baseline_layers: Layer table of `baseline`.
        judged: The verdicts of its sites.
    """
    ours, theirs = aligned_names(view, baseline)
    named = {key: name for name, key in ours.items()}
    blocks = list(nx.connected_components(kernel_graph({"baseline": (baseline, theirs), "quantized": (view, ours)})))
    nodes = [_nodes(block, named) for block in blocks]
    fed = _fed(nodes, judged)
    feeds = Counter(index for verdicts in fed for index in _feeding(verdicts))
    moved, before = layers["traffic_bytes"].to_list(), baseline_layers["traffic_bytes"].to_list()
    added = layers["quantize_bytes"].to_list()
    rows = []
    for block, names, verdicts in zip(blocks, nodes, fed, strict=True):
        kernels, baseline_kernels = _members(block, "quantized"), _members(block, "baseline")
        feeding = _feeding(verdicts)
        rows.append(
            {
                "convs": tuple(name for name in names if _is_weighted(view, name)),
                "kernels": kernels,
                "baseline_kernels": baseline_kernels,
                "bytes": sum(moved[index] - added[index] for index in kernels),
                "baseline_bytes": sum(before[index] for index in baseline_kernels),
                "quantize_kernels": feeding,
                "feeding_bytes": sum(added[index] for index in feeding),
                "fed_verdicts": tuple(dict.fromkeys(verdict.verdict for verdict in verdicts)),
                "shared": any(feeds[index] > 1 for index in feeding),
                "time_us": layers.loc[list(kernels), "time_us"].sum(min_count=1),
                "baseline_time_us": baseline_layers.loc[list(baseline_kernels), "time_us"].sum(min_count=1),
            }
        )
    return pd.DataFrame(rows, columns=list(BLOCK_COLUMNS))


def _fed(nodes: Sequence[Sequence[str]], judged: Sequence[Verdict]) -> list[list[Verdict]]:
    """Verdicts of the sites that each block reads."""
    home = {name: number for number, names in enumerate(nodes) for name in names}
    fed: list[list[Verdict]] = [[] for _ in nodes]
    for verdict in judged:
        for number in {home[reader] for reader in verdict.site.readers if reader in home}:
            fed[number].append(verdict)
    return fed


def _feeding(verdicts: Iterable[Verdict]) -> tuple[int, ...]:
    return tuple(sorted({kernel.index for verdict in verdicts for kernel in verdict.kernels}))


def _members(block: set[Piece], side: str) -> tuple[int, ...]:
    return tuple(sorted(index for kind, index in block if kind == side and isinstance(index, int)))


def _nodes(block: set[Piece], named: Mapping[str, str]) -> list[str]:
    """Nodes of the explained engine in a block."""
    return sorted(named[str(key)] for kind, key in block if kind == "node" and key in named)


def _is_weighted(view: EngineView, name: str) -> bool:
    return name in view.graph.nodes and view.graph.nodes[name].op in WEIGHTED
