"""What the name of a layer says that it was fused from, as TensorRT 7.1 to 11 composes such names.

``a + b`` and ``a || b`` are fusions, ``PWN(a, b)`` a fused pointwise operation, ``{ForeignNode[a...b]}`` a region by
its two ends, ``a+b_mylK_I`` a kernel of Myelin. What TensorRT added by itself, a reformat or a generated kernel, has no
members.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from fusescope.profiler.artifacts.regions import is_region, region_ends
from fusescope.profiler.layers import Engine, Layer

_PROFILE = re.compile(r" \[profile (?P<index>[0-9]{1,4})\]")
_KERNEL = re.compile(r"_myl(?P<region>[0-9]{1,6})_[0-9]{1,6}$")
_REFORMAT = re.compile(
    r"Reformatting CopyNode for |Reformatted (?:Input|Output) Tensor |.* (?:in|out)put reformatter [0-9]+$", re.DOTALL
)
_GENERATED = re.compile(r"__my[el]{1,2}n?_?[A-Z0-9]|__myln_k|_gemm_mha|dummy_shape_call")
_POINTWISE = "PWN("
_SPLIT = re.compile(r" (?:\+|\|\|) ")


def members_of(name: str) -> tuple[str, ...]:
    """Names that a layer's name is composed of, each once; the name itself if it is not composed.

    Args:
        name: The layer's name.

    Returns:
        The members in the name's order; none for what TensorRT made without a part of the model.
    """
    name = _PROFILE.sub("", name)
    if is_region(name) and name.endswith("]}"):
        return tuple(dict.fromkeys(member for end in region_ends(name) for member in _members(end)))
    return _members(name)


def _members(name: str) -> tuple[str, ...]:
    """As `members_of`, of what is no region."""
    if _REFORMAT.match(name):
        return ()
    kernel = _KERNEL.search(name)
    if kernel:
        parts = (part for part in name[: kernel.start()].split("+") if not _GENERATED.match(part))
        return tuple(dict.fromkeys(filter(None, (part.strip(" ") for part in parts))))
    if _GENERATED.match(name):
        return ()
    if name.startswith("{") and name.endswith("}"):  # a subgraph for DLA
        return tuple(dict.fromkeys(filter(None, name[1:-1].split(","))))
    return tuple(dict.fromkeys(part for part in _SPLIT.split(_opened(name)) if part))


def with_members(engine: Engine) -> Engine:
    """Fill in what names tell of each layer: its members and the optimization profile that it belongs to.

    A profile other than the first stands as ``[profile N]`` in the names of layers and tensors. Kernels that Myelin
    generated have no such name; they belong to the profile of their region's other kernels.
    """
    indices = [_said_index(layer) for layer in engine.layers]
    if any(indices):
        indices = list(_spread(engine, indices))
    layers = zip(engine.layers, indices, strict=True)
    return replace(
        engine,
        layers=tuple(
            replace(layer, members=members_of(layer.name), profile_index=index or 0) for layer, index in layers
        ),
    )


def _said_index(layer: Layer) -> int:
    """The highest optimization profile in a layer's names; 0 if there is none."""
    names = (layer.name, *(tensor.name for tensor in (*layer.inputs, *layer.outputs)))
    return max((int(match["index"]) for name in names if (match := _PROFILE.search(name))), default=0)


def _spread(engine: Engine, indices: list[int]) -> Iterator[int]:
    """Give every kernel of a region the profile that any of them names."""
    regions = [match["region"] if (match := _KERNEL.search(layer.name)) else None for layer in engine.layers]
    named: dict[str | None, int] = {}
    for region, index in zip(regions, indices, strict=True):
        named[region] = max(named.get(region, 0), index)
    for region, index in zip(regions, indices, strict=True):
        yield index if region is None else named[region]


def _opened(name: str) -> str:
    """A name with every ``PWN(a, b)`` in it written as ``a + b``; as it is where brackets do not match."""
    if _POINTWISE not in name:
        return name
    written: list[str] = []
    open_brackets: list[bool] = []
    place = 0
    while place < len(name):
        step = 1
        if name.startswith(_POINTWISE, place):
            open_brackets.append(True)
            step = len(_POINTWISE)
        elif name[place] == "(":
            open_brackets.append(False)
            written.append("(")
        elif name[place] == ")":
            if not open_brackets:
                return name
            if not open_brackets.pop():
                written.append(")")
        elif name.startswith(", ", place) and open_brackets and open_brackets[-1]:
            written.append(" + ")
            step = 2
        else:
            written.append(name[place])
        place += step
    return name if open_brackets else "".join(written)
