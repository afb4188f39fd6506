"""From what several recorded files say of one engine to one engine with its times."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.members import members_of
from fusescope.profiler.artifacts.recording import Section
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


@dataclass(frozen=True)
class Part:
    """What one file says of the engine."""

    file: str
    """The file's name."""

    format: str
    """What it was recognised as, a key of `fusescope.profiler.artifacts.FORMATS`."""

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
    """Put together what files say of one engine; where they contradict each other, the first holds, and it is said.

    Raises:
        UserError: No file holds layers or times of layers, or two hold layers of different engines.
    """
    warnings = [each for part in parts for each in part.section.warnings]
    profile, said = _first(parts, lambda part: part.profile, _detail, lambda each: each.total_ms, "layer times sum to")
    warnings += said
    latency, said = _first(
        parts, lambda part: part.latency, _samples, lambda each: each.compute.median_ms, "median latency is"
    )
    warnings += said
    engine, said = _engine(parts, profile)
    warnings += said
    facts, said = _facts(parts)
    warnings += said
    engine, said = _one_profile(engine, profile)
    warnings += said
    return Merged(engine, profile, latency, facts, tuple(dict.fromkeys((*warnings, *_limits(engine, profile, facts)))))


def _engine(parts: Sequence[Part], profile: LayerProfile | None) -> tuple[Engine, list[str]]:
    found = [(part, part.engine) for part in parts if part.engine is not None and part.engine.layers]
    if not found:
        if profile is None:
            raise UserError(
                "holds neither layers nor times of layers",
                where=", ".join(part.file for part in parts),
                remedy="give a file of trtexec --exportLayerInfo or --exportProfile, or a log",
            )
        engine = Engine(
            tuple(
                Layer(index, entry.name, "", members=members_of(entry.name))
                for index, entry in enumerate(profile.layers)
            )
        )
        return engine, ["Layers are known by the names in the profile only."]
    best, engine = max(found, key=lambda pair: _told(pair[1]))
    warnings = []
    for part, other in found:
        if part is best:
            continue
        names, others = ({layer.name for layer in each.layers} for each in (engine, other))
        common = len(names & others) / min(len(names), len(others))
        if common < _SAME_ENGINE and not _opened(engine, other):
            raise UserError(
                f"is of another engine than {best.file}: {len(names & others)} of its "
                f"{plural(len(others), 'layer')} have a name that is there too",
                where=part.file,
                remedy="import each engine into a run of its own",
            )
        if names != others and not _opened(engine, other):
            missing = len(names ^ others)
            warnings.append(f"{best.file} and {part.file} differ in {plural(missing, 'layer')}: the first is taken.")
    return engine, warnings


def _told(engine: Engine) -> tuple[int, int, int]:
    """How much of an engine a file tells: tensors of known type, layers of known type, layers."""
    tensors = sum(tensor.dtype is not None for layer in engine.layers for tensor in (*layer.reads, *layer.outputs))
    return tensors, sum(bool(layer.kind) for layer in engine.layers), len(engine.layers)


def _opened(engine: Engine, other: Engine) -> bool:
    """Whether one of two lists shows regions as wholes, whose kernels the other lists."""
    return any(layer.kind.lower() == "myelin" for each in (engine, other) for layer in each.layers)


def _detail(profile: LayerProfile) -> tuple[int, int]:
    return sum(len(layer.samples_ms) for layer in profile.layers), len(profile.layers)


def _samples(latency: Latency) -> int:
    return latency.compute.samples or 0


def _first(
    parts: Sequence[Part],
    of: Callable[[Part], T | None],
    detail: Callable[[T], int | tuple[int, ...]],
    figure: Callable[[T], float | None],
    says: str,
) -> tuple[T | None, list[str]]:
    """The most detailed of what parts hold of one kind, the first of equals, and where another contradicts it."""
    found = [(part, value) for part in parts if (value := of(part)) is not None]
    if not found:
        return None, []
    best, value = max(found, key=lambda pair: detail(pair[1]))
    mine = figure(value)
    warnings = []
    for part, other in found:
        theirs = figure(other)
        if part is not best and mine and theirs and abs(theirs - mine) > _TOLERANCE * mine:
            warnings.append(
                f"{says[0].upper()}{says[1:]} {mine:.3f} ms in {best.file} and {theirs:.3f} ms in {part.file}: "
                "the first is taken."
            )
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
                warnings.append(f"{file} says {key} {first}, {part.file} says {value}: the first is taken.")
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
    left = len(engine.layers) - len(layers)
    return replace(engine, layers=layers), [
        f"The engine has {len(indices)} optimization profiles: this is profile {chosen}; "
        f"{plural(left, 'layer')} of the others are left out."
    ]


def _limits(engine: Engine, profile: LayerProfile | None, facts: Mapping[str, str]) -> Iterable[str]:
    """What the recording as a whole does not tell."""
    nameless = sum(not layer.kind for layer in engine.layers)
    if nameless:
        all_of_them = "the" if nameless == len(engine.layers) else f"{nameless} of the"
        yield f"Of {all_of_them} layers only names are recorded, no types and tensors: {DETAILED}."
    if profile is not None and "clock_mhz" not in facts:
        yield "Whether clocks were locked is not recorded."
