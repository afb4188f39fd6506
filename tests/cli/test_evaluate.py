"""``fusescope evaluate``, run as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from fusescope.graph.structure import strip
from fusescope.quant.data import open_data, split
from fusescope.quant.ort import onnx_runner
from fusescope.quant.overlap import record_calibration

pytest.importorskip("onnxruntime")

IMAGES = 24


@pytest.fixture(name="images")
def _images() -> NDArray[np.float32]:
    return np.random.default_rng(4).standard_normal((IMAGES, 3, 16, 16)).astype(np.float32)


@pytest.fixture(name="data")
def _data(images: NDArray[np.float32], tiny: Path) -> Path:
    """Images whose labels are what the tiny network says, but for every sixth."""
    labels = onnx_runner(onnx.load(tiny))({"image": images}).argmax(axis=1)
    labels[::6] = (labels[::6] + 1) % 10
    np.savez(tiny.parent / "data.npz", image=images, labels=labels)
    return tiny.parent / "data.npz"


@pytest.fixture(name="fp8")
def _fp8(call: Callable[..., Any], tiny: Path) -> Path:
    """The tiny network in FP8."""
    assert call("quantize", tiny, "-o", "fp8.onnx").status == 0
    return tiny.parent / "fp8.onnx"


def test_a_variant(call: Callable[..., Any], tiny: Path, fp8: Path, data: Path, images: NDArray[np.float32]) -> None:
    """Tables and a sentence on stdout, progress on stderr; the counts are those of the models' own outputs."""
    called = call("evaluate", tiny, fp8, "--data", data)
    assert called.status == 0
    assert "running 2 ONNX models on 24 images, in ONNX Runtime on the CPU" in called.err
    right = (onnx_runner(onnx.load(fp8))({"image": images}).argmax(axis=1) == np.load(data)["labels"]).sum()
    header, reference, variant = (line.split() for line in called.out.splitlines()[1:4])
    assert header[:2] == ["model", "top-1"]
    assert reference[:2] == ["tiny", f"{100 * 20 / 24:.2f}"]
    assert variant[:2] == ["fp8", f"{100 * right / 24:.2f}"]
    assert "95 % confidence" in " ".join(called.out.split())


def test_json(call: Callable[..., Any], tiny: Path, fp8: Path, data: Path) -> None:
    """One document: models, pairs with their sentences, sites from the worst on, and the data by its hash."""
    called = call(
        "evaluate", tiny, fp8, "--data", data, "--images", "12", "--batch", "5", "--sensitivity", "1", "--json"
    )
    document = json.loads(called.out)
    assert document["schema"] == "fusescope.evaluate"
    assert document["images"] == 12
    assert [model["name"] for model in document["models"]] == ["tiny", "fp8"]
    assert document["pairs"][0]["sentence"].startswith("fp8 ")
    assert document["data"]["sha256"] == open_data([data]).take(12).sha256
    assert {site["tensor"] for site in document["sensitivity"]} == {"sr", "fr", "a"}
    assert [site["alone"] is None for site in document["sensitivity"]] == [False, True, True]


def test_without_labels(
    call: Callable[..., Any], tiny: Path, fp8: Path, images: NDArray[np.float32], tmp_path: Path
) -> None:
    """Agreement and noise, and a sentence about the missing accuracy; sites as a table."""
    np.savez(tmp_path / "bare.npz", image=images)
    called = call("evaluate", tiny, fp8, "--data", "bare.npz", "--sensitivity", "2")
    assert called.status == 0
    assert "no labels" in called.out
    assert "McNemar" not in called.out
    assert "Sites quantized alone, the worst first" in called.out


def test_calibration_images_are_left_out(call: Callable[..., Any], tiny: Path, fp8: Path, data: Path) -> None:
    """A variant that says what it was calibrated on is evaluated on the rest, and the output says so."""
    proto = onnx.load(fp8)
    record_calibration(proto, split(open_data([data]), every=4)[0].describe())
    onnx.save(proto, fp8)
    called = call("evaluate", tiny, fp8, "--data", data)
    assert "Of 24 images the 6 of the calibration part were left out." in called.out
    assert called.out.startswith("18 images")


def test_several_outputs(call: Callable[..., Any], tiny: Path, data: Path) -> None:
    """The first output is compared, and it is said that there are others."""
    proto = onnx.load(tiny)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT16, [1, 16, 1, 1]))
    onnx.save(proto, tiny.parent / "two.onnx")
    called = call("evaluate", tiny, "two.onnx", "--data", data)
    assert "two has 2 outputs: only the first, scores, was compared." in called.out
    assert "equal" in called.out


def test_same_file_names(call: Callable[..., Any], tiny: Path, data: Path) -> None:
    """Models of one file name go by their paths."""
    (tiny.parent / "other").mkdir()
    onnx.save(onnx.load(tiny), tiny.parent / "other" / "tiny.onnx")
    called = call("evaluate", "tiny.onnx", "other/tiny.onnx", "--data", data)
    assert "other/tiny.onnx is right on the very images that tiny.onnx is right on, of 24 images" in " ".join(
        called.out.split()
    )


def test_what_is_refused(refused: Callable[..., str], tiny: Path, fp8: Path, data: Path) -> None:
    """One line each: a model without weights, one model twice, more images than there are."""
    onnx.save(strip(onnx.load(tiny)), tiny.parent / "bare.onnx")
    assert "bare: is structure-only" in refused("evaluate", tiny, "bare.onnx", "--data", data)
    assert "is given twice" in refused("evaluate", tiny, tiny, "--data", data)
    assert "99 images are asked for, and there are 24" in refused("evaluate", tiny, fp8, "--data", data, "--images", 99)


def test_another_model(call: Callable[..., Any], tiny: Path, data: Path) -> None:
    """A variant with other inputs or outputs is named, once it is run."""
    proto = onnx.load(tiny)
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "pixels"
    onnx.save(proto, tiny.parent / "pixels.onnx")
    called = call("evaluate", tiny, "pixels.onnx", "--data", data)
    assert called.status == 1
    assert called.err.splitlines()[-1].startswith("error: pixels: takes an input 'pixels', and is given 'image'")
    proto = onnx.load(tiny)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT16, [1, 16]))
    onnx.save(proto, tiny.parent / "features.onnx")
    called = call("evaluate", tiny, "features.onnx", "--data", data)
    assert "error: features: gives outputs of shape [8, 16] where the reference gives [8, 10]" in called.err
    assert not called.out


@pytest.mark.torch
def test_a_torch_reference(call: Callable[..., Any], tmp_path: Path) -> None:
    """The file that was exported with the same seed agrees with the torch model on every image."""
    exported = ("export", "test_resnet.r160_in1k", "--image-size", "64", "-o", "net.onnx")
    assert call(*exported).status == 0
    images = np.random.default_rng(0).standard_normal((5, 3, 64, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", input=images)
    called = call("evaluate", "net.onnx", "--reference-model", "test_resnet.r160_in1k", "--data", "data.npz", "--json")
    assert called.status == 0
    assert "in torch on the " in called.err
    models = {model["name"]: model for model in json.loads(called.out)["models"]}
    assert models["net"]["agreement"]["count"] == 5
    assert models["net"]["snr_db"] > 80


@pytest.mark.parametrize(
    "arguments",
    [("a.onnx",), ("a.onnx", "b.onnx", "--pretrained"), ("a.onnx", "--reference-model", "m", "--sensitivity", 1)],
)
def test_wrong_usage(call: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    """A reference alone, weights of no torch model, and sites without a model to put them into."""
    called = call("evaluate", *arguments, "--data", "data.npz")
    assert called.status == 2
    assert "Usage: fusescope evaluate" in called.err
