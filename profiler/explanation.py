"""The explanation of an engine, or of a pair of them, as plain data: the same behind terminal, HTML and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fusescope.graph.neighbourhood import Excerpt
from fusescope.profiler.run import Provenance
from fusescope.profiler.spots import Spot
from fusescope.profiler.verdicts import Verdict

QUANTIZATIONS: Mapping[str, str] = {
    "none": "the engine has no 8-bit tensor, and its model no Quantize",
    "explicit": "the model's Quantizes tell the compiler what to run in 8 bits",
    "implicit": "the compiler chose what to run in 8 bits, by calibrated ranges: the model has no Quantize",
    "unknown": "the recording shows no element types",
}
"""How an engine came to have 8-bit tensors."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The sum of layer times. It is not the latency."""

    total_ms: float
    """Sum over the entries of the profile of their average per inference, in milliseconds."""

    source: str
    """``measured`` or ``recorded``."""

    iterations: int | None = None
    """Inferences that were averaged; None if not said. A single one has no spread."""

    origin: str = ""
    """The file, or the place in it, that it was read from; what measured it otherwise."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Time of one inference without a profiler attached."""

    median_ms: float
    """Median GPU time in milliseconds."""

    source: str
    """``measured`` or ``recorded``."""

    mean_ms: float | None = None
    """Mean; None if not known."""

    min_ms: float | None = None
    """Smallest; None if not known."""

    p99_ms: float | None = None
    """99th percentile; None if not known."""

    samples: int | None = None
    """Inferences behind it; None if not said."""

    origin: str = ""
    """The file, or the place in it, that it was read from; what measured it otherwise."""


@dataclass(frozen=True, slots=True)
class Side:
    """One engine in figures."""

    provenance: Provenance
    """Where it comes from."""

    layers: int
    """Every entry of the inspector."""

    kernels: int
    """Layers that run on the GPU."""

    plan_bytes: int | None
    """Size of the plan; None if not known."""

    traffic_bytes: int
    """Bytes that its kernels read and write as the engine lists their tensors; the unsized ones are not in it."""

    conv_write_bytes: int
    """Bytes that convolution kernels write."""

    weighted_in_8_bits: int
    """Convs and gemms whose kernel reads an 8-bit tensor."""

    weighted: int
    """Convs and gemms that a kernel of the engine computes."""

    streams: int
    """CUDA streams that its layers run on."""

    chain_kernels: int
    """Kernels on the longest chain in which each waits for the one before."""

    latency: Latency | None
    """None where no clock ran."""

    layer_time: LayerTime | None
    """None where no clock ran."""

    executed_layers: int | None = None
    """Layers that took any time; None where no clock ran."""

    profile_overhead_us: float | None = None
    """What the profiler adds to a layer: (sum of layer times - latency) / executed layers; None unless both are known
    and one stream ran."""


@dataclass(frozen=True, slots=True)
class QuantizeCost:
    """What the Quantizes of an engine are, and cost: an interval."""

    sites: int
    """Quantize sites of the graph."""

    verdicts: Mapping[str, int]
    """Sites by verdict; they add up to `sites`."""

    kernels_carrying: int
    """Kernels that write the 8-bit tensor of a Quantize: the most that quantizing can have added."""

    kernels_alone: int
    """Those that do nothing else: the least."""

    bytes_carrying: int
    """All bytes of the carrying kernels."""

    bytes_alone: int
    """All bytes of those that do nothing else."""

    bytes_own: int
    """`bytes_alone` and, of shared kernels that also write a high-precision output, the 8-bit bytes."""

    predicted: Mapping[str, int]
    """Sites by what the documented rules expect of full TensorRT; they add up to `sites`."""

    time_carrying_us: float | None = None
    """Time of the carrying kernels, in microseconds; None where no clock ran."""

    time_alone_us: float | None = None
    """Time of those that do nothing else."""

    net_carrying_us: float | None = None
    """`time_carrying_us` without what the profiler adds; None where that is not known."""

    net_alone_us: float | None = None
    """`time_alone_us` without what the profiler adds."""


@dataclass(frozen=True, slots=True)
class AccuracyChange:
    """By how much a model's top-1 differs from another's on the same images."""

    points: float
    """Difference in percentage points; negative where it fell."""

    low: float
    """Lower end of its 95 % interval, in points."""

    high: float
    """Upper end of it, in points."""

    images: int
    """Images that both saw."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What happened when a remedy was tried: the engine was built again."""

    variant: str
    """The run that tried it."""

    kernels: int
    """Difference in kernels, negative where they fell."""

    bytes: int
    """Difference in traffic bytes, negative where they fell."""

    accuracy: AccuracyChange | None = None
    """What became of the model's top-1; None if it was not evaluated."""

    same_as: int | None = None
    """Place of the finding before this one that has the same trial, so that its figures are not counted twice; None
    for the first."""

    @property
    def helped(self) -> bool:
        """Whether kernels or bytes fell and the other did not rise."""
        return min(self.kernels, self.bytes) < 0 and max(self.kernels, self.bytes) <= 0


BALANCE_KEY = "growth"
"""Key of the finding that says what the balance of the two engines says: reports that show the balance leave it out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, with its evidence and what to do."""

    key: str
    """Stable name of the kind of finding, such as ``quantize-alone``."""

    title: str
    """One line."""

    detail: str
    """What it means, and why it is so, in a few sentences."""

    kernels: int
    """Kernels that it is about."""

    bytes: int
    """Bytes that it costs, as `detail` explains."""

    layers: tuple[int, ...]
    """Evidence: indices of layers in the engine; empty if it is about the whole engine."""

    nodes: tuple[str, ...]
    """Evidence: ONNX nodes or tensors."""

    remedy: str
    """What to do; empty if nothing is known to help."""

    source: str
    """Where the remedy or the rule is documented, or what was observed."""

    change: Mapping[str, Any] = field(default_factory=dict)
    """What to change in the recipe to try the remedy, such as ``{"weights": "per-tensor"}`` or ``{"keep": nodes}``;
    empty if it is no change of a recipe."""

    trials: tuple[Trial, ...] = ()
    """What came of trying the remedy; empty if it was not tried."""

    time_us: float | None = None
    """Time of the layers that it is about, in microseconds; None where no clock ran, or it is about none."""

    @property
    def status(self) -> str:
        """``proved``, ``tried, did not help here`` or ``documented, not tried``; empty without a remedy."""
        if not self.remedy:
            return ""
        if not self.trials:
            return "documented, not tried"
        return "proved" if any(trial.helped for trial in self.trials) else "tried, did not help here"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of an engine is understood."""

    layers: int
    """Layers of the engine."""

    attributed_layers: int
    """Those that are in neither ``other`` nor ``opaque``."""

    traffic_bytes: int
    """Bytes of the engine."""

    attributed_bytes: int
    """Those of attributed layers."""

    unread_lines: tuple[str, ...]
    """Lines of the dump that could not be read."""

    unknown_kinds: tuple[str, ...]
    """LayerTypes that fusescope does not know."""

    unknown_dtypes: tuple[str, ...]
    """Element types that it does not know."""

    unsized_tensors: int
    """Tensors of unknown size or type."""

    foreign_nodes: tuple[str, ...]
    """ONNX nodes that the engine names and the graph does not have."""

    by_name: int = 0
    """Layers whose group rests on words in names alone."""

    unknown_layouts: tuple[str, ...] = ()
    """Words for memory formats that fusescope does not know."""

    time_us: float | None = None
    """Sum of the profile, in microseconds; None where no clock ran."""

    attributed_time_us: float | None = None
    """That of attributed layers."""

    unmatched_times: tuple[str, ...] = ()
    """Entries of the profile that match no layer of the engine; their time is in `time_us` and in no group."""

    untimed_layers: tuple[str, ...] = ()
    """Layers that the profile has no entry for."""


@dataclass(frozen=True)
class Explanation:
    """One engine explained, or a quantized one against its baseline."""

    observed: str
    """What was compiled, how: the sentence that every figure stands under."""

    expected: str
    """What the documented rules expect of full TensorRT; empty without sites. Not built, not measured."""

    baseline: Side | None
    """The unquantized engine; None if there is only one."""

    quantized: Side
    """The engine that is explained."""

    groups: pd.DataFrame
    """Group totals of both sides: columns (side, figure), rows by group. They add up to the engines."""

    quantize: QuantizeCost
    """What the Quantizes are and cost."""

    reasons: pd.DataFrame
    """Totals by reason: see `fusescope.profiler.tables.reason_table`."""

    findings: tuple[Finding, ...]
    """Most costly first."""

    coverage: Coverage
    """How much of the engine is understood."""

    sites: pd.DataFrame
    """One row per site: `fusescope.profiler.tables.SITE_COLUMNS`."""

    layers: pd.DataFrame
    """One row per layer: `fusescope.profiler.tables.LAYER_COLUMNS`."""

    baseline_layers: pd.DataFrame | None
    """The same of the baseline."""

    blocks: pd.DataFrame | None
    """Both engines aligned: `fusescope.profiler.blocks.BLOCK_COLUMNS`; None without a baseline."""

    excerpt: Excerpt
    """The part of the graph that `spots` are in."""

    spots: tuple[Spot, ...]
    """The spots of all sites and findings, with the kernels for them before and after."""

    judged: tuple[Verdict, ...]
    """The verdicts behind `sites`."""

    gpu: str
    """The GPU that floors are for; empty if none was named."""

    warnings: tuple[str, ...] = ()
    """What a reader must know before believing a figure, one sentence each."""

    quantization: str = "explicit"
    """A key of `QUANTIZATIONS`: where its 8-bit tensors come from."""

    reformats: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Changes of format by why they are there: `fusescope.profiler.reformats.REFORMAT_COLUMNS`."""

    transitions: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Changes of element type between what a kernel reads and writes:
    `fusescope.profiler.reformats.TRANSITION_COLUMNS`."""
