"""``fusescope calibrate``, and ``fusescope quantize`` with what it finds, run as a user runs them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fusescope.graph.structure import strip
from fusescope.quant.data import open_data, split
from fusescope.quant.ort import session

pytest.importorskip("onnxruntime")

Calls = Callable[..., Any]

IMAGES = 12


@pytest.fixture(name="data")
def _data(tiny: Path) -> Path:
    """Arrays for the tiny network."""
    images = np.random.default_rng(4).standard_normal((IMAGES, 3, 16, 16)).astype(np.float32)
    np.savez(tiny.parent / "data.npz", image=images, labels=np.arange(IMAGES) % 10)
    return tiny.parent / "data.npz"


@pytest.fixture(name="scales")
def _scales(call: Calls, tiny: Path, data: Path) -> Path:
    """Its scale file."""
    assert call("calibrate", tiny, "-o", "scales.json", "--data", data).status == 0
    return tiny.parent / "scales.json"


def stored(path: Path) -> dict[str, Any]:
    """Return the constants of a model by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def metadata(path: Path) -> dict[str, str]:
    """Return what a model says of itself."""
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_ranges_are_those_of_the_images(call: Calls, tiny: Path, data: Path) -> None:
    """What is done goes to stderr, the result to stdout and into the file: near what the float16 model itself holds."""
    called = call("calibrate", tiny, "-o", "scales.json", "--data", data)
    assert called.out == "6 tensors: max over 12 images\n"
    assert "calibrating on 12 images, in ONNX Runtime on the CPU" in called.err
    assert "calibrating took " in called.err
    document = json.loads((tiny.parent / "scales.json").read_text(encoding="utf-8"))
    images = np.load(data)["image"].astype(np.float16)
    tensors = ["sr", "fr", "a", "d", "t"]
    run = session(onnx.load(tiny), outputs=tensors)
    each = [run.run(tensors, {"image": images[place : place + 1]}) for place in range(IMAGES)]
    expected = {name: max(float(np.abs(found[at]).max()) for found in each) for at, name in enumerate(tensors)}
    assert document["amax"] == pytest.approx({"image": float(np.abs(images).max()), **expected}, rel=0.005)
    assert document["data"]["sha256"] == open_data([data]).sha256
    assert document["images"] == IMAGES


def test_json(call: Calls, tiny: Path, data: Path) -> None:
    """One document, which says what was done; a part of the images can be taken."""
    command = ("calibrate", tiny, "-o", "s.json", "--data", data, "--json")
    document = json.loads(call(*command, "--method", "percentile", "--percentile", "99", "--images", "5").out)
    assert document["schema"] == "fusescope.calibrate"
    assert (document["method"], document["images"], document["tensors"]) == ("percentile 99", 5, 6)
    assert document["seconds"] > 0
    assert document["unusable"] == {}
    for method in ("mse", "entropy"):
        called = call(*command, "--method", method, "--format", "int8", "--force")
        assert json.loads(called.out)["method"] == f"{method} for int8"


def test_both_ways_to_quantize(call: Calls, tiny: Path, data: Path, scales: Path) -> None:
    """With the scale file, and with the images: the same model, whose scales are amax / 448 in its float16."""
    assert call("quantize", tiny, "-o", "one.onnx", "--scales", scales).status == 0
    called = call("quantize", tiny, "-o", "two.onnx", "--data", data, "--json")
    assert Path("one.onnx").read_bytes() == Path("two.onnx").read_bytes()
    document = json.loads(called.out)
    assert not document["uncalibrated"]
    ranges = json.loads(scales.read_text(encoding="utf-8"))
    constants = stored(Path("one.onnx"))
    for tensor in document["tensors"]:
        assert constants[f"{tensor}_scale"] == np.float16(ranges["amax"][tensor] / 448)
    told = metadata(Path("one.onnx"))
    assert told["fusescope.scales"] == document["scales"]
    assert told["fusescope.scales"].startswith(
        f"calibrated: max over 12 images (SHA-256 {ranges['data']['sha256'][:12]}"
    )


def test_the_method_of_a_recipe(call: Calls, tiny: Path, data: Path) -> None:
    """With images the recipe's method is used, or the option's."""
    Path("r.toml").write_text('method = "percentile"', encoding="utf-8")
    call("quantize", tiny, "-o", "one.onnx", "--data", data, "--recipe", "r.toml")
    assert metadata(Path("one.onnx"))["fusescope.scales"].startswith("calibrated: percentile 99.99 over")
    call(
        "quantize", tiny, "-o", "two.onnx", "--data", data, "--recipe", "r.toml", "--method", "mse", "--format", "int8"
    )
    assert metadata(Path("two.onnx"))["fusescope.scales"].startswith("calibrated: mse for int8 over")


def test_evaluation_leaves_calibration_images_out(call: Calls, tiny: Path, data: Path) -> None:
    """A model remembers the part of the images that it was calibrated on."""
    called = call("quantize", tiny, "-o", "q.onnx", "--data", data, "--calibration-every", "4")
    assert "calibrating on 3 images" in called.err
    assert json.loads(metadata(Path("q.onnx"))["fusescope.calibration"])["sha256"] == split(open_data([data]))[0].sha256
    assert "9 images" in call("evaluate", tiny, "q.onnx", "--data", data).out


def test_a_quantized_model_is_calibrated_anew(call: Calls, tiny: Path, data: Path, scales: Path) -> None:
    """With --replace its Q/DQ nodes are taken out first; the weights are then those of the codes."""
    call("quantize", tiny, "-o", "old.onnx", "--store", "qdq")
    assert call("quantize", "old.onnx", "-o", "new.onnx", "--data", data, "--replace").status == 0
    call("quantize", tiny, "-o", "first.onnx", "--scales", scales)
    found, expected = stored(Path("new.onnx")), stored(Path("first.onnx"))
    for tensor in ("sr", "fr", "a"):
        assert found[f"{tensor}_scale"] == expected[f"{tensor}_scale"]


def test_tensors_that_no_convolution_reads(call: Calls, tiny: Path, data: Path, scales: Path) -> None:
    """What a placement or another tool quantizes besides is calibrated too."""
    (result,) = (value.name for value in onnx.load(tiny).graph.output)
    assert result not in json.loads(scales.read_text())["amax"]
    explicit = ["--placement", "explicit", "--tensor", "*"]
    assert call("quantize", tiny, "-o", "all.onnx", *explicit, "--data", data).status == 0
    assert call("quantize", "all.onnx", "-o", "taken.onnx", "--placement", "modelopt", "--data", data).status == 0
    call("calibrate", tiny, "-o", "more.json", "--data", data, "--tensor", "*")
    amax = json.loads(Path("more.json").read_text())["amax"]
    assert result in amax
    quantized = {name for name in amax if f"{name}_scale" in stored(Path("all.onnx"))}
    assert quantized - set(json.loads(scales.read_text())["amax"])
    whole, taken = stored(Path("all.onnx")), stored(Path("taken.onnx"))
    for name in quantized:
        assert whole[f"{name}_scale"] == np.float16(amax[name] / 448), name
        assert taken[f"{name}_scale"] == pytest.approx(amax[name] / 448, rel=0.1), f"{name}: its weights are the codes"


def test_another_model(call: Calls, refused: Callable[..., str], tiny: Path, scales: Path) -> None:
    """Other weights: a warning. Other tensors: one line that says which is missing."""
    proto = onnx.load(tiny)
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[::-1]
    onnx.save(proto, "other.onnx")
    called = call("quantize", "other.onnx", "-o", "o.onnx", "--scales", scales)
    assert called.status == 0
    assert "scales.json was made from another model than other.onnx, or from other weights" in called.err
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = ["renamed" if name == "sr" else name for name in names]
    onnx.save(proto, "renamed.onnx")
    called = call("quantize", "renamed.onnx", "-o", "r.onnx", "--scales", scales)
    assert called.status == 1
    assert "no range is given for tensor 'renamed'" in called.err
    assert "is no scale file" in refused("quantize", tiny, "-o", "x.onnx", "--scales", write("{}"))


def write(text: str) -> Path:
    """Write a file that is no scale file."""
    path = Path("not.json")
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dead_tensor(call: Calls, tiny: Path, data: Path) -> None:
    """It is named, and the convolution that reads it is left in high precision."""
    proto = onnx.load(tiny)
    for tensor in proto.graph.initializer:
        if tensor.name in {"first_w", "first_b"}:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(proto, "dead.onnx")
    called = call("calibrate", "dead.onnx", "-o", "s.json", "--data", data)
    assert "unusable fr: zero" in called.out
    assert (
        "kept second: the range of its input is 0.0"
        in call("quantize", "dead.onnx", "-o", "q.onnx", "--scales", "s.json").out
    )


def test_what_is_refused(call: Calls, refused: Callable[..., str], tiny: Path, data: Path, scales: Path) -> None:
    """A model without weights, a quantized one, an output that is there; options that do not go together."""
    onnx.save(strip(onnx.load(tiny)), "bare.onnx")
    assert call("quantize", tiny, "-o", "q.onnx").status == 0
    command = ("calibrate", tiny, "-o", "s.json", "--data", data)
    for model, message in (("bare.onnx", "is structure-only: ranges of seeded"), ("q.onnx", "is quantized already")):
        called = call("calibrate", model, "-o", "s.json", "--data", data)
        assert called.status == 1
        assert message in called.err.splitlines()[-1]
    assert not Path("s.json").exists()
    assert "scales.json" in refused("calibrate", tiny, "-o", scales, "--data", data)
    for wrong in (
        (*command, "--percentile", "99"),
        (*command, "--method", "percentile", "--percentile", "nan"),
        (*command, "--pretrained"),
        (*command, "--model", "resnet18", "--method", "mse"),
        ("quantize", tiny, "-o", "x.onnx", "--scales", scales, "--data", data),
    ):
        assert call(*wrong).status == 2


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of torch and modelopt, which warn at import
def test_with_modelopt(call: Calls, tmp_path: Path) -> None:
    """A torch model's ranges by ModelOpt agree with those of its ONNX file; nothing but JSON is on stdout."""
    pytest.importorskip("modelopt.torch.quantization")
    model = ("resnet18", "--image-size", "64")
    assert call("export", *model, "-o", "r.onnx").status == 0
    images = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    np.savez(tmp_path / "d.npz", input=images)
    called = call("calibrate", "r.onnx", "-o", "m.json", "--data", "d.npz", "--model", "resnet18", "--json")
    document = json.loads(called.out)
    assert document["tensors"] == 18
    assert document["tool"].startswith("nvidia-modelopt ")
    assert "the ranges are not those of a trained model" in called.err
    assert call("calibrate", "r.onnx", "-o", "o.json", "--data", "d.npz").status == 0
    theirs, ours = (json.loads((tmp_path / name).read_text(encoding="utf-8"))["amax"] for name in ("m.json", "o.json"))
    assert theirs == pytest.approx({name: ours[name] for name in theirs}, rel=1e-4)
    assert call("quantize", "r.onnx", "-o", "q.onnx", "--scales", "m.json").status == 0
