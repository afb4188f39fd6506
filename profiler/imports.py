"""Runs from recorded files: the folder keeps them as they came."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import onnx

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.files import replacing
from fusescope.graph.model import check_proto, graph_of, load_proto
from fusescope.graph.names import name_nodes
from fusescope.graph.sites import quantize_sites
from fusescope.graph.structure import strip
from fusescope.profiler.artifacts.reading import FORMATS
from fusescope.profiler.build import metadata, recipe_of
from fusescope.profiler.layers import Engine
from fusescope.profiler.merging import Merged, merge
from fusescope.profiler.run import MODEL, RECORD, RECORDED, Artifact, Provenance, Run, read_run, write_record
from fusescope.profiler.sources import EngineKey, Source, parts_of


def import_run(
    sources: Sequence[Source], key: EngineKey, output: Path, *, model: Path | None = None, name: str = ""
) -> Run:
    """Keep recorded files as a run.

    Args:
        sources: The files.
        key: Which of the engines that they are about.
        output: The run's folder; replaced as a whole if it is one.
        model: The ONNX model that was compiled, if it is there.
        name: What to call the run in reports; after the engine, or the first file, by default.

    Raises:
        UserError: The files hold neither layers nor times, are of different engines, or the model cannot be read.
    """
    files = _named(sources, key)
    parts = [part for file, source in files.items() for part in parts_of(source, key, file)]
    merged = merge(parts)
    proto = None if model is None else _model(model)
    with replacing(output, may_replace=lambda folder: (folder / RECORD).is_file()) as folder:
        (folder / RECORDED).mkdir(parents=True)
        for file, source in files.items():
            shutil.copyfile(source.recording.path, folder / RECORDED / file)
        if proto is not None and model is not None:
            onnx.save_model(strip(proto, folder=model.parent), folder / MODEL)
        artifacts = tuple(_artifact(file, source, key) for file, source in files.items())
        origin = _provenance(merged, artifacts, name or str(key) or parts[0].file.partition(".")[0] or parts[0].file)
        write_record(folder, origin if proto is None or model is None else _of_model(origin, proto, model))
        run = read_run(folder)
        run.joined  # noqa: B018 - a profile of another engine is refused before anything is kept
    return replace(run, folder=output)


def _named(sources: Sequence[Source], key: EngineKey) -> dict[str, Source]:
    """The files that say anything of the engine, each under a name of its own."""
    files: dict[str, Source] = {}
    for source in sources:
        name = source.recording.path.name
        if parts_of(source, key, name):
            names = (name, *(f"{number}-{name}" for number in range(2, len(sources) + 2)))
            files[next(each for each in names if each not in files)] = source
    if not files:
        raise UserError("hold nothing of the engine", where="the files", remedy="give its layers or its profile")
    return files


def _artifact(file: str, source: Source, key: EngineKey) -> Artifact:
    parts = parts_of(source, key, file)
    roles = tuple(dict.fromkeys(role for part in parts for role in part.held))
    section = next((part.section.label for part in parts if part.section.label), "")
    return Artifact(file, source.recording.format, roles, section)


def _provenance(merged: Merged, artifacts: Sequence[Artifact], name: str) -> Provenance:
    facts = merged.facts
    capability = facts.get("compute_capability", "").replace(".", "")
    return Provenance(
        name=name,
        runtime=facts.get("runtime", "tensorrt"),
        runtime_version=facts.get("tensorrt_version", ""),
        target=f"sm{capability}" if capability else "",
        how=_how(facts, artifacts),
        model_name="",
        model_sha256="",
        weights="",
        scales="",
        recipe={},
        request="",
        batch=_batch(merged),
        options={},
        plan_bytes=_integer(facts.get("plan_bytes")),
        parse_s=None,
        build_s=_number(facts.get("build_s")),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fusescope_version=__version__,
        facts=facts,
        artifacts=tuple(artifacts),
    )


def _model(path: Path) -> onnx.ModelProto:
    proto = load_proto(path)
    check_proto(proto, path)
    name_nodes(proto)
    return proto


def _of_model(origin: Provenance, proto: onnx.ModelProto, path: Path) -> Provenance:
    """Provenance with what the ONNX model says."""
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    sites = quantize_sites(graph_of(proto, name=path.name))
    return replace(
        origin,
        model_name=path.name,
        model_sha256=sha256,
        scales=metadata(proto).get("fusescope.scales", "as given") if sites else "",
        recipe=recipe_of(proto, path.name),
    )


def _how(facts: Mapping[str, str], artifacts: Sequence[Artifact]) -> str:
    by = "with trtexec" if "trtexec" in facts.get("command", "") else "elsewhere"
    titles = dict.fromkeys(FORMATS[artifact.format].title for artifact in artifacts)
    return f"recorded {by} ({', '.join(titles)})"


def _batch(merged: Merged) -> int | None:
    """The batch that is recorded, or else the first dimension of the engine's first input."""
    if (told := _integer(merged.facts.get("batch"))) is not None:
        return told
    return next((shape[0] for shape in _input_shapes(merged.engine) if len(shape) > 1 and shape[0] > 0), None)


def _input_shapes(engine: Engine) -> Iterator[tuple[int, ...]]:
    yield from (tensor.shape for tensor in engine.inputs)
    for layer in engine.layers:
        yield from (tensor.shape for tensor in layer.inputs if tensor.name not in engine.writers)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
