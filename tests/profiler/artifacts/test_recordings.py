"""Every recording that is there is read whole: layers, types and times equal a count of the raw files.

What is expected is counted here from JSON and text, with words that stand in the files, by nothing of the readers.
"""

import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusescope.profiler.artifacts.reading import read_recording
from fusescope.profiler.artifacts.recording import Recording
from fusescope.profiler.kinds import kind_group

pytestmark = pytest.mark.artifacts

FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", os.devnull))
FILES = sorted(path for path in FOLDER.glob("*/**/*") if path.is_file())
HOLDS = {
    "graph.json": "inspector",
    "engine_info.json": "inspector",
    "exportLayerInfo.json": "inspector",
    "modelInformation.json": "inspector",
    "layer_latency.json": "mapping",
    "timing.json": "times",
    "metadata.json": "metadata",
    "profile.json": "profile",
    "parsed-tables.log": "cells",
    ".log": "log",
    ".txt": "log",
}
"""How the name of a file ends to what is in it."""

TYPES = {
    "Float": "fp32",
    "FP32": "fp32",
    "Half": "fp16",
    "FP16": "fp16",
    "FP8": "fp8",
    "Int8": "int8",
    "Int32": "int32",
    "Int64": "int64",
    "UInt8": "uint8",
    "UInt64": "uint64",
    "Bool": "bool",
    "N/A": "unknown",
}
"""Words for types that stand in the files, and fusescope's."""

BYTES = {"fp32": 4, "fp16": 2, "fp8": 1, "int8": 1, "int32": 4, "int64": 8, "uint8": 1, "uint64": 8, "bool": 1}
_TYPE = re.compile(rf"(?<![\w]){'(?![A-Za-z0-9])|(?<![A-Za-z0-9])'.join(TYPES)}(?![A-Za-z0-9])")
_WIDE = {"Two wide": 2, "Four wide": 4, "Sixteen wide": 16, "Thirty-two wide": 32}


def format_of(path: Path) -> str:
    """What a file is by its name."""
    return next(key for end, key in HOLDS.items() if path.name.endswith(end))


def of(*formats: str) -> pytest.MarkDecorator:
    """Give a test each recording of some formats, or of all."""
    paths = [path for path in FILES if not formats or format_of(path) in formats]
    return pytest.mark.parametrize(
        "recording", paths, indirect=True, ids=lambda path: path.relative_to(FOLDER).as_posix()
    )


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> Recording:
    """A recording, read once."""
    return cached(request.param)


@functools.cache
def cached(path: Path) -> Recording:
    """Read a recording, once."""
    return read_recording(path)


def raw(recording: Recording) -> Any:
    """A recorded file as Python's own JSON reader has it."""
    return json.loads(recording.path.read_bytes(), strict=False)


def text_of(recording: Recording) -> str:
    """A recorded file as text."""
    return recording.path.read_bytes().decode("utf-8", "surrogateescape")


@of()
def test_what_it_is(recording: Recording) -> None:
    """Files are told by content as their authors named them, and nothing in them is unread."""
    assert recording.format == format_of(recording.path)
    assert not any(section.engine.unread for section in recording.sections if section.engine)
    assert not any("was left out: it" in warning for section in recording.sections for warning in section.warnings)


@of()
def test_no_known_kind_is_other(recording: Recording) -> None:
    """Each LayerType that occurs has a group."""
    layers = (layer for section in recording.sections if section.engine for layer in section.engine.layers)
    assert {layer.kind for layer in layers if layer.kind and kind_group(layer.kind) == "other"} == set()


def raw_tensors(layer: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Type and bytes of each tensor of a layer of raw JSON, weights among them."""
    for tensor in (*layer["Inputs"], *layer.get("Constants", ()), *layer["Outputs"]):
        said = tensor.get("Format/Datatype") or f"{tensor['Datatype']} {tensor['Format']}"
        dtype = TYPES[_TYPE.findall(said)[0]]
        sizes = list(tensor["Dimensions"])
        multiple = re.search(r"channel % (\d+) ==", said)
        wide = next((width for words, width in _WIDE.items() if words in said), int(multiple[1]) if multiple else 1)
        if wide > 1:
            sizes[1] = math.ceil(sizes[1] / wide) * wide
        yield dtype, None if min(sizes, default=1) < 0 else math.prod(sizes) * BYTES[dtype]
    for key in ("Weights", "Bias", "ConvWeights", "ConvBias"):
        if layer.get(key, {}).get("Count"):
            dtype = TYPES[layer[key]["Type"]]
            yield dtype, layer[key]["Count"] * BYTES[dtype]


@of("inspector")
def test_layer_information(recording: Recording) -> None:
    """Names, kinds, ONNX nodes, and the number and bytes of tensors of each type."""
    (section,) = recording.sections
    assert section.engine is not None
    layers = raw(recording)["Layers"]
    if isinstance(layers[0], str):
        assert [layer.name for layer in section.engine.layers] == layers
        return
    assert [(layer.name, layer.kind) for layer in section.engine.layers] == [
        (layer["Name"], layer["LayerType"]) for layer in layers
    ]
    expected = Counter(tensor for layer in layers for tensor in raw_tensors(layer))
    found = Counter(
        (tensor.dtype_name, tensor.bytes)
        for layer in section.engine.layers
        for tensor in (*layer.reads, *layer.outputs)
    )
    assert found == expected
    nodes = [len(set(re.findall(r"\[ONNX Layer: (.*?)\]", layer.get("Metadata", "")))) for layer in layers]
    assert [len(layer.onnx_nodes) for layer in section.engine.layers] == nodes
    bound = raw(recording).get("Bindings") or [tensor["Name"] for tensor in raw(recording)["I/O Tensors"]]
    assert {tensor.name for tensor in (*section.engine.inputs, *section.engine.outputs)} == set(bound)


def dumped(text: str) -> list[list[str]]:
    """Lines of layers of each text dump."""
    dumps: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        begins = line.rstrip() == "Layers:" or line.rstrip().endswith("] Layers:")
        inside = begins or (inside and line.rstrip() not in {"Bindings:", "I/O Tensors:"})
        if begins:
            dumps.append([])
        elif inside and line.strip() and not line.startswith("["):
            dumps[-1].append(line)
    return dumps


def listed(text: str) -> list[list[str]]:
    """Lines of each list of layers of a verbose build."""
    found = re.findall(r"Engine Layer Information:\n((?:Layer\(.*\n)+)", text)
    return [lists.split("\n")[:-1] for lists in found]


@of("log")
def test_layers_of_logs(recording: Recording) -> None:
    """As many layers, and tensors of each type, as dumps and lists of a log have."""
    expected: Counter[tuple[int, tuple[tuple[str, int], ...]]] = Counter()
    for run in re.split(r"^(?=&&&& RUNNING)|^&&&& PASSED.*\n", text_of(recording), flags=re.MULTILINE):
        dumps, lists = dumped(run), listed(run)
        detailed = [dump for dump in dumps if dump[0].startswith("Name: ")]
        if run.startswith("&&&& RUNNING"):  # one engine, best described by a dump
            lists = [] if detailed else lists[-1:]
            dumps = detailed or ([] if lists else dumps)
        expected.update((len(lines), types("\n".join(lines))) for lines in (*dumps, *lists))
    found = Counter(
        (
            len(engine.layers),
            tuple(
                sorted(
                    Counter(
                        tensor.dtype_name
                        for layer in engine.layers
                        for tensor in (*layer.inputs, *layer.outputs, *(t for t in layer.constants if t.layout))
                    ).items()
                )
            ),
        )
        for section in recording.sections
        if (engine := section.engine)
    )
    assert found == expected


def types(text: str) -> tuple[tuple[str, int], ...]:
    """Tensors of each type in lines of layers of any style."""
    sentences = re.findall(r"(?:Format/Datatype|, Datatype): ([^,}]*)", text)
    words = re.findall(r" \((\w+)\[[-\d,:]*\]\)(?= ->|, |$)|\[(\w+)\([-\d,:]*\)\](?= ->|, |$)", text, re.MULTILINE)
    found = [_TYPE.findall(sentence)[0] for sentence in sentences] + [new or old for new, old in words]
    return tuple(sorted(Counter(TYPES[word] for word in found).items()))


@of("profile")
def test_profiles(recording: Recording) -> None:
    """Names in order, and the sum of times by the number of inferences."""
    profile = recording.sections[0].profile
    count, *entries = raw(recording)
    assert profile is not None
    assert [entry.name for entry in profile.layers] == [entry["name"] for entry in entries]
    assert profile.total_ms == pytest.approx(sum(entry["timeMs"] for entry in entries) / count["count"], rel=1e-5)
    assert profile.iterations == count["count"]


@of("mapping")
def test_mappings(recording: Recording) -> None:
    """The sum of the means of each name's list."""
    profile = recording.sections[0].profile
    assert profile is not None
    assert profile.total_ms == pytest.approx(sum(sum(times) / len(times) for times in raw(recording).values()))


@of("times")
def test_inferences(recording: Recording) -> None:
    """Their number without the warm-up of 200 ms, and the mean of their GPU times."""
    latency = recording.sections[0].latency
    assert latency is not None
    warm = [row["computeMs"] for row in raw(recording) if row["startComputeMs"] >= 200]
    assert latency.compute.samples == len(warm)
    assert latency.compute.mean_ms == pytest.approx(sum(warm) / len(warm))


@of("cells")
def test_cells(recording: Recording) -> None:
    """The sum of the averages of ten rows."""
    profile = recording.sections[0].profile
    assert profile is not None
    rows = re.findall(r"^ *[\w_]+ \| +[\d.]+ \| +([\d.]+) \| [\d.]+ \| +[\d.]+$", text_of(recording), re.MULTILINE)
    assert len(rows) == 10
    assert profile.total_ms == pytest.approx(sum(map(float, rows)))
