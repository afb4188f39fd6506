"""A run: one built engine and all that is known of it, in a folder from which every report can be made again.

The folder holds the evidence as it came (the engine dump, the build log, the plan; or the files that somebody
recorded), the structure of the ONNX model that was compiled, and ``run.json``: where all of it comes from. Nothing
derived is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.join import Joined, join
from fusescope.profiler.layers import Engine
from fusescope.profiler.timing import Latency, LayerProfile
from fusescope.profiler.worker import LAYERS

if TYPE_CHECKING:
    from fusescope.graph.model import ModelGraph

RECORD = "run.json"
MODEL = "model.onnx"
SCHEMA = "fusescope.run"
SCHEMA_VERSION = 1

RECORDED = "recorded"
"""Folder of the files that a recorded run keeps."""

MAKE = "make one with `fusescope build` or `fusescope import`"
"""How to come by a run."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A recorded file that a run keeps."""

    file: str
    """Its name in the run's folder ``recorded``."""

    format: str
    """What it was recognised as, a key of `fusescope.profiler.artifacts.FORMATS`."""

    roles: tuple[str, ...]
    """What it holds of the run's engine: ``layers``, ``profile``, ``latency``, ``facts``."""

    section: str
    """Which engine of the file the run is about; empty if the file is about one."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a run comes from."""

    name: str
    """What the run is called in reports, such as ``fp8-per-channel``."""

    runtime: str
    """``tensorrt-rtx`` or ``tensorrt``."""

    runtime_version: str
    """The runtime's version."""

    target: str
    """What the engine was built for, such as ``sm120``."""

    how: str
    """How the engine came to be, in words: ``compiled ahead of time on a CPU`` or ``recorded by ...``."""

    model_name: str
    """Name of the ONNX model."""

    model_sha256: str
    """Hash of the ONNX file as it was compiled."""

    weights: str
    """Where the weights come from: ``as given``, or that they are seeded values of a structure-only model; empty for a
    recording, which does not tell."""

    scales: str
    """Where the activation scales come from; empty for a model without Quantizes."""

    recipe: Mapping[str, Any]
    """How it was quantized, as `fusescope quantize` recorded it; empty for any other model."""

    request: str
    """Hash of all that was asked for: a study does not repeat a run with the same request; empty if unknown."""

    batch: int | None
    """First dimension of the first input; None if it has none."""

    options: Mapping[str, int | str | None]
    """What the builder was told; None means the runtime's default."""

    plan_bytes: int | None
    """Size of the plan; None if it is not known."""

    parse_s: float | None
    """Seconds that the builder's parser took; None if it is not known."""

    build_s: float | None
    """Seconds that the builder call took; None if it is not known."""

    created: str
    """When, in UTC, ISO 8601."""

    fusescope_version: str
    """The fusescope that wrote the run."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What recorded files say of how they came to be, by the keys of `fusescope.profiler.artifacts.recording.FACTS`."""

    artifacts: tuple[Artifact, ...] = ()
    """The recorded files that the run keeps, as they came; empty for an engine that fusescope built."""


@dataclass(frozen=True)
class Run:
    """One engine with its provenance and the model that it was compiled from."""

    provenance: Provenance
    """Where it comes from."""

    engine: Engine
    """Its layers."""

    folder: Path
    """Where it is stored."""

    profile: LayerProfile | None = None
    """Times of its layers; None where no clock ran."""

    latency: Latency | None = None
    """Times of whole inferences; None where no clock ran."""

    warnings: tuple[str, ...] = ()
    """What a reader of the recorded files must know before believing a figure, one sentence each."""

    @cached_property
    def joined(self) -> Joined | None:
        """Its layers with their times; None without a profile.

        Raises:
            UserError: The profile is one of another engine.
        """
        return None if self.profile is None else join(self.engine, self.profile)

    @property
    def has_model(self) -> bool:
        """Whether the ONNX model is known: a recording may come without."""
        return bool(self.provenance.model_name)

    @property
    def model(self) -> "ModelGraph | None":
        """The ONNX model if it is known."""
        return self.graph if self.has_model else None

    @cached_property
    def graph(self) -> "ModelGraph":
        """The ONNX model that was compiled, without its weights; not for a run that `has_model` denies."""
        from fusescope.graph.model import read_graph

        return read_graph(self.folder / MODEL)


def write_record(folder: Path, provenance: Provenance) -> None:
    """Write ``run.json`` into a run's folder."""
    document = {"schema": SCHEMA, "version": SCHEMA_VERSION, **asdict(provenance)}
    (folder / RECORD).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        UserError: It is not the folder of a run, a file of it is missing, or what it keeps cannot be read.
    """
    path = folder / RECORD
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        provenance = _provenance(document, path)
        return _recorded(provenance, folder) if provenance.artifacts else _built(provenance, folder)
    except FileNotFoundError as error:
        what = f"is not a run: it has no {Path(error.filename).name}"
        raise UserError(what, where=folder, remedy=MAKE) from error
    except (ValueError, OSError) as error:
        raise UserError(f"cannot be read ({error})", where=path, remedy="make the run again") from error


def _provenance(document: object, path: Path) -> Provenance:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError("is not the record of a run", where=path, remedy=MAKE)
    if document.get("version") != SCHEMA_VERSION:
        raise UserError(
            f"has version {document.get('version')}, this fusescope reads {SCHEMA_VERSION}",
            where=path,
            remedy="make the run again",
        )
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Provenance).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        damage = f"{first['loc'][0]}: {first['msg']}"
        raise UserError(f"is damaged ({damage})", where=path, remedy="make the run again") from error


def _built(provenance: Provenance, folder: Path) -> Run:
    """A run that fusescope built: its dump is the builder's."""
    dump = (folder / LAYERS).read_bytes().decode("utf-8", "surrogateescape")
    try:
        return Run(provenance, read_oneline(dump, detailed=True), folder)
    except UserError as error:
        raise UserError(error.what, where=folder / LAYERS, remedy="build the run again") from error


def _recorded(provenance: Provenance, folder: Path) -> Run:
    """A run of recorded files, which are read again as they came."""
    from fusescope.profiler.artifacts.reading import read_recording
    from fusescope.profiler.merging import Part, merge

    parts: list[Part] = []
    for artifact in provenance.artifacts:
        path = folder / RECORDED / artifact.file
        if Path(artifact.file).name != artifact.file or not path.is_file():
            raise UserError(f"lacks {artifact.file!r}", where=folder / RECORDED, remedy="import the run again")
        sections = (each for each in read_recording(path).sections if each.label in {"", artifact.section})
        parts.extend(Part(artifact.file, section, artifact.roles) for section in sections)
    merged = merge(parts)
    return Run(provenance, merged.engine, folder, merged.profile, merged.latency, merged.warnings)
