"""The tensors that an engine takes and gives, where a recording names them and nothing else, as up to TensorRT 10."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusescope.profiler.layers import Engine, Tensor


def with_bindings(engine: Engine, names: Sequence[str]) -> Engine:
    """Tell inputs and outputs among an engine's bindings, by the layers that read and write them.

    Args:
        engine: The engine.
        names: Its bindings. One that no layer reads or writes, as where layers are names only, stays unknown.
    """
    read = _first(tensor for layer in engine.layers for tensor in layer.inputs)
    written = _first(tensor for layer in engine.layers for tensor in layer.outputs)
    inputs = tuple(read[name] for name in names if name in read and name not in written)
    return replace(engine, inputs=inputs, outputs=tuple(written[name] for name in names if name in written))


def _first(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        found.setdefault(tensor.name, tensor)
    return found
