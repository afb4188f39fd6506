"""What the documented rules of a runtime say of each Quantize site, before anything is built.

Two tables, easy to add to: `READER_RULES` says which convs and gemms cannot run in 8 bits, or run badly;
`RULES`, first match first, says what becomes of a Quantize. A rule names its source and the runtimes and
targets that it holds for. Nothing here is an observation of an engine.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from fusescope.graph.collector import without_collector
from fusescope.graph.model import ModelGraph
from fusescope.graph.reader_rules import blocking_rule, node_findings
from fusescope.graph.sites import QuantizeSite, conv_precision, operand_format
from fusescope.graph.sums import is_sum

Expectation = Literal["fuses", "separate", "lost", "uncertain"]
PREDICTIONS: tuple[Expectation, ...] = get_args(Expectation)
"""What a site may be predicted to be, best first."""

_DOCUMENTATION = (
    "TensorRT documentation, Working with Quantized Types: "
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html"
)
_PROBES = "fusescope's probes of TensorRT for RTX 1.7.1, compiled ahead of time for sm89 and sm120"
_BOTH = frozenset({"tensorrt", "tensorrt-rtx"})


@dataclass(frozen=True, slots=True)
class SiteView:
    """What a rule looks at."""

    graph: ModelGraph
    """The whole model."""
    site: QuantizeSite
    """The site in question."""
    runtime: str
    """"tensorrt" or "tensorrt-rtx"."""
    target: str | None
    """SM such as "sm89"; None when it is not known."""

    def precision(self, node_name: str | None) -> str | None:
        """Return the format that a conv or gemm runs in here; None for high precision and for other nodes."""
        node = self.graph.nodes.get(node_name or "")
        if node is None or blocking_rule(self.graph, node, self.runtime, self.target):
            return None
        return conv_precision(self.graph, node)


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of the Quantizes that a documented rule is about."""

    name: str
    """Stable key of the rule."""
    prediction: Expectation
    """What the rule predicts."""
    reason: str
    """Short stable text. `{kind}`: what the tensor is ("conv output"); `{producer}`: what made it ("conv")."""
    explanation: str
    """One sentence: what happens and why."""
    source: str
    """Document that says so."""
    remedy: str
    """What to try; empty when nothing needs to be done."""
    applies: Callable[[SiteView], bool]
    """Whether a site is one of those that the rule is about."""
    runtimes: frozenset[str] = _BOTH
    """Runtimes that the rule holds for."""
    targets: frozenset[str] | None = None
    """SMs that the rule holds for; None for all."""
    change: Mapping[str, str] = field(default_factory=dict)
    """What to change in the recipe to try the remedy; empty if it is no change of a recipe."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the documented rules expect of one site. It is no observation."""

    prediction: Expectation
    """"fuses" into its producer's kernel, "separate", "lost" (no reader runs in 8 bits) or "uncertain"."""
    rule: str
    """Name of the rule that decided."""
    reason: str
    """Short stable text to group sites by."""
    explanation: str
    """One sentence: what happens and why."""
    source: str
    """Document that says so."""
    remedy: str
    """What to try; empty when nothing needs to be done."""
    lost_readers: tuple[str, ...] = ()
    """Readers that cannot run in 8 bits; all of them where the prediction is "lost"."""
    change: Mapping[str, str] = field(default_factory=dict)
    """What to change in the recipe to try the remedy; empty if it is no change of a recipe."""


def predict(graph: ModelGraph, site: QuantizeSite, runtime: str = "tensorrt", target: str | None = None) -> Prediction:
    """Say what the documented rules expect of one site.

    Args:
        graph: The model that the site is from.
        site: The site.
        runtime: "tensorrt" or "tensorrt-rtx".
        target: SM such as "sm89". Rules that hold for some targets only are left out when it is None.
    """
    limits = {name: blocking_rule(graph, graph.nodes[name], runtime, target) for name in site.readers}
    blocking = {name: limit for name, limit in limits.items() if limit is not None}
    if blocking and len(blocking) == len(site.readers):
        first = next(iter(blocking.values()))
        return Prediction(
            "lost", first.name, first.reason, first.explanation, first.source, first.remedy, tuple(blocking)
        )
    view = SiteView(graph, site, runtime, target)
    rule = next(rule for rule in RULES if _holds(rule, view) and rule.applies(view))
    kind = f"{site.producer_kind} output" if _is_weighted(view) else site.producer_kind
    reason = rule.reason.format(kind=kind, producer=site.producer_kind)
    return Prediction(
        rule.prediction,
        rule.name,
        reason,
        rule.explanation,
        rule.source,
        rule.remedy,
        tuple(blocking),
        rule.change,
    )


@without_collector
def predictions(
    graph: ModelGraph, sites: Iterable[QuantizeSite], runtime: str = "tensorrt", target: str | None = None
) -> tuple[Prediction, ...]:
    """Say what the documented rules expect of each site, in the order of `sites`; see `predict`."""
    return tuple(predict(graph, site, runtime, target) for site in sites)


def grouped_fp8_convs(graph: ModelGraph) -> tuple[str, ...]:
    """Name the grouped and depthwise convs that the graph wants in FP8, in topological order."""
    return tuple(found.node for found in node_findings(graph) if found.rule.name == "grouped FP8 conv")


def _holds(rule: Rule, view: SiteView) -> bool:
    return view.runtime in rule.runtimes and (rule.targets is None or view.target in rule.targets)


def _is_weighted(view: SiteView) -> bool:
    return view.site.producer_kind in {"conv", "gemm"}


def _is_sum(view: SiteView) -> bool:
    return view.site.producer_kind in {"residual sum", "fuse sum", "sum"}


def _has_other_reader(view: SiteView) -> bool:
    return bool(view.site.high_precision_readers or view.site.branch_readers)


def _runs_in_format(view: SiteView) -> bool:
    return view.precision(view.site.producer) == view.site.format


def _is_grouped(view: SiteView) -> bool:
    producer = view.graph.nodes.get(view.site.producer or "")
    return producer is not None and max(producer.integers("group"), default=1) > 1


def _sums_quantized_skip(view: SiteView) -> bool:
    """Whether a sum adds an 8-bit conv's result, which nothing else reads, and what was dequantized."""
    producer = view.graph.nodes[view.site.producer or ""]
    operands = view.graph.activations(producer)
    if len(operands) != 2:
        return False
    pairs = (operands, operands[::-1])
    return any(
        operand_format(view.graph, skip) == view.site.format and _ends_8_bit_conv(view, branch)
        for branch, skip in pairs
    )


def _sums_quantized_only(view: SiteView) -> bool:
    operands = view.graph.activations(view.graph.nodes[view.site.producer or ""])
    return {operand_format(view.graph, operand) for operand in operands} == {view.site.format}


def _ends_8_bit_conv(view: SiteView, tensor: str) -> bool:
    """Whether `tensor` is an 8-bit conv's result, through bias and casts, with no other reader between."""
    graph = view.graph
    while len(graph.readers(tensor)) == 1 and tensor not in graph.outputs:
        producer = graph.producer(tensor)
        if producer is None or is_sum(graph, producer):
            return False
        if view.precision(producer.name) == view.site.format:
            return True
        operands = graph.activations(producer)
        if producer.op not in _BIAS or len(operands) != 1:
            return False
        tensor = operands[0]
    return False


_BIAS = frozenset({"Add", "BatchNormalization", "Cast", "Identity"})

RULES: tuple[Rule, ...] = (
    Rule(
        name="nobody reads it",
        prediction="lost",
        reason="no reader",
        explanation="Nothing reads the quantized tensor, so there is nothing for an 8-bit kernel to write.",
        source="ONNX graph",
        remedy="remove the Quantize",
        applies=lambda view: not view.site.readers and not _leaves_graph(view),
    ),
    Rule(
        name="graph output",
        prediction="separate",
        reason="graph output",
        explanation="The tensor is an output of the model, so it is written in high precision as well.",
        source=_DOCUMENTATION,
        remedy="read the output from behind the Dequantize",
        applies=lambda view: view.site.is_graph_output,
    ),
    Rule(
        name="requantization",
        prediction="separate",
        reason="re-quantized",
        explanation="The tensor was dequantized just before; a kernel of its own changes its scale.",
        source=_DOCUMENTATION,
        remedy="give both Quantizes one scale, or let the reader read the first Dequantize",
        applies=lambda view: view.site.producer_kind == "dequantize",
    ),
    Rule(
        name="unknown producer",
        prediction="uncertain",
        reason="unknown producer",
        explanation="The graph does not say where the tensor comes from.",
        source="ONNX graph",
        remedy="export the model again",
        applies=lambda view: view.site.producer_kind == "unknown",
    ),
    Rule(
        name="no 8-bit epilogue",
        prediction="separate",
        reason="{kind}",
        explanation="What makes the tensor has no kernel that ends in a Quantize, so the Quantize runs apart.",
        source=_DOCUMENTATION,
        remedy="move the Quantize before it where both commute (max pool, data movement), or quantize its inputs too",
        applies=lambda view: not _is_weighted(view) and not _is_sum(view),
    ),
    Rule(
        name="high-precision reader",
        prediction="separate",
        reason="{kind} with a high-precision reader",
        explanation="Another node reads the tensor in high precision, so its kernel writes it in high "
        "precision, and a second kernel makes the 8-bit copy.",
        source=_DOCUMENTATION,
        remedy="let every reader, the skip of a residual Add too, read through the Dequantize",
        change={"placement": "shared-skips"},
        applies=_has_other_reader,
    ),
    Rule(
        name="rtx convs write high precision",
        prediction="separate",
        reason="{kind} on TensorRT for RTX",
        explanation="TensorRT for RTX never lets a conv or gemm write 8 bits; the Quantize runs in a "
        "kernel of its own or with other pointwise work.",
        source=_PROBES,
        remedy="use one weight scale per tensor, so that bias and activation stay in the conv",
        applies=lambda _: True,
        runtimes=frozenset({"tensorrt-rtx"}),
    ),
    Rule(
        name="residual add with a quantized skip",
        prediction="fuses",
        reason="{kind} with a quantized skip",
        explanation="The 8-bit conv adds the dequantized skip, activates and quantizes in one kernel.",
        source=_DOCUMENTATION + " (recommendation: quantize the residual input of skip connections)",
        remedy="",
        applies=lambda view: _is_sum(view) and _sums_quantized_skip(view),
    ),
    Rule(
        name="sum of quantized operands",
        prediction="uncertain",
        reason="{kind} of quantized operands",
        explanation="All operands are dequantized, so the sum is no part of a conv; its own kernel may "
        "read and write 8 bits.",
        source=_DOCUMENTATION + " (quantizable layers: element-wise sum)",
        remedy="leave the conv's result unquantized, so that the sum becomes part of the conv",
        applies=lambda view: _is_sum(view) and _sums_quantized_only(view),
    ),
    Rule(
        name="high-precision operand",
        prediction="separate",
        reason="{kind} over a high-precision operand",
        explanation="The sum reads an operand in high precision, which keeps the conv before it, and "
        "so the sum, in high precision.",
        source=_DOCUMENTATION + " (recommendation: quantize the residual input of skip connections)",
        remedy="quantize the other operands of the sum too",
        change={"placement": "shared-skips"},
        applies=_is_sum,
    ),
    Rule(
        name="unquantized producer",
        prediction="uncertain",
        reason="after an unquantized {producer}",
        explanation="The conv or gemm that makes the tensor runs in high precision; no document says "
        "whether its kernel can write 8 bits.",
        source=_DOCUMENTATION,
        remedy="quantize the producer too, or look at the engine",
        applies=lambda view: view.precision(view.site.producer) is None,
    ),
    Rule(
        name="producer of another format",
        prediction="uncertain",
        reason="{kind} of another format",
        explanation="The conv or gemm that makes the tensor runs in another 8-bit format than its "
        "result is quantized to.",
        source=_DOCUMENTATION,
        remedy="use one format for both",
        applies=lambda view: not _runs_in_format(view),
    ),
    Rule(
        name="grouped FP8 producer",
        prediction="uncertain",
        reason="after a grouped FP8 conv",
        explanation="TensorRT has no optimised FP8 kernel for grouped convs; what runs instead may not write 8 bits.",
        source="TensorRT 10.12 release notes; https://github.com/NVIDIA/TensorRT/issues/4524",
        remedy="quantize grouped and depthwise convs to INT8, or not at all",
        applies=lambda view: view.site.format == "fp8" and _is_grouped(view),
    ),
    Rule(
        name="8-bit producer",
        prediction="fuses",
        reason="{kind} read in 8 bits only",
        explanation="The 8-bit conv or gemm quantizes its result, with bias and activation, in its own kernel.",
        source=_DOCUMENTATION,
        remedy="",
        applies=lambda _: True,
    ),
)
"""The rules in the order in which they are tried; the last of each runtime takes what is left."""


def _leaves_graph(view: SiteView) -> bool:
    """Whether the 8-bit or the dequantized tensor is an output of the model."""
    names = (*view.site.quantize, *view.site.dequantize)
    return any(output in view.graph.outputs for name in names for output in view.graph.nodes[name].outputs)
