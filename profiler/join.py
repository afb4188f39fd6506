"""The layers of an engine and the profile of it put together, and the sum of the profile held against the latency.

Names repeat, so they are matched by occurrence, in the order of execution; what matches nothing is listed, on both
sides. The sum of layer times is not the latency: what lies between them is told where it can be, and why where not.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusescope.graph.errors import UserError
from fusescope.graph.units import percent, plural
from fusescope.profiler.artifacts.values import shown
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.timing import Latency, LayerProfile, LayerTime

_SAME_ENGINE = 0.5
"""Share of a profile's entries that must be layers of the engine for the two to belong together."""

_PLAUSIBLE_US = 20.0
"""What the profiler adds to a layer at most: in recordings of TensorRT 8.4 to 11.0 it is 2 to 7 us where the layers of
one inference run one after the other."""

_ESCAPE = re.compile(r'\\(?:(["\\/])|([bfnrt])|u([0-9a-fA-F]{4}))')
_CONTROL = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_OLD_REFORMAT = re.compile(r"(?P<layer>.+) (?P<side>in|out)put reformatter (?P<place>[0-9]{1,4})", re.DOTALL)
_PROFILE = re.compile(r" \[profile [0-9]{1,4}\]")


def _unescaped(name: str) -> str:
    """JSON's escapes undone: some writers escape a name twice, trtexec never."""
    return _ESCAPE.sub(lambda match: match[1] or (_CONTROL[match[2]] if match[2] else chr(int(match[3], 16))), name)


def _copy_node(name: str) -> str:
    """``X input reformatter 0``, as profiles up to TensorRT 7 call it, in the inspector's words."""
    match = _OLD_REFORMAT.fullmatch(name)
    if match is None:
        return name
    return f"Reformatting CopyNode for {match['side'].title()}put Tensor {match['place']} to {match['layer']}"


def _of_any_profile(name: str) -> str:
    """Without the optimization profile that a layer belongs to."""
    return _PROFILE.sub("", name)


def _one_blank(name: str) -> str:
    """Blanks and line breaks as a table can print them."""
    return " ".join(name.split())


SPELLINGS: Sequence[Callable[[str], str]] = (_unescaped, _copy_node, _of_any_profile, _one_blank)
"""In what a profile and the inspector may spell one name differently. Nothing else is ever taken for the same."""


@dataclass(frozen=True)
class Joined:
    """The layers of an engine with their times."""

    times: tuple[LayerTime | None, ...]
    """Time of each layer of the engine, in its order; None for a layer that the profile has no entry for."""

    unmatched_profile: tuple[LayerTime, ...] = ()
    """Entries of the profile that are no layer of the engine."""

    unmatched_layers: tuple[Layer, ...] = ()
    """Layers of the engine that the profile has no entry for."""

    respelled: tuple[tuple[str, str], ...] = ()
    """The profile's name and the engine's, where they differ only in one of the `SPELLINGS`."""

    in_order: bool = True
    """Whether the entries stand in the profile as the layers stand in the engine."""

    warnings: tuple[str, ...] = ()
    """What a reader must know of it, one sentence each."""

    @property
    def matched(self) -> int:
        """Layers that have a time."""
        return sum(time is not None for time in self.times)


def join(engine: Engine, profile: LayerProfile) -> Joined:
    """Match the entries of a profile with the layers of an engine.

    Args:
        engine: The engine.
        profile: Its profile.

    Returns:
        Times by layer, and what matches nothing.

    Raises:
        UserError: Most of the profile's entries are no layers of the engine: it is the profile of another one.
    """
    places, respelled = _match(engine.layers, profile.layers)
    entries = dict(zip(places, profile.layers, strict=True))
    found = [place for place in places if place is not None]
    if len(found) < _SAME_ENGINE * len(places):
        odd = next(entry for place, entry in zip(places, profile.layers, strict=True) if place is None)
        raise UserError(
            f"is the profile of another engine: {len(found)} of its {plural(len(places), 'entry', 'entries')} are "
            f"layers of this one; {shown(odd.name)!r} is not",
            where=profile.origin,
            remedy="record layers and profile from the same plan",
        )
    times = tuple(entries.get(index) for index in range(len(engine.layers)))
    joined = Joined(
        times=times,
        unmatched_profile=tuple(e for place, e in zip(places, profile.layers, strict=True) if place is None),
        unmatched_layers=tuple(layer for layer, time in zip(engine.layers, times, strict=True) if time is None),
        respelled=respelled,
        in_order=_longest_rise(found) == len(found),
    )
    return replace(joined, warnings=tuple(_warnings(engine, profile, joined, found)))


def _match(
    layers: Sequence[Layer], entries: Sequence[LayerTime]
) -> tuple[list[int | None], tuple[tuple[str, str], ...]]:
    """The place in the engine of each entry of the profile, or None; and names that are spelled differently."""
    places = _by_occurrence((layer.name for layer in layers), [entry.name for entry in entries])
    if None not in places:
        return places, ()
    taken = {place for place in places if place is not None}
    exact = {layers[place].name for place in taken}
    free = [index for index in range(len(layers)) if index not in taken and _spelled(layers[index].name) not in exact]
    open_entries = [index for index, place in enumerate(places) if place is None]
    second = _by_occurrence(
        (_spelled(layers[index].name) for index in free), [_spelled(entries[index].name) for index in open_entries]
    )
    respelled = []
    for entry, place in zip(open_entries, second, strict=True):
        if place is not None:
            places[entry] = free[place]
            respelled.append((entries[entry].name, layers[free[place]].name))
    return places, tuple(respelled)


def _by_occurrence(known: Iterable[str], names: Sequence[str]) -> list[int | None]:
    """The place of each name among the known ones, the first for its first occurrence; None if none is left."""
    places: dict[str, deque[int]] = defaultdict(deque)
    for place, name in enumerate(known):
        places[name].append(place)
    return [places[name].popleft() if places.get(name) else None for name in names]


def _spelled(name: str) -> str:
    for spelling in SPELLINGS:
        name = spelling(name)
    return name


def _longest_rise(places: Sequence[int]) -> int:
    """Length of the longest rising subsequence."""
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


def _warnings(engine: Engine, profile: LayerProfile, joined: Joined, found: Sequence[int]) -> list[str]:
    warnings = []
    if joined.unmatched_profile:
        time_ms = sum(entry.average_ms for entry in joined.unmatched_profile)
        share = percent(time_ms / profile.total_ms) if profile.total_ms else "none"
        entries = plural(len(joined.unmatched_profile), "entry", "entries")
        example = shown(joined.unmatched_profile[0].name)
        warnings.append(
            f"{entries} of the profile, {share} of its time, are no layers of the engine, such as {example!r}"
        )
    warnings += _untimed(engine, profile, joined)
    if joined.respelled:
        ours, theirs = (shown(name) for name in joined.respelled[0])
        names = plural(len(joined.respelled), "name is", "names are")
        warnings.append(f"{names} spelled differently in the profile, such as {ours!r} for {theirs!r}")
    if profile.ordered and not joined.in_order:
        moved = len(found) - _longest_rise(found)
        warnings.append(f"{plural(moved, 'entry stands', 'entries stand')} elsewhere in the profile than in the engine")
    return warnings + _repeats(engine, profile)


def _untimed(engine: Engine, profile: LayerProfile, joined: Joined) -> list[str]:
    """Why layers have no time, as far as that can be told."""
    if not joined.unmatched_layers:
        return []
    ran = {layer.profile_index for layer, time in zip(engine.layers, joined.times, strict=True) if time is not None}
    idle = [layer for layer in joined.unmatched_layers if layer.profile_index not in ran]
    rest = len(joined.unmatched_layers) - len(idle)
    warnings = []
    if idle:
        indices = ", ".join(str(index) for index in sorted({layer.profile_index for layer in idle}))
        warnings.append(f"{plural(len(idle), 'layer')} of optimization profile {indices} did not run while profiling")
    if rest:
        why = "" if profile.complete else ", which leaves out those that took none"
        warnings.append(f"{plural(rest, 'layer')} of the engine have no time in the profile{why}")
    return warnings


def _repeats(engine: Engine, profile: LayerProfile) -> list[str]:
    """Whether repeated names make the profile doubtful."""
    in_engine = Counter(layer.name for layer in engine.layers)
    in_profile = Counter(entry.name for entry in profile.layers)
    uneven = [name for name, number in in_profile.items() if in_engine[name] not in {0, number}]
    warnings = []
    if uneven:
        names = plural(len(uneven), "name stands", "names stand")
        warnings.append(
            f"{names} in the profile another number of times than in the engine, such as {shown(uneven[0])!r}: matched "
            "from the first on"
        )
    first = profile.layers[0].name if profile.layers else ""
    if in_engine[first] > 1:
        warnings.append(
            f"{in_engine[first]} layers are called {shown(first)!r} as the first one is: trtexec counts an inference "
            "at each of them, so that its averages are too low"
        )
    return warnings


@dataclass(frozen=True)
class Reconciled:
    """The sum of layer times held against the latency."""

    layer_sum_ms: float
    """Sum of the profile, per inference."""

    latency_ms: float | None
    """Median GPU time of an inference without the profiler; None if it was not recorded."""

    executed_layers: int
    """Entries of the profile that took any time."""

    overhead_us: float | None
    """``profile_overhead_us``: what the profiler adds to an executed layer; None where that cannot be told."""

    parallel: bool
    """Whether layers or inferences ran at the same time, so that layer times do not add up."""

    warnings: tuple[str, ...]
    """What keeps the two from being compared, one sentence each."""

    @property
    def gap_ms(self) -> float | None:
        """What the sum is above the latency."""
        return None if self.latency_ms is None else self.layer_sum_ms - self.latency_ms


def reconcile(
    engine: Engine, profile: LayerProfile, latency: Latency | None, facts: Mapping[str, str] | None = None
) -> Reconciled:
    """Hold the sum of layer times against the latency.

    Args:
        engine: The engine: its layers say which streams they run on.
        profile: Its profile.
        latency: Its latency.
        facts: What the recording says, by the keys of `fusescope.profiler.artifacts.recording.FACTS`.
    """
    executed = sum(entry.average_ms > 0 for entry in profile.layers)
    median = latency.compute.median_ms if latency else None
    parallel = _parallel(engine, facts or {})
    warnings = list(parallel)
    overhead = None
    if median is not None and executed and not parallel:
        overhead = 1e3 * (profile.total_ms - median) / executed
        if overhead < 0:
            warnings.append(
                f"the layers add up to {profile.total_ms:.4g} ms, less than the latency of {median:.4g} ms: the "
                "GPU waited between layers, layers are missing from the profile, or the two are of different clocks"
            )
            overhead = None
        elif overhead > _PLAUSIBLE_US:
            warnings.append(
                f"the layers add up to {profile.total_ms / median:.1f} times the latency, {overhead:.0f} us more per "
                "layer: so much is not the profiler's; inferences ran at once (--infStreams), or at another clock"
            )
            overhead = None
    return Reconciled(profile.total_ms, median, executed, overhead, bool(parallel), tuple(warnings))


def _parallel(engine: Engine, facts: Mapping[str, str]) -> list[str]:
    """Why layer times do not add up to a latency, if they do not."""
    reasons = []
    inferences = _integer(facts.get("streams"))
    if inferences > 1:
        reasons.append(
            f"{inferences} inferences ran at once (--infStreams): layers waited for those of the others, so that their "
            f"times add up to as much as {inferences} times the time of one inference"
        )
    streams = max(len({layer.stream for layer in engine.layers}), 1 + _integer(facts.get("aux_streams")))
    if streams > 1:
        reasons.append(
            f"the engine runs on {streams} streams: layers overlap, so that their times add up to more than they took"
        )
    return reasons


def _integer(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
