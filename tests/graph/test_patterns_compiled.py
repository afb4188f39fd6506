"""The fusion pattern suite compiled with TensorRT for RTX, once, against what is known of that compiler."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from fusescope.graph.model import graph_of
from fusescope.graph.patterns import PATTERNS, Pattern, case_named, cases
from fusescope.graph.rules import predictions
from fusescope.graph.sites import quantize_sites
from fusescope.profiler.artifacts.oneline import read_oneline
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.build import start_worker
from fusescope.profiler.runtimes import CompileOptions
from fusescope.profiler.verdicts import Verdict, verdicts
from fusescope.profiler.worker import BUILD_LOG, LAYERS, OUTCOME

pytestmark = pytest.mark.compiles

RELEASE = "1.7."
"""What is known is of TensorRT for RTX 1.7. (1.6.1.120 refuses every INT8 conv for sm120.)"""

REFUSED: dict[str, str] = {}
"""Cases that the compiler refuses, with its words: none."""

# Microprobes of TensorRT for RTX 1.7.1 with nets drawn apart from this suite: where the Quantize in question ended up.
# A conv with one weight scale has bias and Relu inside and writes float16; one with a scale for each channel writes
# float32, and the next kernel finishes it.
PROBED = {
    "conv-relu/fp8/per-tensor": {"relu": "alone"},
    "conv-relu/fp8/per-channel": {"relu": "epilogue"},
    "conv-relu/int8/per-tensor": {"relu": "alone"},
    "conv-relu/int8/per-channel": {"relu": "epilogue"},
    "run-time-weights/fp8/per-tensor": {"relu": "alone"},
    "run-time-weights/fp8/per-channel": {"relu": "epilogue"},
    # Not in the conv, but together with the Quantize.
    "conv-silu/fp8/per-tensor": {"silu": "merged"},
    "conv-hard-swish/fp8/per-tensor": {"hard_swish": "merged"},
    "conv-leaky-relu/fp8/per-tensor": {"leaky_relu": "merged"},
    "resize-then-quantize/fp8/per-tensor": {"resize": "merged"},
    # The sum is outside of an FP8 conv, whether the skip is quantized or not.
    "residual-add-fp16-skip/fp8/per-tensor": {"relu": "merged"},
    "residual-add-fp16-skip-second-reader/fp8/per-tensor": {"relu": "merged"},
    "residual-add-quantized-skip/fp8/per-tensor": {"relu": "merged"},
    # A max pool is a float16 kernel; behind a Dequantize it costs the conv its 8 bits, as an average pool does.
    "max-pool-then-quantize/fp8/per-tensor": {"pool": "alone"},
    "quantize-then-max-pool/fp8/per-channel": {"relu": "lost"},
    "average-pool-quantized/fp8/per-channel": {"relu": "lost", "pool": "alone"},
    # More than 32 taps, transposed convs, and operands of one side only fall back to float16.
    "large-kernel-conv/fp8/per-channel": {"relu": "lost"},
    "transposed-conv/fp8/per-channel": {"relu": "lost"},
    "unquantized-weights/fp8/per-channel": {"relu": "lost"},
    # Bias and Relu of a conv of groups, and of a gemm, are outside, even with one weight scale.
    "grouped-conv/fp8/per-tensor": {"relu": "alone", "grouped_relu": "epilogue"},
    "gemm-chain/fp8/per-tensor": {"relu": "epilogue"},
    "depthwise-conv/fp8/per-tensor": {"relu": "alone"},
    # The branches of a Concat are quantized one by one.
    "concat-then-quantize/fp8/per-tensor": {"concat": "alone"},
}

PADDED = {"channels-3", "channels-17", "channels-18", "depthwise-conv"}
"""Patterns for which a kernel pads channels to what an 8-bit conv reads."""

UNKNOWN = {
    # The only reader is the Add, inside of a conv that does read 8 bits, but of another tensor.
    ("fuse-sum-strided-quantized-branch/int8/per-tensor", "x"),
}
"""Quantizes of a pattern, or of a case, whose end the verdicts do not know."""

MISJUDGED = {
    "quantize-then-max-pool",  # lost, which no rule says: the conv behind a float16 pool
    "average-pool-quantized",  # lost, which no rule says: a pool that could run in 8 bits, but does not
    "quantize-then-split",  # not lost, as the rule says: the compiler splits 8 bits
    "quantize-then-pad",  # not lost, as the rule says: the pad becomes part of the conv
}
"""Patterns of which the rules for TensorRT for RTX say something else than its compiler does."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case compiled for sm120 by one worker: a folder for each, numbered in the order of the suite."""
    folder = tmp_path_factory.mktemp("suite")
    models = {}
    for number, case in enumerate(cases()):
        path = folder / f"{number}.onnx"
        path.write_bytes(case.model().SerializeToString(deterministic=True))
        models[f"case{number}"] = str(path)
    asked = {"runtime": "tensorrt-rtx", "options": asdict(CompileOptions(target="sm120")), "models": models}
    with start_worker(asked, folder / "request.json", folder) as worker:
        _, complaint = worker.communicate()
    assert worker.returncode == 0, complaint
    release = json.loads((folder / "case0" / OUTCOME).read_text(encoding="utf-8"))["version"]
    if not release.startswith(RELEASE):
        pytest.skip(f"TensorRT for RTX {release} is installed; what it does is not known here")
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Callable[[str], EngineView]:
    """What gives the compiled engine of a case beside its graph."""
    numbers = {case.name: number for number, case in enumerate(cases())}

    @cache
    def view(name: str) -> EngineView:
        dump = (folder / f"case{numbers[name]}" / LAYERS).read_text(encoding="utf-8", errors="surrogateescape")
        return EngineView(read_oneline(dump), graph_of(case_named(name).model()))

    return view


def judged(view: EngineView) -> dict[str, Verdict]:
    """Return the verdicts of an engine by tensor."""
    return {verdict.site.tensor: verdict for verdict in verdicts(view, quantize_sites(view.graph))}


def test_every_case_is_compiled(folder: Path) -> None:
    """The compiler takes every case, but for those listed with its words."""
    refused = {}
    for number, case in enumerate(cases()):
        outcome = json.loads((folder / f"case{number}" / OUTCOME).read_text(encoding="utf-8"))
        if not outcome["plan_bytes"]:
            refused[case.name] = (folder / f"case{number}" / BUILD_LOG).read_text(encoding="utf-8")
    assert refused.keys() == REFUSED.keys()
    assert all(words in refused[name] for name, words in REFUSED.items())


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_every_site_has_a_verdict(pattern: Pattern, engine: Callable[[str], EngineView]) -> None:
    """No dump has unread lines, and no Quantize in question is unaccounted for, but for those listed."""
    for case in cases([pattern]):
        view = engine(case.name)
        assert not view.engine.unread, case.name
        unknown = {tensor for tensor, found in judged(view).items() if found.verdict == "unknown"}
        assert unknown == {tensor for known, tensor in UNKNOWN if f"{case.name}/".startswith(f"{known}/")}, case.name


@pytest.mark.parametrize("name", PROBED)
def test_verdict(name: str, engine: Callable[[str], EngineView]) -> None:
    """The Quantizes in question end up where the probes found them."""
    found = judged(engine(name))
    assert {tensor: found[tensor].verdict for tensor in PROBED[name]} == PROBED[name]


@pytest.mark.parametrize("form", ["fp8", "int8"])
def test_conv_never_writes_8_bits(form: str, engine: Callable[[str], EngineView]) -> None:
    """No conv of TensorRT for RTX writes an 8-bit tensor in a chain of convs, whatever stands between."""
    for pattern in PATTERNS:
        if pattern.family in {"conv chain", "activation", "residual", "fuse sum"}:
            for case in cases([pattern]):
                if case.format == form:
                    assert "fused" not in {found.verdict for found in judged(engine(case.name)).values()}, case.name


def test_channels_are_padded(engine: Callable[[str], EngineView]) -> None:
    """A kernel pads the channels of the patterns that ask about it, and of no other."""
    padded = {
        case.pattern.name
        for case in cases()
        if case.format == "fp8" and any(attribution.pads for attribution in engine(case.name).attributions)
    }
    assert padded == PADDED


def test_run_time_weights_are_folded(engine: Callable[[str], EngineView]) -> None:
    """Weights that are quantized at run time give the same kernels as weights stored in 8 bits."""
    for granularity in ("per-tensor", "per-channel"):
        folded, run_time = (
            [(found.group, [tensor.dtype for tensor in found.layer.outputs]) for found in view.attributions]
            for view in (engine(f"{name}/fp8/{granularity}") for name in ("conv-relu", "run-time-weights"))
        )
        assert folded == run_time


def test_equal_quantizes_are_one(engine: Callable[[str], EngineView]) -> None:
    """Two Quantizes of one scale are one kernel; two of different scales are two kernels, or two results of one."""
    for form in ("fp8", "int8"):
        equal, different = (
            judged(engine(f"{name}/{form}/per-channel"))["relu"].kernels
            for name in ("duplicate-quantizes", "different-quantizes")
        )
        assert [sum(tensor.is_eight_bit for tensor in layer.outputs) for layer in equal] == [1]
        assert sum(tensor.is_eight_bit for layer in different for tensor in layer.outputs) == 2


def test_rtx_rules_on_what_is_lost(engine: Callable[[str], EngineView]) -> None:
    """In FP8, what the rules for TensorRT for RTX say is lost is lost, and nothing else, but where they err."""
    wrong = set()
    for case in cases():
        if case.format == "fp8":
            view = engine(case.name)
            sites = quantize_sites(view.graph)
            expected = predictions(view.graph, sites, "tensorrt-rtx", "sm120")
            said = {site.tensor for site, found in zip(sites, expected, strict=True) if found.prediction == "lost"}
            if said != {tensor for tensor, found in judged(view).items() if found.verdict == "lost"}:
                wrong.add(case.pattern.name)
    assert wrong == MISJUDGED
