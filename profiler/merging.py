"""From what several recorded files say of one engine to one engine with its times."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural, sentence
from fusescope.profiler.artifacts.members import members_of
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.regions import is_of_region, is_region, with_regions
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.timing import Latency, LayerProfile

ROLES = ("layers", "profile", "latency", "facts")
"""What a file can hold of an engine."""

DETAILED = "record the layers again from an engine built with --profilingVerbosity=detailed"
"""What to do about a recording that holds names of layers only."""

_SAME_ENGINE = 0.5
"""Share of layer names that two files must have in common to be of one engine."""

_TOLERANCE = 0.02
"""Times that differ by less are the same: printed tables and files round differently."""

_COMPARED = frozenset({"tensorrt_version", "runtime", "gpu", "compute_capability", "precision", "streams", "batch"})
"""Facts that two files of one engine must agree on."""

T = TypeVar("T")
Timed = TypeVar("Timed", LayerProfile, Latency)


@dataclass(frozen=True)
class Part:
    """What one file says of the engine."""

    file: str
    """The file's name."""

    section: Section
    """What it says."""

    roles: tuple[str, ...] = ROLES
    """Those of `ROLES` that it is taken for."""

    @property
    def engine(self) -> Engine | None:
        """Its layers, if it is taken for them."""
        return self.section.engine if "layers" in self.roles else None

    @property
    def profile(self) -> LayerProfile | None:
        """Its times of layers, if it is taken for them."""
        return self.section.profile if "profile" in self.roles else None

    @property
    def latency(self) -> Latency | None:
        """Its times of inferences, if it is taken for them."""
        return self.section.latency if "latency" in self.roles else None

    @property
    def held(self) -> tuple[str, ...]:
        """Those of its roles that it holds anything for."""
        holds = {
            "layers": self.engine,
            "profile": self.profile,
            "latency": self.latency,
            "facts": self.section.facts if "facts" in self.roles else None,
        }
        return tuple(role for role, what in holds.items() if what)


@dataclass(frozen=True)
class Merged:
    """One engine with its times."""

    engine: Engine
    """Its layers."""

    profile: LayerProfile | None
    """Times of its layers."""

    latency: Latency | None
    """Times of whole inferences."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What the files say of how they came to be."""

    warnings: tuple[str, ...] = ()
    """Where files contradict each other, and what else a reader must know."""


def merge(parts: Sequence[Part]) -> Merged:
    """Put together what files say of one engine.

    Of each kind the most detailed is taken, the first of equals; where another contradicts it, that is said.

    Raises:
        UserError: No file holds layers or times of layers, or two hold layers of different engines.
    """
    profiles: list[tuple[str, LayerProfile]] = _held(parts, lambda part: part.profile)
    profile, in_profiles = _best(profiles, _detail, lambda each: each.total_ms, "the layer times sum to")
    latencies: list[tuple[str, Latency]] = _held(parts, lambda part: part.latency)
    latency, in_latencies = _best(latencies, _samples, lambda each: each.compute.median_ms, "the median latency is")
    engine, in_engines = _engine(parts, profile)
    facts, in_facts = _facts(parts)
    engine, of_profiles = _one_profile(engine, profile)
    warnings = [
        *(each for part in parts for each in part.section.warnings),
        *(*in_profiles, *in_latencies, *in_engines, *in_facts, *of_profiles),
        *_limits(engine, timed=profile is not None or latency is not None),
    ]
    return Merged(engine, profile, latency, facts, tuple(dict.fromkeys(map(sentence, warnings))))


def _engine(parts: Sequence[Part], profile: LayerProfile | None) -> tuple[Engine, list[str]]:
    found: list[tuple[str, Engine]] = _held(parts, lambda part: part.engine)
    if not found and profile is not None:
        return _named_in(profile)
    if not found and any(part.latency for part in parts):
        return Engine(()), ["no layers are recorded, nor their times: only the time of an inference is known"]
    if not found:
        remedy = "give a file of trtexec --exportLayerInfo or --exportProfile, or a log"
        raise UserError("holds neither layers nor times", where=", ".join(part.file for part in parts), remedy=remedy)
    best, engine = max(found, key=lambda pair: _told(pair[1]))
    warnings = []
    for file, other in found:
        if file == best:
            continue
        names, others = _comparable_names(engine, other)
        common = names & others
        if len(common) < _SAME_ENGINE * min(len(names), len(others)):
            raise UserError(
                f"is of another engine than {best}: {len(common)} of its {plural(len(others), 'layer name')} "
                "are there too",
                where=file,
                remedy="import each engine into a run of its own",
            )
        if names != others:
            apart = plural(len(names ^ others), "layer")
            warnings.append(f"{best} and {file} differ in {apart}: those of the first are taken")
        engine = with_regions(engine, other)
    return engine, warnings


def _named_in(profile: LayerProfile) -> tuple[Engine, list[str]]:
    """The layers that a profile names, where nothing else is known of them."""
    named = enumerate(profile.layers)
    layers = (Layer(index, entry.name, "", members=members_of(entry.name)) for index, entry in named)
    return Engine(tuple(layers)), ["layers are known by their names in the profile only"]


def _told(engine: Engine) -> tuple[int, int, int]:
    """How much of an engine a file tells: tensors of known type, layers of known type, layers."""
    tensors = sum(tensor.dtype is not None for layer in engine.layers for tensor in (*layer.reads, *layer.outputs))
    return tensors, sum(bool(layer.kind) for layer in engine.layers), len(engine.layers)


def _comparable_names(engine: Engine, other: Engine) -> tuple[set[str], set[str]]:
    """Names of the layers of both: without regions that only one of them opens up, and their kernels."""
    names, others = ({layer.name for layer in each.layers} for each in (engine, other))
    either = names ^ others
    opened = {name for name in either if is_region(name) or is_of_region(name)}
    return (names - opened, others - opened) if any(map(is_region, either)) else (names, others)


def _held(parts: Sequence[Part], of: Callable[[Part], T | None]) -> list[tuple[str, T]]:
    """What parts hold of one kind, with their files."""
    return [(part.file, value) for part in parts if (value := of(part)) is not None]


def _detail(profile: LayerProfile) -> tuple[int, ...]:
    return sum(len(layer.samples_ms) for layer in profile.layers), len(profile.layers)


def _samples(latency: Latency) -> tuple[int, ...]:
    return (latency.compute.samples or 0,)


def _best(
    found: Sequence[tuple[str, Timed]],
    detail: Callable[[Timed], tuple[int, ...]],
    figure: Callable[[Timed], float | None],
    says: str,
) -> tuple[Timed | None, list[str]]:
    """The most detailed of what files hold of one kind, the first of equals, and where another contradicts it."""
    if not found:
        return None, []
    file, value = max(found, key=lambda pair: detail(pair[1]))
    mine = figure(value)
    warnings = []
    for other, contradicting in found:
        theirs = figure(contradicting)
        if mine and theirs and abs(theirs - mine) > _TOLERANCE * mine:
            warnings.append(f"{says} {mine:.4g} ms in {file} and {theirs:.4g} ms in {other}: the first is taken")
    return value, warnings


def _facts(parts: Iterable[Part]) -> tuple[dict[str, str], list[str]]:
    found: dict[str, tuple[str, str]] = {}
    warnings = []
    for part in parts:
        if "facts" not in part.roles:
            continue
        for key, value in part.section.facts.items():
            first, file = found.setdefault(key, (value, part.file))
            if first != value and key in _COMPARED:
                warnings.append(f"{file} says {key} {first}, {part.file} says {value}: the first is taken")
    return {key: value for key, (value, _) in found.items()}, warnings


def _one_profile(engine: Engine, profile: LayerProfile | None) -> tuple[Engine, list[str]]:
    """The layers of one optimization profile: the one that was timed, or else the first."""
    indices = sorted({layer.profile_index for layer in engine.layers})
    if len(indices) < 2:
        return engine, []
    timed = {entry.name for entry in profile.layers} if profile else set()
    matched = {
        index: sum(each.name in timed for each in engine.layers if each.profile_index == index) for index in indices
    }
    chosen = max(indices, key=lambda index: (matched[index], -index))
    kept = [layer for layer in engine.layers if layer.profile_index == chosen]
    layers = tuple(replace(layer, index=index) for index, layer in enumerate(kept))
    left = plural(len(engine.layers) - len(layers), "layer")
    return replace(engine, layers=layers), [
        f"the engine has {len(indices)} optimization profiles: this is profile {chosen}, {left} of the others are left "
        "out"
    ]


def _limits(engine: Engine, *, timed: bool) -> Iterable[str]:
    """What the recording as a whole does not tell."""
    nameless = sum(not layer.kind for layer in engine.layers)
    if nameless:
        of_them = "the" if nameless == len(engine.layers) else f"{nameless} of the"
        yield f"of {of_them} layers only names are recorded, no types and tensors: {DETAILED}"
    if timed:
        yield "the clocks that the GPU ran at are not recorded"
