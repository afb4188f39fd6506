"""The panels of blocks, streams and graph spots: what they show, and that it is drawn as it is."""

from dataclasses import replace

import pandas as pd
import pytest

from fusescope.graph.neighbourhood import Excerpt, Place, Wire
from fusescope.profiler.explanation import Explanation
from fusescope.report.panels import (
    Floor,
    floor_columns,
    floors,
    lanes,
    operation_groups,
    short_dtypes,
    told_chains,
    trades,
    trades_by_verdict,
)
from fusescope.report.plots import blocks_figure, streams_figure


def test_streams_of_both_engines(pair: Explanation) -> None:
    """Those of the baseline first, each with its kernels in execution order; what is no kernel is in none."""
    layers = pair.layers.assign(stream=[0, 1, 0, 0, 1, 0, 2])
    found = lanes(replace(pair, layers=layers))
    assert [(lane.side, lane.engine, lane.stream) for lane in found] == [
        ("baseline", "fp16", 0),
        ("quantized", "fp8", 0),
        ("quantized", "fp8", 1),
    ]
    assert [lane.kernels["name"].to_list() for lane in found] == [
        ["stem", "b", "fc"],
        ["stem", "b", "b_end", "fc"],
        ["stem_q", "add"],
    ]


def test_the_chain_is_thick(pair: Explanation) -> None:
    """Each kernel is one stroke at its place in execution order, thick on the chain and thin off it."""
    layers = pair.layers.assign(on_chain=[True, False, True, True, True, True, False])
    drawn = streams_figure(lanes(replace(pair, layers=layers)))
    strokes = {
        (trace["meta"], index): (trace["line"]["width"], trace["x"][3 * place], trace["y"][3 * place])
        for trace in drawn["data"]
        for place, index in enumerate(trace["customdata"][::3])
    }
    assert len(strokes) == 3 + 6
    thin = {key for key, (width, *_) in strokes.items() if width == min(width for width, *_ in strokes.values())}
    assert thin == {("quantized", 1)}
    assert all(index <= x < index + 1 for (_, index), (_, x, _) in strokes.items())
    assert {key[0]: y for key, (*_, y) in strokes.items()} == {"baseline": 0, "quantized": 2}, "a gap between them"
    assert list(drawn["layout"]["yaxis"]["ticktext"]) == ["fp16, stream 0", "fp8, stream 0"]


def test_the_chain_in_words(pair: Explanation) -> None:
    """For those who do not see it."""
    assert told_chains(pair) == "fp16 3 of 3 kernels on 1 stream; fp8 6 of 6 kernels on 1 stream"


def test_what_a_block_trades(pair: Explanation) -> None:
    """Only blocks that read 8-bit tensors: 1200 kB more than in the baseline, fed by a kernel of 750 kB."""
    (found,) = trades(pair)
    assert (found.block, found.convs, found.kernels) == (1, ("/block/block.0/b/Conv",), 1)
    assert (found.change_bytes, found.feeding_bytes, found.net_bytes) == (1_200_000, 750_000, 1_950_000)
    assert trades_by_verdict([found]) == {"alone": (0, 0, 1)}
    assert trades(replace(pair, blocks=None)) == ()


def test_blocks_are_counted_by_what_they_save(pair: Explanation) -> None:
    """Fewer, as many, or more bytes than in the baseline, with the Quantize kernels counted in."""
    (found,) = trades(pair)
    saving, even = replace(found, change_bytes=-750_001), replace(found, change_bytes=-750_000, verdict="fused")
    assert trades_by_verdict([saving, even, found]) == {"fused": (0, 1, 0), "alone": (1, 0, 1)}


@pytest.mark.parametrize("change", [-4_000_000, -1, 0, 90, 8_000_000_000])
def test_blocks_are_drawn_inside_the_axes(pair: Explanation, change: int) -> None:
    """Whatever its size, a block lies in the picture, on the right side of the line on which both are equal."""
    (found,) = trades(pair)
    drawn = blocks_figure([replace(found, change_bytes=change), replace(found, feeding_bytes=0, change_bytes=0)])
    (trace,) = drawn["data"]
    ranges = [drawn["layout"][axis]["range"] for axis in ("xaxis", "yaxis")]
    for point in zip(trace["x"], trace["y"], strict=True):
        assert all(least < value < most for value, (least, most) in zip(point, ranges, strict=True))
    x, y = trace["x"][0], trace["y"][0]
    assert (x < -y) == (change + found.feeding_bytes < 0)
    ticks = drawn["layout"]["xaxis"]
    assert len(ticks["tickvals"]) == len(ticks["ticktext"])
    assert "0" in ticks["ticktext"]


def test_floors_are_there_for_a_named_gpu(pair: Explanation) -> None:
    """Groups with a floor on either side; none without a GPU."""
    assert floors(pair) == ()
    groups = pair.groups.copy()
    groups[("quantized", "floor_us")] = pd.Series(0.0, groups.index)
    groups.loc["conv", ("quantized", "floor_us")] = 1.5
    assert floors(replace(pair, groups=groups, gpu="L4")) == (Floor("conv", (None, 1.5)),)


def test_floors_beside_times(timed: Explanation) -> None:
    """Where a clock ran, what each group took stands beside what it cannot go below."""
    groups = timed.groups.copy()
    for side in ("baseline", "quantized"):
        groups[(side, "floor_us")] = groups[(side, "time_us")] / 4
    found = replace(timed, groups=groups, gpu="L4")
    assert list(floor_columns(found)) == [
        "baseline, floor",
        "baseline, recorded",
        "quantized, floor",
        "quantized, recorded",
    ]
    (conv,) = (floor for floor in floors(found) if floor.group == "conv")
    assert conv.times_us == (8.75, 35.0, 6.75, 27.0)


def test_operations_and_types_of_the_spots(pair: Explanation) -> None:
    """An operation has the colour of its group; a type has a short name, or its own where it is not known."""
    odd = Excerpt((Place("n", "Unheard", ""), Place("c", "Concat", "")), (Wire("t", "float4", None, None, (0,)),))
    explanations = [pair, replace(pair, excerpt=odd)]
    assert operation_groups(explanations) == {
        "Add": "pointwise",
        "Concat": "copy",
        "Conv": "conv",
        "DequantizeLinear": "quantize",
        "QuantizeLinear": "quantize",
        "Relu": "pointwise",
        "Unheard": "pointwise",
    }
    assert short_dtypes(explanations) == {
        "float16": ("fp16", False),
        "float4": ("float4", False),
        "float8e4m3fn": ("fp8", True),
    }
