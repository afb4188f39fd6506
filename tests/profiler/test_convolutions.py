"""The convolution of a layer: by the graph, by the keys of TensorRT up to 10, or by the constants that 11 lists."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fusescope.profiler.attribution import EngineView
from fusescope.profiler.convolutions import Convolution, convolutions
from fusescope.profiler.layers import Layer

Told = Mapping[str, str]


def only(layer: Layer, draw: SimpleNamespace) -> Convolution:
    """The convolution of an engine of one layer, without a graph."""
    (found,) = convolutions(EngineView(draw.engine(layer), None))
    return found


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"Groups": "1", "Kernel": "[3,3]"}, (1, 12, (3, 3), False)),
        ({"Groups": "12", "Kernel": "[5,5]"}, (12, 1, (5, 5), True)),
        ({"ConvGroups": "3", "ConvKernel": "[7,7]"}, (3, 4, (7, 7), False)),
        ({"Groups": "0", "Kernel": "[3,3]"}, (None, None, (), False)),
        ({"Kernel": "[3,3]"}, (None, None, (), False)),
        ({}, (None, None, (), False)),
    ],
)
def test_by_keys(draw: SimpleNamespace, attributes: Told, expected: tuple[object, ...]) -> None:
    """Groups and kernel as recorded; channels are those of the input, by group."""
    layer = draw.layer("CaskConvolution", "c", "x:Half[2,12,8,8]", "y:Half[2,24,4,4]")
    conv = only(replace(layer, attributes=attributes), draw)
    assert (conv.groups, conv.channels, conv.kernel, conv.is_depthwise) == expected
    assert (conv.rows, conv.written, conv.dtype) == (2 * 4 * 4, 24, "fp16")


def test_by_constants(draw: SimpleNamespace) -> None:
    """A constant of four dimensions that is as long as the output has channels holds the weights."""
    constants = "b:Float[1,24,1,1] w:Float[24,3,5,5]"
    conv = only(draw.layer("correlation", "c", "x:Float[1,12,8,8]", "y:Float[1,24,8,8]", constants=constants), draw)
    assert (conv.groups, conv.channels, conv.kernel) == (4, 3, (5, 5))


def test_by_the_graph(draw: SimpleNamespace) -> None:
    """The weights' own shape, whatever the kernel's padded input is like; transposed ones the other way round."""
    graph = draw.graph(
        """n (float16[1,6,8,8] x) => (float16[1,8,16,16] y) {
        [c] a = Conv <group = 2, pads = [1,1,1,1]> (x, w)
        [t] y = ConvTranspose <strides = [2,2], kernel_shape = [2,2]> (a, v)
        }""",
        w=(6, 3, 3, 3),
        v=(6, 8, 2, 2),
    )
    first = draw.layer("correlation", "c_myl0_0", "x:FP8[1,8,8,8]", "a:Half[1,6,8,8]", nodes="c")
    second = draw.layer("deconv", "t_myl0_1", "a:Half[1,6,8,8]", "y:Half[1,8,16,16]", nodes="t")
    found = convolutions(EngineView(draw.engine(first, second), graph))
    assert [(conv.nodes, conv.groups, conv.channels, conv.kernel) for conv in found] == [
        (("c",), 2, 3, (3, 3)),
        (("t",), 1, 6, (2, 2)),
    ]


def test_what_is_multiplied(draw: SimpleNamespace) -> None:
    """8-bit inputs before others, and TF32 where the name says so; a depthwise kernel is known by its name too."""
    residual = draw.layer("CaskConvolution", "c", "r:Half[1,8,8,8] x:Int8[1,8,8,8]", "y:Half[1,8,8,8]")
    assert only(residual, draw).dtype == "int8"
    named = replace(draw.layer("CaskConvolution", "c", "x:Float[1,8,8,8]", "y:Float[1,8,8,8]"), tactic="sm80_tf32f32")
    assert only(named, draw).dtype == "tf32"
    assert only(replace(residual, kind="CudaDepthwiseConvolution"), draw).is_depthwise


def test_unknown_sizes(draw: SimpleNamespace) -> None:
    """Nothing is made of sizes that a dynamic engine does not know, nor of layers without tensors."""
    layer = replace(
        draw.layer("CaskConvolution", "c", "x:Half[1,-1,8,8]", "y:Half[-1,8,8,8]"), attributes={"Groups": "1"}
    )
    conv = only(layer, draw)
    assert (conv.rows, conv.groups, conv.channels) == (None, None, None)
    assert convolutions(EngineView(draw.engine(draw.layer("CaskConvolution", "Conv_1")), None)) == ()
