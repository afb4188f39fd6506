"""The one entry: what a file is, is told by its content."""

import json
import re
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.reading import FORMATS, read_recording

EXAMPLES = sorted((Path(__file__).parent / "examples").iterdir())
"""Each is called after its format."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_a_format_is_told_by_content(example: Path, tmp_path: Path) -> None:
    """One format recognises an example of each, whatever the file is called."""
    path = tmp_path / "recorded.bin"
    path.write_bytes(example.read_bytes())
    key = re.split(r"[-.]", example.name)[0]
    assert [each for each, form in FORMATS.items() if form.recognise(path.read_text(encoding="utf-8"))] == [key]
    if example.name != "log-options.txt":  # which says nothing of an engine
        recording = read_recording(path)
        assert (recording.path, recording.format) == (path, key)


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
