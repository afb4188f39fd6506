"""What the panels of streams, of blocks and of graph spots show, as plain data: see `fusescope.report.shaping`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fusescope.graph import ops
from fusescope.graph.units import count, plural
from fusescope.profiler.dtypes import dtype_named
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.kinds import OPERATIONS
from fusescope.profiler.verdicts import VERDICTS


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of one engine, with its kernels in execution order."""

    side: str
    """``baseline`` or ``quantized``."""

    engine: str
    """What the engine is called."""

    stream: int
    """The CUDA stream."""

    kernels: pd.DataFrame
    """Its kernels: rows of the layer table."""


@dataclass(frozen=True, slots=True)
class Trade:
    """What a block of convolutions moves less or more than in the baseline, and what its Quantize kernels move."""

    block: int
    """Place in the block table."""

    convs: tuple[str, ...]
    """Its convs and gemms."""

    change_bytes: int
    """Bytes of the block against the same block of the baseline, without those for Quantizes alone."""

    feeding_bytes: int
    """Bytes, for Quantizes alone, of the kernels that write the 8-bit tensors which it reads."""

    kernels: int
    """Those kernels."""

    shared: bool
    """Whether other blocks read their tensors too."""

    verdict: str
    """What became of the Quantize of its first 8-bit tensor."""

    @property
    def net_bytes(self) -> int:
        """What the block moves more than the baseline in all; negative where it saves more than its Quantizes move."""
        return self.change_bytes + self.feeding_bytes


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of a group on the GPU that was named, and beside it what it took where a clock ran."""

    group: str
    """Key of `GROUPS`."""

    times_us: tuple[float | None, ...]
    """A figure for each of `floor_columns`, in microseconds; None where it is not known."""


_TRADED = ("convs", "bytes", "baseline_bytes", "feeding_bytes", "quantize_kernels", "shared", "fed_verdicts")


def lanes(explanation: Explanation) -> tuple[Lane, ...]:
    """Streams of both engines that run kernels, those of the baseline first."""
    sides = (
        ("baseline", explanation.baseline, explanation.baseline_layers),
        ("quantized", explanation.quantized, explanation.layers),
    )
    return tuple(
        Lane(name, side.provenance.name, stream, kernels)
        for name, side, layers in sides
        if side is not None and layers is not None
        for stream in sorted(set(layers.loc[layers["kernel"], "stream"].to_list()))
        for kernels in (layers[layers["kernel"] & (layers["stream"] == stream)],)
    )


def trades(explanation: Explanation) -> tuple[Trade, ...]:
    """Blocks with convs that read an 8-bit tensor, those that save most first; empty without a baseline."""
    if explanation.blocks is None:
        return ()
    table = explanation.blocks
    columns = (table[column].to_list() for column in _TRADED)
    found = (
        Trade(number, convs, moved - before, feeding, len(kernels), shared, fed[0])
        for number, (convs, moved, before, feeding, kernels, shared, fed) in enumerate(zip(*columns, strict=True))
        if convs and kernels
    )
    return tuple(sorted(found, key=lambda trade: trade.net_bytes))


def trades_by_verdict(found: Iterable[Trade]) -> dict[str, tuple[int, int, int]]:
    """Blocks that move fewer, as many and more bytes than in the baseline, their Quantize kernels counted."""
    counts: Counter[tuple[str, int]] = Counter()
    for trade in found:
        counts[trade.verdict, (trade.net_bytes > 0) - (trade.net_bytes < 0)] += 1
    return {
        verdict: (counts[verdict, -1], counts[verdict, 0], counts[verdict, 1])
        for verdict in VERDICTS
        if any(counts[verdict, sign] for sign in (-1, 0, 1))
    }


def told_chains(explanation: Explanation) -> str:
    """The longest chain of each engine in words."""
    sides = [side for side in (explanation.baseline, explanation.quantized) if side is not None]
    return "; ".join(
        f"{side.provenance.name} {count(side.chain_kernels)} of {plural(side.kernels, 'kernel')} on "
        f"{plural(side.streams, 'stream')}"
        for side in sides
    )


def floors(explanation: Explanation) -> tuple[Floor, ...]:
    """Floors of the groups that have one, or that took time."""
    table, columns = explanation.groups, floor_columns(explanation).values()
    found = (Floor(str(group), tuple(_known(table.loc[group, column]) for column in columns)) for group in table.index)
    return tuple(floor for floor in found if any(floor.times_us))


def floor_columns(explanation: Explanation) -> dict[str, tuple[str, str]]:
    """Heads of the table of floors, with the columns of the group table that they are: times where a clock ran."""
    sides = {"baseline": explanation.baseline, "quantized": explanation.quantized}
    columns = {}
    for name, side in sides.items():
        if side is not None:
            columns[f"{name}, floor"] = (name, "floor_us")
            if side.layer_time is not None:
                columns[f"{name}, {side.layer_time.source}"] = (name, "time_us")
    return columns


def _known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def conv_dtypes(layers: pd.DataFrame) -> Counter[tuple[str, str]]:
    """Convolution kernels of a layer table by the element types that they read and write."""
    convs = layers[(layers["group"] == "conv") & layers["kernel"]]
    return Counter(zip(convs["read_dtypes"], convs["write_dtypes"], strict=True))


def operation_groups(explanations: Sequence[Explanation]) -> dict[str, str]:
    """ONNX operations of all graph spots with the group of layers that their work counts as."""
    found = {place.op for explanation in explanations for place in explanation.excerpt.places}
    conversions = ops.QUANTIZE | ops.DEQUANTIZE
    return {op: "quantize" if op in conversions else OPERATIONS.get(op, "pointwise") for op in sorted(found)}


def short_dtypes(explanations: Sequence[Explanation]) -> dict[str, tuple[str, bool]]:
    """Element types of all graph spots: fusescope's word for each, and whether it is a quantized 8-bit type."""
    found = {wire.dtype for explanation in explanations for wire in explanation.excerpt.wires}
    known = {word: dtype_named(word) for word in sorted(found)}
    return {word: (dtype.name, dtype.eight_bit) if dtype else (word, False) for word, dtype in known.items()}
