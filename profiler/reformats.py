"""Why a layer changes formats, and where an engine changes element types."""

from collections.abc import Iterable, Mapping

import pandas as pd

from fusescope.profiler.attribution import Attribution
from fusescope.profiler.kinds import kind_group
from fusescope.profiler.layers import Engine, Layer

REFORMAT_COLUMNS: Mapping[str, str] = {
    "why": "what is changed, and where",
    "kernels": "kernels that do only that",
    "bytes": "bytes that they read and write",
    "time_us": "their time; missing where no clock ran",
}
"""Column of `reformat_table` to its meaning."""

TRANSITION_COLUMNS: Mapping[str, str] = {
    "read": "element types that kernels read",
    "written": "element types that they write",
    "group": "their group",
    "kernels": "how many",
    "bytes": "bytes that they read and write",
    "time_us": "their time; missing where no clock ran",
}
"""Column of `transition_table` to its meaning."""

NO_CHANGE = "neither dtype nor layout"
"""What `changed` says of a layer that only copies."""

_NEIGHBOURS = {"plugin": "a plugin", "opaque": "a region that the recording does not open up"}


def reformat_reasons(engine: Engine, attributions: Iterable[Attribution]) -> list[str]:
    """Why each layer of the group ``reformat`` is there, such as ``dtype and layout, at an input of the engine``.

    Returns:
        A text per layer; empty for layers of other groups.
    """
    return [
        f"{changed(each.layer)}{_place(each.layer, engine)}" if each.group == "reformat" else ""
        for each in attributions
    ]


def reformat_table(layers: pd.DataFrame) -> pd.DataFrame:
    """Changes of format by why they are there, most costly first, with the columns of `REFORMAT_COLUMNS`."""
    return _totals(layers[layers["why"] != ""], ["why"], REFORMAT_COLUMNS)


def transition_table(layers: pd.DataFrame) -> pd.DataFrame:
    """Changes of element type between what kernels read and write, with the columns of `TRANSITION_COLUMNS`."""
    told = layers["kernel"] & (layers["read_dtypes"] != "") & (layers["write_dtypes"] != "")
    changing = layers[told & (layers["read_dtypes"] != layers["write_dtypes"])]
    renamed = changing.rename(columns={"read_dtypes": "read", "write_dtypes": "written"})
    return _totals(renamed, ["read", "written", "group"], TRANSITION_COLUMNS)


def _totals(layers: pd.DataFrame, keys: list[str], columns: Mapping[str, str]) -> pd.DataFrame:
    grouped = layers.groupby(keys, sort=False)
    table = pd.DataFrame(
        {
            "kernels": grouped["kernel"].sum().astype(int),
            "bytes": grouped["traffic_bytes"].sum(),
            "time_us": grouped["time_us"].sum(min_count=1),
        }
    )
    ordered = table.sort_values(["time_us", "bytes"], ascending=False, na_position="last")
    return ordered.reset_index()[list(columns)]


def is_at_input(layer: Layer, engine: Engine) -> bool:
    """Whether a layer reads what no layer writes: an input of the engine."""
    return bool(layer.inputs) and not any(engine.writers.get(tensor.name) for tensor in layer.inputs)


def is_at_output(layer: Layer, engine: Engine) -> bool:
    """Whether a layer writes what no layer reads: an output of the engine."""
    return bool(layer.outputs) and not any(engine.readers.get(tensor.name) for tensor in layer.outputs)


def changed(layer: Layer) -> str:
    """What of its first tensor a layer changes: ``dtype (fp32 to fp16)``, ``layout``, both, or why that is not told."""
    read, written = layer.inputs[:1], layer.outputs[:1]
    if not read or not written:
        return "not told what it changes"
    parts = []
    if read[0].dtype_name != written[0].dtype_name:
        parts.append(f"dtype ({read[0].dtype_name} to {written[0].dtype_name})")
    restrided = len(read[0].shape) == len(written[0].shape) and read[0].strides != written[0].strides
    if read[0].layout != written[0].layout or restrided:
        parts.append("layout")
    return " and ".join(parts) or NO_CHANGE


def _place(layer: Layer, engine: Engine) -> str:
    before = [writer for tensor in layer.inputs for writer in engine.writers.get(tensor.name, ())]
    after = [reader for tensor in layer.outputs for reader in engine.readers.get(tensor.name, ())]
    places = []
    if is_at_input(layer, engine):
        places.append("at an input of the engine")
    if is_at_output(layer, engine):
        places.append("at an output of the engine")
    for group, what in _NEIGHBOURS.items():
        if any(kind_group(other.kind) == group for other in before):
            places.append(f"behind {what}")
        if any(kind_group(other.kind) == group for other in after):
            places.append(f"before {what}")
    return "".join(f", {place}" for place in places)
