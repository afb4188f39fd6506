"""The compiler takes the models, and its own record of the engine proves the 8-bit convolutions."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from fusescope.graph.batch import with_batch
from fusescope.graph.structure import fill
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize

trt = pytest.importorskip("tensorrt_rtx")
pytestmark = pytest.mark.compiles

SAMPLES = Path(__file__).parents[2] / "samples"


class Log(trt.ILogger):  # type: ignore[misc]
    """Keeps what the builder says."""

    def __init__(self) -> None:
        """Start with nothing said."""
        trt.ILogger.__init__(self)
        self.messages: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Keep a message of any severity."""
        del severity
        self.messages.append(message)


def compiled(proto: onnx.ModelProto) -> list[str]:
    """Compile for SM 12.0 and return the layers of the engine's dump, each a line."""
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse(proto.SerializeToString()), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    assert builder.build_serialized_network(network, config) is not None
    (dump,) = (message for message in log.messages if message.startswith("Layers:"))
    return [line for line in dump.splitlines() if "LayerType: " in line]


def convolutions(proto: onnx.ModelProto) -> list[tuple[list[str], list[str]]]:
    """Compile and return what dtypes each convolution layer reads and writes."""
    found = []
    for line in (line for line in compiled(proto) if "LayerType: correlation," in line):
        inputs, outputs = re.search(r", Inputs: \[(.*?)\], Constants: .*, Outputs: \[(.*?)\], Tactic", line).groups()  # type: ignore[union-attr]
        found.append((re.findall(r"Datatype: (\w+)", inputs), re.findall(r"Datatype: (\w+)", outputs)))
    return found


@pytest.mark.parametrize(("format_", "name"), [("fp8", "FP8"), ("int8", "Int8")])
@pytest.mark.parametrize(("granularity", "output"), [("per-channel", "Float"), ("per-tensor", "Half")])
def test_the_convolutions_run_in_8_bits(
    residual_net: Callable[..., onnx.ModelProto], format_: str, name: str, granularity: str, output: str
) -> None:
    """Four of five convolutions read 8 bits; with per-channel scales they write float32 (facts of TensorRT for RTX)."""
    proto = quantize(residual_net("float16"), format=format_, weights=granularity).proto
    layers = convolutions(proto)
    assert sorted(reads[0] for reads, _ in layers) == sorted([name] * 4 + ["Half"])
    assert {writes[0] for reads, writes in layers if reads[0] == name} == {output}


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_the_engine_does_not_depend_on_how_weights_are_stored(
    residual_net: Callable[..., onnx.ModelProto], format_: str, weights: str
) -> None:
    """Codes behind a Dequantize, or values behind a pair: the same kernels over the same tensors, names apart."""
    folded, behind_pairs = (
        [re.sub(r"Name: [^,]*?__mye[^,]*,|Name: [^,]*_myl0[^,]*,|, Metadata: .*", "", line) for line in compiled(proto)]
        for proto in (
            quantize(residual_net("float16"), format=format_, weights=weights, store=store).proto
            for store in ("folded", "qdq")
        )
    )
    assert len(folded) > 5
    assert folded == behind_pairs


def test_a_half_model_compiles(residual_net: Callable[..., onnx.ModelProto]) -> None:
    """What `to_half` makes of a float32 model has no float32 left in its convolutions."""
    layers = convolutions(to_half(residual_net()))
    assert {dtype for reads, writes in layers for dtype in (*reads, *writes)} == {"Half"}


@pytest.mark.parametrize(("sample", "convs"), [("hrnet_w18", 324), ("resnet50", 52), ("efficientnet_b0", 80)])
def test_the_samples_run_in_fp8(sample: str, convs: int) -> None:
    """Structure-only, quantized, set to batch 2, filled: every quantized convolution reads FP8."""
    model = quantize(onnx.load(SAMPLES / f"{sample}.onnx"))
    assert len(model.quantized) == convs
    layers = convolutions(fill(with_batch(model.proto, 2)))
    assert sum("FP8" in reads for reads, _ in layers) == convs
