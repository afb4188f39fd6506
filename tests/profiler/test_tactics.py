"""What kernels' names tell. The names are those of recordings and of public threads."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fusescope.profiler.tactics import has_tensor_cores, on_tensor_cores

ON = (
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize64x64x64_stage4_g1_tensor16x8x16",
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x32_cgasize1x1x1_warpgroupsize1x1x1",
    "sm50_xmma_convolution_depthwiseHMMA_FP16NHWCx8_TR3_TS3_STRIDEH1_STRIDEW1",
    "ampere_h16816cudnn_128x64_sliced1x2_ldg8_relu_exp_stages_64x3_small_nhwc_tn_v1",
    "trt_turing_cutlass_image_network_first_layer_hmma_fprop_f16f16f32_nhwc_nhwc_k64r7s7c4_stride2x2",
    "cutlass3x_sm100_tensorop_s128x128x8tf32implicit_gemm_fprop_f32_f32_f32_f32_f32_f32_128x128x32",
    "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
    "volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
)
OFF = (
    "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1",
    "maxwell_scudnn_128x32_relu_small_nn_v0",
    "volta_fp16_scudnn_fp16_128x32_relu_small_nn_v1",
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_g1_ffma_t1r5s5",
    "sm80_xmma_fprop_wngd_f32f32_f32_f32_nchwkcrs_nchw_tilesize8x16x64x8_warpsize8x1x1_wngd2x2",
    "sm50_xmma_conv_fprop_fused_conv_act_fp32_NCHW_fp32_NCHW_KCRS_fp32_fp32_fp32_Accfloat_1_1_cC1_dC1",
    "sm50_xmma_cublas_gemvx_f32f32_f32_f32_nn_n_int32_unit_n_launch_param64x8x8_strided_unit_stride",
    "sm70_xmma_gemm_as_conv1x1_f16f16_f16_f16_tn_n_simt_small_batch_bias_relu",
)
SILENT = ("", "__myelin_CASK_STUB", "0x5b8bf1b8028629d9", "sm50_xmma_convolution_trt_depthwiseFP32NHWC4_fp32nhwcx4")


@pytest.mark.parametrize(
    ("tactic", "expected"),
    [*((name, True) for name in ON), *((name, False) for name in OFF), *((name, None) for name in SILENT)],
)
def test_units(tactic: str, expected: bool | None) -> None:
    """Tensor cores, the ordinary units, or not told."""
    assert on_tensor_cores(tactic) is expected


@pytest.mark.parametrize(
    ("target", "tactics", "expected"),
    [
        ("sm61", (OFF[0],), False),
        ("sm70", (), True),
        ("sm120", (OFF[2],), True),
        ("", (OFF[2],), False),
        ("", (OFF[2], OFF[0]), True),
        ("", (OFF[2], ON[2]), True),
        ("", ("", "maxwell_scudnn_128x32_relu_small_nn_v0"), False),
        ("", (OFF[6],), False),
    ],
)
def test_gpus_with_tensor_cores(draw: SimpleNamespace, target: str, tactics: tuple[str, ...], expected: bool) -> None:
    """The target decides where it is known, else kernels that only such a GPU can run."""
    layers = (replace(draw.layer("CaskConvolution", "c"), tactic=tactic) for tactic in tactics)
    assert has_tensor_cores(target, draw.engine(*layers)) is expected
