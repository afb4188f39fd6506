"""Published peaks of named GPUs: the one table behind every floor."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fusescope.graph.errors import UserError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's published peaks. Rates are dense, and the highest published, so that a floor stays a lower bound."""

    name: str
    """Name, as ``--gpu`` takes it."""

    target: str
    """Compute capability, such as ``sm120``."""

    fp16_tflops: float
    """Dense FP16 rate in 10^12 operations per second."""

    fp8_tflops: float | None
    """Dense FP8 rate; None if the GPU has none."""

    int8_tops: float | None
    """Dense INT8 rate; None if sources conflict or none is published."""

    bandwidth_gb_per_s: float
    """DRAM bandwidth in 10^9 bytes per second."""

    l2_bytes: int | None
    """L2 cache in bytes; None if it is not published."""

    source: str
    """Where the figures were published."""


_MIB = 1 << 20

GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", "sm75", 65, None, 130, 320, 4 * _MIB, "github.com/winston-zhang-orz/gpu-specs"),
        Gpu(
            "A10",
            "sm86",
            125,
            None,
            250,
            600,
            6 * _MIB,
            "github.com/astroC86/gpu-datasheet; github.com/winston-zhang-orz/gpu-specs",
        ),
        Gpu("A100-40GB", "sm80", 312, None, 624, 1555, 40 * _MIB, "github.com/stas00/ml-engineering"),
        Gpu("A100-80GB", "sm80", 312, None, 624, 2039, 40 * _MIB, "github.com/stas00/ml-engineering"),
        Gpu(
            "L4",
            "sm89",
            121,
            242,
            242,
            300,
            48 * _MIB,
            "github.com/winston-zhang-orz/gpu-specs (485 TFLOP/s FP8 are sparse)",
        ),
        Gpu(
            "L40S",
            "sm89",
            362,
            733,
            733,
            864,
            96 * _MIB,
            "github.com/stas00/ml-engineering; github.com/winston-zhang-orz/gpu-specs",
        ),
        Gpu(
            "RTX-4090",
            "sm89",
            330,
            661,
            661,
            1008,
            72 * _MIB,
            "hmc-tech.com 4090-vs-rtx-pro-5000, at FP16 accumulation",
        ),
        Gpu("H100-PCIe", "sm90", 756, 1513, 1513, 2000, 50 * _MIB, "github.com/stas00/ml-engineering"),
        Gpu(
            "H100-SXM",
            "sm90",
            989,
            1979,
            1979,
            3350,
            50 * _MIB,
            "github.com/stas00/ml-engineering; glennklockwood.com",
        ),
        Gpu(
            "H200",
            "sm90",
            989,
            1979,
            1979,
            4800,
            50 * _MIB,
            "github.com/stas00/ml-engineering; L2 as on the H100, same die",
        ),
        Gpu(
            "B200",
            "sm100",
            2250,
            4500,
            4500,
            8000,
            int(126.5 * _MIB),
            "github.com/stas00/ml-engineering; L2 from github.com/pytorch/ao/issues/4002",
        ),
        Gpu(
            "B300",
            "sm103",
            2500,
            5000,
            None,
            8000,
            None,
            "verda.com/blog/gb300-nvl72-architecture; sources conflict on INT8",
        ),
        Gpu(
            "RTX-5090",
            "sm120",
            419,
            838,
            838,
            1792,
            96 * _MIB,
            "spheron.network, halved from sparse, at FP16 accumulation",
        ),
        Gpu("RTX-PRO-6000", "sm120", 504, 1010, 1010, 1792, 128 * _MIB, "hmc-tech.com rtx-pro-6000"),
    )
}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, whatever its case.

    Raises:
        UserError: There is none in the table.
    """
    by_lower = {key.lower(): gpu for key, gpu in GPUS.items()}
    lower = name.lower().replace(" ", "-")
    if lower in by_lower:
        return by_lower[lower]
    near = difflib.get_close_matches(lower, by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]].name}? " if near else ""
    raise UserError(f"unknown GPU {name!r}", remedy=f"{hint}known are {', '.join(GPUS)}")
