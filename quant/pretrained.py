"""timm's trained weights, pinned to a commit of the Hugging Face hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from fusescope.graph.errors import UserError
from fusescope.quant.extras import needs

if TYPE_CHECKING:
    import torch

_REMEDY = "get the checkpoint on a machine that reaches the hub and pass it as --weights FILE"


def trained(model: str, revision: str | None = None) -> "tuple[torch.nn.Module, str]":
    """Make a timm model with its trained weights.

    What was downloaded before is taken from the hub's cache.

    Args:
        model: A timm name.
        revision: A branch, tag or commit of the weights' repository; the main branch by default.

    Returns:
        The model, and where its weights come from, as in ``timm/resnet18.a1_in1k@<commit>``.

    Raises:
        UserError: The hub cannot be reached or has no such revision, or the model's weights are not there.
    """
    timm = needs("timm", "exporting")
    hub, errors = needs("huggingface_hub", "exporting"), needs("huggingface_hub.errors", "exporting")
    broken = needs("safetensors", "exporting").SafetensorError
    repository = timm.get_pretrained_cfg(model).hf_hub_id
    if not repository:
        raise UserError("timm has no trained weights of it on the hub", where=model, remedy="pass --weights FILE")
    try:
        # The snapshot's folder is named after the commit that the revision is at.
        commit = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=["config.json"])).name
        origin = f"{repository}@{commit}"
        return timm.create_model(model, pretrained=True, pretrained_cfg_overlay={"hf_hub_id": origin}), origin
    except errors.RevisionNotFoundError as error:
        what = f"the hub's {repository} has no such revision"
        raise UserError(what, where=revision, remedy="name one of its branches, tags or commits") from error
    except (OSError, RuntimeError, ValueError, broken) as error:  # of the hub, of timm, of a damaged download
        what = f"the pretrained weights could not be downloaded from the hub ({type(error).__name__})"
        raise UserError(what, where=model, remedy=_REMEDY) from error
