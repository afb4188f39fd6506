"""Runs from recorded files: which file is what, which engine of it, and the folder that keeps them as they came."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fusescope import __version__
from fusescope.graph.errors import UserError
from fusescope.graph.files import replacing
from fusescope.profiler.artifacts import FORMATS, read_recording
from fusescope.profiler.artifacts.recording import Recording
from fusescope.profiler.layers import Engine
from fusescope.profiler.merging import ROLES, Merged, Part, merge
from fusescope.profiler.run import MODEL, RECORD, RECORDED, Artifact, Provenance, Run, read_run, write_record


@dataclass(frozen=True)
class Source:
    """A recorded file that was read."""

    recording: Recording
    """What it holds."""

    roles: tuple[str, ...] = ROLES
    """What it is taken for."""


def read_source(path: Path, role: str = "") -> Source:
    """Read a recorded file.

    Args:
        path: The file.
        role: What it was given as, one of `ROLES`: the rest of it, but for facts, is left; empty to take all of it.

    Raises:
        UserError: It cannot be read, is of no known format, or holds nothing of that role.
    """
    source = Source(read_recording(path), (role, "facts") if role else ROLES)
    if role and not any(role in part.held for part in _parts(source)):
        title = FORMATS[source.recording.format].title
        raise UserError(f"holds no {_ROLE_WORDS[role]}: it is {title}", where=path, remedy="give it without an option")
    return source


_ROLE_WORDS = {"layers": "layers", "profile": "times of layers", "latency": "times of inferences", "facts": "facts"}


def engine_labels(sources: Iterable[Source]) -> tuple[str, ...]:
    """The engines that files tell apart, in the order in which they do; empty if all of them are about one."""
    return tuple(
        dict.fromkeys(section.label for each in sources for section in each.recording.sections if section.label)
    )


def chosen_parts(sources: Sequence[Source], engine: str) -> tuple[Part, ...]:
    """What files say of one engine: sections of that label, and those that are about no engine in particular.

    Raises:
        UserError: There are several engines and none was chosen, or there is none of that label.
    """
    labels = engine_labels(sources)
    if engine and engine not in labels:
        has = f"they are {', '.join(labels)}" if labels else "the files are about one engine, which has no label"
        raise UserError(f"there is no engine {engine!r}", remedy=has)
    if not engine and len(labels) > 1:
        raise UserError(
            f"the files hold {len(labels)} engines: {', '.join(labels)}",
            remedy="choose one with --engine, or import each into a run of its own with --all",
        )
    wanted = {"", engine or "".join(labels)}
    return tuple(part for source in sources for part in _parts(source) if part.section.label in wanted and part.held)


def _parts(source: Source) -> list[Part]:
    recording = source.recording
    return [Part(recording.path.name, recording.format, section, source.roles) for section in recording.sections]


def import_run(
    sources: Sequence[Source], output: Path, *, engine: str = "", onnx: Path | None = None, name: str = ""
) -> Run:
    """Keep recorded files as a run.

    Args:
        sources: The files.
        output: The run's folder; replaced as a whole if it is one.
        engine: Label of the engine, where files hold several.
        onnx: The ONNX model that was compiled, if it is there.
        name: What to call the run in reports; after the engine, or the first file, by default.

    Raises:
        UserError: The files hold several engines or none, contradict each other, or the model cannot be read.
    """
    parts = chosen_parts(sources, engine)
    merged = merge(parts)
    label = engine or "".join(engine_labels(sources))
    with replacing(output, may_replace=lambda folder: (folder / RECORD).is_file()) as folder:
        (folder / RECORDED).mkdir(parents=True)
        model_sha256 = _keep_model(onnx, folder) if onnx else ""
        artifacts = _keep(sources, folder / RECORDED, label)
        provenance = Provenance(
            name=name or label or _stem(parts[0].file),
            runtime=merged.facts.get("runtime", "tensorrt"),
            runtime_version=merged.facts.get("tensorrt_version", ""),
            target=_target(merged.facts),
            how=_how(merged.facts, artifacts),
            model_name=onnx.name if onnx else "",
            model_sha256=model_sha256,
            weights="as given",
            scales="",
            recipe={},
            request="",
            batch=_batch(merged),
            options={},
            plan_bytes=_integer(merged.facts.get("plan_bytes")),
            parse_s=None,
            build_s=_number(merged.facts.get("build_s")),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            fusescope_version=__version__,
            facts=merged.facts,
            artifacts=artifacts,
        )
        write_record(folder, provenance)
    return read_run(output)


def _keep(sources: Sequence[Source], folder: Path, label: str) -> tuple[Artifact, ...]:
    """Copy the files, each under a name of its own."""
    kept: list[Artifact] = []
    for source in sources:
        held = {part.section.label: part.held for part in _parts(source) if part.section.label in {"", label}}
        if not any(held.values()):
            continue
        path = source.recording.path
        taken = {artifact.file for artifact in kept}
        names = (path.name, *(f"{number}-{path.name}" for number in range(2, len(sources) + 2)))
        file = next(each for each in names if each not in taken)
        shutil.copyfile(path, folder / file)
        section = label if held.get(label) else ""
        kept.append(
            Artifact(file, source.recording.format, tuple(dict.fromkeys(r for h in held.values() for r in h)), section)
        )
    return tuple(kept)


def _keep_model(path: Path, folder: Path) -> str:
    """Keep the model without its weights; return the hash of the file."""
    import hashlib

    import onnx

    from fusescope.graph.model import check_proto, load_proto
    from fusescope.graph.names import name_nodes
    from fusescope.graph.structure import strip

    proto = load_proto(path)
    check_proto(proto, path)
    name_nodes(proto)
    onnx.save_model(strip(proto), folder / MODEL)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _how(facts: Mapping[str, str], artifacts: Sequence[Artifact]) -> str:
    by = "trtexec" if "trtexec" in facts.get("command", "") else "others"
    titles = dict.fromkeys(FORMATS[artifact.format].title for artifact in artifacts)
    return f"recorded by {by} ({', '.join(titles)})"


def _stem(file: str) -> str:
    """Name of a file up to its first dot."""
    return file.partition(".")[0] or file


def _target(facts: Mapping[str, str]) -> str:
    capability = facts.get("compute_capability", "").replace(".", "")
    return f"sm{capability}" if capability else ""


def _batch(merged: Merged) -> int | None:
    """The batch that is recorded, or else the first dimension of the engine's first input."""
    if (told := _integer(merged.facts.get("batch"))) is not None:
        return told
    return next((shape[0] for shape in _input_shapes(merged.engine) if len(shape) > 1 and shape[0] > 0), None)


def _input_shapes(engine: Engine) -> Iterable[tuple[int, ...]]:
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
