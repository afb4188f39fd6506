"""The one entry: what a file is, is told by its content."""

import json
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.reading import FORMATS, read_recording

EXAMPLES = {
    "inspector": '{"Layers": ["a", "b [profile 1]"], "Bindings": []}',
    "profile": '[{"count": 2}, {"name": "a", "timeMs": 2.0, "averageMs": 1.0, "percentage": 100}]',
    "times": '[{"computeMs": 1.5}, {"computeMs": 2.5}]',
    "metadata": '[{"Name": "A100", "ComputeCapability": [8, 0]}]',
    "mapping": '{"a": [1.0, 2.0], "b": [0.5, 0.5]}',
    "cells": "Iteration count = 1, layer count = 1\n name |  timeMs |  averageMs | medianMs | percentage\n"
    "a |  1 |  1 |  1 |  100\ntotal (all layers) |  1 |  1 |  1 |  100\n",
    "log": "[01/01/2026-00:00:00] [I] Layers:\nName: a, LayerType: gemm, Inputs: [], Constants: [], Outputs: [], "
    "TacticName: t, StreamId: 0, Metadata:\n\nI/O Tensors:\n",
}


@pytest.mark.parametrize("key", EXAMPLES)
def test_a_format_is_told_by_content(key: str, tmp_path: Path) -> None:
    """One format recognises an example of each, whatever the file is called."""
    path = tmp_path / "recorded.bin"
    path.write_text(EXAMPLES[key])
    assert [each for each, form in FORMATS.items() if form.recognise(EXAMPLES[key])] == [key]
    recording = read_recording(path)
    assert (recording.path, recording.format) == (path, key)
    assert not any(section.warnings for section in recording.sections if key == "inspector")


def test_layers_have_members_and_profile(tmp_path: Path) -> None:
    """What names tell is filled in."""
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"Layers": ["a + b", "c [profile 1]"]}))
    (section,) = read_recording(path).sections
    assert section.engine is not None
    assert [(layer.members, layer.profile_index) for layer in section.engine.layers] == [(("a", "b"), 0), (("c",), 1)]


@pytest.mark.parametrize("data", [b"hello", b"{}", b"\x00\x01ftrt", b"[1, 2]", b'"text"', b"<html></html>"])
def test_anything_else_is_refused(data: bytes, tmp_path: Path) -> None:
    """With what could be read."""
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UserError, match="is of no format that fusescope reads: layer information, a layer profile"):
        read_recording(path)


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    """They are kept, counted and told of."""
    path = tmp_path / "layers.json"
    path.write_bytes('{"Layers": ["é"]}'.encode("latin-1"))
    (section,) = read_recording(path).sections
    assert section.engine is not None
    assert section.engine.layers[0].name.encode("utf-8", "surrogateescape") == b"\xe9"
    assert section.warnings == ("1 byte of the file is no UTF-8: names show it as an escape",)
