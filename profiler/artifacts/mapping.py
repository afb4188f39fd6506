"""Layer times that a Python program recorded: a JSON object of layer names to milliseconds, or to a list of them.

Whoever writes an IProfiler in Python keeps a dict: of the last time of each name, or of a list that grows by one time
per inference. A dict keeps the order in which the names came first, which is that of execution, unless it was sorted;
layers of one name fall into one entry.
"""

import re
from collections import Counter
from collections.abc import Sequence

from fusescope.graph.errors import UserError
from fusescope.graph.units import plural
from fusescope.profiler.artifacts.files import parse_pairs
from fusescope.profiler.artifacts.profile_json import ONE_INFERENCE
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.values import milliseconds, shown
from fusescope.profiler.timing import LayerProfile, LayerTime

_START = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.){0,8000}"\s*:\s*(?:\[\s*)?-?(?:[0-9]|NaN|Infinity)', re.DOTALL)

_SORTED = 3
"""Names from which an order that is alphabetical is taken for one that was sorted."""


def recognise(text: str) -> bool:
    """Whether a text is such a mapping, by how it begins."""
    return _START.match(text) is not None


def read(text: str, origin: str) -> tuple[Section, ...]:
    """Read a mapping of layer names to times.

    Args:
        text: The file.
        origin: Its name.

    Raises:
        UserError: It is cut short, maps a name to something else, or holds a time that is negative or no number.
    """
    pairs = parse_pairs(text, origin)
    samples = [(name, _times(name, value, origin)) for name, value in pairs]
    if not samples:
        raise UserError("holds no layer", where=origin)
    if not any(isinstance(value, list) for _, value in pairs):
        layers = tuple(LayerTime(name, times[0]) for name, times in samples)
        iterations, warnings = (
            None,
            ["the file does not say how many inferences its times are of: taken as those of one"],
        )
    else:
        layers, iterations, warnings = _from_lists(samples)
    names = [name for name, _ in samples]
    ordered = len(layers) == len(set(names)) and (len(names) < _SORTED or names != sorted(names))
    if not ordered:
        warnings.append("the order of execution is not in the file: its names are sorted, or stand for several layers")
    profile = LayerProfile(layers, iterations, "recorded", origin, ordered=ordered)
    return (Section("", profile=profile, warnings=tuple(warnings)),)


def _times(name: str, value: object, origin: str) -> tuple[float, ...]:
    times = value if isinstance(value, list) else [value]
    if not times:
        raise UserError(f"has no time of {shown(name)}", where=origin, remedy="record it again")
    return tuple(milliseconds(time, f"the time of {shown(name)}", origin) for time in times)


def _from_lists(samples: Sequence[tuple[str, tuple[float, ...]]]) -> tuple[tuple[LayerTime, ...], int, list[str]]:
    """Layers out of lists that hold a time per inference, or several where layers share a name."""
    lengths = Counter(len(times) for _, times in samples)
    iterations = lengths.most_common(1)[0][0]
    layers: list[LayerTime] = []
    several, uneven = [], []
    for name, times in samples:
        layers_of_name, rest = divmod(len(times), iterations)
        if rest or not layers_of_name:
            uneven.append(name)
            layers.append(_layer(name, times))
            continue
        if layers_of_name > 1:
            several.append(name)
        # The profiler calls once per layer, inference after inference.
        layers += (_layer(name, times[start::layers_of_name]) for start in range(layers_of_name))
    warnings = [ONE_INFERENCE] if iterations == 1 else []
    if several:
        names = plural(len(several), "name stands", "names stand")
        warnings.append(
            f"{names} for several layers, such as {shown(several[0])}: their times were told apart by turns"
        )
    if uneven:
        names = plural(len(uneven), "name has", "names have")
        warnings.append(f"{names} another number of times than the {iterations} of most, such as {shown(uneven[0])}")
    return tuple(layers), iterations, warnings


def _layer(name: str, times: tuple[float, ...]) -> LayerTime:
    import numpy as np

    return LayerTime(name, float(np.mean(times)), float(np.median(times)), times)
