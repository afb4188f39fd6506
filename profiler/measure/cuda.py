"""CUDA as a device to measure on, through cuda-bindings. Nothing of the GPU's settings is changed."""

from collections.abc import Sequence
from typing import Any

from fusescope.graph.errors import UserError
from fusescope.profiler.measure.device import CaptureError, Launch


class CudaDevice:
    """A GPU with a stream of its own.

    Args:
        ordinal: Which GPU, as CUDA counts them.

    Raises:
        UserError: cuda-bindings is not installed, or there is no such GPU or no driver for it.
    """

    def __init__(self, ordinal: int = 0) -> None:
        try:
            from cuda.bindings import runtime
        except ModuleNotFoundError as error:
            raise UserError(
                "measuring needs cuda-bindings, which is not installed", remedy='pip install "fusescope[gpu]"'
            ) from error
        self._cuda = runtime
        self._ordinal = ordinal
        try:
            self._call(runtime.cudaSetDevice(ordinal))
            self._stream = self._call(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
        except _CudaError as error:
            remedy = "run on a machine with an NVIDIA GPU and its driver; nvidia-smi shows what there is"
            raise UserError(
                f"CUDA has no GPU to measure on ({error})", where=f"GPU {ordinal}", remedy=remedy
            ) from error

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream)

    def capture(self, launch: Launch) -> "_Graph":
        """Capture what a launch enqueues into a CUDA graph.

        Raises:
            CaptureError: The launch does something that a capture forbids.
        """
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call(self._cuda.cudaStreamBeginCapture(self._stream, mode))
        complaint: Exception | None = None
        try:
            launch(self.stream)
        except Exception as error:  # noqa: BLE001 - whatever a launch raises, the capture must be ended first
            complaint = error
        try:
            graph = self._call(self._cuda.cudaStreamEndCapture(self._stream))
            if complaint is None:
                executable = self._call(self._cuda.cudaGraphInstantiate(graph, 0))
                self._call(self._cuda.cudaGraphDestroy(graph))
                return _Graph(self, executable)
        except _CudaError as error:
            raise CaptureError(str(error)) from error
        raise CaptureError(f"{type(complaint).__name__}: {complaint}") from complaint

    def time(self, launch: Launch, repetitions: int) -> Sequence[float]:
        """Enqueue a launch again and again and wait for all of them.

        Returns:
            For each repetition the milliseconds between an event before and an event after it.
        """
        events = [self._call(self._cuda.cudaEventCreate()) for _ in range(2 * repetitions)]
        try:
            for before, after in zip(events[::2], events[1::2], strict=True):
                self._call(self._cuda.cudaEventRecord(before, self._stream))
                launch(self.stream)
                self._call(self._cuda.cudaEventRecord(after, self._stream))
            self._call(self._cuda.cudaStreamSynchronize(self._stream))
            return [
                float(self._call(self._cuda.cudaEventElapsedTime(before, after)))
                for before, after in zip(events[::2], events[1::2], strict=True)
            ]
        finally:
            for event in events:
                self._call(self._cuda.cudaEventDestroy(event))

    def pci_bus_id(self) -> str:
        """Where the GPU is, as NVML knows it too."""
        return str(self._call(self._cuda.cudaDeviceGetPCIBusId(32, self._ordinal)), "ascii").rstrip("\0")

    def launch_graph(self, executable: Any, stream: int) -> None:
        """Enqueue an instantiated graph."""
        self._call(self._cuda.cudaGraphLaunch(executable, stream))

    def free_graph(self, executable: Any) -> None:
        """Free an instantiated graph."""
        self._call(self._cuda.cudaGraphExecDestroy(executable))

    def _call(self, returned: tuple[Any, ...]) -> Any:
        """The values that a runtime call returned behind its error code."""
        code, *values = returned
        if code != self._cuda.cudaError_t.cudaSuccess:
            raise _CudaError(f"CUDA error {int(code)}: {code.name}")
        return values[0] if values else None


class _CudaError(Exception):
    """A runtime call failed."""


class _Graph:
    """An instantiated CUDA graph."""

    def __init__(self, device: CudaDevice, executable: Any) -> None:
        self._device = device
        self._executable = executable

    def __call__(self, stream: int) -> None:
        self._device.launch_graph(self._executable, stream)

    def close(self) -> None:
        self._device.free_graph(self._executable)
