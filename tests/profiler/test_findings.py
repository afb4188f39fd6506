"""Each kind of finding on the smallest engine that shows it: kernels, bytes, evidence and what to change."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from fusescope.graph.model import ModelGraph
from fusescope.graph.rules import predictions
from fusescope.graph.sites import quantize_sites
from fusescope.profiler import findings as found
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.evidence import Evidence
from fusescope.profiler.explanation import Finding
from fusescope.profiler.findings import FINDERS, findings
from fusescope.profiler.layers import Layer
from fusescope.profiler.tables import layer_table
from fusescope.profiler.verdicts import verdicts

KERNEL = (8, 8, 3, 3)
PADS = "pads = [1,1,1,1]"
SHAPE = "[1,8,8,8]"
ELEMENTS = 8 * 8 * 8
NET = f"""net (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {{
    QDQ x fp8
    QDQ w fp8
    [c1] a = Conv <{PADS}> (x_d, w_d, b)
    [r1] r = Relu (a)
    [add] s = Add (r, x)
    QDQ s fp8
    [c2] y = Conv <{PADS}> (s_d, w_d, b)
}}"""
WEIGHTS = {"w": KERNEL, "b": (8,)}


@pytest.fixture(scope="module")
def net(draw: SimpleNamespace) -> ModelGraph:
    """An 8-bit conv with Relu, a sum with the unquantized input, and a second 8-bit conv."""
    graph: ModelGraph = draw.graph(NET, **WEIGHTS)
    return graph


Gather = Callable[..., Evidence]


@pytest.fixture(scope="module")
def gather(draw: SimpleNamespace) -> Gather:
    """A function that gathers the evidence of an engine, and of a baseline of the same graph."""

    def evidence(
        graph: ModelGraph,
        *layers: Layer,
        baseline: Iterable[Layer] | None = None,
        plans: tuple[int | None, int | None] = (None, None),
    ) -> Evidence:
        view = EngineView(draw.engine(*layers), graph)
        sites = quantize_sites(graph)
        base = None if baseline is None else EngineView(draw.engine(*baseline), graph)
        return Evidence(
            view=view,
            layers=layer_table(view),
            judged=verdicts(view, sites),
            predictions=predictions(graph, sites, "tensorrt", "sm120"),
            target="sm120",
            plan_bytes=plans[0],
            baseline_view=base,
            baseline=None if base is None else layer_table(base),
            baseline_plan_bytes=plans[1],
        )

    return evidence


def quantize_x(draw: SimpleNamespace) -> Layer:
    """The kernel that only quantizes the input."""
    layer: Layer = draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="x_q")
    return layer


def conv(draw: SimpleNamespace, name: str, reads: str, writes: str, nodes: str = "") -> Layer:
    """A conv kernel."""
    layer: Layer = draw.layer(
        "correlation",
        f"{name}_myl0_0",
        reads + SHAPE,
        writes + SHAPE,
        constants="w:FP8[8,8,3,3]",
        nodes=f"{name} {nodes}",
    )
    return layer


def only(found_: Iterable[Finding]) -> Finding:
    """The one finding."""
    (finding,) = found_
    return finding


def test_kernels_that_only_quantize_are_counted_by_reason(
    draw: SimpleNamespace, net: ModelGraph, gather: Gather
) -> None:
    """A graph input and a sum are two reasons; bytes are all that the kernels move."""
    alone_s = draw.layer("kgen", "__myl_MulCast_myl0_9", f"s:Half{SHAPE}", f"qs:FP8{SHAPE}", nodes="s_q")
    evidence = gather(
        net, quantize_x(draw), conv(draw, "c1", "q:FP8", "r:Half", "r1"), alone_s, conv(draw, "c2", "qs:FP8", "y:Half")
    )
    by_tensor = {finding.nodes: finding for finding in found.quantize_alone(evidence)}
    assert set(by_tensor) == {("x",), ("s",)}
    assert by_tensor["x",].layers == (0,)
    assert by_tensor["s",].layers == (2,)
    assert all(finding.bytes == ELEMENTS * (2 + 1) for finding in by_tensor.values())
    assert all(finding.source and finding.remedy for finding in by_tensor.values())
    assert by_tensor["x",].title.startswith("1 kernel only quantizes: ")


def test_kernels_that_do_other_work_too(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """The bytes are those of an 8-bit tensor that is written beside a high-precision one."""
    merged = draw.layer(
        "kgen",
        "__myl_AddMulCast_myl0_2",
        f"r:Half{SHAPE} x:Half{SHAPE}",
        f"qs:FP8{SHAPE} s:Half{SHAPE}",
        nodes="add s_q",
    )
    layers = [quantize_x(draw), conv(draw, "c1", "q:FP8", "r:Half", "r1"), merged, conv(draw, "c2", "qs:FP8", "y:Half")]
    finding = only(found.quantize_merged(gather(net, *layers)))
    assert (finding.layers, finding.bytes, finding.nodes) == ((2,), ELEMENTS, ("s",))
    assert "1 of them writes" in finding.detail
    assert list(found.quantize_merged(gather(net, *layers[:2]))) == []


def split(draw: SimpleNamespace) -> tuple[Layer, ...]:
    """The first conv with its accumulators in fp32, and the kernel that finishes it."""
    epilogue = draw.layer("kgen", "__myl_MulCastAddRelu_myl0_2", f"a:Float{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1")
    return quantize_x(draw), conv(draw, "c1", "q:FP8", "a:Float"), epilogue


def test_epilogues_split_off(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """The kernel reads 4 bytes an element and writes 2; weights scaled per tensor already are not blamed."""
    finding = only(found.split_epilogues(gather(net, *split(draw))))
    assert (finding.layers, finding.nodes, finding.bytes) == ((2,), ("c1",), ELEMENTS * (4 + 2))
    assert (finding.remedy, finding.change) == ("", {})
    assert "scaled per tensor" in finding.detail
    assert list(found.split_epilogues(gather(net, quantize_x(draw)))) == []


def test_conv_outputs_in_fp32(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """Two bytes an element more than the model's own type, written and read again."""
    finding = only(found.wide_conv_outputs(gather(net, *split(draw))))
    assert (finding.layers, finding.nodes) == ((1,), ("c1",))
    assert finding.bytes == 2 * (ELEMENTS * 2)
    assert list(found.wide_conv_outputs(gather(net, conv(draw, "c1", "q:FP8", "a:Half")))) == []
    assert list(found.wide_conv_outputs(gather(net, conv(draw, "c1", "x:Half", "a:Float")))) == []


def test_fp32_is_no_finding_in_a_float32_model(draw: SimpleNamespace, gather: Gather) -> None:
    """Its tensors are no narrower."""
    proto = draw.model(NET, **WEIGHTS)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = 1
    for tensor in proto.graph.initializer:
        if tensor.data_type == 10:
            size = 1
            for dim in tensor.dims:
                size *= dim
            tensor.data_type, tensor.raw_data = 1, bytes(4 * size)
    from fusescope.graph.model import graph_of

    assert list(found.wide_conv_outputs(gather(graph_of(proto), *split(draw)))) == []


def test_padding_at_the_end_and_within_groups(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """The bytes are the zeros, written and read."""
    appended = draw.layer(
        "kgen", "__myl_MulCastConc_myl0_0", "x:Half[1,6,8,8]", f"q:FP8{SHAPE}", constants="z:FP8[1,2,8,8]", nodes="x_q"
    )
    finding = only(found.padded_channels(gather(net, appended)))
    assert (finding.key, finding.bytes, finding.nodes) == ("channel-padding", 2 * 2 * 64, ("x_q",))
    assert "1 from 6 to 8" in finding.detail
    grouped = draw.graph(
        f"""n (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {{
        QDQ x fp8
        QDQ w fp8
        [dw] y = Conv <{PADS}, group = 8> (x_d, w_d)
        }}""",
        w=(8, 1, 3, 3),
    )
    within = draw.layer(
        "kgen",
        "__myl_MulCastReshConcResh_myl0_0",
        f"x:Half{SHAPE}",
        "q:FP8[1,32,8,8]",
        constants="z:FP8[1,8,3,8,8]",
        nodes="x_q",
    )
    finding = only(found.padded_channels(gather(grouped, within)))
    assert (finding.key, finding.bytes) == ("depthwise-padding", 2 * 24 * 64)
    assert finding.change == {"keep": ("dw",)}


def test_convs_that_lost_8_bits(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """A conv that the graph quantizes and whose kernel reads no 8-bit tensor; keeping it is the change to try."""
    lost = draw.layer(
        "correlation", "c2_myl0_1", f"s:Half{SHAPE}", f"y:Half{SHAPE}", constants="w:Half[8,8,3,3]", nodes="c2"
    )
    finding = only(found.lost_convs(gather(net, conv(draw, "c1", "q:FP8", "a:Half"), lost)))
    assert (finding.nodes, finding.layers, finding.change) == (("c2",), (1,), {"keep": ("c2",)})
    assert finding.title.startswith("1 quantized convolution or gemm runs ")


@pytest.mark.parametrize(("kind", "reads"), [("Myelin", f"x:Half{SHAPE}"), ("correlation", "")])
def test_what_a_dump_does_not_show_is_not_called_lost(
    draw: SimpleNamespace, net: ModelGraph, gather: Gather, kind: str, reads: str
) -> None:
    """A closed region, or a layer without tensors, proves nothing."""
    closed = draw.layer(kind, "{ForeignNode[c1...c2]}", reads, "", nodes="c1 c2")
    assert list(found.lost_convs(gather(net, closed))) == []


def test_grouped_fp8_convs_are_a_documented_limit(draw: SimpleNamespace, gather: Gather) -> None:
    """They run in 8 bits; the documents say that there is no fast kernel for them."""
    graph = draw.graph(
        f"""n (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {{
        QDQ x fp8
        QDQ w fp8
        [grouped] y = Conv <{PADS}, group = 2> (x_d, w_d)
        }}""",
        w=(8, 4, 3, 3),
    )
    layers = [quantize_x(draw), conv(draw, "grouped", "q:FP8", "y:Half")]
    by_nodes = [finding for finding in found.documented_limits(gather(graph, *layers)) if finding.nodes == ("grouped",)]
    assert [finding.layers for finding in by_nodes] == [(1,)]
    assert by_nodes[0].change == {}, "the remedy offers several ways, so no single trial speaks for it"
    assert by_nodes[0].source


def test_weights_dequantized_at_run_time(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """A kernel that reads nothing but an 8-bit constant does the same at every inference."""
    weights = draw.layer(
        "kgen", "__myl_CastMul_myl0_0", "", "o:Half[8,8,3,3]", constants="w:FP8[8,8,3,3]", nodes="w_dq"
    )
    finding = only(found.weights_dequantized(gather(net, weights)))
    assert (finding.layers, finding.nodes, finding.bytes) == ((0,), ("w_dq",), 576 * 3)
    activation = draw.layer("kgen", "__myl_CastMul_myl0_0", f"q:FP8{SHAPE}", f"o:Half{SHAPE}", nodes="x_dq")
    assert list(found.weights_dequantized(gather(net, activation))) == []


def test_work_that_left_the_convolutions(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """What the baseline adds inside a conv's kernel and the quantized engine in another one."""
    inside = draw.layer(
        "runtime_fusion", "__myl_CorrAddReluAdd_myl0_0", f"x:Half{SHAPE}", f"s:Half{SHAPE}", nodes="c1 r1 add"
    )
    outside = draw.layer("kgen", "__myl_Add_myl0_2", f"r:Half{SHAPE} x:Half{SHAPE}", f"s:Half{SHAPE}", nodes="add")
    layers = [quantize_x(draw), conv(draw, "c1", "q:FP8", "r:Half", "r1"), outside]
    finding = only(found.left_convolutions(gather(net, *layers, baseline=[inside])))
    assert (finding.nodes, finding.layers, finding.bytes) == (("add",), (2,), 3 * 2 * ELEMENTS)
    assert "1 Add" in finding.detail
    assert list(found.left_convolutions(gather(net, *layers))) == []
    assert list(found.left_convolutions(gather(net, inside, baseline=[inside]))) == []


def test_growth_against_the_baseline(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """Kernels, traffic and plan, with signs, where at least one of them grew."""
    small, large = [quantize_x(draw)], [quantize_x(draw), quantize_x(draw)]
    finding = only(found.growth(gather(net, *large, baseline=small, plans=(3 << 20, 1 << 20))))
    assert finding.title == "against the baseline: +1 kernels, +1.54 kB of traffic, +2.00 MiB of plan"
    assert (finding.kernels, finding.bytes) == (1, 3 * ELEMENTS)
    plan_only = only(found.growth(gather(net, *small, baseline=large, plans=(3 << 20, 1 << 20))))
    assert (plan_only.kernels, plan_only.bytes) == (0, 0)
    assert list(found.growth(gather(net, *small))) == []
    assert list(found.growth(gather(net, *small, baseline=large, plans=(1 << 20, 3 << 20)))) == []


@pytest.mark.parametrize("plans", [(3 << 20, None), (None, 3 << 20)])
def test_a_plan_of_unknown_size_did_not_grow(
    draw: SimpleNamespace, net: ModelGraph, gather: Gather, plans: tuple[int | None, int | None]
) -> None:
    """Only two known sizes can be compared."""
    same = [quantize_x(draw)]
    assert list(found.growth(gather(net, *same, baseline=same, plans=plans))) == []
    finding = only(found.growth(gather(net, *same, *same, baseline=same, plans=plans)))
    assert "plan" not in finding.title


def test_the_most_costly_finding_is_first(draw: SimpleNamespace, net: ModelGraph, gather: Gather) -> None:
    """By bytes, then by kernels; each names its evidence, and a remedy its source."""
    ranked = findings(gather(net, *split(draw), baseline=[], plans=(2, 1)))
    costs = [(finding.bytes, finding.kernels) for finding in ranked]
    assert costs == sorted(costs, reverse=True)
    told = {"growth", "quantize-alone", "epilogue-split", "conv-output-fp32", "channel-alignment"}
    assert {finding.key for finding in ranked} == told
    for finding in ranked:
        assert finding.source
        assert finding.layers or finding.key == "growth"
        assert not finding.change or finding.remedy


def test_an_engine_without_layers_has_no_findings(net: ModelGraph, gather: Gather) -> None:
    """No finder makes something out of nothing, but what the graph itself says."""
    empty = gather(net)
    for finder in FINDERS:
        assert [finding for finding in finder(empty) if finding.layers] == []
