"""``fusescope quantize``: options that would do nothing are wrong usage, and what cannot be quantized says why."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

Call = Callable[..., Any]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "mse"), "--method is of --data"),
        (("--every", "2"), "--every is of --data"),
        (("--calibration-every", "4"), "--calibration-every is of --data"),
        (("--preprocessing", "resnet50"), "--preprocessing is of --data"),
        (("--tensor", "sr"), "--tensor is of --placement explicit"),
        (("--verdicts", "run"), "--verdicts is of --placement fusable-only"),
        (("--keep-shape", "none", "--keep-shape", "stem"), "--keep-shape none excludes the others"),
        (("--scales", "s.json", "--data", "d.npz"), "--scales and --data exclude each other"),
        (("--format", "nvfp4"), "TensorRT has no NVFP4 convolution"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_would_do_nothing(call: Call, tiny: Path, options: Sequence[str], message: str) -> None:
    """Each is refused before anything is read or written."""
    called = call("quantize", tiny, "-o", "q.onnx", *options)
    assert called.status == 2
    assert message in called.err
    assert not Path("q.onnx").exists()


def test_one_is_one(call: Call, tiny: Path) -> None:
    """A single pair is no pairs; gemms are counted with convolutions where they are asked for."""
    called = call("quantize", tiny, "-o", "one.onnx", "--keep", "first", "--keep", "last")
    assert called.out.splitlines()[0] == "1 of 4 convolutions in FP8, 1 Q/DQ pair on activations"
    called = call("quantize", tiny, "-o", "gemm.onnx", "--op", "Gemm")
    assert called.out.splitlines()[0] == "1 of 1 convolution or gemm in FP8, 1 Q/DQ pair on activations"


def test_what_says_why(refused: Callable[..., str], tiny: Path) -> None:
    """Weights that no scale fits are named by their tensor, kept convolutions by their reason."""
    message = refused("quantize", tiny, "-o", "q.onnx", "--keep", "*")
    assert "tiny.onnx: has no convolution that can be quantized (the first, stem: --keep *); " in message
    proto = onnx.load(tiny)
    for tensor in proto.graph.initializer:
        if tensor.name == "first_w":
            tensor.CopyFrom(numpy_helper.from_array(np.full((16, 16, 3, 3), np.nan, np.float16), "first_w"))
    onnx.save(proto, tiny)
    assert "tensor 'first_w': holds NaN or infinity" in refused("quantize", tiny, "-o", "q.onnx")
