"""What measuring needs of a GPU, behind a protocol: CUDA is one device, a simulated clock in the tests another."""

from collections.abc import Callable, Sequence
from typing import Protocol

Launch = Callable[[int], None]
"""Enqueues one inference on the stream whose handle it is given, and returns without waiting for it."""


class Replay(Protocol):
    """A captured launch: one call enqueues all of its kernels."""

    def __call__(self, stream: int) -> None:
        """Enqueue it on a stream."""

    def close(self) -> None:
        """Free it."""


class CaptureError(Exception):
    """A launch cannot be captured into a graph; the message says why."""


class Device(Protocol):
    """One GPU with one stream to measure on."""

    @property
    def stream(self) -> int:
        """Handle of the stream."""

    def capture(self, launch: Launch) -> Replay:
        """Capture what a launch enqueues into a CUDA graph.

        Raises:
            CaptureError: The launch does something that a capture forbids.
        """

    def time(self, launch: Launch, repetitions: int) -> Sequence[float]:
        """Enqueue a launch again and again and wait for all of them.

        Returns:
            For each repetition the milliseconds between an event before and an event after it.
        """
