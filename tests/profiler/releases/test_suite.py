"""The suite, compiled for real: with the installed release, with the one before it, and with workers that fail."""

import sys
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import onnx
import onnx.parser
import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of, load_proto
from fusescope.graph.patterns import PATTERNS, Case, cases, user_case
from fusescope.graph.sites import quantize_sites
from fusescope.profiler import build as building
from fusescope.profiler.build import CompileError
from fusescope.profiler.releases import Release, release_named
from fusescope.profiler.releases.matrix import changes, matrix
from fusescope.profiler.releases.observed import observed_predictions, stored_rules
from fusescope.profiler.releases.overlays import ensure_overlay
from fusescope.profiler.releases.suite import run_suite
from fusescope.quant.insert import quantize

SAMPLE = Path(__file__).parents[3] / "samples" / "hrnet_w18.onnx"
BEFORE = Release("tensorrt-rtx", "1.6.1.120")


def chosen(*globs: str) -> tuple[Case, ...]:
    """Cases of the patterns whose names match."""
    return cases(tuple(pattern for pattern in PATTERNS if any(fnmatchcase(pattern.name, glob) for glob in globs)))


def summary(release: Release, wanted: Sequence[Case]) -> dict[str, str]:
    """Case to verdicts in words."""
    found = matrix({release: run_suite(release, wanted, "sm120")}, "sm120")
    return {row.pattern: row.verdict for row in found.rows}


@pytest.mark.compiles
def test_the_installed_release_does_what_its_stored_matrix_says() -> None:
    """A matrix is the same from run to run: rows, kernels and verdicts equal those that were stored."""
    release = release_named("installed")
    try:
        stored = stored_rules(release.name.replace("==", "-"))
    except UserError:
        pytest.skip(f"no matrix is stored of {release.name}")
    wanted = chosen("conv-*", "residual-*", "*pool*", "concat*", "depthwise*")
    again = matrix({release: run_suite(release, wanted, "sm120")}, "sm120")
    names = {case.name for case in wanted}
    assert again.rows == tuple(row for row in stored.rows if row.pattern in names)


@pytest.mark.compiles
def test_the_release_before_differs_where_it_is_known_to() -> None:
    """1.6.1 folds into the convolution what 1.7.1 does in a kernel of its own, and cannot build INT8 convolutions."""
    after = release_named("installed")
    if after.version != "1.7.1.116":
        pytest.skip("the differences are known between 1.6.1.120 and 1.7.1.116")
    try:
        overlay = ensure_overlay(BEFORE, lambda _: None)
    except UserError as error:
        pytest.skip(str(error))
    wanted = chosen("quantize-then-max-pool", "conv-relu")
    results = {
        BEFORE: run_suite(BEFORE, wanted, "sm120", overlay=overlay),
        after: run_suite(after, wanted, "sm120"),
    }
    found = changes(matrix(results, "sm120"))
    assert {change.pattern for change in found if change.what == "builds now"} == {
        case.name for case in wanted if case.format == "int8"
    }
    split = {change.pattern for change in found if change.what.startswith("one kernel became two kernels")}
    assert split == {"quantize-then-max-pool/fp8/per-tensor", "quantize-then-max-pool/fp8/per-channel"}


@pytest.mark.compiles
def test_a_model_of_ones_own_joins_the_suite() -> None:
    """HRNet-W18 as it is has no Quantize, and is compiled like a pattern."""
    assert summary(release_named("installed"), [user_case(SAMPLE)]) == {SAMPLE.name: "no Quantize"}


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("weights", "expected"),
    [("per-channel", {"epilogue": 141, "merged": 138, "alone": 1}), ("per-tensor", {"merged": 138, "alone": 142})],
)
def test_the_stored_rules_foretell_what_the_compiler_does_with_hrnet(weights: str, expected: dict[str, int]) -> None:
    """What 1.7.1 was seen to do with patterns of a few nodes is what it does with HRNet-W18 (facts: DESIGN 2)."""
    graph = graph_of(quantize(load_proto(SAMPLE), weights=weights).proto)
    predicted = observed_predictions(graph, quantize_sites(graph), stored_rules("tensorrt-rtx-1.7"))
    assert Counter(prediction.reason for prediction in predicted) == expected


def test_rules_that_are_not_stored_name_those_that_are() -> None:
    """The message lists the rule sets."""
    with pytest.raises(UserError, match=r"tensorrt-rtx-1\.7\.1\.116"):
        stored_rules("tensorrt-11")


@pytest.mark.compiles
def test_what_the_compiler_refuses_is_a_row_with_its_words(tmp_path: Path) -> None:
    """A model with an operation that the parser does not know fails alone; the others are compiled."""
    strange = tmp_path / "strange.onnx"
    text = '<ir_version: 9, opset_import: ["" : 19]> strange (float[2,2] x) => (float y) { y = Det (x) }'
    onnx.save(onnx.parser.parse_model(text), strange)
    one = chosen("conv-relu")[0]
    refused, compiled = run_suite(release_named("installed"), [user_case(strange), one], "sm120")
    assert refused.failure
    assert not refused.verdicts
    assert compiled.verdicts


def _dying(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the worker run `code` with the request `asked` and the folder; `compile_into` really compiles."""
    script = (
        "import json, os, signal, sys, time; from pathlib import Path\n"
        "from fusescope.profiler import worker\n"
        "asked, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])\n"
    )
    monkeypatch.setattr(building, "WORKER", (sys.executable, "-c", script + code))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, twice"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV, twice"),
        ("time.sleep(60)", "did not finish within 3 s, twice"),
        ("sys.exit('out of something')", "out of something, twice"),
    ],
)
def test_a_worker_that_dies_at_a_case_is_tried_again_and_then_reported(
    monkeypatch: pytest.MonkeyPatch, end: str, words: str
) -> None:
    """The case that it died at fails; those before and after it are compiled."""
    _dying(
        monkeypatch,
        "if 'case1' in asked['models']:\n"
        "    models = asked['models']\n"
        "    asked['models'] = {k: v for k, v in models.items() if k == 'case0'}\n"
        "    Path(sys.argv[1]).write_text(json.dumps(asked)); worker.work(Path(sys.argv[1]), folder)\n"
        "    (folder / 'case1').mkdir(exist_ok=True); (folder / 'case1' / worker.BUILD_LOG).touch()\n"
        f"    {end}\n"
        "worker.work(Path(sys.argv[1]), folder)\n",
    )
    done: list[int] = []
    first, dead, last = run_suite(
        release_named("installed"), chosen("conv-relu")[:3], "sm120", timeout_s=3, progress=done.append
    )
    assert first.verdicts
    assert words in dead.failure
    assert last.verdicts
    assert done


def test_a_worker_that_does_not_begin_ends_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no case's fault."""
    _dying(monkeypatch, "sys.exit('No module named tensorrt_rtx')")
    with pytest.raises(CompileError, match="does not begin: No module named tensorrt_rtx"):
        run_suite(Release("tensorrt-rtx", "1.0"), chosen("conv-relu")[:1], "sm120")
