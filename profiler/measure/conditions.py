"""The conditions of a measurement, read through NVML: clocks, throttling, temperature, other processes, MIG.

Nothing is set: a clock that is not locked is reported, not mended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusescope.graph.errors import UserError

# NVML's words for why a clock is lowered (nvml.h, nvmlClocksEventReasons), without the three that are no complaint:
# idle, an application's own setting, and the driver's display setting.
_REASONS = {
    "SwPowerCap": "software power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "software thermal slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "hardware power brake",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a GPU at one moment. None stands for what the GPU or its driver does not tell."""

    sm_clock_mhz: int | None
    """Clock of the streaming multiprocessors in MHz."""

    memory_clock_mhz: int | None
    """Clock of the memory in MHz."""

    temperature_c: int | None
    """Temperature of the GPU in degrees Celsius."""

    power_w: float | None
    """Power drawn in watts."""

    throttled_by: tuple[str, ...] | None
    """What lowers the clocks; empty if nothing does."""

    other_processes: int | None
    """Processes that compute on the GPU besides this one."""


@dataclass(frozen=True)
class Conditions:
    """What a measurement was made on, and under what."""

    gpu: str
    """The GPU's name."""

    driver: str
    """Version of the driver."""

    max_sm_clock_mhz: int | None
    """Highest clock that the GPU may take."""

    mig: bool | None
    """Whether the GPU is divided into instances (MIG)."""

    snapshots: tuple[Snapshot, ...]
    """Before the first round, and after each."""

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before believing a time, one sentence each."""
        clocks = [shot.sm_clock_mhz for shot in self.snapshots[1:] if shot.sm_clock_mhz]
        reasons = sorted({reason for shot in self.snapshots for reason in shot.throttled_by or ()})
        others = max((shot.other_processes or 0 for shot in self.snapshots), default=0)
        found = []
        if clocks and max(clocks) > 1.02 * min(clocks):
            found.append(f"the clock was not steady: {min(clocks)} to {max(clocks)} MHz; lock it with nvidia-smi -lgc")
        if reasons:
            found.append(f"the GPU was throttled: {', '.join(reasons)}")
        if others:
            found.append(f"{others} other process{'es'[: 2 * (others > 1)]} computed on the GPU")
        if self.mig:
            found.append("the GPU is divided into instances (MIG): only a part of it was measured")
        return tuple(found)


class Watcher:
    """Takes snapshots of one GPU.

    Args:
        pci_bus_id: Which GPU, as CUDA names its place: NVML may count GPUs otherwise.

    Raises:
        UserError: nvidia-ml-py is not installed, or NVML cannot be used.
    """

    def __init__(self, pci_bus_id: str) -> None:
        try:
            import pynvml
        except ModuleNotFoundError as error:
            raise UserError(
                "reading the GPU's clocks needs nvidia-ml-py, which is not installed",
                remedy='pip install "fusescope[gpu]"',
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        except pynvml.NVMLError as error:
            raise UserError(f"NVML cannot be used ({error})", where=f"GPU at {pci_bus_id}") from error
        self._snapshots: list[Snapshot] = []

    def observe(self) -> None:
        """Take a snapshot."""
        nvml = self._nvml
        power_mw = self._told(nvml.nvmlDeviceGetPowerUsage)
        processes: Sequence[Any] | None = self._told(nvml.nvmlDeviceGetComputeRunningProcesses)
        self._snapshots.append(
            Snapshot(
                sm_clock_mhz=self._told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
                memory_clock_mhz=self._told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
                temperature_c=self._told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
                power_w=None if power_mw is None else power_mw / 1000,
                throttled_by=self._reasons(),
                other_processes=None if processes is None else max(len(processes) - 1, 0),
            )
        )

    def conditions(self) -> Conditions:
        """What was seen so far."""
        nvml = self._nvml
        mode = self._told(nvml.nvmlDeviceGetMigMode)
        return Conditions(
            gpu=str(nvml.nvmlDeviceGetName(self._handle)),
            driver=str(nvml.nvmlSystemGetDriverVersion()),
            max_sm_clock_mhz=self._told(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            mig=None if mode is None else bool(mode[0]),
            snapshots=tuple(self._snapshots),
        )

    def close(self) -> None:
        """Let NVML go."""
        self._nvml.nvmlShutdown()

    def _reasons(self) -> tuple[str, ...] | None:
        nvml = self._nvml
        asked = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # its name since driver 535
        mask = self._told(asked or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if mask is None:
            return None
        bits = {name: self._bit(name) for name in _REASONS}
        return tuple(words for name, words in _REASONS.items() if mask & bits[name])

    def _bit(self, name: str) -> int:
        names = (f"nvmlClocksEventReason{name}", f"nvmlClocksThrottleReason{name}")
        return next(int(getattr(self._nvml, each)) for each in names if hasattr(self._nvml, each))

    def _told(self, query: Any, *arguments: Any) -> Any:
        """What NVML answers; None where this GPU or driver does not support the question."""
        try:
            return query(self._handle, *arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None
