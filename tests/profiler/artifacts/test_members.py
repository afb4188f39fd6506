"""What names of layers say: the patterns that TensorRT 7.1 to 11 composes them by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.profiler.artifacts.members import members_of, with_members
from fusescope.profiler.layers import Engine, Layer, Tensor

NAMES = {
    "Conv_0": "Conv_0",
    "/conv3/Conv + /Add + /relu_2/Relu": "/conv3/Conv | /Add | /relu_2/Relu",
    "conv1.weight + QuantizeLinear_20 + Conv_22": "conv1.weight | QuantizeLinear_20 | Conv_22",
    "Conv_62 + Relu_63 || Conv_65 + Relu_66": "Conv_62 | Relu_63 | Conv_65 | Relu_66",
    "PWN(PWN(/Sub), PWN(/Div))": "/Sub | /Div",
    "/features.0/Conv + PWN(/features.0/Clip)": "/features.0/Conv | /features.0/Clip",
    "PWN((Unnamed Layer* 11) [ElementWise] + node_relu_2)": "(Unnamed Layer* 11) [ElementWise] | node_relu_2",
    "PWN(a, b": "PWN(a, b",
    "a) + PWN(b)": "a) | PWN(b)",
    "a, b + c": "a, b | c",
    "{ForeignNode[node_conv2d...node_relu]}": "node_conv2d | node_relu",
    "{ForeignNode[norm1.weight + Broadcast.../T + /R]} [profile 1]": "norm1.weight | Broadcast | /T | /R",
    "{ForeignNode[(Unnamed Layer* 0) [Identity]]}": "(Unnamed Layer* 0) [Identity]",
    "{conv1/7x7_s2,conv1/relu_7x7}": "conv1/7x7_s2 | conv1/relu_7x7",
    "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1": "",
    "conv1 + relu1 input reformatter 0": "",
    "/onnx::Expand_4941_clone_3": "/onnx::Expand_4941_clone_3",
    "node_linear [profile 1]_myl11_2": "node_linear",
    "/attn/MatMul_2+/attn/MatMul_1_myl3_1": "/attn/MatMul_2 | /attn/MatMul_1",
    "__mye63898+__mye63886+/MatMul_myl2_17": "/MatMul",
    "__myl_MaxrSubExpSum_myl5_4": "",
    "__mye260_0_myl5_0": "",
    " _myl0_0": "",
    "dummy_shape_call__mye622_0_myl9_0": "",
    "_gemm_mha_v2_myl0_7": "",
    "[CONVOLUTION]-[aten_ops.convolution.default]-[/conv1] + [RELU]-[aten_ops.relu]-[/act]": (
        "[CONVOLUTION]-[aten_ops.convolution.default]-[/conv1] | [RELU]-[aten_ops.relu]-[/act]"
    ),
    "[MATRIX_MULTIPLY]_[aten_ops_addmm_default]_[/fc]_myl121_1": "[MATRIX_MULTIPLY]_[aten_ops_addmm_default]_[/fc]",
}


@pytest.mark.parametrize(("name", "members"), NAMES.items())
def test_members_of_a_name(name: str, members: str) -> None:
    """A composed name is taken apart; one that TensorRT made up by itself has no members."""
    assert members_of(name) == tuple(filter(None, members.split(" | ")))


@given(
    st.text() | st.lists(st.sampled_from([*NAMES, "PWN(", ")", "(", " + ", ", ", "{ForeignNode[", "..."])).map("".join)
)
def test_any_name_has_members(name: str) -> None:
    """Each once, none of them empty."""
    members = members_of(name)
    assert len(set(members)) == len(members)
    assert all(members)


def engine_of(*names: str, tensor: str = "") -> Engine:
    """An engine with layers of these names; the second one reads a tensor."""
    read = (Tensor(tensor, (1,), "Half"),) if tensor else ()
    return Engine(tuple(Layer(i, name, "", inputs=read if i == 1 else ()) for i, name in enumerate(names)))


def test_kernels_of_a_region_have_its_profile() -> None:
    """A generated kernel has no name that says its profile, but one of its region or a tensor of it does."""
    engine = with_members(
        engine_of("a_myl5_0", "__myl_Resh_myl11_0", "b [profile 1]_myl11_1", "__myl_Cast_myl11_2", "c", "d [profile 2]")
    )
    assert [layer.profile_index for layer in engine.layers] == [0, 1, 1, 1, 0, 2]
    engine = with_members(
        engine_of("__mye1_0_myl1_0", "__myl_Move_myl1_1", "__myl_Move_myl0_1", tensor="x [profile 1]")
    )
    assert [layer.profile_index for layer in engine.layers] == [1, 1, 0]
