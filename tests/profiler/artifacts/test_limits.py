"""Long and deep files: read or refused in linear time. Each of these once took minutes, or ended in a traceback."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, Node
from fusescope.profiler.artifacts.members import members_of
from fusescope.profiler.artifacts.reading import read_recording
from fusescope.profiler.layers import Engine, Layer
from fusescope.profiler.naming import operation_named
from fusescope.profiler.resolve import resolve

MANY = 100_000
SECONDS = 3.0

GRAPH = ModelGraph("", [Node("a", "Relu", "", ("x",), ("y",))], inputs=("x",), outputs=("y",))
TABLE = "Iteration count = 1, layer count = 1\nname |  timeMs |  averageMs | medianMs | percentage\n"


def region_of(name: str) -> tuple[str, ...]:
    """The nodes of a model that a region of this name stands for."""
    return resolve(Engine((Layer(0, name, "Myelin"),)), GRAPH).layers[0].onnx_nodes


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (members_of, "{ForeignNode[" + "..." * MANY),
        (members_of, "{ForeignNode[a..." * MANY + "]}" * MANY),
        (members_of, "PWN(" * MANY),
        (members_of, " input reformatter 1" * MANY),
        (region_of, "{ForeignNode[" + "..." * MANY + "]} [profile 1]"),
        (region_of, "{ForeignNode[" * MANY + "..."),
        (operation_named, "Conv" + "_1" * MANY + "x"),
    ],
)
def test_long_names(act: Callable[[str], object], name: str) -> None:
    """Names of layers are taken apart in linear time, however deep they are."""
    start = time.process_time()
    act(name)
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        TABLE + " " * MANY + "|\n",
        TABLE + " | 1" * MANY,
        "[I] Input binding for x with dimensions 4x1 and type fp32 is created.\n" * MANY,
        "&&&& RUNNING TensorRT.trtexec # trtexec\n" * 10_000,
        "[I] Engine Layer Information:\n[I] Layers:\n" * 10_000,
        "[I] === Model Options ===\n" * 10_000,
        "[I] === Profile (1 iterations ) ===\n" * 10_000,
        '[{ "count" : 1 }' + ', { "name" : "a' * MANY,
        '[{ "count" : 1 }, { "name" : "' + " " * MANY + '", "timeMs" : ',
        '{"a": ' + "[" * MANY,
        '{"Layers": [' + '{"a":' * MANY,
        '{"a": 1, "b": ' + '{"a":' * 970 + "1" + "}" * 970 + "}",
        '{"Layers": ["a", ' + "[" * 980 + "]" * 980 + "]}",
        '{"Layers"' + " " * MANY,
        '{"Layers" :' * MANY,
    ],
    ids=lambda text: text[:40],
)
def test_long_files(text: str, tmp_path: Path) -> None:
    """Of every format, when what is expected never comes."""
    path = tmp_path / "recorded"
    path.write_text(text, encoding="utf-8")
    start = time.process_time()
    try:
        read_recording(path)
    except UserError as error:
        assert len(str(error)) < 500  # noqa: PT017 - some are read
    assert time.process_time() - start < SECONDS
