"""How a region of one engine differs from the same region of another: kernels, operations, element types, formats."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fusescope.graph.ops import DEQUANTIZE, PASSES, QUANTIZE
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.formats import layout_name
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.comparison import Change
from fusescope.profiler.layers import Tensor
from fusescope.profiler.naming import is_of_tensorrt

Piece = tuple[Sequence[int], EngineView]
"""Indices of layers, and the engine that they are of."""


def changes(reference: Piece, piece: Piece) -> tuple[Change, ...]:
    """What differs between a region of the reference and of another engine, by the kinds of `CHANGES`."""
    if not piece[0]:
        return (Change("removed", "only the reference has it"),) if reference[0] else ()
    if not reference[0]:
        return (Change("added", "the reference has none"),)
    found = [*_kernels(reference, piece), *_operations(reference, piece)]
    for word, before, after in zip(("reads", "writes"), borders(*reference), borders(*piece), strict=True):
        found += _formats(word, before, after)
    return tuple(found)


def work_of(indices: Sequence[int], view: EngineView) -> tuple[str, ...]:
    """ONNX nodes that layers compute, each once."""
    return tuple(dict.fromkeys(name for index in indices for name in view.attributions[index].work))


def borders(indices: Sequence[int], view: EngineView) -> tuple[list[Tensor], list[Tensor]]:
    """Activations that layers read from others, and tensors that they write for others."""
    inside = set(indices)
    layers = [view.engine.layers[index] for index in indices]
    writers, readers = view.engine.writers, view.engine.readers
    read = [
        tensor
        for layer in layers
        for tensor in layer.inputs
        if not any(other.index in inside for other in writers.get(tensor.name, ()))
    ]
    written = [
        tensor
        for layer in layers
        for tensor in layer.outputs
        if not (after := readers.get(tensor.name, ())) or any(other.index not in inside for other in after)
    ]
    return read, written


def dtypes(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Element types of tensors, each once."""
    return tuple(dict.fromkeys(tensor.dtype_name for tensor in tensors))


def _kernels(reference: Piece, piece: Piece) -> Iterator[Change]:
    before, after = (
        sum(view.attributions[index].is_kernel for index in indices) for indices, view in (reference, piece)
    )
    if before != after:
        yield Change("split" if after > before else "fused", f"{plural(before, 'kernel')} to {after}")


def _operations(reference: Piece, piece: Piece) -> Iterator[Change]:
    """Operations that one engine runs here and the other elsewhere, or not at all."""
    named = any(view.by_name for _, view in (reference, piece))
    before, after = (_counted(*each, named=named) for each in (reference, piece))
    parts = [
        f"{word} {', '.join(sorted(more.elements()))}"
        for word, more in (("with", after - before), ("without", before - after))
        if more
    ]
    if parts:
        yield Change("operations", ", ".join(parts))


def _counted(indices: Sequence[int], view: EngineView, *, named: bool) -> Counter[str]:
    """Operations by how many there are; of engines known by names, without those that names leave out at times.

    TensorRT fuses an activation between a conv and its Quantize without naming it, and calls biases by its own names.
    """
    left_out = QUANTIZE | DEQUANTIZE | (PASSES if named else frozenset())
    nodes = (view.graph.nodes[name] for name in work_of(indices, view) if not (named and is_of_tensorrt(name)))
    return Counter(node.op for node in nodes if node.op and node.op not in left_out)


def _formats(word: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> Iterator[Change]:
    if dtypes(before) != dtypes(after):
        yield Change("precision", _instead(word, dtypes(before), dtypes(after)))
        return
    layouts = [tuple(dict.fromkeys(layout_name(tensor.layout) for tensor in tensors)) for tensors in (before, after)]
    if layouts[0] != layouts[1] and all(map(all, layouts)):
        yield Change("format", _instead(word, *layouts))


def _instead(word: str, before: Sequence[str], after: Sequence[str]) -> str:
    was, now = (", ".join(filter(None, words)) or "nothing known" for words in (before, after))
    return f"{word} {now} instead of {was}"
