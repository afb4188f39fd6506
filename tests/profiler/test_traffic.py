"""Bytes, operations and floors, against counts made by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.model import ModelGraph
from fusescope.profiler.attribution import Attribution, EngineView
from fusescope.profiler.gpus import GPUS, Gpu
from fusescope.profiler.layers import Layer
from fusescope.profiler.traffic import floor, flops, quantize_bytes, traffic

SLOW = Gpu("slow", "sm00", 1.0, 2.0, None, 1.0, 1000, "made up for this test: 1 TFLOP/s, 1 GB/s, 1000 bytes of L2")


def multiplications(image: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int, groups: int) -> int:
    """Multiplications of a conv, counted one output element at a time by sliding a window over a padded image."""
    batch, channels, height, width = image
    padded = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    group = windows[:, : channels // groups]
    elements_per_output = group[:, :, 0, 0][0].size
    outputs = windows.shape[2] * windows.shape[3] * batch * weight[0]
    return elements_per_output * outputs


@given(
    channels=st.sampled_from([4, 8]),
    out=st.sampled_from([4, 16]),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 4]),
    size=st.integers(5, 9),
    batch=st.integers(1, 2),
)
def test_operations_of_a_conv(
    draw: SimpleNamespace, channels: int, out: int, kernel: int, stride: int, groups: int, size: int, batch: int
) -> None:
    """A conv does two operations per multiplication, whatever its kernel, stride, groups and batch."""
    padding = kernel // 2
    weight = (out, channels // groups, kernel, kernel)
    graph = draw.graph(
        f"""n (float16[{batch},{channels},{size},{size}] x) => (float16[n,c,h,w] y) {{
        [c] y = Conv <pads = [{padding},{padding},{padding},{padding}], strides = [{stride},{stride}],
                      group = {groups}> (x, w)
        }}""",
        w=weight,
    )
    expected = 2 * multiplications((batch, channels, size, size), weight, stride, padding, groups)
    assert flops(graph, ["c"]) == expected


def test_operations_of_a_transposed_conv(draw: SimpleNamespace) -> None:
    """Each input element is multiplied with its channel's whole kernel: 4 x 5 x 5 elements, 6 x 3 x 3 weights."""
    graph = draw.graph(
        "n (float16[1,4,5,5] x) => (float16[1,6,11,11] y) { [c] y = ConvTranspose <strides = [2,2]> (x, w) }",
        w=(4, 6, 3, 3),
    )
    assert flops(graph, ["c"]) == 2 * (4 * 5 * 5) * (6 * 3 * 3)


@pytest.mark.parametrize(
    ("first", "operation", "weight"),
    [
        ((2, 16), "Gemm (x, w)", (16, 10)),
        ((2, 16), "Gemm <transB = 1> (x, w)", (10, 16)),
        ((16, 2), "Gemm <transA = 1> (x, w)", (16, 10)),
        ((2, 16), "MatMul (x, w)", (16, 10)),
    ],
)
def test_operations_of_a_matrix_product(
    draw: SimpleNamespace, first: tuple[int, ...], operation: str, weight: tuple[int, ...]
) -> None:
    """2 x 16 times 16 x 10, however it is laid out, is 2 x 16 x 10 multiplications."""
    graph = draw.graph(f"n (float16[{first[0]},{first[1]}] x) => (float16[2,10] y) {{ [g] y = {operation} }}", w=weight)
    assert flops(graph, ["g"]) == 2 * 2 * 16 * 10


def test_operations_of_a_batched_matrix_product(draw: SimpleNamespace) -> None:
    """Leading dimensions count the products."""
    graph = draw.graph(
        "n (float16[3,4,2,16] x, float16[3,4,16,10] z) => (float16[3,4,2,10] y) { [g] y = MatMul (x, z) }"
    )
    assert flops(graph, ["g"]) == 2 * 3 * 4 * 2 * 16 * 10


def test_other_operations_count_as_nothing_and_unknown_shapes_as_unknown(draw: SimpleNamespace) -> None:
    """No conv, no operations; a conv of unknown size makes the sum unknown, not smaller."""
    graph = draw.graph(
        """n (float16[1,8,8,8] x, float16[b,8,8,8] z) => (float16[1,8,8,8] y, float16[b,8,8,8] v) {
        [r] y = Relu (x)
        [c] c = Conv <pads = [1,1,1,1]> (x, w)
        [d] v = Conv <pads = [1,1,1,1]> (z, w)
        }""",
        w=(8, 8, 3, 3),
    )
    assert flops(graph, []) == 0
    assert flops(graph, ["r"]) == 0
    assert flops(graph, ["c"]) == flops(graph, ["c", "r"]) == 2 * 8 * 64 * 72
    assert flops(graph, ["c", "d"]) is None


def test_traffic_counts_each_tensor_once(draw: SimpleNamespace) -> None:
    """Product of dimensions times dtype size; a tensor read twice moves once, slices of one tensor each for itself."""
    layer = draw.layer(
        "kgen",
        "k",
        "x:Half[1,8,4,4] x:Half[1,8,4,4] s:Half[1,2,4,4] s:Half[1,6,4,4]",
        "y:FP8[1,8,4,4] z:Float[1,8,4,4]",
        constants="c:Float[]",
    )
    moved = traffic(layer)
    assert moved.read_bytes == 2 * 128 + 2 * 32 + 2 * 96 + 4
    assert moved.write_bytes == 128 + 4 * 128
    assert moved.eight_bit_write_bytes == 128
    assert moved.total_bytes == moved.read_bytes + moved.write_bytes
    assert moved.unsized == 0


def test_unsized_tensors_are_counted(draw: SimpleNamespace) -> None:
    """A size or a type that is not known adds no bytes, and is told."""
    moved = traffic(draw.layer("kgen", "k", "x:Half[-1,8]", "y:Float9E9[8] z:FP8[8]"))
    assert (moved.total_bytes, moved.unsized) == (8, 2)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("Half", 16), ("BFloat16", 16), ("Float", 32), ("Int64", 64), ("Bool", 8), ("Int4", 4), ("FP4", 4)],
)
def test_sizes_of_element_types(draw: SimpleNamespace, dtype: str, bits: int) -> None:
    """Sub-byte types are packed; a part of a byte is a byte."""
    (tensor,) = draw.tensors(f"t:{dtype}[3,5]")
    assert tensor.bytes == math.ceil(15 * bits / 8)


ONE_CONV = """n (float16[1,64,16,16] x) => (float16[1,64,{size},{size}] y) {{
    QDQ x fp8
    QDQ w fp8
    [c] y = Conv <pads = [{pad},{pad},{pad},{pad}], strides = [{stride},{stride}]> (x_d, w_d)
}}"""


def conv(draw: SimpleNamespace, *layers: Layer, kernel: int = 3, stride: int = 1) -> tuple[ModelGraph, Attribution]:
    """A graph of one conv, and what the last of these layers does."""
    size, pad = 16 // stride, kernel // 2
    graph = draw.graph(ONE_CONV.format(size=size, pad=pad, stride=stride), w=(64, 64, kernel, kernel))
    return graph, EngineView(draw.engine(*layers), graph).attributions[-1]


def test_the_floor_is_the_larger_of_compute_and_memory(draw: SimpleNamespace) -> None:
    """Operations over the rate of the operands' type, and bytes of tensors larger than L2 over the bandwidth."""
    layer = draw.layer("correlation", "c", "q:FP8[1,64,16,16]", "y:Half[1,64,16,16]", constants="w:FP8[9]", nodes="c")
    graph, attribution = conv(draw, layer)
    found = floor([attribution], graph, SLOW)
    operations = 2 * 64 * 256 * 64 * 9
    assert found.compute_us == pytest.approx(operations / 2e12 * 1e6)
    assert found.memory_us == pytest.approx((64 * 256 + 2 * 64 * 256) / 1e9 * 1e6)  # the constant is in L2
    assert found.floor_us == max(found.compute_us, found.memory_us) == found.memory_us
    fast = floor([attribution], graph, replace(SLOW, bandwidth_gb_per_s=1000))
    assert fast.floor_us == fast.compute_us == found.compute_us


@pytest.mark.parametrize(
    ("tensors", "tflops"),
    [
        (("q:FP8[1,64,16,16]", "w:FP8[9]"), 2.0),
        (("x:Half[1,64,16,16]", "w:FP8[9]"), 2.0),  # it quantizes its own input
        (("x:Half[1,64,16,16]", "w:Half[9]"), 1.0),
        (("x:Float[1,64,16,16]", "w:Float[9]"), 1.0),  # may run as TF32, which the FP16 rate bounds
    ],
)
def test_the_rate_is_that_of_the_operands(draw: SimpleNamespace, tensors: tuple[str, str], tflops: float) -> None:
    """The highest published rate at which the kernel's operands can be multiplied."""
    reads, constants = tensors
    layer = draw.layer("correlation", "c", reads, "y:Half[1,64,16,16]", constants=constants, nodes="c")
    graph, attribution = conv(draw, layer)
    assert floor([attribution], graph, SLOW).compute_us == pytest.approx(2 * 64 * 256 * 64 * 9 / tflops / 1e6)


def test_a_rate_that_is_not_published_is_counted_as_unknown(draw: SimpleNamespace) -> None:
    """Where the table has no INT8 rate, an INT8 conv adds no compute time, and the floor says so."""
    layer = draw.layer("correlation", "c", "q:Int8[1,64,16,16]", "y:Half[1,64,16,16]", nodes="c")
    graph, attribution = conv(draw, layer)
    found = floor([attribution], graph, SLOW)
    assert (found.compute_us, found.unknown) == (0, 1)
    assert floor([attribution], graph, replace(SLOW, int8_tops=2.0)).unknown == 0
    copy = draw.layer("kgen", "__myl_Tran_myl0_0", "q:Int8[1,64]", "y:Int8[1,64]")
    assert floor([conv(draw, copy)[1]], graph, SLOW).unknown == 0


def test_only_what_is_larger_than_l2_comes_from_dram(draw: SimpleNamespace) -> None:
    """Smaller tensors may still be in the cache; where its size is not published, all may be."""
    layer = draw.layer("correlation", "c", "x:Half[1,1,10,50]", "y:Half[1,1,10,51]", nodes="c")
    graph, attribution = conv(draw, layer)
    assert floor([attribution], graph, SLOW).memory_us == pytest.approx(2 * 510 / 1e9 * 1e6)
    assert floor([attribution], graph, replace(SLOW, l2_bytes=None)).memory_us == 0


@pytest.mark.parametrize(("kernel", "stride", "share"), [(1, 1, 1.0), (1, 2, 0.25), (3, 2, 1.0)])
def test_a_strided_1x1_conv_reads_a_quarter(draw: SimpleNamespace, kernel: int, stride: int, share: float) -> None:
    """Of the input only the pixels under the kernel are read; a 3x3 kernel at stride 2 passes over all."""
    layer = draw.layer("correlation", "c", "x:Half[1,64,16,16]", "", nodes="c")
    graph, attribution = conv(draw, layer, kernel=kernel, stride=stride)
    assert floor([attribution], graph, SLOW).memory_us == pytest.approx(share * 2 * 64 * 256 / 1e9 * 1e6)


def test_padding_is_no_part_of_a_floor(draw: SimpleNamespace) -> None:
    """Of a conv's padded input only the channels of the model count."""
    layer = draw.layer("correlation", "c", "x:Half[1,80,16,16]", "", nodes="c")
    graph, attribution = conv(draw, layer)
    assert floor([attribution], graph, SLOW).memory_us == pytest.approx(2 * 64 * 256 / 1e9 * 1e6)


def test_a_floor_adds_over_layers_before_it_compares(draw: SimpleNamespace) -> None:
    """Layers may overlap: the compute of one can hide the memory of another."""
    layer = draw.layer("correlation", "c", "q:FP8[1,64,16,16]", "y:Half[1,64,16,16]", nodes="c")
    graph, attribution = conv(draw, layer)
    one, two = (floor([attribution] * count, graph, SLOW) for count in (1, 2))
    assert two.compute_us == pytest.approx(2 * one.compute_us)
    assert two.memory_us == pytest.approx(2 * one.memory_us)
    assert floor([], graph, SLOW).floor_us == 0


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_less_is_never_slower(draw: SimpleNamespace, gpu: Gpu) -> None:
    """On every GPU of the table the floor of an 8-bit conv is at most that of the fp16 conv."""
    found = {}
    for dtype in ("Half", "FP8"):
        layer = draw.layer("correlation", "c", f"x:{dtype}[1,64,16,16]", f"y:{dtype}[1,64,16,16]", nodes="c")
        graph, attribution = conv(draw, layer)
        found[dtype] = floor([attribution], graph, gpu).floor_us
    assert 0 <= found["FP8"] <= found["Half"]
    assert found["Half"] > 0


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # A kernel that only quantizes: all that it moves.
        (("__myl_MulCast_myl0_0", "x:Half[100]", "q:FP8[100]", "x_q"), 300),
        # Another that writes high precision beside: its 8-bit output.
        (("__myl_ReluMulCast_myl0_0", "a:Half[100]", "q:FP8[100] r:Half[100]", "relu x_q"), 100),
        # Another that writes nothing else: it would have to write its result anyway.
        (("__myl_ReluMulCast_myl0_0", "a:Half[100]", "q:FP8[100]", "relu x_q"), 0),
        # Those without a Quantize, whatever they write.
        (("__myl_Relu_myl0_0", "a:Half[100]", "q:FP8[100] r:Half[100]", "relu"), 0),
        (("__myl_Relu_myl0_0", "a:Half[100]", "r:Half[100]", "relu"), 0),
    ],
)
def test_bytes_of_quantizing_alone(draw: SimpleNamespace, layer: tuple[str, str, str, str], expected: int) -> None:
    """What a layer moves only because there is a Quantize."""
    graph = draw.graph(
        """n (float16[100] a) => (float16[100] y) {
        [relu] x = Relu (a)
        QDQ x fp8
        [last] y = Relu (x_d)
        }"""
    )
    name, reads, writes, nodes = layer
    (attribution,) = EngineView(draw.engine(draw.layer("kgen", name, reads, writes, nodes=nodes)), graph).attributions
    assert quantize_bytes(attribution, traffic(attribution.layer)) == expected
