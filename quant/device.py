"""Where torch computes."""

from typing import TYPE_CHECKING

from fusescope.quant.extras import needs

if TYPE_CHECKING:
    import torch


def device() -> "torch.device":
    """Return the first NVIDIA GPU that torch can use, or else the CPU.

    Raises:
        UserError: torch is not installed.
    """
    torch = needs("torch", "running a torch model")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[no-any-return]


def device_name(where: "torch.device") -> str:
    """Say in words what computes, as in ``the CPU`` or ``the GPU (NVIDIA H200)``."""
    if where.type == "cpu":
        return "the CPU"
    return f"the GPU ({needs('torch', 'running a torch model').cuda.get_device_name(where)})"
