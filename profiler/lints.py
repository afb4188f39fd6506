"""What an engine's own layers show to be amiss, whatever its model: the rules in the table `LINTS`.

The bytes of a lint are those that would not be moved without what it finds, so that no two findings tell the same
ones: a kernel that only runs on the wrong units costs none. A lint is silent where a recording does not tell.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fusescope.graph.units import plural
from fusescope.profiler.convolutions import Convolution, convolutions
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Finding
from fusescope.profiler.launches import tiny_runs
from fusescope.profiler.layers import Layer, Tensor
from fusescope.profiler.reformats import changes_format, is_at_input, is_at_output
from fusescope.profiler.rounding import rounding_kernels, weight_quantizes
from fusescope.profiler.tactics import has_tensor_cores, on_tensor_cores

ALIGNMENT = {"fp8": 16, "int8": 16, "fp16": 8, "bf16": 8, "tf32": 4}
"""Element type that tensor cores multiply to what channels should be a multiple of: 16 bytes."""

_IMAGE_CHANNELS = 4
"""Kernels of their own exist for convolutions that read an image of up to so many channels."""

_FEW_ROWS = 16
"""Pixels, over the whole batch, below which a convolution is a matrix times a few vectors, bound by its weights."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One layer that a lint is about."""

    layer: Layer
    """The layer."""

    nodes: tuple[str, ...]
    """ONNX nodes or tensors to name as evidence."""

    sort: str = ""
    """What hits are counted by in the finding's detail, such as ``18``; empty if they are all alike."""

    bytes: int = 0
    """Bytes that would not be moved without it."""


@dataclass(frozen=True, slots=True)
class Lint:
    """One rule about the layers of an engine."""

    key: str
    """Stable name of the finding."""

    one: str
    """What a single layer does, as the title says it behind ``1``."""

    many: str
    """What several do."""

    meaning: str
    """What it means, and why, in a sentence or two."""

    find: Callable[[Evidence], Iterable[Hit]]
    """Finds the layers."""

    remedy: str
    """What to do."""

    source: str
    """Where the rule or the remedy is documented."""

    sorts: str = ""
    """What the hits' `sort` is, such as ``Channels``; empty if they have none."""

    keeps: bool = False
    """Whether the remedy is to keep the nodes in high precision, which a study can try."""


def lint(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each lint that finds anything."""
    for rule in LINTS:
        hits = list(rule.find(evidence))
        if hits:
            yield _finding(rule, hits, can_keep=rule.keeps and not evidence.view.by_name)


def _finding(rule: Lint, hits: Sequence[Hit], *, can_keep: bool) -> Finding:
    sorts = Counter(hit.sort for hit in hits if hit.sort)
    listed = ", ".join(f"{count} with {sort}" if len(sorts) > 1 else sort for sort, count in sorts.most_common())
    nodes = tuple(dict.fromkeys(name for hit in hits for name in hit.nodes))
    return Finding(
        key=rule.key,
        title=f"{plural(len(hits), rule.one, rule.many)}",
        detail=f"{rule.meaning} {rule.sorts}: {listed}." if listed else rule.meaning,
        kernels=len(hits),
        bytes=sum(hit.bytes for hit in hits),
        layers=tuple(hit.layer.index for hit in hits),
        nodes=nodes,
        remedy=rule.remedy,
        source=rule.source,
        change={"keep": nodes} if can_keep else {},
    )
