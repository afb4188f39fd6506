"""From a run, or a baseline and a quantized run, to an `Explanation`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import get_args

import pandas as pd

from fusescope.graph.rules import Expectation, Prediction, predictions
from fusescope.graph.sites import quantize_sites
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.blocks import block_table
from fusescope.profiler.clock import Clock, clock_of
from fusescope.profiler.comparable import check_comparable
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Coverage, Explanation, QuantizeCost, Side
from fusescope.profiler.findings import FULL_TENSORRT, findings
from fusescope.profiler.gpus import Gpu
from fusescope.profiler.reformats import reformat_table, transition_table
from fusescope.profiler.resolve import lacking
from fusescope.profiler.run import Run
from fusescope.profiler.spots import find_spots
from fusescope.profiler.tables import SITE_COLUMNS, group_table, layer_table, reason_table, total_us
from fusescope.profiler.verdicts import Verdict, verdict_counts, verdicts


def explain(quantized: Run, baseline: Run | None = None, *, gpu: Gpu | None = None) -> Explanation:
    """Explain an engine, against a baseline if there is one.

    Args:
        quantized: The run to explain.
        baseline: The run of the unquantized model.
        gpu: The GPU to give floors for; None for no floors.

    Raises:
        UserError: The baseline is of another model, runtime, target, GPU or batch.
    """
    warnings = () if baseline is None else check_comparable(quantized, baseline)
    view, clock = EngineView(quantized.engine, quantized.model), clock_of(quantized)
    sites = () if view.by_name else quantize_sites(view.graph)
    judged = verdicts(view, sites)
    expected = predictions(view.graph, sites, FULL_TENSORRT, quantized.provenance.target)
    layers = layer_table(view, clock)
    groups = {"quantized": group_table(view, layers, gpu, clock)}
    base_side = base_view = base_layers = blocks = None
    if baseline is not None:
        base_view, base_clock = EngineView(baseline.engine, baseline.model), clock_of(baseline)
        base_layers = layer_table(base_view, base_clock)
        base_side = _side(baseline, base_view, base_layers, base_clock)
        blocks = block_table(view, base_view, layers, base_layers, judged)
        groups = {"baseline": group_table(base_view, base_layers, gpu, base_clock), **groups}
        warnings += tuple(f"{baseline.provenance.name}: {each}" for each in (*baseline.warnings, *base_clock.warnings))
    evidence = Evidence(
        view=view,
        layers=layers,
        judged=judged,
        predictions=expected,
        target=quantized.provenance.target,
        plan_bytes=quantized.provenance.plan_bytes,
        baseline_view=base_view,
        baseline=base_layers,
        baseline_plan_bytes=None if baseline is None else baseline.provenance.plan_bytes,
    )
    found = findings(evidence)
    cut, spots = find_spots(view, base_view, sites, [name for finding in found for name in finding.nodes])
    return Explanation(
        observed=_observed(quantized),
        expected=_expected(expected),
        baseline=base_side,
        quantized=_side(quantized, view, layers, clock),
        groups=pd.concat(groups, axis=1),
        quantize=_cost(layers, judged, expected),
        reasons=reason_table(judged, tuple(prediction.reason for prediction in expected), layers),
        findings=found,
        coverage=_coverage(view, layers, clock),
        sites=_site_table(judged, expected),
        layers=layers,
        baseline_layers=base_layers,
        blocks=blocks,
        excerpt=cut,
        spots=spots,
        judged=judged,
        gpu="" if gpu is None else gpu.name,
        warnings=tuple(dict.fromkeys((*quantized.warnings, *clock.warnings, *warnings))),
        quantization=_quantization(view),
        reformats=reformat_table(layers),
        transitions=transition_table(layers),
    )


def _observed(run: Run) -> str:
    origin = run.provenance
    title = {"tensorrt-rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}.get(origin.runtime, origin.runtime)
    if origin.artifacts:
        version = f"{title} {origin.runtime_version}" if origin.runtime_version else f"an unknown version of {title}"
        return f"observed: {origin.how}, {version}, on {origin.facts.get('gpu') or 'an unknown GPU'}"
    how = origin.how.removeprefix("compiled ")
    return f"observed: compiled by {title} {origin.runtime_version} for {origin.target}, {how}"


def _expected(predicted: Sequence[Prediction]) -> str:
    if not predicted:
        return ""
    counts = Counter(prediction.prediction for prediction in predicted)
    listed = ", ".join(f"{counts[key]} {key.replace('fuses', 'fuse')}" for key in get_args(Expectation) if counts[key])
    return f"expected of full TensorRT (rules, not built), of {len(predicted)} Quantize sites: {listed}"


def _quantization(view: EngineView) -> str:
    """A key of `QUANTIZATIONS`."""
    if view.is_explicit:
        return "explicit"
    tensors = [tensor for layer in view.engine.layers for tensor in (*layer.reads, *layer.outputs)]
    if any(tensor.is_eight_bit for tensor in tensors):
        return "implicit"
    return "none" if any(tensor.dtype for tensor in tensors) or not view.by_name else "unknown"


def _side(run: Run, view: EngineView, layers: pd.DataFrame, clock: Clock) -> Side:
    kernels = layers[layers["kernel"]]
    computing = view.weighted.values()
    return Side(
        provenance=run.provenance,
        layers=len(layers),
        kernels=len(kernels),
        plan_bytes=run.provenance.plan_bytes,
        traffic_bytes=int(layers["traffic_bytes"].sum()),
        conv_write_bytes=int(layers.loc[layers["group"] == "conv", "write_bytes"].sum()),
        weighted_in_8_bits=sum(
            any(tensor.is_eight_bit for layer in found for tensor in layer.inputs) for found in computing
        ),
        weighted=len(computing),
        streams=int(layers["stream"].nunique()),
        chain_kernels=int(layers["on_chain"].sum()),
        latency=clock.latency,
        layer_time=clock.layer_time,
        executed_layers=clock.executed_layers,
        profile_overhead_us=clock.overhead_us,
    )


def _cost(layers: pd.DataFrame, judged: tuple[Verdict, ...], predicted: Sequence[Prediction]) -> QuantizeCost:
    carrying = layers[layers["carries_quantize"]]
    alone = carrying[carrying["group"] == "quantize"]
    expected = Counter(prediction.prediction for prediction in predicted)
    return QuantizeCost(
        sites=len(judged),
        verdicts=verdict_counts(judged),
        kernels_carrying=len(carrying),
        kernels_alone=len(alone),
        bytes_carrying=int(carrying["traffic_bytes"].sum()),
        bytes_alone=int(alone["traffic_bytes"].sum()),
        bytes_own=int(carrying["quantize_bytes"].sum()),
        predicted={prediction: expected[prediction] for prediction in get_args(Expectation)},
        time_carrying_us=total_us(layers, carrying, "time_us"),
        time_alone_us=total_us(layers, alone, "time_us"),
        net_carrying_us=total_us(layers, carrying, "net_us"),
        net_alone_us=total_us(layers, alone, "net_us"),
    )


def _coverage(view: EngineView, layers: pd.DataFrame, clock: Clock) -> Coverage:
    attributed = layers[~layers["group"].isin(["other", "opaque"])]
    tensors = [t for layer in view.engine.layers for t in (*layer.reads, *layer.outputs)]
    return Coverage(
        layers=len(layers),
        attributed_layers=len(attributed),
        traffic_bytes=int(layers["traffic_bytes"].sum()),
        attributed_bytes=int(attributed["traffic_bytes"].sum()),
        unread_lines=tuple(line.text for line in view.engine.unread),
        unknown_kinds=_distinct(layers.loc[layers["group"] == "other", "kind"]),
        unknown_dtypes=_distinct(tensor.dtype_text for tensor in tensors if tensor.dtype is None),
        unsized_tensors=int(layers["unsized"].sum()),
        foreign_nodes=() if view.by_name else lacking(view.engine, view.graph),
        by_name=int((layers["grouped_by"] == "names").sum()),
        time_us=clock.total_us,
        attributed_time_us=total_us(layers, attributed, "time_us"),
        unmatched_times=clock.unmatched,
        untimed_layers=clock.untimed,
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _site_table(judged: tuple[Verdict, ...], predicted: Sequence[Prediction]) -> pd.DataFrame:
    rows = [
        {
            "tensor": verdict.site.tensor,
            "format": verdict.site.format,
            "producer": verdict.site.producer or "",
            "producer_kind": verdict.site.producer_kind,
            "readers": verdict.site.readers,
            "high_precision_readers": verdict.site.high_precision_readers,
            "verdict": verdict.verdict,
            "kernels": tuple(kernel.index for kernel in verdict.kernels),
            "lost_readers": verdict.lost_readers,
            "evidence": verdict.evidence,
            "prediction": prediction.prediction,
            "reason": prediction.reason,
            "rule": prediction.rule,
            "remedy": prediction.remedy,
        }
        for verdict, prediction in zip(judged, predicted, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(SITE_COLUMNS))
