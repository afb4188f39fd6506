"""The matrix on hand-made rows: changes in words, the gate, how rules fare, and that it can be stored."""

import json
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.releases.matrix import (
    FAILED,
    HARM,
    FusionMatrix,
    Kernel,
    Row,
    SiteRow,
    against,
    changes,
    matrix_document,
    read_matrix,
    scores,
)
from fusescope.profiler.verdicts import VERDICTS

OLD, NEW = "tensorrt-rtx==1.0", "tensorrt-rtx==2.0"
CONV = Kernel("conv", "conv", ("fp8",), ("fp16",))
QUANTIZE = Kernel("MulCast", "quantize", ("fp16",), ("fp8",))


def row(release: str, verdict: str = "alone", *kernels: Kernel, failure: str = "", pattern: str = "p") -> Row:
    """One site `t` with a verdict, and the kernels of the engine."""
    sites = () if failure else (SiteRow("t", verdict, "separate", "rule", ("like",)),)
    return Row(pattern, release, FAILED if failure else verdict, kernels or (CONV, QUANTIZE), sites, failure)


def matrix_of(*rows: Row) -> FusionMatrix:
    """The rows as a matrix."""
    return FusionMatrix("sm120", {each.pattern: "a question" for each in rows}, rows)


def test_every_verdict_has_a_harm() -> None:
    """No verdict can turn up that changes cannot be sorted by."""
    assert set(VERDICTS) <= set(HARM)


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [
        ("fused", "alone", "worse"),
        ("alone", "fused", "better"),
        ("merged", "alone", "worse"),
        ("alone", "lost", "worse"),
    ],
)
def test_a_verdict_that_changed_is_said_in_words(before: str, after: str, direction: str) -> None:
    """A fusion lost is worse, one gained is better."""
    (change,) = changes(matrix_of(row(OLD, before), row(NEW, after)))
    assert (change.what, change.direction) == (f"t: {before} became {after}", direction)
    assert (change.before, change.after) == (OLD, NEW)


def test_one_kernel_that_became_two_is_worse() -> None:
    """The kernels that both have are left out of the words."""
    transposing = Kernel("TranCast", "copy", ("fp16",), ("fp32",))
    halves = (Kernel("Tran", "copy", ("fp16",), ("fp16",)), Kernel("Cast", "reformat", ("fp16",), ("fp32",)))
    (change,) = changes(matrix_of(row(OLD, "alone", CONV, transposing), row(NEW, "alone", CONV, *halves)))
    assert change.what == "one kernel became two kernels: TranCast (fp32) became Tran (fp16) + Cast (fp32)"
    assert change.direction == "worse"


def test_an_output_of_another_dtype_is_different() -> None:
    """The same kernel that writes another element type is named with both."""
    wide = Kernel("conv", "conv", ("fp8",), ("fp32",))
    (change,) = changes(matrix_of(row(OLD, "alone", CONV), row(NEW, "alone", wide)))
    assert (change.what, change.direction) == ("conv writes fp32 instead of fp16", "different")


def test_what_no_longer_builds_comes_first() -> None:
    """Changes are sorted by harm."""
    before = (row(OLD, "merged", pattern="a"), row(OLD, pattern="b"), row(OLD, pattern="c"))
    after = (row(NEW, pattern="a"), row(NEW, failure="cannot", pattern="b"), row(NEW, "fused", pattern="c"))
    found = changes(matrix_of(*before, *after))
    assert [(change.pattern, change.direction) for change in found] == [("b", "worse"), ("a", "worse"), ("c", "better")]
    assert found[0].what == "no longer builds: cannot"


def test_releases_that_agree_have_no_changes() -> None:
    """The same rows give no change."""
    assert changes(matrix_of(row(OLD), row(NEW))) == ()


def test_runtimes_are_never_compared_with_each_other() -> None:
    """What one runtime does says nothing of the other."""
    assert changes(matrix_of(row("tensorrt==11.0", "fused"), row(NEW, "alone"))) == ()


def test_a_stored_matrix_is_read_back(tmp_path: Path) -> None:
    """What is written is read back, kernels and sites included."""
    found = matrix_of(row(OLD), row(NEW, failure="cannot"))
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(matrix_document(found, ())))
    assert read_matrix(path) == found


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "fusescope.releases", "version": 1}', "\0"])
def test_what_is_no_matrix_is_refused(tmp_path: Path, content: str) -> None:
    """The message says how to make one."""
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UserError, match="--write-baseline"):
        read_matrix(path)


def test_a_baseline_is_compared_with_its_newest_release() -> None:
    """The gate sees what was lost since then, also within one release name."""
    stored = matrix_of(row(OLD, "alone"), row(NEW, "fused"))
    (change,) = against(stored, matrix_of(row(NEW, "alone")))
    assert (change.before, change.direction) == (f"{NEW} (stored)", "worse")
    assert against(stored, matrix_of(row(NEW, "fused"))) == ()


def test_a_baseline_of_another_target_or_runtime_is_refused() -> None:
    """Neither can be compared."""
    stored = matrix_of(row(OLD))
    with pytest.raises(UserError, match="sm120, not sm89"):
        against(stored, FusionMatrix("sm89", {}, ()))
    with pytest.raises(UserError, match="no release of tensorrt"):
        against(stored, matrix_of(row("tensorrt==11.0")))


def test_a_rule_is_borne_out_by_verdicts() -> None:
    """`separate` is borne out by any kernel apart, not by a fusion."""
    (score,) = scores(matrix_of(row(NEW, "merged"), row(NEW, "fused", pattern="q")))
    assert (score.rule, score.sites, score.borne_out) == ("rule", 2, 1)
