"""Zeros that a kernel appends to the channels of a tensor, because an 8-bit convolution wants a multiple."""

from dataclasses import dataclass

from fusescope.profiler.layers import Layer


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros appended to the channels of a tensor."""

    channels: int
    """Channels of the tensor."""

    padded_channels: int
    """Channels that are written."""

    zero_bytes: int
    """Bytes of the zeros."""

    within_groups: bool
    """Whether each channel is padded by itself, for a depthwise conv, instead of all of them at their end."""


def paddings(layer: Layer) -> tuple[Padding, ...]:
    """Each block of zeros that a layer adds to the channels of what it reads; empty for a layer that pads nothing.

    It pads if an output is as wide in channels as an input and a constant of the output's dtype together, and both
    are equal to it in all else.
    """
    found = []
    for constant in (tensor for tensor in layer.constants if len(tensor.shape) > 2):
        for written in (tensor for tensor in layer.outputs if tensor.dtype_text == constant.dtype_text):
            for read in layer.inputs:
                if _appended(read.shape, constant.shape, written.shape):
                    found.append(Padding(read.shape[1], written.shape[1], constant.bytes or 0, within_groups=False))
                elif _interleaved(read.shape, constant.shape, written.shape):
                    found.append(Padding(read.shape[1], written.shape[1], constant.bytes or 0, within_groups=True))
                else:
                    continue
                break
    return tuple(found)


def _appended(read: tuple[int, ...], zeros: tuple[int, ...], written: tuple[int, ...]) -> bool:
    """Whether zeros of the same height and width are concatenated to the channels."""
    same = len(read) == len(zeros) and read[:1] + read[2:] == zeros[:1] + zeros[2:]
    return same and written == (read[0], read[1] + zeros[1], *read[2:])


def _interleaved(read: tuple[int, ...], zeros: tuple[int, ...], written: tuple[int, ...]) -> bool:
    """Whether every channel gets channels of zeros of its own: zeros of (N, C, added, ...), as for depthwise convs."""
    same = len(zeros) == len(read) + 1 and zeros[:2] == read[:2] and zeros[3:] == read[2:]
    return same and written == (read[0], read[1] * (1 + zeros[2]), *read[2:])
