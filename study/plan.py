"""Which engines a study needs, and what determines each of them."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
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

    verdicts: Mapping[str, str] | None = None
    """For placement "fusable-only": what became of each Quantize site in an engine; None for the documented rules."""

    @property
    def folder_name(self) -> str:
        """Folder of the run, below `RUNS`."""
        return f"b{self.batch}-{self.name}"


class Planner:
    """Plans the engines of one study.

    Args:
        config: The study.
        data: Hash of the images that calibrate; empty without any.

    Raises:
        UserError: The model cannot be read, or a variant has the baseline's name or another element type.
    """

    def __init__(self, config: StudyConfig, data: str = "") -> None:
        self._config = config
        self._baseline = config.dtype or _element_type(config.model)
        for variant in config.variant:
            self._check(variant)
        settings = config.build.model_dump(exclude={"timeout_s"})
        self._common = [_content_hash(config.model), config.dtype, settings, _compiler_version(), __version__, data]

    def jobs(self) -> tuple[Job, ...]:
        """The engines that are asked for: for every batch the baseline, then each variant."""
        return tuple(self.job(batch, variant) for batch in self._config.batches for variant in self._variants())

    def job(self, batch: int, variant: Variant | None, verdicts: Mapping[str, str] | None = None) -> Job:
        """One engine."""
        asked = [*self._common, batch, None if variant is None else variant.model_dump(), verdicts]
        request = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return Job(batch, variant, self._baseline if variant is None else variant.name, request, verdicts)

    def _variants(self) -> tuple[Variant | None, ...]:
        return (None, *self._config.variant)

    def _check(self, variant: Variant) -> None:
        where = self._config.title
        if variant.name.casefold() == self._baseline:
            raise UserError(
                f"a variant is called {self._baseline!r}, like the baseline", where=where, remedy="rename it"
            )
        if variant.dtype not in {None, self._baseline}:
            raise UserError(
                f"variant {variant.name!r} is {variant.dtype} where it is not quantized, the baseline {self._baseline}",
                where=where,
                remedy=f'put dtype = "{variant.dtype}" at the top of the study',
            )


def plan(config: StudyConfig, data: str = "") -> tuple[Job, ...]:
    """The engines that a study asks for: see `Planner`."""
    return Planner(config, data).jobs()


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
