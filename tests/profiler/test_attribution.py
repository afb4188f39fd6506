"""What a layer does, told from its kind, tokens, tensors and ONNX nodes: on small engines drawn by hand."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.model import ModelGraph
from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.kinds import GROUPS, NOT_KERNELS, kind_group, tokens
from fusescope.profiler.layers import Layer
from fusescope.profiler.paddings import paddings

TWO_CONVS = """two (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    QDQ x fp8
    QDQ w fp8
    [c1] a = Conv <pads = [1,1,1,1]> (x_d, w_d, b)
    [r1] r = Relu (a)
    [add] s = Add (r, x)
    QDQ s fp8
    [c2] y = Conv <pads = [1,1,1,1]> (s_d, w_d, b)
}"""
SHAPE = "[1,8,8,8]"


@pytest.fixture(scope="module")
def two_convs(draw: SimpleNamespace) -> ModelGraph:
    """Quantize, conv, Relu, an Add of the input, Quantize, conv."""
    graph: ModelGraph = draw.graph(TWO_CONVS, w=(8, 8, 3, 3), b=(8,))
    return graph


def attributed(draw: SimpleNamespace, graph: ModelGraph, *layers: Layer) -> tuple[Attribution, ...]:
    """Attributions of an engine of these layers."""
    return EngineView(draw.engine(*layers), graph).attributions


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__myl_MulCast_myl0_5", ("Mul", "Cast")),
        ("__myl_ConcTran_0xf8cfd8a78a623bf6c0c77b873e4b6c1e", ("Conc", "Tran")),
        ("__myl_MulCastAddReluEtc_myl12_345", ("Mul", "Cast", "Add", "Relu", "Etc")),
        ("/conv1/Conv_myl0_4", ()),
        ("", ()),
        ("__myl_", ()),
    ],
)
def test_tokens_of_a_generated_kernel(name: str, expected: tuple[str, ...]) -> None:
    """Tokens are read out of the name; any other name has none."""
    assert tokens(name) == expected


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("correlation", "conv"),
        ("CaskConvolution", "conv"),
        ("gemm", "gemm"),
        ("SIGNAL", "sync"),
        ("Constant", "constant"),
        ("NoOp", "runtime"),
        ("PluginV2Ext", "plugin"),
        ("Myelin", "opaque"),
        ("never seen", "other"),
        ("", "other"),
    ],
)
def test_kinds_are_known_whatever_their_case(kind: str, group: str) -> None:
    """A LayerType has one group; one that is not known is `other`, not the nearest."""
    assert kind_group(kind) == group


def test_a_conv_with_its_activation(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """A conv kernel computes the conv and what it names behind it, but no Quantize or Dequantize."""
    (conv,) = attributed(
        draw,
        two_convs,
        draw.layer(
            "correlation",
            "c1_myl0_1",
            f"q:FP8{SHAPE}",
            f"o:Half{SHAPE}",
            constants="w:FP8[8,8,3,3]",
            nodes="x_dq w_dq c1 r1",
        ),
    )
    assert (conv.group, conv.work, conv.quantizes) == ("conv", ("c1", "r1"), ())
    assert not conv.dequantizes
    assert not conv.partial


def test_a_kernel_that_only_quantizes(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """It names its Quantize, writes 8 bits, and computes nothing of the model."""
    (only,) = attributed(
        draw, two_convs, draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="x_q")
    )
    assert (only.group, only.direction, only.work, only.quantizes) == ("quantize", "quantize", (), ("x_q",))
    assert only.carries_quantize


def test_a_kernel_that_rounds_in_high_precision(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """Quantize and Dequantize in one kernel from fp16 to fp16 go both ways and carry no 8-bit tensor."""
    (both,) = attributed(
        draw,
        two_convs,
        draw.layer("kgen", "__myl_MulCastCastMul_myl0_0", f"x:Half{SHAPE}", f"o:Half{SHAPE}", nodes="x_q x_dq"),
    )
    assert (both.group, both.direction, both.quantizes) == ("quantize", "both", ())


def test_a_kernel_that_dequantizes_weights(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """It reads nothing but an 8-bit constant and writes high precision."""
    (weights,) = attributed(
        draw,
        two_convs,
        draw.layer("kgen", "__myl_CastMul_myl0_0", "", "o:Half[8,8,3,3]", constants="w:FP8[8,8,3,3]", nodes="w_dq"),
    )
    assert (weights.group, weights.direction) == ("quantize", "dequantize")


def test_a_kernel_that_dequantizes_an_activation(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """It is flagged as well, since it turns 8 bits into high precision without multiplying weights."""
    (activation,) = attributed(
        draw, two_convs, draw.layer("kgen", "__myl_CastMul_myl0_0", f"q:FP8{SHAPE}", f"o:Half{SHAPE}", nodes="x_dq")
    )
    assert (activation.group, activation.direction) == ("quantize", "dequantize")
    assert activation.dequantizes


def split_conv(draw: SimpleNamespace, output: str) -> Layer:
    """An 8-bit conv without its activation."""
    layer: Layer = draw.layer(
        "correlation",
        "c1_myl0_1",
        f"q:FP8{SHAPE}",
        f"o:{output}{SHAPE}",
        constants="w:FP8[8,8,3,3]",
        nodes="x_dq w_dq c1",
    )
    return layer


def test_an_epilogue_split_off_a_conv(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """It reads the conv's fp32 accumulators and computes only what follows that conv."""
    conv, epilogue = attributed(
        draw,
        two_convs,
        split_conv(draw, "Float"),
        draw.layer("kgen", "__myl_MulCastAddReluMove_myl0_2", f"o:Float{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1"),
    )
    assert (conv.group, conv.work) == ("conv", ("c1",))
    assert (epilogue.group, epilogue.work, epilogue.finishes) == ("epilogue", ("r1",), "c1")


def test_an_epilogue_of_a_conv_that_writes_half(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """What a conv writes in fp16 is raw as well if the kernel behind it names the conv: it adds the bias."""
    _, epilogue = attributed(
        draw,
        two_convs,
        split_conv(draw, "Half"),
        draw.layer("kgen", "__myl_AddRelu_myl0_2", f"o:Half{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1"),
    )
    assert (epilogue.group, epilogue.finishes) == ("epilogue", "c1")
    _, activation = attributed(
        draw,
        two_convs,
        split_conv(draw, "Half"),
        draw.layer("kgen", "__myl_Relu_myl0_2", f"o:Half{SHAPE}", f"r:Half{SHAPE}", nodes="r1"),
    )
    assert (activation.group, activation.finishes) == ("pointwise", "")


def test_a_named_conv_is_a_border(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """Of a kernel before a conv's, nothing behind the conv is its work; of one after it, nothing before the conv."""
    layout, _, after = attributed(
        draw,
        two_convs,
        draw.layer("kgen", "__myl_ConcTran_myl0_0", "x:Half[1,3,8,8]", "p:Half[1,4,8,8]", nodes="c1 r1"),
        draw.layer("correlation", "c1_myl0_1", "p:Half[1,4,8,8]", f"o:Half{SHAPE}", nodes="c1"),
        draw.layer("kgen", "__myl_Relu_myl0_2", f"o:Half{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1"),
    )
    assert (layout.group, layout.work) == ("reformat", ())
    assert (after.group, after.work) == ("pointwise", ("r1",))
    _, move = attributed(
        draw,
        two_convs,
        draw.layer("correlation", "c2_myl0_0", f"s:Half{SHAPE}", f"o:Half{SHAPE}", nodes="c2"),
        draw.layer("kgen", "__myl_Tran_myl0_1", f"o:Half{SHAPE}", f"y:Half{SHAPE}", nodes="add s_q s_dq c2"),
    )
    assert move.work == ()


def test_an_epilogue_across_a_copy(draw: SimpleNamespace) -> None:
    """What lies between a conv and its activation and computes nothing may go unnamed."""
    graph = draw.graph(
        TWO_CONVS.replace("[r1] r = Relu (a)", "[copy] i = Identity (a)\n[r1] r = Relu (i)"), w=(8, 8, 3, 3), b=(8,)
    )
    _, epilogue = attributed(
        draw,
        graph,
        split_conv(draw, "Float"),
        draw.layer("kgen", "__myl_MulCastAddReluMove_myl0_2", f"o:Float{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1"),
    )
    assert (epilogue.group, epilogue.work) == ("epilogue", ("r1",))


def test_a_sum_with_a_skip_is_no_epilogue(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """A kernel that adds another tensor of the model to a conv's accumulators does other work too."""
    _, pointwise = attributed(
        draw,
        two_convs,
        split_conv(draw, "Float"),
        draw.layer(
            "kgen",
            "__myl_MulCastAddReluAddMulCast_myl0_2",
            f"o:Float{SHAPE} x:Half{SHAPE}",
            f"s:FP8{SHAPE}",
            nodes="c1 r1 add s_q",
        ),
    )
    assert (pointwise.group, pointwise.finishes) == ("pointwise", "c1")
    assert set(pointwise.work) == {"r1", "add"}
    assert pointwise.quantizes == ("s_q",)


def test_a_conv_that_a_padding_kernel_names_is_not_its_work(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """The kernel that pads the input of a conv names that conv; the kernel of the conv computes it."""
    padding, conv = attributed(
        draw,
        two_convs,
        draw.layer(
            "kgen",
            "__myl_MulCastConc_myl0_0",
            "x:Half[1,18,8,8]",
            "q:FP8[1,20,8,8]",
            constants="zeros:FP8[1,2,8,8]",
            nodes="x_q x_dq w_dq c1 r1",
        ),
        draw.layer("correlation", "c1_myl0_1", "q:FP8[1,20,8,8]", f"o:Half{SHAPE}", nodes="c1 r1"),
    )
    assert (padding.group, padding.direction, padding.work, padding.pads) == ("quantize", "quantize", (), True)
    assert conv.work == ("c1", "r1")
    assert not conv.partial


def test_a_conv_that_no_kernel_proves_is_that_of_those_who_name_it(
    draw: SimpleNamespace, two_convs: ModelGraph
) -> None:
    """A conv that is unrolled into a generated kernel leaves its name in the metadata alone."""
    (unrolled,) = attributed(
        draw, two_convs, draw.layer("kgen", "__myl_MulAdd_myl0_0", f"x:Half{SHAPE}", f"o:Half{SHAPE}", nodes="c1")
    )
    assert (unrolled.group, unrolled.work) == ("conv", ("c1",))


def test_a_conv_with_a_kernel_of_its_own_is_not_that_of_a_generated_kernel(
    draw: SimpleNamespace, two_convs: ModelGraph
) -> None:
    """A generated kernel that finishes one conv and runs another names both; the first has its own kernel."""
    first, second = attributed(
        draw,
        two_convs,
        split_conv(draw, "Float"),
        draw.layer(
            "kgen",
            "__myl_MulCastAddReluMulCastCorrMulCast_myl0_2",
            f"o:Float{SHAPE} x:Half{SHAPE}",
            f"y:Half{SHAPE}",
            constants="w2:FP8[8,8,3,3]",
            nodes="c1 r1 add s_q s_dq w_dq c2",
        ),
    )
    assert first.work == ("c1",)
    assert "c1" not in second.work
    assert "c2" in second.work
    assert second.group == "conv"


def test_a_1x1_conv_run_as_a_gemm_is_a_conv(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """The ONNX node tells more than the LayerType."""
    (gemm,) = attributed(
        draw, two_convs, draw.layer("gemm", "c1_myl0_0", f"x:Half{SHAPE}", f"o:Half{SHAPE}", nodes="c1")
    )
    assert gemm.group == "conv"


def test_work_in_two_layers_is_partial_in_both(draw: SimpleNamespace, two_convs: ModelGraph) -> None:
    """Where two layers compute parts of one node, neither is its whole; a cut name hides work as well."""
    half_one, half_two, cut = attributed(
        draw,
        two_convs,
        draw.layer("kgen", "__myl_Add_myl0_0", f"x:Half{SHAPE}", "o:Half[1,4,8,8]", nodes="add"),
        draw.layer("kgen", "__myl_Add_myl0_1", f"x:Half{SHAPE}", "o:Half[1,4,8,8]", nodes="add"),
        draw.layer("kgen", "__myl_AddReluEtc_myl0_2", f"o:Half{SHAPE}", f"p:Half{SHAPE}", nodes="r1"),
    )
    assert half_one.partial
    assert half_two.partial
    assert cut.partial


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("__myl_Tran_myl0_1", "reformat"),
        ("__myl_ConcMove_myl0_1", "reformat"),
        ("__myl_AddRelu_myl0_1", "pointwise"),
        ("__myl_MeanMul_myl0_1", "reduce"),
        ("__myl_ResiAdd_myl0_1", "resize"),
        ("__myl_SoftMul_myl0_1", "norm"),
        ("__myl_FcAdd_myl0_1", "gemm"),
    ],
)
def test_a_generated_kernel_without_nodes_goes_by_its_tokens(
    draw: SimpleNamespace, two_convs: ModelGraph, name: str, group: str
) -> None:
    """The heaviest token decides; one that only moves is a change of layout."""
    (found,) = attributed(draw, two_convs, draw.layer("kgen", name, f"x:Half{SHAPE}", f"o:Half{SHAPE}"))
    assert found.group == group


def test_padding_is_a_constant_that_fills_up_the_channels(draw: SimpleNamespace) -> None:
    """Zeros at the end of all channels, or behind each one; a constant of another size pads nothing."""
    appended = draw.layer("kgen", "p", "x:Half[1,18,4,4]", "o:FP8[1,20,4,4]", constants="z:FP8[1,2,4,4]")
    (padding,) = paddings(appended)
    assert (padding.channels, padding.padded_channels, padding.within_groups) == (18, 20, False)
    assert padding.zero_bytes == 2 * 4 * 4
    depthwise = draw.layer("kgen", "p", "x:Half[1,8,4,4]", "o:FP8[1,32,4,4]", constants="z:FP8[1,8,3,4,4]")
    (padding,) = paddings(depthwise)
    assert (padding.channels, padding.padded_channels, padding.within_groups) == (8, 32, True)
    assert padding.zero_bytes == 8 * 3 * 4 * 4
    for constant in ("z:FP8[1,3,4,4]", "z:Half[1,2,4,4]", "z:FP8[1]"):
        other = draw.layer("kgen", "p", "x:Half[1,18,4,4]", "o:FP8[1,20,4,4]", constants=constant)
        assert paddings(other) == ()


NODES = st.sampled_from(["x_q", "x_dq", "w_q", "w_dq", "c1", "r1", "add", "s_q", "s_dq", "c2", "not in the graph"])
TENSOR = st.builds(
    "{}:{}[{}]".format,
    st.sampled_from(["x", "q", "a", "r", "s", "y"]),
    st.sampled_from(["Half", "Float", "FP8", "Unheard"]),
    st.sampled_from(["1,8,8,8", "1,4,8,8", "-1,8", ""]),
)
TENSORS = st.lists(TENSOR, max_size=3).map(" ".join)
KINDS = st.sampled_from(["kgen", "correlation", "gemm", "maxpool", "signal", "Myelin", "runtime_fusion", "NoOp", "new"])
NAMES = st.sampled_from(["__myl_MulCast_myl0_1", "__myl_CorrAddRelu_myl0_2", "__myl_AddEtc_myl0_3", "c1_myl0_4", ""])
ROWS = st.lists(
    st.tuples(KINDS, NAMES, TENSORS, TENSORS, TENSORS, st.lists(NODES, max_size=6, unique=True)), max_size=8
)


@given(ROWS)
def test_every_layer_has_one_group_and_work_that_the_graph_has(
    draw: SimpleNamespace, two_convs: ModelGraph, rows: list[tuple[str, str, str, str, str, list[str]]]
) -> None:
    """Random engines over a fixed graph: nothing crashes, layers add up, and no node is made up."""
    layers = []
    for kind, name, reads, writes, constants, nodes in rows:
        named = Layer(0, name, kind, *map(draw.tensors, (reads, constants, writes)), onnx_nodes=tuple(nodes))
        layers.append(named)
    found = attributed(draw, two_convs, *layers)
    assert len(found) == len(layers)
    for attribution in found:
        assert attribution.group in GROUPS
        assert attribution.is_kernel is (attribution.group not in NOT_KERNELS)
        assert set(attribution.work) | set(attribution.quantizes) <= two_convs.nodes.keys()
        assert not any(two_convs.nodes[name].op in {"QuantizeLinear", "DequantizeLinear"} for name in attribution.work)
        assert bool(attribution.direction) is (attribution.group == "quantize")
        if attribution.quantizes:
            assert any(tensor.is_eight_bit for tensor in attribution.layer.outputs)
