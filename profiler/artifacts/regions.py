"""Which region of the network a kernel was compiled from.

Myelin compiles a region (``ForeignNode``) into kernels named ``..._mylK_I``. K is the place, from 0, of the region in
the list that a verbose build logs below ``Engine Layer Information:``, and I that of the kernel in it; checked on 10.14
and 10.16. Only such a list knows the regions' names.
"""

import re
from dataclasses import replace

from fusescope.profiler.layers import Engine, Layer

_KERNEL = re.compile(r"_myl(?P<place>[0-9]{1,6})_[0-9]{1,6}$")
_REGION, _END, _BETWEEN = "{ForeignNode[", "]}", "..."


def is_region(name: str) -> bool:
    """Whether a layer of this name is a region as a whole."""
    return name.startswith(_REGION)


def region_ends(name: str) -> tuple[str, str]:
    """What a region begins and ends with, as ``a`` and ``b`` of ``{ForeignNode[a...b]}``; empty if not said."""
    inside = name.partition(_REGION)[2].rpartition(_END)[0]
    first, _, last = inside.partition(_BETWEEN)
    return first, last


def is_of_region(name: str) -> bool:
    """Whether a layer of this name is a kernel of a region."""
    return _KERNEL.search(name) is not None


def with_regions(engine: Engine, listed: Engine) -> Engine:
    """Name the region of every kernel of an engine.

    Args:
        engine: The engine, from the inspector.
        listed: The same engine, from the list of a verbose build.

    Returns:
        The engine with `Layer.region` where the list has a region in that place; as it is where it has none.
    """
    return replace(engine, layers=tuple(_in_region(layer, listed) for layer in engine.layers))


def _in_region(layer: Layer, listed: Engine) -> Layer:
    match = _KERNEL.search(layer.name)
    place = int(match["place"]) if match else len(listed.layers)
    if place >= len(listed.layers) or not is_region(listed.layers[place].name):
        return layer
    return replace(layer, region=listed.layers[place].name)
