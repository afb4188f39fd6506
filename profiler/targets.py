"""What an engine can be built for, and which quantized formats each target's tensor cores multiply."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fusescope.graph.errors import UserError


@dataclass(frozen=True, slots=True)
class Target:
    """One compute capability."""

    name: str
    """``sm`` and the compute capability without its dot."""

    architecture: str
    """NVIDIA's name for the architecture."""

    formats: frozenset[str]
    """Quantized formats that it has instructions for."""


_INT8 = frozenset({"int8"})
_FP8_TOO = _INT8 | {"fp8"}

# FP8 tensor cores begin with Ada (8.9) and Hopper (9.0): CUDA C++ Programming Guide, compute capabilities. The builder
# of TensorRT for RTX refuses FP8 for sm80 and sm86 with "the model contains HW-specific datatypes: fp8_e4m3".
TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("sm75", "Turing", _INT8),
        Target("sm80", "Ampere", _INT8),
        Target("sm86", "Ampere", _INT8),
        Target("sm87", "Ampere (Orin)", _INT8),
        Target("sm89", "Ada", _FP8_TOO),
        Target("sm90", "Hopper", _FP8_TOO),
        Target("sm100", "Blackwell (B200)", _FP8_TOO),
        Target("sm103", "Blackwell (B300)", _FP8_TOO),
        Target("sm110", "Blackwell (Thor)", _FP8_TOO),
        Target("sm120", "Blackwell (RTX)", _FP8_TOO),
        Target("sm121", "Blackwell (DGX Spark)", _FP8_TOO),
    )
}


def check_target(name: str, buildable: Iterable[str], formats: Iterable[str]) -> None:
    """Refuse a target that a runtime cannot build for, or that lacks a format of the model.

    Args:
        name: The target asked for.
        buildable: The targets that the runtime can build for here.
        formats: Quantized formats in the model, such as ``fp8``.

    Raises:
        UserError: The target is unknown, cannot be built for, or has no instructions for one of the formats.
    """
    buildable = tuple(buildable)
    if name not in buildable:
        near = difflib.get_close_matches(name, buildable, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"cannot be built for {name!r}",
            where="target",
            remedy=f"{hint}choose one of {', '.join(buildable)}",
        )
    for wanted in formats:
        if wanted in {"fp8", "int8"} and wanted not in TARGETS[name].formats:
            able = [target for target in buildable if wanted in TARGETS[target].formats]
            raise UserError(
                f"{name} ({TARGETS[name].architecture}) has no {wanted.upper()} instructions",
                where="target",
                remedy=f"choose one of {', '.join(able)}",
            )
