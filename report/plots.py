"""Figures that are no bars: kernels on their streams, and what blocks save. As `fusescope.report.figures`."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from fusescope.graph.units import megabytes, plural
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.quant.evaluate import Evaluation
from fusescope.report.figures import Figure, plain, shown_name
from fusescope.report.palette import BLUE, GREY, GROUP_COLORS, VERDICT_COLORS
from fusescope.report.panels import Lane, Trade

_LANE_PX = 24
_WIDTH_PX = {True: 15, False: 4}
"""Width of a kernel's stroke, on the longest chain and off it."""

_MODEL_PX = 44

_INSET = 0.08
"""Space between neighbours on a lane, in kernels."""


def streams_figure(lanes: Sequence[Lane]) -> Figure:
    """Kernels in execution order on the streams of each engine: thick on the longest chain, thin beside it."""
    engines = list(dict.fromkeys(lane.side for lane in lanes))
    rows = [place + engines.index(lane.side) for place, lane in enumerate(lanes)]  # a gap between engines
    traces = []
    for side in engines:
        placed = [(row, lane) for row, lane in zip(rows, lanes, strict=True) if lane.side == side]
        for group in GROUPS:
            traces += [trace for on_chain in (True, False) if (trace := _strokes(placed, group, on_chain=on_chain))]
    legend: set[str] = set()
    for trace in traces:
        trace.showlegend = trace.name not in legend
        legend.add(trace.name)
    names = [f"{shown_name(lane.engine)}, stream {lane.stream}" for lane in lanes]
    layout = {
        "template": "none",
        "height": _LANE_PX * (max(rows, default=0) + 1) + 120,
        "margin": {"l": 10, "r": 20, "t": 50, "b": 45},
        "xaxis": {"title": {"text": "place in execution order"}, "rangemode": "tozero", "showgrid": False},
        "yaxis": {"autorange": "reversed", "tickvals": rows, "ticktext": names, "showgrid": False, "zeroline": False},
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
    }
    return plain(go.Figure(traces, layout))


def _strokes(placed: Iterable[tuple[int, Lane]], group: str, *, on_chain: bool) -> go.Scatter | None:
    """All kernels of a group, on or off the chain, of one engine: one line with gaps; None if there are none."""
    x: list[float | None] = []
    y: list[int | None] = []
    indices: list[int | None] = []
    side = ""
    for row, lane in placed:
        side = lane.side
        chosen = (lane.kernels["group"] == group) & (lane.kernels["on_chain"] == on_chain)
        for index in lane.kernels.loc[chosen, "index"].to_list():
            x += [index + _INSET, index + 1 - _INSET, None]
            y += [row, row, None]
            indices += [index, index, None]
    if not x:
        return None
    where = "on the longest chain" if on_chain else "beside the longest chain"
    return go.Scatter(
        mode="lines",
        name=group,
        legendgroup=group,
        x=x,
        y=y,
        customdata=indices,
        meta=side,
        line={"color": GROUP_COLORS[group], "width": _WIDTH_PX[on_chain]},
        hovertemplate=f"layer %{{customdata}}: {group}, {where}<extra></extra>",
    )


def blocks_figure(trades: Sequence[Trade]) -> Figure:
    """Each block of convolutions: what it moves more or less, against what the Quantizes that feed it move.

    Both axes are drawn by square root, so that small blocks are told apart beside large ones; the line on which the
    two are equal stays straight.
    """
    traces = [
        _points([trade for trade in trades if trade.verdict == verdict], verdict)
        for verdict in VERDICTS
        if any(trade.verdict == verdict for trade in trades)
    ]
    across = [_root(trade.change_bytes) for trade in trades]
    up = [_root(trade.feeding_bytes) for trade in trades]
    reach = 1.1 * max(*map(abs, across), *up, 1)
    room = 0.08 * reach
    x_range = [min(*across, -max(up)) - room, max(*across, 0) + room]
    y_range = [-room, max(*up, room) + room]
    sides = ((x_range[0], "left", "saves more than its Quantizes move"), (x_range[1], "right", "moves more in all"))
    layout = {
        "template": "none",
        "height": 460,
        "margin": {"l": 10, "r": 20, "t": 50, "b": 50},
        "xaxis": {
            "title": {"text": "traffic of the block against the baseline"},
            "range": x_range,
            **_ticks(reach, signed=True),
        },
        "yaxis": {
            "title": {"text": "moved by the Quantize kernels that feed it"},
            "range": y_range,
            **_ticks(reach, signed=False),
        },
        "shapes": [
            {"type": "line", "x0": 0, "y0": 0, "x1": -reach, "y1": reach, "line": {"color": GREY, "dash": "dash"}}
        ],
        "annotations": [
            {"x": x, "y": y_range[0], "xanchor": anchor, "yanchor": "bottom", "text": text, "showarrow": False}
            for x, anchor, text in sides
        ],
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
    }
    return plain(go.Figure(traces, layout))


def _points(trades: Sequence[Trade], verdict: str) -> go.Scatter:
    return go.Scatter(
        mode="markers",
        name=verdict,
        x=[_root(trade.change_bytes) for trade in trades],
        y=[_root(trade.feeding_bytes) for trade in trades],
        customdata=[trade.block for trade in trades],
        text=[_told(trade) for trade in trades],
        marker={"color": VERDICT_COLORS[verdict], "size": 9, "opacity": 0.6},
        hovertemplate="%{text}<extra></extra>",
    )


def _told(trade: Trade) -> str:
    rest = f" and {len(trade.convs) - 1} more" if len(trade.convs) > 1 else ""
    shared = ", which feed other blocks too" if trade.shared else ""
    return (
        f"{shown_name(trade.convs[0])}{rest}<br>{megabytes(trade.change_bytes, signed=True)} against the baseline; "
        f"{megabytes(trade.feeding_bytes)} by {plural(trade.kernels, 'Quantize kernel')}{shared}"
    )


def _root(size: int) -> float:
    return math.copysign(math.sqrt(abs(size)), size)


def _ticks(reach: float, *, signed: bool) -> dict[str, Any]:
    """Labels that are told apart on an axis that is drawn by square root."""
    step = 10 ** math.floor(math.log10(max(reach, 1) ** 2))
    sizes = [size for size in (step // 10, 2 * step // 5, step, 4 * step) if 0 < size <= reach**2]
    values = [-size for size in reversed(sizes) if signed] + [0, *sizes]
    return {
        "tickmode": "array",
        "tickangle": 0,
        "tickvals": [_root(value) for value in values],
        "ticktext": [megabytes(value, signed=signed) if value else "0" for value in values],
    }


def accuracy_figure(evaluation: Evaluation) -> Figure:
    """Each model's share of right answers as a dot on its interval, and beside it what it differs from the reference.

    Without labels there is one panel: the share of images on which the reference says the same.
    """
    reference, *variants = evaluation.models
    rated = evaluation.models if reference.top1 else variants
    shares = [(model.name, share) for model in rated if (share := model.top1 or model.agreement)]
    levels = [(name, share.percent, share.low, share.high, f"{share.percent:.2f} %") for name, share in shares]
    against = {pair.second: pair for pair in evaluation.pairs if pair.first == reference.name}
    differences = [
        (name, pair.points, pair.low, pair.high, f"{pair.points:+.2f} points, p {pair.p:.2g}")
        for name, pair in against.items()
    ]
    title = "top-1, %" if reference.top1 else "same class as the reference, %"
    layout: dict[str, Any] = {
        "template": "none",
        "height": _MODEL_PX * len(evaluation.models) + 80,
        "margin": {"l": 10, "r": 30, "t": 10, "b": 45},
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticks": "", "ticklabelstandoff": 6},
        "xaxis": {"title": {"text": title}},
        "showlegend": False,
    }
    traces = [_dots(levels, "x")]
    if differences:
        traces.append(_dots(differences, "x2"))
        layout["xaxis"]["domain"] = [0, 0.46]
        layout["xaxis2"] = {
            "title": {"text": f"top-1 against {shown_name(reference.name)}, points"},
            "domain": [0.54, 1],
            "anchor": "y",
        }
        zero = {"xref": "x2", "yref": "y domain", "x0": 0, "x1": 0, "y0": 0, "y1": 1}
        layout["shapes"] = [{"type": "line", **zero, "line": {"color": GREY, "dash": "dash"}}]
    return plain(go.Figure(traces, layout))


def _dots(rows: Sequence[tuple[str, float, float, float, str]], axis: str) -> go.Scatter:
    """A dot per row on the line of its interval: name, value, low end, high end, and the value in words."""
    names, values, lows, highs, told = zip(*rows, strict=True) if rows else ((),) * 5
    return go.Scatter(
        mode="markers+text",
        x=list(values),
        y=[shown_name(name) for name in names],
        xaxis=axis,
        text=list(told),
        textposition="top center",
        textfont={"size": 11},
        marker={"color": BLUE, "size": 9},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, high in zip(values, highs, strict=True)],
            "arrayminus": [value - low for value, low in zip(values, lows, strict=True)],
            "color": BLUE,
        },
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
