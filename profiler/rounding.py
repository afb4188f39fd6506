"""Kernels that quantize and dequantize for no multiplication in 8 bits, or do the same at every inference."""

from collections.abc import Iterator

from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.layers import Layer


def rounding_kernels(view: EngineView) -> Iterator[Attribution]:
    """Kernels that take values to 8 bits and back although nothing reads them in 8 bits.

    Either one kernel does both, so that it reads and writes high precision; or one quantizes and all that read its
    8-bit tensors only dequantize: these are given too.
    """
    found: dict[int, Attribution] = {}
    for attribution in view.attributions:
        if attribution.direction == "both" and _in_high_precision(attribution.layer):
            found[attribution.layer.index] = attribution
        elif attribution.direction == "quantize":
            readers = [
                view.attributions[reader.index]
                for tensor in attribution.layer.outputs
                for reader in view.engine.readers.get(tensor.name, ())
            ]
            if readers and all(reader.direction == "dequantize" for reader in readers):
                found |= {each.layer.index: each for each in (attribution, *readers)}
    yield from (found[index] for index in sorted(found))


def weight_quantizes(view: EngineView) -> Iterator[Attribution]:
    """Kernels that quantize a constant for what reads it in 8 bits; others are among `rounding_kernels`."""
    rounding = {each.layer.index for each in rounding_kernels(view)}
    for attribution in view.attributions:
        layer = attribution.layer
        writers = [view.engine.writers.get(tensor.name, ()) for tensor in layer.inputs]
        constant = all(
            found and all(view.attributions[writer.index].group == "constant" for writer in found) for found in writers
        )
        quantizes = attribution.direction == "quantize" and any(tensor.is_eight_bit for tensor in layer.outputs)
        if quantizes and constant and layer.reads and layer.index not in rounding:
            yield attribution


def _in_high_precision(layer: Layer) -> bool:
    tensors = (*layer.inputs, *layer.outputs)
    told = bool(layer.inputs and layer.outputs) and all(tensor.dtype for tensor in tensors)
    return told and not any(tensor.is_eight_bit for tensor in tensors)
