"""From a run, or a baseline and a quantized run, to an `Explanation`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import get_args

import pandas as pd

from fusescope.graph.errors import UserError
from fusescope.graph.ops import WEIGHTED
from fusescope.graph.rules import Expectation, Prediction, predictions
from fusescope.graph.sites import quantize_sites
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.blocks import block_table
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Coverage, Explanation, QuantizeCost, Side
from fusescope.profiler.findings import FULL_TENSORRT, findings
from fusescope.profiler.gpus import Gpu
from fusescope.profiler.run import Run
from fusescope.profiler.spots import find_spots
from fusescope.profiler.tables import SITE_COLUMNS, group_table, layer_table, reason_table
from fusescope.profiler.verdicts import Verdict, verdict_counts, verdicts


def explain(quantized: Run, baseline: Run | None = None, *, gpu: Gpu | None = None) -> Explanation:
    """Explain an engine, against a baseline if there is one.

    Args:
        quantized: The run to explain.
        baseline: The run of the unquantized model.
        gpu: The GPU to give floors for; None for no floors.

    Raises:
        UserError: The baseline is of another model, runtime, target or batch.
    """
    if baseline is not None:
        _check_comparable(quantized, baseline)
    view = EngineView(quantized.engine, quantized.graph)
    sites = quantize_sites(view.graph)
    judged = verdicts(view, sites)
    expected = predictions(view.graph, sites, FULL_TENSORRT, quantized.provenance.target)
    layers = layer_table(view)
    groups = {"quantized": group_table(view, layers, gpu)}
    base_side = base_view = base_layers = blocks = None
    if baseline is not None:
        base_view = EngineView(baseline.engine, baseline.graph)
        base_layers = layer_table(base_view)
        base_side = _side(baseline, base_view, base_layers)
        blocks = block_table(view, base_view, layers, base_layers, judged)
        groups = {"baseline": group_table(base_view, base_layers, gpu), **groups}
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
        quantized=_side(quantized, view, layers),
        groups=pd.concat(groups, axis=1),
        quantize=_cost(layers, judged, expected),
        reasons=reason_table(judged, tuple(prediction.reason for prediction in expected), layers),
        findings=found,
        coverage=_coverage(view, layers),
        sites=_site_table(judged, expected),
        layers=layers,
        baseline_layers=base_layers,
        blocks=blocks,
        excerpt=cut,
        spots=spots,
        judged=judged,
        gpu="" if gpu is None else gpu.name,
    )


def _check_comparable(quantized: Run, baseline: Run) -> None:
    """Refuse a baseline that differs in more than how the model is quantized."""
    ours, theirs = quantized.provenance, baseline.provenance
    for what in ("runtime", "target", "batch"):
        if getattr(ours, what) != getattr(theirs, what):
            raise UserError(
                f"cannot be the baseline of {ours.name}: {what} {getattr(theirs, what)}, not {getattr(ours, what)}",
                where=baseline.folder,
                remedy=f"build both for the same {what}",
            )
    weighted = [
        {name for name, node in run.graph.nodes.items() if node.op in WEIGHTED} for run in (quantized, baseline)
    ]
    if all(weighted) and not weighted[0] & weighted[1]:
        raise UserError(
            f"cannot be the baseline: it has no convolution or gemm in common with {ours.name}",
            where=baseline.folder,
            remedy="give the run of the unquantized model",
        )


def _observed(run: Run) -> str:
    origin = run.provenance
    title = {"tensorrt-rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}.get(origin.runtime, origin.runtime)
    how = origin.how.removeprefix("compiled ")
    return f"observed: compiled by {title} {origin.runtime_version} for {origin.target}, {how}"


def _expected(predicted: Sequence[Prediction]) -> str:
    if not predicted:
        return ""
    counts = Counter(prediction.prediction for prediction in predicted)
    listed = ", ".join(f"{counts[key]} {key.replace('fuses', 'fuse')}" for key in get_args(Expectation) if counts[key])
    return f"expected of full TensorRT (rules, not built), of {len(predicted)} Quantize sites: {listed}"


def _side(run: Run, view: EngineView, layers: pd.DataFrame) -> Side:
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
        latency=None,
        layer_time=None,
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
    )


def _coverage(view: EngineView, layers: pd.DataFrame) -> Coverage:
    attributed = layers[~layers["group"].isin(["other", "opaque"])]
    tensors = [t for layer in view.engine.layers for t in (*layer.reads, *layer.outputs)]
    foreign = (name for name in view.engine.naming if name not in view.graph.nodes)
    return Coverage(
        layers=len(layers),
        attributed_layers=len(attributed),
        traffic_bytes=int(layers["traffic_bytes"].sum()),
        attributed_bytes=int(attributed["traffic_bytes"].sum()),
        unread_lines=tuple(line.text for line in view.engine.unread),
        unknown_kinds=_distinct(layers.loc[layers["group"] == "other", "kind"]),
        unknown_dtypes=_distinct(tensor.dtype_text for tensor in tensors if tensor.dtype is None),
        unsized_tensors=int(layers["unsized"].sum()),
        foreign_nodes=tuple(foreign),
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
