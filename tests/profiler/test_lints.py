"""Lints on the smallest engines that show them, on real recordings, and on what the compiler makes of their remedies.

What is expected of recordings is counted from the raw files.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusescope.graph.model import ModelGraph
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.clock import NO_CLOCK, Clock
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import Finding
from fusescope.profiler.findings import findings
from fusescope.profiler.imports import import_run
from fusescope.profiler.layers import Layer
from fusescope.profiler.lints import LINTS, TINY_BYTES, lint
from fusescope.profiler.run import Run
from fusescope.profiler.sources import chosen_key, read_sources
from fusescope.profiler.tables import layer_table
from fusescope.profiler.timing import LayerTime

FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", os.devnull))
S = "[1,32,8,8]"
ELEMENTS = 32 * 8 * 8
TENSOR = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_g1_tensor16x8x16"
FFMA = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_g1_ffma_t1r5s5"
WHOLE = {"quantize-alone", "dangling-quantize", "weights-quantized", "weights-dequantized", "io-reformat"}
"""Findings whose bytes are all that their kernels move."""


def evidence(
    draw: SimpleNamespace, *layers: Layer, graph: ModelGraph | None = None, target: str = "", clock: Clock = NO_CLOCK
) -> Evidence:
    """The evidence of an engine of these layers."""
    view = EngineView(draw.engine(*layers), graph)
    return Evidence(view, layer_table(view, clock), (), (), target, None, None, None, None)


def found(key: str, *args: Any, **more: Any) -> Finding | None:
    """The finding of a lint, if there is one."""
    return next((finding for finding in lint(evidence(*args, **more)) if finding.key == key), None)


def conv(draw: SimpleNamespace, reads: str, writes: str, tactic: str = "", **attributes: str) -> Layer:
    """A convolution as TensorRT 10 lists it."""
    layer: Layer = draw.layer("CaskConvolution", "Conv_1", reads, writes, nodes="Conv_1")
    return replace(layer, tactic=tactic, attributes={"Groups": "1", "Kernel": "[3,3]", **attributes})


@pytest.mark.parametrize(
    ("dtype", "channels", "tactic", "expected"),
    [
        ("Half", 18, "", "1 of 18 channels in FP16"),
        ("Half", 24, "", ""),
        ("FP8", 24, "", "1 of 24 channels in FP8"),
        ("Int8", 36, TENSOR, "1 of 36 channels in INT8"),
        ("Int8", 48, "", ""),
        ("Int8", 3, "", ""),
        ("Float", 18, "", ""),
        ("Float", 18, "sm80_f32f32_tf32f32_f32_tensor16x8x8", "1 of 18 channels in TF32"),
        ("Half", 18, FFMA, ""),
    ],
)
def test_channels_off_the_multiple(
    draw: SimpleNamespace, dtype: str, channels: int, tactic: str, expected: str
) -> None:
    """16 bytes of channels; images, kernels that are not on tensor cores and FP32 of unknown kind are left out."""
    finding = found("channel-alignment", draw, conv(draw, f"x:{dtype}[1,{channels},8,8]", f"y:Half{S}", tactic))
    assert ("" if finding is None else finding.detail.partition(" By kind: ")[2]) == (expected and f"{expected}.")


def test_channels_that_a_layout_rounds_up(draw: SimpleNamespace) -> None:
    """The bytes are the surplus of the layout: 32 wide, 18 channels are read as 32. Channels count within a group."""
    layer = conv(draw, "x:Int8[2,18,8,8]", f"y:Half{S}")
    wide = replace(layer, inputs=(replace(layer.inputs[0], channel_multiple=32),))
    finding = found("channel-alignment", draw, layer, wide)
    assert finding is not None
    assert (finding.kernels, finding.bytes, finding.layers) == (2, 2 * (32 - 18) * 64, (0, 1))
    grouped = conv(draw, f"x:Half{S}", f"y:Half{S}", Groups="2")
    assert found("channel-alignment", draw, grouped) is None
    assert found("channel-alignment", draw, replace(grouped, attributes={"Groups": "4", "Kernel": "[3,3]"})) is None
    odd = conv(draw, "x:Half[1,24,8,8]", f"y:Half{S}", Groups="2")
    assert found("channel-alignment", draw, odd) is not None


def test_a_single_pixel_fills_no_tile(draw: SimpleNamespace) -> None:
    """Squeeze-and-excite convolutions of a small batch are bound by their weights; of a larger one they are not."""
    for batch, expected in ((1, False), (15, False), (16, True)):
        layer = conv(draw, f"x:Half[{batch},18,1,1]", f"y:Half[{batch},32,1,1]")
        assert (found("channel-alignment", draw, layer) is not None) is expected
        ordinary = replace(layer, tactic=FFMA)
        assert (found("no-tensor-cores", draw, ordinary, target="sm80") is not None) is expected


def test_convolutions_on_ordinary_units(draw: SimpleNamespace) -> None:
    """By name only, on a GPU that has tensor cores; those whose name tells nothing are counted as such."""
    layers = [conv(draw, f"x:Float{S}", f"y:Float{S}", tactic) for tactic in (FFMA, TENSOR, "", FFMA)]
    finding = found("no-tensor-cores", draw, *layers)
    assert finding is not None
    assert (finding.layers, finding.bytes, finding.nodes) == ((0, 3), 0, ("Conv_1",))
    assert finding.detail.endswith("By kind: 2 in FP32. Of 1 more convolution no kernel's name tells.")
    assert found("no-tensor-cores", draw, *layers, target="sm61") is None
    assert found("no-tensor-cores", draw, *layers[1:3], target="sm80") is None
    depthwise = conv(draw, f"x:Float{S}", f"y:Float{S}", FFMA, Groups="32")
    assert found("no-tensor-cores", draw, depthwise, target="sm80") is None


@pytest.mark.parametrize(
    ("dtype", "channels", "kernel", "groups", "expected"),
    [
        ("FP8", 32, 3, 32, True),
        ("Int8", 32, 3, 32, False),
        ("Int8", 36, 3, 36, True),
        ("Int8", 32, 1, 32, True),
        ("Half", 36, 3, 36, False),
        ("FP8", 32, 3, 1, False),
    ],
)
def test_depthwise_in_8_bits(
    draw: SimpleNamespace, dtype: str, channels: int, kernel: int, groups: int, expected: bool
) -> None:
    """FP8, and INT8 where ModelOpt leaves it out: channels off 8, or kernels below 3."""
    attributes = {"Groups": str(groups), "Kernel": f"[{kernel},{kernel}]"}
    layer = conv(draw, f"x:{dtype}[1,{channels},8,8]", f"y:Half[1,{channels},8,8]", **attributes)
    finding = found("depthwise-8-bit", draw, layer)
    assert (finding is not None) is expected
    assert finding is None or finding.change == {}, "without a model there is nothing to build again"


def test_depthwise_with_a_model(draw: SimpleNamespace) -> None:
    """The documented limits tell of FP8; of INT8 the lint does, and names what to keep."""
    for dtype, expected in (("FP8", None), ("Int8", {"keep": ("dw",)})):
        graph = draw.graph(
            f"""n (float16[1,36,8,8] x) => (float16[1,36,8,8] y) {{
            QDQ x {"fp8" if dtype == "FP8" else "int8"}
            QDQ w {"fp8" if dtype == "FP8" else "int8"}
            [dw] y = Conv <group = 36, pads = [1,1,1,1]> (x_d, w_d)
            }}""",
            w=(36, 1, 3, 3),
        )
        layer = draw.layer("correlation", "dw_myl0_1", f"q:{dtype}[1,36,8,8]", "y:Half[1,36,8,8]", nodes="dw")
        finding = found("depthwise-8-bit", draw, layer, graph=graph)
        assert (finding and finding.change) == expected


def test_wide_outputs_that_are_quantized_again(draw: SimpleNamespace) -> None:
    """Only those that a kernel takes to 8 bits; the bytes are those beyond 8 bits."""
    quantize = draw.layer("Reformat", "q", f"a:Half{S}", f"aq:Int8{S}", nodes="QuantizeLinear_3")
    add = draw.layer("ElementWise", "s", f"a:Half{S} x:Half{S}", f"y:Half{S}", nodes="Add_4")
    first = conv(draw, f"x8:Int8{S}", f"a:Half{S}")
    finding = found("conv-output-wide", draw, first, quantize, add)
    assert finding is not None
    assert (finding.layers, finding.bytes) == ((0,), ELEMENTS)
    wider = conv(draw, f"x8:Int8{S}", f"a:Float{S}")
    implicit = draw.layer("Reformat", "Reformatting CopyNode for Input Tensor 0 to c2", f"a:Float{S}", f"aq:Int8{S}")
    finding = found("conv-output-wide", draw, wider, implicit)
    assert finding is not None
    assert finding.bytes == 3 * ELEMENTS
    for layers in ((first, add), (conv(draw, f"x:Half{S}", f"a:Half{S}"), quantize)):
        assert found("conv-output-wide", draw, *layers) is None


def test_quantizes_left_dangling(draw: SimpleNamespace) -> None:
    """One kernel that does both, or a Quantize that only Dequantizes read; not one that a conv reads too."""
    both = draw.layer("kgen", "__myl_MulCastCastMul_myl0_0", f"x:Half{S}", f"r:Half{S}", nodes="QuantizeLinear_1")
    finding = found("dangling-quantize", draw, both)
    assert finding is not None
    assert (finding.layers, finding.bytes) == ((0,), 2 * 2 * ELEMENTS)
    quantize = draw.layer("Reformat", "q", f"x:Half{S}", f"q:Int8{S}", nodes="QuantizeLinear_1")
    dequantize = draw.layer("Reformat", "d", f"q:Int8{S}", f"d:Half{S}", nodes="DequantizeLinear_2")
    gathered = evidence(draw, quantize, dequantize)
    told = {finding.key: finding for finding in findings(gathered)}
    assert (told["dangling-quantize"].layers, told["dangling-quantize"].bytes) == ((0, 1), 2 * 3 * ELEMENTS)
    assert "quantize-alone" not in told, "the same bytes are not told twice"
    reader = conv(draw, f"q:Int8{S}", f"y:Half{S}")
    assert found("dangling-quantize", draw, quantize, dequantize, reader) is None
    assert found("dangling-quantize", draw, quantize) is None
    rescale = draw.layer("Reformat", "r", f"q:Int8{S}", f"p:Int8{S}", nodes="DequantizeLinear_2 QuantizeLinear_3")
    assert found("dangling-quantize", draw, rescale) is None


def test_weights_quantized_at_every_inference(draw: SimpleNamespace) -> None:
    """A constant, listed as one or written by a layer, is quantized; an activation is not meant."""
    shape = "[32,32,3,3]"
    constant = draw.layer("Constant", "w", "", f"w:Half{shape}")
    quantize = draw.layer("Reformat", "q", f"w:Half{shape}", f"q:Int8{shape}", nodes="QuantizeLinear_5")
    reader = conv(draw, f"x:Int8{S} q:Int8{shape}", f"y:Half{S}")
    told = {finding.key: finding for finding in findings(evidence(draw, constant, quantize, reader))}
    assert (told["weights-quantized"].layers, told["weights-quantized"].bytes) == ((1,), 32 * 32 * 9 * 3)
    assert "quantize-alone" not in told
    listed = draw.layer("kgen", "k", "", f"q:FP8{shape}", constants=f"w:Half{shape}", nodes="QuantizeLinear_5")
    assert found("weights-quantized", draw, listed) is not None
    assert found("weights-quantized", draw, quantize, reader) is None
    back = draw.layer("Reformat", "d", f"q:Int8{shape}", f"d:Half{shape}", nodes="DequantizeLinear_6")
    told = {finding.key: finding for finding in findings(evidence(draw, constant, quantize, back))}
    assert told["dangling-quantize"].layers == (1, 2)
    assert "weights-quantized" not in told


def test_formats_of_inputs_and_outputs(draw: SimpleNamespace) -> None:
    """Reformats at both ends, not those between layers, nor a kernel that copies, pads or quantizes."""
    first = draw.layer("Reformat", "in", f"x:Float{S}", f"a:Half{S}")
    within = draw.layer("Reformat", "mid", f"b:Half{S}", f"c:Float{S}")
    last = draw.layer("Reformat", "out", f"d:Half{S}", f"y:Float{S}")
    layers = [first, conv(draw, f"a:Half{S}", f"b:Half{S}"), within, conv(draw, f"c:Float{S}", f"d:Half{S}"), last]
    finding = found("io-reformat", draw, *layers)
    assert finding is not None
    assert (finding.layers, finding.nodes, finding.bytes) == ((0, 4), ("x", "y"), 2 * 6 * ELEMENTS)
    assert finding.detail.endswith("1 of dtype (fp32 to fp16), 1 of dtype (fp16 to fp32).")
    for alone in (
        draw.layer("Reformat", "copy", f"x:Half{S}", f"y:Half{S}"),
        draw.layer("Padding", "pad", f"x:Half{S}", "y:Float[1,32,10,10]"),
        draw.layer("Reformat", "q", f"x:Half{S}", f"y:Int8{S}", nodes="QuantizeLinear_1"),
        draw.layer("Reformat", "Reformatting CopyNode for Input Tensor 0 to Conv_1"),
    ):
        assert found("io-reformat", draw, alone) is None


def test_small_kernels_in_sequence(draw: SimpleNamespace) -> None:
    """Eight or more on a stream, whatever bookkeeping lies between; a large kernel ends a run."""

    def small(name: str, stream: int = 0) -> Layer:
        layer: Layer = draw.layer("PointWiseV2", name, f"a:Half{S}", f"b:Half{S}", stream=stream)
        return layer

    noop = draw.layer("NoOp", "n", f"a:Half{S}", f"b:Half{S}")
    large = draw.layer("PointWiseV2", "l", f"a:Half[1,{TINY_BYTES // 2},1,1]", "b:Half[1]")
    run = [small(f"k{number}") for number in range(8)]
    finding = found("tiny-kernels", draw, *run[:4], noop, *run[4:], large)
    assert finding is not None
    assert (finding.layers, finding.bytes, finding.kernels) == ((0, 1, 2, 3, 5, 6, 7, 8), 0, 8)
    assert found("tiny-kernels", draw, *run[:4], large, *run[4:]) is None
    assert found("tiny-kernels", draw, *run[:7], small("other stream", stream=1)) is None
    unweighed = conv(draw, f"a:Half{S}", f"b:Half{S}")
    assert found("tiny-kernels", draw, *run[:7], unweighed) is None, "its weights are not told"
    assert found("tiny-kernels", draw, *run[:7], draw.layer("Reformat", "name only")) is None
    times = tuple(LayerTime(layer.name, 0.02, None) for layer in run)
    assert found("tiny-kernels", draw, *run, clock=Clock(times=times)) is None, "20 us each"


def test_every_lint_says_what_it_rests_on() -> None:
    """Keys are unique, each has a remedy and a source, and the documentation names it."""
    page = (Path(__file__).parents[2] / "docs" / "words.md").read_text(encoding="utf-8")
    keys = [rule.key for rule in LINTS]
    assert len(set(keys)) == len(keys)
    for rule in LINTS:
        assert rule.remedy
        assert rule.source
        assert f"| `{rule.key}` |" in page


def recorded(*files: str, to: Path) -> Run:
    """The run of files of one recorded engine."""
    sources, _ = read_sources([FOLDER / file for file in files])
    return import_run(sources, chosen_key(sources, ""), to)


def inspected(file: str) -> list[dict[str, Any]]:
    """The layers of a file as Python's JSON reader has them."""
    layers: list[dict[str, Any]] = json.loads((FOLDER / file).read_bytes(), strict=False)["Layers"]
    return layers


INSPECTED = (
    "trex-a100-resnet18/fp16/resnet.onnx.engine.graph.json",
    "trex-a100-resnet18/qat/resnet-qat.onnx.engine.graph.json",
    "trex-a100-resnet18/qat-residual/resnet-qat-residual.onnx.engine.graph.json",
    *(f"fuzzylabs-trt10-trtexec/{name}_fp16.graph.json" for name in ("alexnet", "mobilenet_v2", "resnet18")),
    *(f"fuzzylabs-trt10-pyapi-onnx/{name}.engine_info.json" for name in ("alexnet", "mobilenet_v2", "resnet18")),
    *(f"fuzzylabs-torchtrt/{name}.engine_info.json" for name in ("alexnet", "resnet18")),
)


@pytest.mark.artifacts
@pytest.mark.parametrize("file", INSPECTED)
def test_recordings(tmp_path: Path, file: str) -> None:
    """Which layers the lints of kernels' names and of formats are about, counted from the raw file."""
    layers = inspected(file)
    explanation = explain(recorded(file, to=tmp_path / "run"))
    told = {finding.key: finding.layers for finding in explanation.findings}
    bound = set(json.loads((FOLDER / file).read_bytes(), strict=False)["Bindings"])
    reformats = [
        index
        for index, layer in enumerate(layers)
        if layer.get("Origin") == "REFORMAT"
        and bound & {tensor["Name"] for tensor in (*layer["Inputs"], *layer["Outputs"])}
    ]
    ordinary = [
        index
        for index, layer in enumerate(layers)
        if re.search(r"Conv", layer["LayerType"])
        and re.search(r"ffma|scudnn|int8x4|wngd|conv_act_fp32", layer.get("TacticName", ""))
    ]
    assert list(told.get("io-reformat", ())) == reformats
    assert list(told.get("no-tensor-cores", ())) == ordinary
    assert not {"channel-alignment", "depthwise-8-bit", "dangling-quantize", "weights-quantized"} & set(told)


@pytest.mark.artifacts
def test_residuals_that_are_not_quantized(tmp_path: Path) -> None:
    """Of `qat` seven sums are written in FP16 and quantized by another kernel; of `qat-residual` none is."""
    layers = inspected(INSPECTED[1])
    quantized = {
        layer["Inputs"][0]["Name"]
        for layer in layers
        if layer.get("Origin") == "QDQ" and "Int8" in layer["Outputs"][0]["Format/Datatype"]
    }
    wide = [
        (index, 2 * math.prod(output["Dimensions"]))
        for index, layer in enumerate(layers)
        if "Int8" in str(layer["Inputs"]) and layer.get("ParameterType") == "Convolution"
        for output in layer["Outputs"]
        if output["Name"] in quantized and "FP16" in output["Format/Datatype"]
    ]
    assert len(wide) == 7
    run = recorded("trex-a100-resnet18/qat", to=tmp_path / "qat")
    (finding,) = (each for each in explain(run).findings if each.key == "conv-output-wide")
    assert finding.layers == tuple(index for index, _ in wide)
    assert finding.bytes == sum(size for _, size in wide) // 2
    entries = json.loads((FOLDER / INSPECTED[1].replace("graph", "profile")).read_bytes())[1:]
    assert finding.time_us == pytest.approx(sum(1e3 * entries[index]["averageMs"] for index, _ in wide))
    other = explain(recorded("trex-a100-resnet18/qat-residual", to=tmp_path / "residual"))
    assert not any(each.key == "conv-output-wide" for each in other.findings)


@pytest.mark.artifacts
def test_an_engine_of_many_outputs(tmp_path: Path) -> None:
    """CenterPoint reformats its input and all of its 36 outputs; the times are those of its printed profile."""
    file = "lidar-centerpoint-a100/rpn_centerhead_sim.trt8203-a100.log"
    explanation = explain(recorded(file, to=tmp_path / "run"))
    text = (FOLDER / file).read_text(encoding="utf-8", errors="replace")
    (finding,) = (each for each in explanation.findings if each.key == "io-reformat")
    ends = re.findall(
        r"Name: (Reformatting CopyNode for (?:Input Tensor 0 to Conv_15|Output Tensor)[^\n]*?), Layer", text
    )
    assert finding.kernels == len(ends) == 37
    assert set(finding.nodes) == {"input", *re.findall(r"Outputs: \[ \{ Name: (\w+_\d),", text)}
    ((iterations, table),) = re.findall(r"=== Profile \((\d+) iterations \) ===\n(.*)", text, re.DOTALL)
    spent = [float(time) for end in ends for time in re.findall(rf" {re.escape(end)} +([\d.]+) ", table)]
    assert len(spent) == 37
    assert finding.time_us == pytest.approx(1e3 * sum(spent) / int(iterations))


@pytest.mark.artifacts
@pytest.mark.parametrize("file", ["trex-a100-resnet18/qat", "trex-a100-resnet18/qat-residual", *INSPECTED])
def test_no_bytes_are_told_twice(tmp_path: Path, file: str) -> None:
    """No kernel is in two of the findings that count all that it moves."""
    told = [layer for each in explain(recorded(file, to=tmp_path / "run")).findings for layer in whole(each)]
    assert len(set(told)) == len(told)


def whole(finding: Finding) -> Iterable[int]:
    """The layers of which a finding counts all bytes."""
    return finding.layers if finding.key in WHOLE else ()


@pytest.mark.artifacts
@pytest.mark.parametrize(
    "file",
    ["cookbook-trt8.2.3/EngineInspector-dynamic.txt", "cookbook-trt8.6.0/namesonly-modelInformation.json"],
)
def test_silent_where_a_recording_does_not_tell(tmp_path: Path, file: str) -> None:
    """Dynamic shapes without a context, on a GPU that nothing tells of; names alone."""
    assert not {rule.key for rule in LINTS} & {each.key for each in explain(recorded(file, to=tmp_path / "r")).findings}


@pytest.mark.compiles
def test_another_format_removes_the_reformats(draw: SimpleNamespace) -> None:
    """Compiled with channels last at its ends, a model loses just the kernels that the lint is about."""
    trt = pytest.importorskip("tensorrt_rtx")
    proto = draw.model(
        """net (float16[1,32,16,16] x) => (float16[1,32,16,16] y) {
        [c1] a = Conv <pads = [1,1,1,1]> (x, w)
        [r] r = Relu (a)
        [c2] y = Conv <pads = [1,1,1,1]> (r, w)
        }""",
        w=(32, 32, 3, 3),
    )
    before, after = (compiled_layers(trt, proto.SerializeToString(), last=last) for last in (False, True))
    finding = found("io-reformat", draw, *before)
    assert finding is not None
    assert set(finding.nodes) == {"x", "y"}
    assert found("io-reformat", draw, *after) is None
    assert len(before) - len(after) == finding.kernels == 2


def compiled_layers(trt: Any, model: bytes, *, last: bool) -> tuple[Layer, ...]:
    """Layers of a model compiled for sm120, with inputs and outputs in NHWC if so asked."""
    said: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]  # the bindings carry no types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, _severity: Any, message: str) -> None:
            said.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse(model)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    for tensor in (network.get_input(0), network.get_output(0)) if last else ():
        tensor.allowed_formats = 1 << int(trt.TensorFormat.HWC)
    assert builder.build_serialized_network(network, config) is not None
    return read_oneline(next(text for text in said if text.startswith("Layers:")), detailed=True).layers


@pytest.mark.compiles
def test_widths_of_hrnet(sample_run: Callable[[str, str], Run]) -> None:
    """As many convolutions as the model's weights have channels off 16, and small kernels without a word of time."""
    run = sample_run("hrnet_w18", "per-tensor")
    told = {finding.key: finding for finding in explain(run).findings}
    weights = [run.graph.tensors[node.inputs[1]].shape for node in run.graph.nodes.values() if node.op == "Conv"]
    widths = [int(shape[1]) for shape in weights if shape and isinstance(shape[1], int)]
    assert told["channel-alignment"].kernels == sum(width > 4 and width % 16 > 0 for width in widths)
    assert told["channel-alignment"].bytes == 0
    assert told["tiny-kernels"].time_us is None
