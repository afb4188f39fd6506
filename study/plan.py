"""Which engines a study needs, and what determines each of them."""

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path

from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.model import load_proto, read_graph
from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.dtypes import dtype_named
from fusescope.study.config import StudyConfig, Variant


@dataclass(frozen=True, slots=True)
class Job:
    """One engine that a study needs."""

    batch: int
    """Batch size."""

    variant: Variant | None
    """How the model is quantized; None for the baseline."""

    name: str
    """What the engine is called in reports: the variant's name, or the baseline's element type."""

    request: str
    """Hash of all that determines the engine."""

    @property
    def folder_name(self) -> str:
        """Folder of the run, below `RUNS`."""
        return f"b{self.batch}-{self.name}"


def plan(config: StudyConfig) -> tuple[Job, ...]:
    """The engines that a study needs: for every batch the baseline, then each variant.

    Raises:
        UserError: The model cannot be read, or a variant has the baseline's name.
    """
    baseline = config.dtype or _element_type(config.model)
    if any(variant.name.casefold() == baseline for variant in config.variant):
        raise UserError(f"a variant is called {baseline!r}, like the baseline", where=config.title, remedy="rename it")
    settings = config.build.model_dump(exclude={"timeout_s"})
    common = [_content_hash(config.model), config.dtype, settings, _compiler_version(), __version__]

    def job(batch: int, variant: Variant | None) -> Job:
        asked = [*common, batch, None if variant is None else variant.model_dump()]
        request = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return Job(batch, variant, baseline if variant is None else variant.name, request)

    return tuple(job(batch, variant) for batch in config.batches for variant in (None, *config.variant))


def _compiler_version() -> str:
    try:
        return importlib.metadata.version("tensorrt-rtx-cu13")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _content_hash(model: Path) -> str:
    """Hash of an ONNX file and of the external data that is there."""
    digest = hashlib.sha256(model.read_bytes())
    weights = load_proto(model).graph.initializer
    places = {ExternalDataInfo(tensor).location for tensor in weights if uses_external_data(tensor)}
    for place in sorted(places):
        if (model.parent / place).is_file():
            digest.update((model.parent / place).read_bytes())
    return digest.hexdigest()


def _element_type(model: Path) -> str:
    """``fp16``, ``bf16`` or ``fp32``: the element type of the model's convolution results."""
    graph = read_graph(model)
    words = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes.values() if node.op in WEIGHTED]
    dtype = dtype_named(next(filter(None, words), ""))
    return dtype.name if dtype else "baseline"
