"""What the compiler made of each Quantize site. The kernel that writes the 8-bit tensor decides."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fusescope.graph.ops import ALIAS, DEQUANTIZE, MOVES, QUANTIZE
from fusescope.graph.sites import QuantizeSite
from fusescope.profiler.attribution import Attribution, EngineView, shows_dtypes
from fusescope.profiler.layers import Layer

VERDICTS: Mapping[str, str] = {
    "fused": "the kernel also runs the producing conv or gemm, or is itself the 8-bit reader",
    "epilogue": "the kernel finishes one 8-bit conv (dequantize, bias, activation) and does nothing else",
    "merged": "the kernel does other work of the model",
    "alone": "the kernel reads the tensor in high precision and only quantizes, pads or re-lays it out",
    "lost": "there is no such kernel: no reader runs in 8 bits",
    "absent": "proven gone: another Quantize writes the same value, or no output depends on it",
    "unknown": "the recording cannot tell",
}
"""Every verdict with what is true of the kernel that writes the 8-bit tensor."""

_CARRYING = ALIAS | MOVES | DEQUANTIZE | {"Concat"}
"""Operations behind which values that were quantized are still those values."""

_DEAREST_FIRST = ("alone", "merged", "epilogue", "fused")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one Quantize site."""

    site: QuantizeSite
    """The site."""

    verdict: str
    """A key of `VERDICTS`."""

    kernels: tuple[Layer, ...]
    """The kernels that write its 8-bit tensor; empty if there are none."""

    work: tuple[str, ...]
    """ONNX nodes that these kernels compute on the way to the Quantize; empty if none."""

    lost_readers: tuple[str, ...]
    """Readers of the quantized tensor that do not run in 8 bits."""

    evidence: str
    """What in the engine says so, in one clause."""


def verdicts(view: EngineView, sites: Iterable[QuantizeSite]) -> tuple[Verdict, ...]:
    """Judge every site.

    Args:
        view: The engine beside its graph.
        sites: The Quantize sites of that graph.

    Returns:
        One verdict for each site, in the order given.
    """
    carriers: dict[str, list[Attribution]] = {}
    for attribution in view.attributions:
        for node in attribution.quantizes:
            carriers.setdefault(node, []).append(attribution)
    return tuple(_verdict(view, site, carriers) for site in sites)


def verdict_counts(judged: Iterable[Verdict]) -> dict[str, int]:
    """Number of sites by verdict, every verdict present; they add up to the number of sites."""
    counts = Counter(verdict.verdict for verdict in judged)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _verdict(view: EngineView, site: QuantizeSite, carriers: Mapping[str, list[Attribution]]) -> Verdict:
    found = {attribution.layer.index: attribution for node in site.quantize for attribution in carriers.get(node, ())}
    lost_readers = tuple(reader for reader in site.readers if _runs_in_8_bits(view, site, reader) is False)
    if not found:
        verdict, evidence, kernels = _without_carrier(view, site, lost_readers)
        return Verdict(site, verdict, kernels, (), lost_readers, evidence)
    judged = [(_of_kernel(view, site, attribution), attribution) for attribution in found.values()]
    dearest = min(judged, key=lambda pair: _DEAREST_FIRST.index(pair[0]))
    work = dict.fromkeys(
        name for _, attribution in judged for name in view.upstream_work(attribution.layer, site.tensor)
    )
    return Verdict(
        site,
        dearest[0],
        tuple(attribution.layer for _, attribution in judged),
        tuple(work),
        lost_readers,
        f"{dearest[1].layer.name} writes it as {site.format.upper()}",
    )


def _of_kernel(view: EngineView, site: QuantizeSite, attribution: Attribution) -> str:
    layer = attribution.layer
    if site.producer and view.computes(layer, site.producer):
        return "fused"
    if any(view.computes(layer, reader) for reader in site.readers):
        return "fused"
    if attribution.group == "pool" and layer.inputs and all(tensor.is_eight_bit for tensor in layer.inputs):
        return "fused"
    return {"epilogue": "epilogue", "quantize": "alone"}.get(attribution.group, "merged")


def _without_carrier(
    view: EngineView, site: QuantizeSite, lost_readers: tuple[str, ...]
) -> tuple[str, str, tuple[Layer, ...]]:
    """Verdict, evidence and kernels of a site that no kernel writing an 8-bit tensor names."""
    naming = [layer for node in site.quantize for layer in view.engine.naming.get(node, ())]
    for layer in naming:
        for reader in site.readers:
            if view.computes(layer, reader) and any(tensor.is_eight_bit for tensor in layer.constants):
                return "fused", f"{layer.name} quantizes its own input", (layer,)
    if site.readers and len(lost_readers) == len(site.readers):
        where = f": {naming[0].name} rounds in high precision" if naming else ""
        return "lost", f"no reader reads an 8-bit tensor{where}", ()
    if not naming and (twin := _twin(view, site)):
        return "absent", f"{twin} writes the same value", ()
    if not naming and _is_dead(view, site):
        return "absent", "no output of the model depends on it", ()
    return "unknown", "no kernel that writes an 8-bit tensor names its Quantize", ()


def _twin(view: EngineView, site: QuantizeSite) -> str:
    """The Quantize whose kernel feeds this site's readers, if it quantizes the same value or a part of it."""
    root = _root(view, site.tensor)
    parts = _already_quantized(view, site.tensor)
    for reader in site.readers:
        for layer in view.weighted.get(reader, ()):
            for tensor in layer.inputs:
                for writer in view.engine.writers.get(tensor.name, ()):
                    for node in view.attributions[writer.index].quantizes:
                        if node in parts or _root(view, view.graph.nodes[node].inputs[0]) == root:
                            return node
    return ""


def _already_quantized(view: EngineView, tensor: str) -> set[str]:
    """The Quantizes that a tensor's values come from, if it only moves or joins values that were quantized."""
    found: set[str] = set()
    pending = [tensor]
    while pending:
        node = view.graph.producer(pending.pop())
        if node is not None and node.op in QUANTIZE:
            found.add(node.name)
        elif node is not None and node.op in _CARRYING:
            pending.extend(view.graph.activations(node))
        else:
            return set()
    return found


def _is_dead(view: EngineView, site: QuantizeSite) -> bool:
    """Whether no output of the model depends on what the site's Quantizes write."""
    seen: set[str] = set()
    nodes = [view.graph.nodes[name] for name in site.quantize]
    while nodes:
        for tensor in nodes.pop().outputs:
            if tensor in view.graph.outputs:
                return False
            if tensor not in seen:
                seen.add(tensor)
                nodes.extend(view.graph.readers(tensor))
    return True


def _root(view: EngineView, tensor: str) -> str:
    """The tensor that `tensor` is an unchanged copy of."""
    while (node := view.graph.producer(tensor)) and node.op == "Identity":
        tensor = node.inputs[0]
    return tensor


def _runs_in_8_bits(view: EngineView, site: QuantizeSite, reader: str) -> bool | None:
    """Whether the layers that compute `reader` read an 8-bit tensor or quantize it themselves; None if unknown."""
    layers = view.computing(reader)
    named = set(site.quantize)
    if any(
        any(tensor.is_eight_bit for tensor in layer.inputs)
        or (named & set(layer.onnx_nodes) and any(tensor.is_eight_bit for tensor in layer.constants))
        for layer in layers
    ):
        return True
    return False if layers and all(map(shows_dtypes, layers)) else None
