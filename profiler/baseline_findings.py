"""Findings about an engine against its baseline."""

from collections.abc import Iterator

from fusescope.graph.units import mebibytes, megabytes, plural
from fusescope.profiler.alignment import aligned_names
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import BALANCE_KEY, Finding
from fusescope.profiler.layers import Layer


def left_convolutions(evidence: Evidence) -> Iterator[Finding]:
    """Work that the baseline does inside its convolutions and the quantized engine in kernels of their own."""
    if evidence.baseline_view is None:
        return
    ours, theirs = aligned_names(evidence.view, evidence.baseline_view)
    inside = {
        theirs[name]
        for attribution in evidence.baseline_view.attributions
        if attribution.group == "conv"
        for name in attribution.work
        if name in theirs
    }
    moved: dict[str, list[str]] = {}
    layers: list[Layer] = []
    for attribution in evidence.view.attributions:
        left = [name for name in attribution.work if ours.get(name) in inside]
        if attribution.group in {"conv", "epilogue"} or not left:
            continue
        layers.append(attribution.layer)
        for name in left:
            moved.setdefault(evidence.view.graph.nodes[name].op or "other", []).append(name)
    if not layers:
        return
    listed = ", ".join(f"{len(names)} {operation}" for operation, names in moved.items())
    indices = tuple(sorted({layer.index for layer in layers}))
    yield Finding(
        key="left-convolution",
        title=f"{plural(len(indices), 'kernel does', 'kernels do')} what the baseline does inside its convolutions",
        detail=f"Of the baseline's convolutions left: {listed}. An 8-bit convolution of this compiler takes fewer "
        "operations into its own kernel, so that their operands are written and read once more.",
        kernels=len(indices),
        bytes=int(evidence.layers.loc[list(indices), "traffic_bytes"].sum()),
        layers=indices,
        nodes=tuple(name for names in moved.values() for name in names),
        remedy="",
        source="both engines' own layers",
    )


def growth(evidence: Evidence) -> Iterator[Finding]:
    """Kernels, traffic and plan against the baseline, where they grew."""
    if evidence.baseline is None:
        return
    before, after = evidence.baseline, evidence.layers
    kernels = int(after["kernel"].sum() - before["kernel"].sum())
    moved = int(after["traffic_bytes"].sum() - before["traffic_bytes"].sum())
    plan = 0
    parts = [f"{kernels:+d} kernels", f"{megabytes(moved, signed=True)} of traffic"]
    if evidence.plan_bytes is not None and evidence.baseline_plan_bytes is not None:
        plan = evidence.plan_bytes - evidence.baseline_plan_bytes
        parts.append(f"{mebibytes(plan, signed=True)} of plan")
    if kernels <= 0 and moved <= 0 and plan <= 0:
        return
    yield Finding(
        key=BALANCE_KEY,
        title=f"against the baseline: {', '.join(parts)}",
        detail="The balance of the whole engine; the other findings say what it is made of.",
        kernels=max(kernels, 0),
        bytes=max(moved, 0),
        layers=(),
        nodes=(),
        remedy="",
        source="both engines' own layers",
    )
