"""The figures of the report: this module and `fusescope.report.plots` alone know plotly.

They draw what `fusescope.report.shaping` and `fusescope.report.panels` hand them.

A figure is what plotly.js takes: ``data`` and ``layout``. Colours of text, grid and paper are the page's, light or
dark, and are set there. Plotly reads a few HTML tags in text: names are escaped, so that they show as they are.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from fusescope.graph.units import count, megabytes, microseconds
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report.palette import CHANGE_SCALE, GROUP_COLORS, VERDICT_COLORS
from fusescope.report.shaping import Engine, Module, shown_groups
from fusescope.report.waterfall import Step, layers_us

Figure = dict[str, Any]
Unit = Callable[..., str]
"""How a figure is written: `count`, `megabytes` or `microseconds`."""

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Measure:
    """What the bars of a panel are long as."""

    title: str
    """The axis, with its unit."""

    group_figure: str
    """Column of a group table, and attribute of a `Step`."""

    layer_figure: str
    """Column of a layer table."""

    unit: float
    """What one of the axis is in that of the columns."""

    text: Unit
    """How a figure is written at a bar."""


KERNELS = Measure("kernels", "kernels", "kernel", 1, count)
TRAFFIC = Measure("traffic, MB", "bytes", "traffic_bytes", _MB, megabytes)
SITES = Measure("Quantize sites", "sites", "", 1, count)
TIME = Measure("time, µs", "time_us", "time_us", 1, microseconds)


def measures(*, timed: bool) -> tuple[Measure, Measure]:
    """What two panels side by side show: time where a clock ran on all that they show, else kernels; and traffic."""
    return (TIME if timed else KERNELS), TRAFFIC


_AXES = ("x", "x2")
_LONGEST_NAME = 48
_ROW_PX = 30
_PANELS: dict[str, dict[str, Any]] = {"xaxis": {"domain": [0, 0.46]}, "xaxis2": {"domain": [0.54, 1], "anchor": "y"}}
_HATCH = {"shape": "/", "fillmode": "replace", "size": 6, "solidity": 0.5}
_HEADROOM = 1.22
"""How much longer an axis is than its longest bar: room for the figure at the bar's end."""


def waterfall_figure(explanation: Explanation, steps: Sequence[Step]) -> Figure:
    """From the baseline to the quantized engine, in time or kernels and in bytes; below it what quantizing costs."""
    before, after, cost = explanation.baseline, explanation.quantized, explanation.quantize
    assert before is not None, "a waterfall has two ends"
    shown = measures(timed=all(step.time_us is not None for step in steps))
    ends = {
        KERNELS: (before.kernels, after.kernels),
        TRAFFIC: (before.traffic_bytes, after.traffic_bytes),
        TIME: (layers_us(before) or 0, layers_us(after) or 0),
    }
    ranges = {
        KERNELS: (cost.kernels_alone, cost.kernels_carrying),
        TRAFFIC: (cost.bytes_alone, cost.bytes_carrying),
        TIME: (cost.time_alone_us or 0, cost.time_carrying_us or 0),
    }
    names = ["baseline", *(step.label for step in steps), "quantized"]
    colors = [GROUP_COLORS["other"], *(GROUP_COLORS[step.group] for step in steps), GROUP_COLORS["other"]]
    traces = []
    for axis, measure in zip(_AXES, shown, strict=True):
        first, last = ends[measure]
        values = [first, *(getattr(step, measure.group_figure) for step in steps), last]
        starts = [0, *(sum(values[: place + 1]) for place in range(len(steps))), 0]
        text = measure.text
        texts = [text(first), *(text(value, signed=True) for value in values[1:-1]), text(last)]
        traces.append(_bar(names, values, starts, colors, texts, axis, measure.unit))
    if cost.sites:
        for axis, measure in zip(_AXES, shown, strict=True):
            traces += _range(*ranges[measure], measure, axis)
        names.append(_COST)
    return _figure(traces, names, shown, row_px=40)


_COST = "cost of Quantize"


def _bar(
    names: Sequence[str],
    values: Sequence[float],
    starts: Sequence[float],
    colors: Sequence[str],
    shown: Sequence[str],
    axis: str,
    unit: float,
) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=list(names),
        x=[value / unit for value in values],
        base=[start / unit for start in starts],
        xaxis=axis,
        marker={"color": list(colors)},
        text=list(shown),
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
        showlegend=False,
    )


def _range(least: float, most: float, measure: Measure, axis: str) -> list[go.Bar]:
    color, unit, text = GROUP_COLORS["quantize"], measure.unit, measure.text
    common: dict[str, Any] = {"orientation": "h", "y": [_COST], "xaxis": axis, "showlegend": False, "cliponaxis": False}
    hover = f"at least {text(least)} (kernels that do nothing else), at most {text(most)} (all that carry one)"
    common["hovertemplate"] = hover + "<extra></extra>"
    return [
        go.Bar(x=[least / unit], marker={"color": color}, **common),
        go.Bar(
            x=[(most - least) / unit],
            base=[least / unit],
            marker={"color": color, "pattern": _HATCH},
            text=[f"{text(least)} to {text(most)}"],
            textposition="outside",
            **common,
        ),
    ]


def groups_figure(explanation: Explanation) -> Figure:
    """Time or kernels, and bytes, by group, the baseline beside the quantized engine."""
    groups = shown_groups(explanation)
    sides = [side for side in ("baseline", "quantized") if side in explanation.groups]
    timed = all(side is None or side.layer_time for side in (explanation.baseline, explanation.quantized))
    shown = measures(timed=timed)
    traces = []
    for axis, measure in zip(_AXES, shown, strict=True):
        for side in sides:
            values = explanation.groups[side].loc[groups, measure.group_figure].to_list()
            traces.append(
                go.Bar(
                    orientation="h",
                    name=side,
                    y=groups,
                    x=[value / measure.unit for value in values],
                    xaxis=axis,
                    marker={
                        "color": [GROUP_COLORS[group] for group in groups],
                        "pattern": _HATCH if side == "baseline" else {},
                    },
                    text=[measure.text(value) if value else "" for value in values],
                    textposition="outside",
                    cliponaxis=False,
                    hovertemplate=f"{side} %{{y}}: %{{text}}<extra></extra>",
                    showlegend=False,
                )
            )
    return _figure(traces, groups, shown, barmode="group", row_px=44)


def engines_figure(engines: Sequence[Engine]) -> Figure:
    """All engines of the report, a bar each, made of its groups."""
    names = [shown_name(engine.label) for engine in engines]
    shown = measures(timed=all(engine.side.layer_time for engine in engines))
    figures = [measure.layer_figure for measure in shown]
    totals = [engine.layers.groupby("group")[figures].sum() for engine in engines]
    traces = []
    for group in GROUPS:
        for axis, measure in zip(_AXES, shown, strict=True):
            values = [float(total[measure.layer_figure].get(group, 0)) for total in totals]
            if any(values):
                traces.append(
                    go.Bar(
                        orientation="h",
                        name=group,
                        legendgroup=group,
                        showlegend=axis == "x",
                        y=list(range(len(names))),
                        x=[value / measure.unit for value in values],
                        xaxis=axis,
                        marker={"color": GROUP_COLORS[group]},
                        customdata=[measure.text(value if measure is TIME else int(value)) for value in values],
                        hovertemplate=f"{group}: %{{customdata}}<extra></extra>",
                    )
                )
    drawn = _figure(traces, names, shown, barmode="stack", legend=True)
    drawn["layout"]["yaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names, "type": "linear"}
    return drawn


def modules_figure(modules: Sequence[Module]) -> Figure:
    """The network as a treemap: area is traffic; colour its change from the baseline, or the heaviest group."""
    drawn = [module for module in modules if module.bytes]
    changes = [_relative(module) for module in drawn]
    compared = any(module.baseline_bytes is not None for module in drawn)
    marker: dict[str, Any] = (
        {
            "colors": [max(-1.0, min(1.0, change)) for change in changes],
            "colorscale": [list(stop) for stop in CHANGE_SCALE],
            "cmin": -1,
            "cmax": 1,
            "cmid": 0,
            "showscale": True,
            "colorbar": {
                "orientation": "h",
                "title": {"text": "bytes against the same module of the baseline", "side": "top"},
                "tickvals": [-1, -0.5, 0, 0.5, 1],
                "ticktext": ["-100 %", "-50 %", "the same", "+50 %", "+100 % or more"],
                "y": 0,
                "yanchor": "top",
                "len": 0.6,
                "thickness": 10,
                "outlinewidth": 0,
            },
        }
        if compared
        else {"colors": [GROUP_COLORS[module.group] for module in drawn]}
    )
    trace = go.Treemap(
        ids=[_escaped(module.path) or "/" for module in drawn],
        labels=[shown_name(module.label) or "whole network" for module in drawn],
        parents=["" if not module.path else _escaped(module.parent) or "/" for module in drawn],
        values=[module.bytes for module in drawn],
        branchvalues="total",
        maxdepth=3,
        marker={**marker, "cornerradius": 3, "line": {"color": "#FFFFFF", "width": 1}},
        text=[_tile_text(module) for module in drawn],
        customdata=[_module_text(module) for module in drawn],
        texttemplate="<b>%{label}</b><br>%{text}",
        hovertemplate="<b>%{label}</b><br>%{customdata}<extra></extra>",
        tiling={"pad": 2},
        pathbar={"thickness": 26},
    )
    layout = {
        "template": "none",
        "height": 560,
        "margin": {"l": 0, "r": 0, "t": 30, "b": 70 if compared else 0},
        "uniformtext": {"minsize": 10, "mode": "hide"},
    }
    return plain(go.Figure(trace, layout))


def _relative(module: Module) -> float:
    if module.baseline_bytes is None:
        return 0.0
    return (module.bytes - module.baseline_bytes) / module.baseline_bytes if module.baseline_bytes else 1.0


def _tile_text(module: Module) -> str:
    """The bytes, and the change below them: short, since a tile without room shows no text."""
    if module.baseline_bytes is None:
        return megabytes(module.bytes)
    return f"{megabytes(module.bytes)}<br>{megabytes(module.bytes - module.baseline_bytes, signed=True)}"


def _module_text(module: Module) -> str:
    against = ""
    if module.baseline_bytes is not None:
        against = f"<br>{megabytes(module.bytes - module.baseline_bytes, signed=True)} against the baseline"
    return f"{megabytes(module.bytes)} in {count(module.kernels)} kernels, most in {module.group}{against}"


def reasons_figure(explanation: Explanation) -> Figure:
    """Sites by reason (why the documented rules expect what they do), made of verdicts (what was compiled)."""
    table = explanation.reasons
    names = [_escaped(str(reason)) for reason in table.index]
    traces = [
        go.Bar(
            orientation="h",
            name=verdict,
            y=names,
            x=[int(value) for value in table[verdict]],
            marker={"color": VERDICT_COLORS[verdict]},
            text=[count(int(value)) if value else "" for value in table[verdict]],
            textangle=0,
            hovertemplate=f"%{{y}}<br>{verdict}: %{{x}} sites<extra></extra>",
        )
        for verdict in VERDICTS
        if table[verdict].any()
    ]
    return _figure(traces, names, (SITES,), barmode="stack", legend=True)


def _figure(
    traces: Sequence[go.Bar],
    names: Sequence[str],
    shown: Sequence[Measure],
    *,
    barmode: str = "overlay",
    legend: bool = False,
    row_px: int = _ROW_PX,
) -> Figure:
    """Horizontal bars, first name on top; of two measures in two panels side by side that share the names."""
    layout: dict[str, Any] = {
        "template": "none",
        "barmode": barmode,
        "bargap": 0.25,
        "height": row_px * len(names) + 70 + 40 * legend,
        "margin": {"l": 10, "r": 50, "t": 10 + 40 * legend, "b": 45},
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticks": "", "ticklabelstandoff": 6},
        "xaxis": {"title": {"text": shown[0].title}, "range": _extent(traces, "x")},
        "showlegend": legend,
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
    }
    if len(shown) > 1:
        layout["xaxis"] |= _PANELS["xaxis"]
        layout["xaxis2"] = {"title": {"text": shown[1].title}, "range": _extent(traces, "x2"), **_PANELS["xaxis2"]}
    return plain(go.Figure(list(traces), layout))


def _extent(traces: Sequence[go.Bar], axis: str) -> list[float]:
    """From nothing to the end of the longest bar of an axis, stacked or not, and room for its text."""
    ends: dict[Any, float] = {}
    for trace in traces:
        if (trace.xaxis or "x") != axis:
            continue
        stacked = trace.base is None and trace.textposition != "outside"
        for name, value, base in zip(trace.y, trace.x, trace.base or [0] * len(trace.x), strict=True):
            ends[name] = ends.get(name, 0) + value if stacked else max(ends.get(name, 0), base, base + value)
    return [0, (max(ends.values(), default=0) or 1) * _HEADROOM]


def plain(figure: go.Figure) -> Figure:
    """A figure as the data of the page."""
    drawn: Figure = figure.to_dict()
    return drawn


def shown_name(name: str) -> str:
    """A name as plotly shows it: escaped, and cut in the middle if it is very long."""
    if len(name) > _LONGEST_NAME:
        half = _LONGEST_NAME // 2
        name = f"{name[:half]}…{name[-half:]}"
    return _escaped(name)


def _escaped(text: str) -> str:
    """Text that plotly shows as it is: it knows ``&lt;``, but not ``&quot;``."""
    return html.escape(text, quote=False)
