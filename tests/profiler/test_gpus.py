"""The table of GPUs and that of targets: sourced, plausible, and consistent with each other."""

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.gpus import GPUS, Gpu, gpu_named
from fusescope.profiler.targets import TARGETS, check_target

every_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)


@every_gpu
def test_every_gpu_has_a_source_and_a_target(gpu: Gpu) -> None:
    """A figure without a source is no figure, and each GPU has a compute capability that is known."""
    assert "." in gpu.source.split()[0]
    assert gpu.target in TARGETS


@every_gpu
def test_rates_are_plausible(gpu: Gpu) -> None:
    """Dense 8-bit rates are about twice those of fp16 (sparse ones would be four times), memory and L2 are in range."""
    for rate in (gpu.fp8_tflops, gpu.int8_tops):
        assert rate is None or 1.9 <= rate / gpu.fp16_tflops <= 2.1
    assert 50 <= gpu.fp16_tflops <= 3000
    assert 200 <= gpu.bandwidth_gb_per_s <= 10_000
    assert gpu.l2_bytes is None or 4 << 20 <= gpu.l2_bytes <= 256 << 20


@every_gpu
def test_a_gpu_has_an_fp8_rate_exactly_if_its_target_has_fp8(gpu: Gpu) -> None:
    """Ampere and Turing have no FP8 instructions; all others of the table have."""
    assert (gpu.fp8_tflops is not None) is ("fp8" in TARGETS[gpu.target].formats)


def test_names_are_unique_whatever_their_case() -> None:
    """A name means one GPU."""
    assert len({name.lower() for name in GPUS}) == len(GPUS)
    assert all(name == gpu.name for name, gpu in GPUS.items())


@pytest.mark.parametrize("spelling", ["RTX-5090", "rtx-5090", "RTX 5090"])
def test_a_gpu_is_found_by_its_name(spelling: str) -> None:
    """Case and blanks do not matter."""
    assert gpu_named(spelling).name == "RTX-5090"


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    """The message lists what is known."""
    with pytest.raises(UserError, match=r"unknown GPU 'rtx5090'; did you mean RTX-5090\? known are T4, "):
        gpu_named("rtx5090")
    with pytest.raises(UserError, match="unknown GPU 'abacus'; known are"):
        gpu_named("abacus")


BUILDABLE = ("sm80", "sm86", "sm89", "sm120")


def test_a_target_that_fits_is_taken() -> None:
    """INT8 goes everywhere; FP8 from Ada on; formats that are not quantized to 8 bits are the compiler's business."""
    for target in BUILDABLE:
        check_target(target, BUILDABLE, ["int8"])
    check_target("sm89", BUILDABLE, ["fp8", "int8"])
    check_target("sm80", BUILDABLE, ["uint8", "unknown"])


def test_an_unknown_target_is_refused() -> None:
    """The message names the nearest and all that there are."""
    with pytest.raises(UserError, match=r"'sm_89'; did you mean sm89\? choose one of sm80, sm86, sm89, sm120"):
        check_target("sm_89", BUILDABLE, [])
    with pytest.raises(UserError, match="cannot be built for 'rocm'; choose one of"):
        check_target("rocm", BUILDABLE, [])


def test_fp8_for_a_target_without_it_is_refused() -> None:
    """The message says which targets have FP8."""
    with pytest.raises(UserError, match=r"sm86 \(Ampere\) has no FP8 instructions; choose one of sm89, sm120$"):
        check_target("sm86", BUILDABLE, ["fp8"])
