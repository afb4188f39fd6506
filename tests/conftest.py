"""What several rooms share: what a marker needs, a tiny residual network, and a study of it."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from fusescope.study.config import read_config
from fusescope.study.plan import plan
from fusescope.study.runner import StudyResult, run_study

# A busy machine is no defect: what must be quick has a test of its own.
hypothesis.settings.register_profile("fusescope", deadline=None)
hypothesis.settings.load_profile("fusescope")
hypothesis.settings.register_profile("many", deadline=None, max_examples=2_000)

NEEDS: Mapping[str, Callable[[], bool]] = {
    "compiles": lambda: importlib.util.find_spec("tensorrt_rtx") is not None,
    "torch": lambda: all(importlib.util.find_spec(name) for name in ("torch", "timm", "onnxscript")),
    "browser": lambda: importlib.util.find_spec("playwright") is not None and shutil.which("chromium") is not None,
    "gpu": lambda: shutil.which("nvidia-smi") is not None,
    "artifacts": lambda: "FUSESCOPE_ARTIFACTS" in os.environ,
}
"""Marker to whether what it needs is here."""

TINY_NET = """
<ir_version: 9, opset_import: ["" : 19]>
tiny (float16[1,3,16,16] image) => (float16[1,10] scores)
{
    [stem]       s      = Conv <pads = [1,1,1,1]> (image, stem_w, stem_b)
    [stem_act]   sr     = Relu (s)
    [first]      f      = Conv <pads = [1,1,1,1]> (sr, first_w, first_b)
    [first_act]  fr     = Relu (f)
    [second]     d      = Conv <pads = [1,1,1,1]> (fr, second_w, second_b)
    [sum]        a      = Add (d, sr)
    [last]       l      = Conv (a, last_w, last_b)
    [pool]       p      = GlobalAveragePool (l)
    [flat]       t      = Flatten <axis = 1> (p)
    [classifier] scores = Gemm <transB = 1> (t, fc_w, fc_b)
}
"""
"""Four convolutions, three of them quantized by default: their inputs are `sr`, `fr` and the residual sum `a`."""

_WEIGHTS = {
    "stem": (16, 3, 3, 3),
    "first": (16, 16, 3, 3),
    "second": (16, 16, 3, 3),
    "last": (16, 16, 1, 1),
    "fc": (10, 16),
}

TINY_STUDY = """
model = "tiny.onnx"
title = "Tiny"

[[variant]]
name = "fp8"

[[variant]]
name = "fp8-per-tensor"
weights = "per-tensor"
"""


HALF, FLOAT, INT8 = "Row major linear FP16 format", "Row major linear FP32", "Row major Int8 format"


def _recorded(name: str, kind: str, read: tuple[str, str], written: tuple[str, str], **more: str) -> dict[str, object]:
    tensors = (
        {"Name": tensor, "Location": "Device", "Dimensions": [2, 4, 8, 8], "Format/Datatype": form}
        for tensor, form in (read, written)
    )
    first, second = tensors
    return {"Name": name, "LayerType": kind, "Inputs": [first], "Outputs": [second], **more}


RECORDED_LAYERS = {
    "Layers": [
        _recorded("QuantizeLinear_2", "Reformat", ("x", FLOAT), ("x_q", INT8), ParameterType="Reformat", Origin="QDQ"),
        _recorded("a.weight + QuantizeLinear_5 + Conv_7 + Relu_8", "CaskConvolution", ("x_q", INT8), ("r", HALF)),
        _recorded("Reformatting CopyNode for Output Tensor 0 to Conv_7", "Reformat", ("r", HALF), ("y", FLOAT)),
    ],
    "Bindings": ["x", "y"],
}
"""A small INT8 engine as the inspector of TensorRT 8.4 lists it; 2 x 4 x 8 x 8 elements in every tensor."""

RECORDED_MS = (0.25, 0.5, 0.125)
"""What its layers take on average, in milliseconds."""

RECORDED_NET = """
<ir_version: 9, opset_import: ["" : 19]>
net (float[2,4,8,8] x) => (float[2,4,8,8] y)
<float scale = {0.5}, int8 zero = {0}>
{
    [QuantizeLinear_2]   x_q = QuantizeLinear (x, scale, zero)
    [DequantizeLinear_3] x_d = DequantizeLinear (x_q, scale, zero)
    [QuantizeLinear_5]   w_q = QuantizeLinear (a.weight, scale, zero)
    [DequantizeLinear_6] w_d = DequantizeLinear (w_q, scale, zero)
    [Conv_7]             c   = Conv (x_d, w_d)
    [Relu_8]             y   = Relu (c)
}
"""


@pytest.fixture(name="recorded")
def _recorded_folder(tmp_path: Path) -> Path:
    """A folder with the recordings of one engine, as trtexec wrote them, and the ONNX model ``net.onnx`` beside it."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    names = [str(layer["Name"]) for layer in RECORDED_LAYERS["Layers"]]  # type: ignore[index]
    profile: list[dict[str, object]] = [{"count": 10}]
    for name, average in zip(names, RECORDED_MS, strict=True):
        share = 100 * average / sum(RECORDED_MS)
        profile.append({"name": name, "timeMs": 10 * average, "averageMs": average, "percentage": share})
    times = [
        {"startComputeMs": start, "endComputeMs": start + took, "computeMs": took, "latencyMs": took}
        for start, took in ((300.0, 0.8125), (301.0, 0.875), (302.0, 0.84375))
    ]
    metadata = {"device_information": {"Selected Device": "NVIDIA A100", "Compute Capability": "8.0"}}
    for name, content in (("graph", RECORDED_LAYERS), ("profile", profile), ("timing", times), ("metadata", metadata)):
        (folder / f"net.{name}.json").write_text(json.dumps(content), encoding="utf-8")
    proto = onnx.parser.parse_model(RECORDED_NET.replace("a.weight", "a_weight"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "a.weight"))
    proto.graph.node[2].input[0] = "a.weight"
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, tmp_path / "net.onnx")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests whose marker needs what is not here."""
    missing = {marker for marker, is_here in NEEDS.items() if not is_here()}
    for item in items:
        for marker in missing.intersection(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.skip(reason=f"what the marker {marker!r} needs is not here"))


@pytest.fixture(autouse=True)
def _no_forced_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as into a pipe, whatever the environment of the tests asks for."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tiny_model() -> onnx.ModelProto:
    """The tiny network with seeded float16 weights. Copy it before a change."""
    proto = onnx.parser.parse_model(TINY_NET)
    rng = np.random.default_rng(0)
    for name, shape in _WEIGHTS.items():
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        bias = rng.standard_normal(shape[0]) / 10
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), f"{name}_w"))
        proto.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float16), f"{name}_b"))
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.fixture(scope="session")
def tiny_study(tiny_model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    """A study of the tiny network, compiled once: the folder with its TOML, model and ``out``, and its result.

    Do not write into the folder. It compiles: whatever uses it needs the marker ``compiles``.
    """
    folder = tmp_path_factory.mktemp("tiny")
    onnx.save(tiny_model, folder / "tiny.onnx")
    (folder / "tiny.toml").write_text(TINY_STUDY, encoding="utf-8")
    config = read_config(folder / "tiny.toml")
    return folder, run_study(config, plan(config), folder / "out")
