"""What a reader must know before believing a figure of an explanation, in words."""

from fusescope.graph.units import megabytes, microseconds, plural
from fusescope.profiler.explanation import Coverage, Explanation


def cautions(explanation: Explanation) -> tuple[str, ...]:
    """What the first screen must warn of: weights and scales that are not the trained model's, and gaps."""
    found = list(explanation.warnings)
    for side in (explanation.baseline, explanation.quantized):
        if side is None:
            continue
        if side.provenance.weights not in {"", "as given"}:
            found.append(f"Weights are {side.provenance.weights}.")
        if side.provenance.scales.startswith("uncalibrated"):
            found.append(f"Activation scales are {side.provenance.scales}.")
    if missing := gaps(explanation.coverage):
        found.append(f"Not all of the engine is understood: {'; '.join(missing)}.")
    return tuple(dict.fromkeys(found))


def gaps(coverage: Coverage) -> dict[str, tuple[str, ...]]:
    """What fusescope did not understand of an engine, in words, with its items; empty if it understood all."""
    lists = {
        ("line of the dump could not be read", "lines of the dump could not be read"): coverage.unread_lines,
        ("layer kind is unknown", "layer kinds are unknown"): coverage.unknown_kinds,
        ("element type is unknown", "element types are unknown"): coverage.unknown_dtypes,
        ("memory format is unknown", "memory formats are unknown"): coverage.unknown_layouts,
        ("named ONNX node is not in the graph", "named ONNX nodes are not in the graph"): coverage.foreign_nodes,
        ("entry of the profile matches no layer", "entries of the profile match no layer"): coverage.unmatched_times,
        ("layer has no entry in the profile", "layers have no entry in the profile"): coverage.untimed_layers,
    }
    found = {plural(len(items), *words): items for words, items in lists.items() if items}
    if coverage.by_name:
        found[plural(coverage.by_name, "layer is", "layers are") + " grouped by words in names alone"] = ()
    if unsized := coverage.unsized_tensors:
        found[plural(unsized, "tensor has", "tensors have") + " no known size and are not in the bytes"] = ()
    if rest := coverage.layers - coverage.attributed_layers:
        moved = coverage.traffic_bytes - coverage.attributed_bytes
        spent = ""
        if coverage.time_us is not None and coverage.attributed_time_us is not None:
            spent = f", {microseconds(coverage.time_us - coverage.attributed_time_us)}"
        found[f"{plural(rest, 'layer')} of unknown work, {megabytes(moved)} of traffic{spent}"] = ()
    return found
