"""Engines that TensorRT for RTX really compiles, against a reading of their dumps that is made here by hand.

What is expected of each small network is what was measured of this compiler with 72 such networks.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from fusescope.graph.sites import quantize_sites
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.explain import explain
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.run import Run
from fusescope.profiler.verdicts import Verdict, verdicts
from fusescope.quant.insert import quantize

pytestmark = pytest.mark.compiles

BYTES = {"Half": 2, "Float": 4, "FP8": 1, "Int8": 1, "Int32": 4, "Int64": 8}
QUANTIZING = {"Mul", "Cast", "Conc", "Resh", "Div", "Min", "Max", "Roun"}
"""Tokens of a kernel that scales, rounds, converts and pads, and does nothing else."""


@dataclass(frozen=True)
class Raw:
    """A line of the dump, split by hand."""

    name: str
    kind: str
    reads: tuple[tuple[str, str, str], ...]
    constants: tuple[tuple[str, str, str], ...]
    writes: tuple[tuple[str, str, str], ...]
    nodes: frozenset[str]
    stream: int
    event: int | None

    @property
    def tokens(self) -> list[str]:
        """Tokens of a generated kernel's name."""
        match = re.match(r"__myl_([A-Za-z]+)_myl", self.name)
        return re.findall("[A-Z][a-z]*", match[1]) if match else []

    @property
    def bytes(self) -> int:
        """Bytes that it reads and writes, each tensor once."""
        sides = ({*self.reads, *self.constants}, set(self.writes))
        return sum(
            math.prod(map(int, filter(None, shape.split(",")))) * BYTES[dtype]
            for side in sides
            for _, shape, dtype in side
        )

    def reads_a(self, dtype: str) -> bool:
        """Whether an activation that it reads has this element type."""
        return any(found == dtype for _, _, found in self.reads)

    def writes_a(self, dtype: str) -> bool:
        """Whether it writes this element type."""
        return any(found == dtype for _, _, found in self.writes)


def raw_lines(run: Run) -> list[Raw]:
    """Every layer line of a run's dump, by plain splits."""
    lines = (run.folder / "layers.txt").read_bytes().decode().split("\n\n")[0].split("\n")[1:]
    found = []
    for line in lines:
        head, tail = line.split(", Inputs: [", 1)
        reads, tail = tail.split("], Constants: [", 1)
        constants, tail = tail.split("], Outputs: [", 1)
        writes, tail = tail.split("], TacticName: ", 1)
        found.append(
            Raw(
                name=head.split("Name: ", 1)[1].split(", LayerType: ")[0],
                kind=head.split(", LayerType: ")[1],
                reads=raw_tensors(reads),
                constants=raw_tensors(constants),
                writes=raw_tensors(writes),
                nodes=frozenset(re.findall(r"\[ONNX Layer: ([^\]]*)\]", tail)),
                stream=int(re.findall(r"StreamId: (\d+)", tail)[0]),
                event=next((int(event) for event in re.findall(r"EventId: (\d+)", tail)), None),
            )
        )
    return found


def raw_tensors(text: str) -> tuple[tuple[str, str, str], ...]:
    """Name, dimensions and element type of each tensor in a list."""
    return tuple(re.findall(r"\{ Name: (\S+), Dimensions: \[([\d,]*)\].*?Datatype: (\w+)", text))


def kernels(run: Run) -> list[Raw]:
    """Lines of the dump that are no synchronization between streams."""
    return [line for line in raw_lines(run) if line.kind not in {"signal", "wait"}]


def judged(run: Run) -> dict[str, Verdict]:
    """The verdict of each site, by its tensor."""
    return {
        verdict.site.tensor: verdict
        for verdict in verdicts(EngineView(run.engine, run.graph), quantize_sites(run.graph))
    }


def longest_chain(lines: list[Raw]) -> int:
    """Kernels on the longest chain through streams, tensors and events, counted line by line."""
    on_stream: dict[int, int] = {}
    signalled: dict[int, int] = {}
    written: dict[str, int] = {}
    for line in lines:
        before = [on_stream.get(line.stream, 0), *(written.get(name, 0) for name, _, _ in line.reads)]
        if line.kind == "wait" and line.event is not None:
            before.append(signalled[line.event])
        length = max(before) + (line.kind not in {"signal", "wait"})
        on_stream[line.stream] = length
        if line.kind == "signal" and line.event is not None:
            signalled[line.event] = length
        for name, _, _ in line.writes:
            written[name] = max(length, written.get(name, 0))
    return max(on_stream.values())


Compile = Callable[..., Run]
SampleRun = Callable[[str, str], Run]

NET = """net (float16[1,16,16,16] x) => (float16[1,16,{out},{out}] y) {{
    {body}
}}"""
THREE = "<pads = [1,1,1,1]>"
KERNEL = (16, 16, 3, 3)


@pytest.fixture(scope="module")
def tiny(draw: SimpleNamespace, compiled: Compile) -> Callable[..., Run]:
    """A function that compiles a small network, with all its convs quantized or with the Q/DQ pairs that it draws."""

    def run(name: str, body: str, recipe: str = "", *, out: int = 16, target: str = "sm120", **weights: Any) -> Run:
        proto = draw.model(NET.format(out=out, body=body), **weights)
        if recipe:
            form, granularity = recipe.split()
            proto = quantize(proto, format=form, weights=granularity).proto  # type: ignore[arg-type]
        return compiled(proto, "-".join([name, *recipe.split()]), target)

    return run


def outcome(run: Run) -> dict[str, str]:
    """Site to verdict."""
    return {tensor: verdict.verdict for tensor, verdict in judged(run).items()}


CHAIN = f"""[c1] a = Conv {THREE} (x, w1, b1)
            [r1] r = Relu (a)
            [c2] b = Conv {THREE} (r, w2, b2)
            [r2] y = Relu (b)"""
CHAIN_WEIGHTS = {"w1": KERNEL, "b1": (16,), "w2": KERNEL, "b2": (16,)}
FORMATS = {"fp8": "FP8", "int8": "Int8"}


@pytest.mark.parametrize("form", FORMATS)
def test_per_tensor_weights_leave_the_quantize_alone(tiny: Callable[..., Run], form: str) -> None:
    """The conv writes fp16 with bias and Relu inside; the Quantize behind it is a kernel of its own."""
    run = tiny("chain", CHAIN, f"{form} per-tensor", **CHAIN_WEIGHTS)
    assert outcome(run) == {"x": "alone", "r": "alone"}
    (kernel,) = [line for line in kernels(run) if "r_QuantizeLinear" in line.nodes]
    assert [layer.name for layer in judged(run)["r"].kernels] == [kernel.name]
    assert set(kernel.tokens) <= QUANTIZING
    assert kernel.writes_a(FORMATS[form])
    convs = [line for line in kernels(run) if line.kind == "correlation"]
    assert [written[2] for line in convs for written in line.writes] == ["Half", "Half"]
    view = EngineView(run.engine, run.graph)
    assert [a.work for a in view.attributions if a.group == "conv"] == [("c1", "r1"), ("c2", "r2")]


@pytest.mark.parametrize("form", FORMATS)
def test_per_channel_weights_split_the_epilogue_off(tiny: Callable[..., Run], form: str) -> None:
    """The conv writes raw accumulators; one kernel dequantizes, adds the bias, applies the Relu and quantizes."""
    run = tiny("chain", CHAIN, f"{form} per-channel", **CHAIN_WEIGHTS)
    assert outcome(run) == {"x": "alone", "r": "epilogue"}
    assert judged(run)["r"].work == ("r1",)
    convs = [line for line in kernels(run) if line.kind == "correlation"]
    assert [written[2] for line in convs for written in line.writes] == ["Float", "Float"]
    attributions = EngineView(run.engine, run.graph).attributions
    assert [a.group for a in attributions] == ["quantize", "conv", "epilogue", "conv", "epilogue"]
    assert [a.finishes for a in attributions] == ["", "", "c1", "", "c2"]


RESIDUAL = f"""[c1] a = Conv {THREE} (x, w1, b1)
               [r1] r = Relu (a)
               [c2] b = Conv {THREE} (r, w2, b2)
               [add] s = Add (b, r)
               [r2] t = Relu (s)
               [c3] c = Conv {THREE} (t, w2, b2)
               [add2] y = Add (c, t)"""


@pytest.mark.parametrize(("weights", "after_conv"), [("per-tensor", "alone"), ("per-channel", "epilogue")])
def test_a_residual_sum_with_a_high_precision_skip_is_merged(
    tiny: Callable[..., Run], weights: str, after_conv: str
) -> None:
    """The kernel that adds the skip also quantizes, and writes the sum in fp16 as well, for the next skip."""
    run = tiny("residual", RESIDUAL, f"fp8 {weights}", **CHAIN_WEIGHTS)
    assert outcome(run) == {"x": "alone", "r": after_conv, "t": "merged"}
    verdict = judged(run)["t"]
    assert set(verdict.work) == {"add", "r2"}
    (kernel,) = [line for line in kernels(run) if "t_QuantizeLinear" in line.nodes]
    assert "Add" in kernel.tokens
    assert kernel.writes_a("FP8")
    assert kernel.writes_a("Half")


def test_a_quantized_skip_is_dequantized_in_the_sums_kernel(tiny: Callable[..., Run]) -> None:
    """The sum stays outside the conv, reads its skip in 8 bits and writes nothing but 8 bits."""
    body = f"""QDQ x fp8
               QDQ w fp8
               [c1] a = Conv {THREE} (x_d, w_d)
               [add] s = Add (a, x_d)
               [r] t = Relu (s)
               QDQ t fp8
               [c2] y = Conv {THREE} (t_d, w_d)"""
    run = tiny("quantized-skip", body, w=KERNEL)
    assert outcome(run) == {"x": "alone", "t": "merged"}
    (kernel,) = [line for line in kernels(run) if "t_q" in line.nodes]
    assert sorted(dtype for _, _, dtype in kernel.reads) == ["FP8", "Half"]
    assert [dtype for _, _, dtype in kernel.writes] == ["FP8"]


@pytest.mark.parametrize(("weights", "verdict"), [("per-tensor", "merged"), ("per-channel", "epilogue")])
def test_a_silu_is_outside_the_conv(tiny: Callable[..., Run], weights: str, verdict: str) -> None:
    """SiLU shares its kernel with the Quantize: other work per tensor, a part of the epilogue per channel."""
    body = f"""[c1] a = Conv {THREE} (x, w1, b1)
               [sigmoid] g = Sigmoid (a)
               [mul] r = Mul (a, g)
               [c2] y = Conv {THREE} (r, w2, b2)"""
    run = tiny("silu", body, f"fp8 {weights}", **CHAIN_WEIGHTS)
    assert outcome(run) == {"x": "alone", "r": verdict}
    assert set(judged(run)["r"].work) == {"sigmoid", "mul"}
    (kernel,) = [line for line in kernels(run) if "r_QuantizeLinear" in line.nodes]
    assert "Silu" in kernel.tokens


MAX_POOL = "MaxPool <kernel_shape = [2,2], strides = [2,2]>"


def test_a_quantize_behind_a_max_pool_is_alone(tiny: Callable[..., Run]) -> None:
    """The pool is a kernel of its own from fp16 to fp16, and so is the Quantize after it."""
    body = f"""[c1] a = Conv {THREE} (x, w)
               [pool] p = {MAX_POOL} (a)
               QDQ p fp8
               QDQ w2 fp8
               [c2] y = Conv {THREE} (p_d, w2_d)"""
    run = tiny("pool-first", body, out=8, w=KERNEL, w2=KERNEL)
    assert outcome(run) == {"p": "alone"}
    (pool,) = [line for line in kernels(run) if line.kind == "maxpool"]
    assert [pool.reads[0][2], pool.writes[0][2]] == ["Half", "Half"]


def test_a_max_pool_between_the_pair_and_the_conv_loses_the_8_bits(tiny: Callable[..., Run]) -> None:
    """The compiler does not move the Quantize across the pool: the conv reads fp16, the pair only rounds."""
    body = f"""[c1] a = Conv {THREE} (x, w)
               QDQ a fp8
               [pool] p = {MAX_POOL} (a_d)
               QDQ w2 fp8
               [c2] y = Conv {THREE} (p, w2_d)"""
    run = tiny("pool-between", body, out=8, w=KERNEL, w2=KERNEL)
    assert outcome(run) == {"a": "lost"}
    attributions = {a.layer.name.split("_myl0_")[0]: a for a in EngineView(run.engine, run.graph).attributions}
    rounding = attributions["__myl_MulCastCastMul"]
    assert (rounding.group, rounding.direction) == ("quantize", "both")
    weights = attributions["__myl_CastMul"]
    assert (weights.group, weights.direction) == ("quantize", "dequantize")
    by_key = {finding.key: finding for finding in explain(run).findings}
    assert by_key["lost-8-bits"].nodes == ("c2",)
    assert by_key["weights-dequantized"].layers == (weights.layer.index,)


def test_a_depthwise_conv_is_padded_within_its_groups(tiny: Callable[..., Run]) -> None:
    """Each of 16 channels gets 3 channels of zeros: the Quantize before the depthwise conv writes 64."""
    body = f"""[c1] a = Conv {THREE} (x, w)
               [r1] r = Relu (a)
               [c2] y = Conv <pads = [1,1,1,1], group = 16> (r, w2)"""
    run = tiny("depthwise", body, "fp8 per-tensor", w=KERNEL, w2=(16, 1, 3, 3))
    assert outcome(run) == {"x": "alone", "r": "alone"}
    (kernel,) = [line for line in kernels(run) if "r_QuantizeLinear" in line.nodes]
    assert [written[1] for written in kernel.writes] == ["1,64,16,16"]
    (finding,) = [finding for finding in explain(run).findings if finding.key == "depthwise-padding"]
    assert "16 to 64" in finding.detail
    assert finding.bytes == 2 * 3 * 16 * 16 * 16
    assert finding.change == {"keep": ("c2",)}


def test_18_channels_are_padded_to_20(draw: SimpleNamespace, compiled: Compile) -> None:
    """The Quantize writes two channels of zeros besides, so that the conv reads a multiple of 4."""
    text = NET.format(out=16, body=f"[c1] y = Conv {THREE} (x, w)").replace("[1,16,16,16] x", "[1,18,16,16] x")
    run = compiled(quantize(draw.model(text, w=(16, 18, 3, 3)), weights="per-tensor").proto, "eighteen")
    (attribution,) = [a for a in EngineView(run.engine, run.graph).attributions if a.pads]
    assert attribution.group == "quantize"
    assert [written.shape for written in attribution.layer.outputs] == [(1, 20, 16, 16)]
    (finding,) = [finding for finding in explain(run).findings if finding.key == "channel-padding"]
    assert "18 to 20" in finding.detail
    assert finding.bytes == 2 * 2 * 16 * 16


@pytest.mark.parametrize("target", ["sm89", "sm120"])
@pytest.mark.parametrize(
    ("height", "width", "verdict"), [(1, 32, "alone"), (4, 8, "alone"), (1, 33, "lost"), (7, 7, "lost")]
)
def test_fp8_is_lost_beyond_32_taps(
    tiny: Callable[..., Run], target: str, height: int, width: int, verdict: str
) -> None:
    """A kernel of up to 32 taps runs in FP8, a larger one in fp16."""
    top, left = (height - 1) // 2, (width - 1) // 2
    pads = [top, left, height - 1 - top, width - 1 - left]
    body = f"[c1] y = Conv <pads = {pads}> (x, w)"
    run = tiny(f"taps-{height}x{width}", body, "fp8 per-tensor", target=target, w=(16, 16, height, width))
    assert outcome(run) == {"x": verdict}
    assert judged(run)["x"].lost_readers == (("c1",) if verdict == "lost" else ())
    (conv,) = [line for line in kernels(run) if line.kind == "correlation"]
    assert conv.reads_a("FP8") is (verdict != "lost")


def test_a_transposed_conv_loses_fp8(tiny: Callable[..., Run]) -> None:
    """Deconvolutions run in fp16, however they are quantized."""
    body = f"""QDQ x fp8
               QDQ w fp8
               [up] y = ConvTranspose {THREE} (x_d, w_d)"""
    run = tiny("transposed", body, w=KERNEL)
    assert outcome(run) == {"x": "lost"}
    (deconv,) = [line for line in kernels(run) if line.kind == "deconv"]
    assert not deconv.reads_a("FP8")
    assert {a.group for a in EngineView(run.engine, run.graph).attributions if a.work == ("up",)} == {"conv"}


def test_activations_quantized_before_a_high_precision_weight_are_lost(tiny: Callable[..., Run]) -> None:
    """With one operand in 8 bits the conv runs in fp16."""
    run = tiny("activation-only", f"QDQ x fp8\n[c1] y = Conv {THREE} (x_d, w)", w=KERNEL)
    assert outcome(run) == {"x": "lost"}
    assert judged(run)["x"].lost_readers == ("c1",)


def test_a_concat_disappears_into_the_quantize(tiny: Callable[..., Run]) -> None:
    """Per tensor each branch's own kernel quantizes its slice of the result; there is no kernel that joins."""
    body = f"""[c1] a = Conv {THREE} (x, w1)
               [c2] b = Conv {THREE} (x, w2)
               [join] c = Concat <axis = 1> (a, b)
               [c3] y = Conv {THREE} (c, w3)"""
    run = tiny("concat", body, "fp8 per-tensor", w1=KERNEL, w2=KERNEL, w3=(16, 32, 3, 3))
    assert outcome(run) == {"x": "alone", "c": "alone"}
    by_hand = [line for line in kernels(run) if "c_QuantizeLinear" in line.nodes]
    assert [kernel.name for kernel in judged(run)["c"].kernels] == [line.name for line in by_hand]
    assert len({line.writes[0][0] for line in by_hand}) == 1 < len(by_hand)
    assert not any("Conc" in line.tokens for line in kernels(run))


def test_a_resize_is_merged_with_the_quantize_behind_it(tiny: Callable[..., Run]) -> None:
    """The kernel that resizes writes FP8."""
    body = f"""scales = Constant <value = float[4] {{1.0, 1.0, 2.0, 2.0}}> ()
               [c1] a = Conv {THREE} (x, w1)
               [up] u = Resize <mode = "nearest"> (a, "", scales)
               [c2] y = Conv {THREE} (u, w2)"""
    run = tiny("resize", body, "fp8 per-tensor", out=32, w1=KERNEL, w2=KERNEL)
    assert outcome(run) == {"x": "alone", "u": "merged"}
    assert judged(run)["u"].work == ("up",)
    assert {a.group for a in EngineView(run.engine, run.graph).attributions if "up" in a.work} == {"resize"}


def test_two_quantizes_of_one_tensor_are_one_site_in_one_kernel(tiny: Callable[..., Run]) -> None:
    """With the same scale the compiler keeps one of them, which may be either."""
    body = f"""[c1] a = Conv {THREE} (x, w1)
               QDQ a fp8
               [again_q] again_8 = QuantizeLinear (a, a_s, zero_fp8)
               [again_dq] again_d = DequantizeLinear (again_8, a_s, zero_fp8)
               QDQ w2 fp8
               QDQ w3 fp8
               [c2] b = Conv {THREE} (a_d, w2_d)
               [c3] c = Conv {THREE} (again_d, w3_d)
               [add] y = Add (b, c)"""
    run = tiny("shared", body, w1=KERNEL, w2=KERNEL, w3=KERNEL)
    assert outcome(run) == {"a": "alone"}
    assert judged(run)["a"].site.quantize == ("a_q", "again_q")
    assert len([line for line in kernels(run) if line.writes_a("FP8")]) == 1
    assert judged(run)["a"].lost_readers == ()


def test_a_twin_is_absent(tiny: Callable[..., Run]) -> None:
    """Of two Quantizes of one value under two names the compiler keeps one, which feeds the readers of both."""
    body = f"""[c1] a = Conv {THREE} (x, w1)
               [copy] i = Identity (a)
               QDQ a fp8
               [i_q] i_8 = QuantizeLinear (i, a_s, zero_fp8)
               [i_dq] i_d = DequantizeLinear (i_8, a_s, zero_fp8)
               QDQ w2 fp8
               QDQ w3 fp8
               [c2] b = Conv {THREE} (a_d, w2_d)
               [c3] c = Conv {THREE} (i_d, w3_d)
               [add] y = Add (b, c)"""
    run = tiny("twin", body, w1=KERNEL, w2=KERNEL, w3=KERNEL)
    assert sorted(outcome(run).values()) == ["absent", "alone"]
    assert len([line for line in kernels(run) if line.writes_a("FP8")]) == 1


def test_what_nothing_depends_on_is_absent(tiny: Callable[..., Run]) -> None:
    """A quantized branch that does not lead to an output is no part of the engine."""
    body = f"""QDQ x fp8
               QDQ w fp8
               [c1] unused = Conv {THREE} (x_d, w_d)
               [relu] y = Relu (x)"""
    run = tiny("dead", body, w=KERNEL)
    assert outcome(run) == {"x": "absent"}


def test_a_compilation_is_deterministic(draw: SimpleNamespace, compiled: Compile) -> None:
    """The same model gives the same dump and the same plan, byte for byte."""
    proto = quantize(draw.model(NET.format(out=16, body=RESIDUAL), **CHAIN_WEIGHTS)).proto
    runs = []
    for name in ("first", "second"):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        runs.append(compiled(copy, f"same-{name}"))
    for file in ("layers.txt", "engine.plan"):
        assert (runs[0].folder / file).read_bytes() == (runs[1].folder / file).read_bytes()


SAMPLES = ["hrnet_w18", "resnet50", "efficientnet_b0"]
VARIANTS = ["fp16", "per-channel", "per-tensor"]


@pytest.fixture(scope="module")
def explained(sample_run: SampleRun) -> Callable[[str, str], tuple[Run, Explanation]]:
    """A function that returns the run and the explanation of a sample; each is made once."""

    @cache
    def pair(sample: str, variant: str) -> tuple[Run, Explanation]:
        run = sample_run(sample, variant)
        baseline = None if variant == "fp16" else sample_run(sample, "fp16")
        return run, explain(run, baseline)

    return pair


Explained = Callable[[str, str], tuple[Run, Explanation]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_totals_are_those_of_the_dump(explained: Explained, sample: str, variant: str) -> None:
    """Layers, kernels, bytes, streams and the longest chain are those counted in the raw text."""
    run, explanation = explained(sample, variant)
    side, lines = explanation.quantized, raw_lines(run)
    assert side.layers == len(lines)
    assert side.kernels == len(kernels(run))
    assert list(explanation.layers["traffic_bytes"]) == [line.bytes for line in lines]
    assert side.streams == len({line.stream for line in lines})
    assert side.chain_kernels == longest_chain(lines)
    assert side.plan_bytes == (run.folder / "engine.plan").stat().st_size
    assert explanation.coverage.attributed_layers == len(lines)
    assert explanation.coverage.unread_lines == ()
    assert explanation.coverage.foreign_nodes == ()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_parts_add_up(explained: Explained, sample: str, variant: str) -> None:
    """Groups add up to the engine, verdicts to the sites, reasons to the kernels that carry a Quantize."""
    _, explanation = explained(sample, variant)
    side, groups = explanation.quantized, explanation.groups["quantized"]
    assert groups["layers"].sum() == side.layers
    assert groups["kernels"].sum() == side.kernels
    assert groups["bytes"].sum() == side.traffic_bytes
    assert sum(explanation.quantize.verdicts.values()) == explanation.quantize.sites == len(explanation.sites)
    assert sum(explanation.quantize.predicted.values()) == explanation.quantize.sites
    assert explanation.reasons["sites"].sum() == explanation.quantize.sites
    assert explanation.reasons["kernels"].sum() == explanation.quantize.kernels_carrying
    assert explanation.reasons["kernels_alone"].sum() == explanation.quantize.kernels_alone


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("sample", "gmacs"), [("hrnet_w18", 4.32), ("resnet50", 4.09), ("efficientnet_b0", 0.39)])
def test_the_operations_are_those_published(explained: Explained, sample: str, gmacs: float, variant: str) -> None:
    """Multiply-adds at 224 pixels: what the models' papers and timm publish, whatever engine they end up in."""
    _, explanation = explained(sample, variant)
    assert explanation.layers["flops"].sum() / 2e9 == pytest.approx(gmacs, rel=0.03)


@pytest.mark.parametrize(("sample", "convs"), [("hrnet_w18", 325), ("resnet50", 53), ("efficientnet_b0", 81)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_convolutions_are_found_whatever_runs_them(explained: Explained, sample: str, variant: str, convs: int) -> None:
    """A conv runs as a correlation, as a gemm, or in a generated kernel: with Corr or Fc in its name, or unrolled."""
    run, explanation = explained(sample, variant)
    conv_nodes = {node.name for node in run.graph.nodes.values() if node.op == "Conv"}
    multiplying = [
        line for line in kernels(run) if line.kind in {"correlation", "gemm"} or {"Corr", "Fc"} & {*line.tokens}
    ]
    unrolled = conv_nodes.difference(*(line.nodes for line in multiplying))
    lines = [
        line.name for line in kernels(run) if (line in multiplying and line.nodes & conv_nodes) or line.nodes & unrolled
    ]
    found = explanation.layers[explanation.layers["group"] == "conv"]
    assert list(found["name"]) == lines
    computed = [name for work in explanation.layers["work"] for name in work if name in conv_nodes]
    assert sorted(computed) == sorted(conv_nodes)
    assert len(computed) == convs


def carried_by_hand(run: Run) -> dict[str, set[str]]:
    """Names of the kernels that write FP8 and name a Quantize, by what their tokens and inputs say."""
    found: dict[str, set[str]] = {"alone": set(), "epilogue": set(), "merged": set()}
    for line in kernels(run):
        if not line.writes_a("FP8"):
            continue
        if set(line.tokens) <= QUANTIZING and not line.reads_a("Float"):
            kind = "alone"
        elif len(line.reads) == 1 and line.reads_a("Float") and set(line.tokens) <= QUANTIZING | {"Add", "Relu"}:
            kind = "epilogue"
        else:
            kind = "merged"
        found[kind].add(line.name)
    return found


@pytest.mark.parametrize("variant", VARIANTS[1:])
@pytest.mark.parametrize("sample", ["hrnet_w18", "resnet50"])
def test_verdicts_agree_with_the_names_of_the_kernels(explained: Explained, sample: str, variant: str) -> None:
    """A kernel that only multiplies, converts and pads is alone; one that reads fp32 and adds a bias, an epilogue."""
    run, explanation = explained(sample, variant)
    by_hand = carried_by_hand(run)
    found: dict[str, set[str]] = {verdict: set() for verdict in by_hand}
    for verdict in explanation.judged:
        found[verdict.verdict].update(kernel.name for kernel in verdict.kernels)
    assert found == by_hand


@pytest.mark.parametrize(
    ("variant", "traffic_mb", "kernels_", "verdicts_"),
    [
        ("fp16", 131.5, 359, {}),
        ("per-channel", 210.6, 606, {"epilogue": 141, "merged": 138, "alone": 1}),
        ("per-tensor", 148.2, 606, {"alone": 142, "merged": 138}),
    ],
)
def test_hrnet_is_as_it_was_measured(
    explained: Explained, variant: str, traffic_mb: float, kernels_: int, verdicts_: dict[str, int]
) -> None:
    """The figures of the engine that was studied by hand, before there was a fusescope."""
    _, explanation = explained("hrnet_w18", variant)
    assert explanation.quantized.kernels == kernels_
    assert explanation.quantized.traffic_bytes / 1e6 == pytest.approx(traffic_mb, abs=0.1)
    assert {key: count for key, count in explanation.quantize.verdicts.items() if count} == verdicts_
    if verdicts_:
        assert explanation.quantize.sites == 280
        assert explanation.quantize.kernels_carrying == 272
        assert explanation.quantized.weighted_in_8_bits == 324
        assert explanation.quantize.predicted == {"fuses": 137, "separate": 142, "lost": 0, "uncertain": 1}


def test_per_channel_scales_make_the_convs_of_hrnet_write_fp32(explained: Explained) -> None:
    """324 convs write 4 bytes an element; per tensor, none does."""
    wide = {}
    for variant in VARIANTS[1:]:
        run, explanation = explained("hrnet_w18", variant)
        by_hand = [line for line in kernels(run) if line.kind == "correlation" and line.writes_a("Float")]
        found = [finding for finding in explanation.findings if finding.key == "conv-output-fp32"]
        assert sum(len(finding.layers) for finding in found) == len(by_hand)
        wide[variant] = len(by_hand)
    assert wide == {"per-channel": 324, "per-tensor": 0}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_nothing_is_said_about_speed(
    explained: Explained, words_about_speed: Callable[[Any], list[str]], sample: str, variant: str
) -> None:
    """There was no clock: no finding, remedy, reason or evidence speaks of time."""
    _, explanation = explained(sample, variant)
    assert words_about_speed(explanation) == []


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_the_padding_of_hrnet_is_found(explained: Explained, variant: str) -> None:
    """Kernels that write an FP8 tensor with more channels than any of the network's, which pads 18 to 20."""
    run, explanation = explained("hrnet_w18", variant)
    by_hand = {
        line.name
        for line in kernels(run)
        if "Conc" in line.tokens
        and any(dtype == "FP8" and shape.startswith("1,20,") for _, shape, dtype in line.writes)
    }
    (finding,) = [finding for finding in explanation.findings if finding.key == "channel-padding"]
    assert "18 to 20" in finding.detail
    assert {explanation.layers.loc[index, "name"] for index in finding.layers} == by_hand
