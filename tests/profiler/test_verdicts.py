"""What became of a Quantize site: each verdict on the smallest engine that deserves it."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.model import ModelGraph
from fusescope.graph.sites import quantize_sites
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.layers import Layer
from fusescope.profiler.verdicts import VERDICTS, Verdict, verdict_counts, verdicts

SHAPE = "[1,8,8,8]"
ONE_SITE = """one (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
    [c1] a = Conv <pads = [1,1,1,1]> (x, w, b)
    [r1] r = Relu (a)
    QDQ r fp8
    QDQ w fp8
    [c2] y = Conv <pads = [1,1,1,1]> (r_d, w_d, b)
}"""


@pytest.fixture(scope="module")
def one_site(draw: SimpleNamespace) -> ModelGraph:
    """A conv with Relu, its result quantized for a second conv."""
    graph: ModelGraph = draw.graph(ONE_SITE, w=(8, 8, 3, 3), b=(8,))
    return graph


def judge(draw: SimpleNamespace, graph: ModelGraph, *layers: Layer) -> tuple[Verdict, ...]:
    """Verdicts of the graph's sites in an engine of these layers."""
    return verdicts(EngineView(draw.engine(*layers), graph), quantize_sites(graph))


def reader(draw: SimpleNamespace, dtype: str = "FP8", **more: Any) -> Layer:
    """The second conv's kernel, which reads `dtype`."""
    layer: Layer = draw.layer("correlation", "c2_myl0_9", f"q:{dtype}{SHAPE}", f"y:Half{SHAPE}", nodes="c2", **more)
    return layer


def test_fused_into_the_producing_conv(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """The first conv's own kernel writes FP8."""
    conv = draw.layer("correlation", "c1_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="c1 r1 r_q")
    (verdict,) = judge(draw, one_site, conv, reader(draw))
    assert verdict.verdict == "fused"
    assert [kernel.name for kernel in verdict.kernels] == ["c1_myl0_0"]
    assert "c1_myl0_0" in verdict.evidence
    assert verdict.lost_readers == ()


def test_fused_into_the_reader(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """The second conv reads fp16, names the Quantize and multiplies an 8-bit constant: it quantizes for itself."""
    own = draw.layer(
        "correlation", "c2_myl0_1", f"r:Half{SHAPE}", f"y:Half{SHAPE}", constants="w:FP8[8,8,3,3]", nodes="r_q r_dq c2"
    )
    (verdict,) = judge(draw, one_site, own)
    assert (verdict.verdict, verdict.lost_readers) == ("fused", ())
    assert "quantizes its own input" in verdict.evidence


def test_an_epilogue_that_quantizes(draw: SimpleNamespace) -> None:
    """A kernel between an 8-bit conv and its reader finishes the conv and writes FP8."""
    graph = draw.graph(
        """n (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
        QDQ x fp8
        QDQ w fp8
        [c1] a = Conv <pads = [1,1,1,1]> (x_d, w_d, b)
        [r1] r = Relu (a)
        QDQ r fp8
        [c2] y = Conv <pads = [1,1,1,1]> (r_d, w_d, b)
        }""",
        w=(8, 8, 3, 3),
        b=(8,),
    )
    first, second = judge(
        draw,
        graph,
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"qx:FP8{SHAPE}", nodes="x_q"),
        draw.layer("correlation", "c1_myl0_1", f"qx:FP8{SHAPE}", f"a:Float{SHAPE}", nodes="x_dq w_dq c1"),
        draw.layer("kgen", "__myl_MulCastAddReluMulCast_myl0_2", f"a:Float{SHAPE}", f"q:FP8{SHAPE}", nodes="c1 r1 r_q"),
        reader(draw),
    )
    assert (first.verdict, second.verdict) == ("alone", "epilogue")
    assert second.work == ("r1",)


def test_merged_with_other_work(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """The kernel that quantizes also computes the Relu of a conv that does not run in 8 bits."""
    (verdict,) = judge(
        draw,
        one_site,
        draw.layer("correlation", "c1_myl0_0", f"x:Half{SHAPE}", f"a:Half{SHAPE}", nodes="c1"),
        draw.layer("kgen", "__myl_ReluMulCast_myl0_1", f"a:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="r1 r_q"),
        reader(draw),
    )
    assert (verdict.verdict, verdict.work) == ("merged", ("r1",))


ALONE = ("kgen", "__myl_MulCast_myl0_1", f"r:Half{SHAPE}", f"q:FP8{SHAPE}")


def test_alone(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """A kernel reads the tensor in fp16 and writes it in FP8."""
    (verdict,) = judge(
        draw,
        one_site,
        draw.layer("correlation", "c1_myl0_0", f"x:Half{SHAPE}", f"r:Half{SHAPE}", nodes="c1 r1"),
        draw.layer(*ALONE, nodes="r_q"),
        reader(draw),
    )
    assert (verdict.verdict, verdict.work) == ("alone", ())


def test_the_dearest_of_several_kernels_is_the_verdict(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """A site quantized by two kernels, one merged and one alone, is alone, and both are its kernels."""
    (verdict,) = judge(
        draw,
        one_site,
        draw.layer("kgen", "__myl_ReluMulCast_myl0_0", f"a:Half{SHAPE}", "q:FP8[1,4,8,8]", nodes="r1 r_q"),
        draw.layer("kgen", "__myl_MulCast_myl0_1", f"r:Half{SHAPE}", "q:FP8[1,4,8,8]", nodes="r_q"),
        reader(draw),
    )
    assert verdict.verdict == "alone"
    assert len(verdict.kernels) == 2


def test_lost(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """The reader reads fp16 and a kernel only rounds: no 8-bit tensor is written."""
    (verdict,) = judge(
        draw,
        one_site,
        draw.layer("kgen", "__myl_MulCastCastMul_myl0_0", f"r:Half{SHAPE}", f"q:Half{SHAPE}", nodes="r_q r_dq"),
        reader(draw, "Half"),
    )
    assert (verdict.verdict, verdict.kernels, verdict.lost_readers) == ("lost", (), ("c2",))
    assert "__myl_MulCastCastMul_myl0_0 rounds" in verdict.evidence


TWO_READERS = """n (float16[1,8,8,8] x) => (float16[1,8,8,8] y, float16[1,8,8,8] z) {
    [copy] i = Identity (x)
    QDQ x fp8
    QDQ i fp8
    QDQ w fp8
    [c1] y = Conv <pads = [1,1,1,1]> (x_d, w_d)
    [c2] z = Conv <pads = [1,1,1,1]> (i_d, w_d)
}"""


def test_a_reader_can_be_lost_alone(draw: SimpleNamespace) -> None:
    """The tensor is quantized for one reader; the other, which runs in fp16, is listed."""
    graph = draw.graph(TWO_READERS.replace("i_d", "x_d"), w=(8, 8, 3, 3))
    verdict = judge(
        draw,
        graph,
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="x_q"),
        draw.layer("correlation", "c1_myl0_1", f"q:FP8{SHAPE}", f"y:Half{SHAPE}", nodes="c1"),
        draw.layer("correlation", "c2_myl0_2", f"x:Half{SHAPE}", f"z:Half{SHAPE}", nodes="c2"),
    )[0]
    assert (verdict.verdict, verdict.lost_readers) == ("alone", ("c2",))


def test_a_twin_is_absent(draw: SimpleNamespace) -> None:
    """Two Quantizes of a tensor and of its copy: one is carried, and both readers read what it writes."""
    graph = draw.graph(TWO_READERS, w=(8, 8, 3, 3))
    found = judge(
        draw,
        graph,
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}", nodes="i_q"),
        draw.layer("correlation", "c1_myl0_1", f"q:FP8{SHAPE}", f"y:Half{SHAPE}", nodes="c1"),
        draw.layer("correlation", "c2_myl0_2", f"q:FP8{SHAPE}", f"z:Half{SHAPE}", nodes="c2"),
    )
    assert {verdict.site.tensor: verdict.verdict for verdict in found} == {"x": "absent", "i": "alone"}
    assert next(verdict.evidence for verdict in found if verdict.verdict == "absent") == "i_q writes the same value"


def test_a_dead_quantize_is_absent(draw: SimpleNamespace) -> None:
    """No output of the model depends on it, and no layer names it; with an output behind it, nothing is proven."""
    text = """n (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {
        QDQ x fp8
        [unused] u = Relu (x_d)
        [relu] y = Relu (x)
    }"""
    layer = draw.layer("kgen", "__myl_Relu_myl0_0", f"x:Half{SHAPE}", f"y:Half{SHAPE}", nodes="relu")
    (verdict,) = judge(draw, draw.graph(text), layer)
    assert verdict.verdict == "absent"
    (verdict,) = judge(draw, draw.graph(text.replace("] y)", "] y, float16[1,8,8,8] u)")), layer)
    assert verdict.verdict == "unknown"


@pytest.mark.parametrize(
    "reader_layer",
    [
        ("", "c2", "", ""),
        ("Myelin", "{ForeignNode[c1...c2]}", f"x:Half{SHAPE}", f"y:Half{SHAPE}"),
        ("correlation", "c2_myl0_0", f"q:Float9E9{SHAPE}", f"y:Half{SHAPE}"),
    ],
    ids=["a bare name", "a closed region", "an unheard-of type"],
)
def test_unknown_is_what_the_recording_cannot_tell(
    draw: SimpleNamespace, one_site: ModelGraph, reader_layer: tuple[str, str, str, str]
) -> None:
    """A layer that shows no element types is no proof that 8 bits were lost."""
    (verdict,) = judge(draw, one_site, draw.layer(*reader_layer, nodes="c1 r1 r_q r_dq c2"))
    assert (verdict.verdict, verdict.lost_readers) == ("unknown", ())


def test_an_engine_of_another_model_is_unknown(draw: SimpleNamespace, one_site: ModelGraph) -> None:
    """Layers that name no node of the graph say nothing of its sites."""
    (verdict,) = judge(draw, one_site, draw.layer(*ALONE, nodes="somebody else's"))
    assert verdict.verdict == "unknown"


def test_a_pool_that_the_quantize_moved_across(draw: SimpleNamespace) -> None:
    """A max pool that reads 8 bits and writes 8 bits has taken the Quantize in front of itself: nothing is added."""
    graph = draw.graph(
        """n (float16[1,8,8,8] x) => (float16[1,8,4,4] y) {
        [pool] p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)
        QDQ p fp8
        QDQ w fp8
        [c2] y = Conv <pads = [1,1,1,1]> (p_d, w_d)
        }""",
        w=(8, 8, 3, 3),
    )
    (verdict,) = judge(
        draw,
        graph,
        draw.layer("kgen", "__myl_MulCast_myl0_0", f"x:Half{SHAPE}", f"q:FP8{SHAPE}"),
        draw.layer("maxpool", "pool_myl0_1", f"q:FP8{SHAPE}", "p:FP8[1,8,4,4]", nodes="pool p_q"),
        draw.layer("correlation", "c2_myl0_2", "p:FP8[1,8,4,4]", "y:Half[1,8,4,4]", nodes="c2"),
    )
    assert verdict.verdict == "fused"


NODES = st.sampled_from(["c1", "r1", "r_q", "r_dq", "w_q", "w_dq", "c2", "foreign"])
TENSOR = st.builds(
    "{}:{}[1,8,8,8]".format, st.sampled_from("xarqy"), st.sampled_from(["Half", "Float", "FP8", "Unheard"])
)
TENSORS = st.lists(TENSOR, max_size=3).map(" ".join)
KINDS = st.sampled_from(["kgen", "correlation", "maxpool", "signal", "Myelin", "runtime_fusion", ""])
ROWS = st.lists(st.tuples(KINDS, TENSORS, TENSORS, TENSORS, st.lists(NODES, max_size=5, unique=True)), max_size=6)


@given(ROWS)
def test_every_site_has_one_verdict(
    draw: SimpleNamespace, one_site: ModelGraph, rows: list[tuple[str, str, str, str, list[str]]]
) -> None:
    """Whatever the engine holds, verdicts add up to the sites, and kernels that quantize write 8 bits or hold them."""
    layers = [
        draw.layer(kind, "__myl_MulCast_myl0_0", reads, writes, constants=constants, nodes=" ".join(nodes))
        for kind, reads, writes, constants, nodes in rows
    ]
    found = judge(draw, one_site, *layers)
    counts = verdict_counts(found)
    assert list(counts) == list(VERDICTS)
    assert sum(counts.values()) == len(found) == len(quantize_sites(one_site))
    for verdict in found:
        assert bool(verdict.kernels) is (verdict.verdict in {"fused", "epilogue", "merged", "alone"})
        assert verdict.evidence
        assert set(verdict.lost_readers) <= set(verdict.site.readers)
        for kernel in verdict.kernels:
            assert any(tensor.is_eight_bit for tensor in (*kernel.outputs, *kernel.constants))
