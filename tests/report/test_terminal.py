"""The explanation as text: plain in a pipe, safe on a terminal, and true to the explanation."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fusescope.graph.rules import Prediction
from fusescope.graph.sites import QuantizeSite
from fusescope.graph.units import count, megabytes
from fusescope.profiler.explanation import Coverage, Explanation, Trial
from fusescope.report.terminal import print_comparison, print_explanation, print_sites
from fusescope.study.runner import StudyResult

HOSTILE = "[red]n[/red][/dim] [link=x]\\ :warning: \x1b[31m\x1b]0;t\x07\x9b2J\r\n\u202e\udc80"
SHOWN = r"[red]n[/red][/dim] [link=x]\ :warning: \x1b[31m\x1b]0;t\x07\x9b2J\r\n\u202e\udc80"
SPEED = re.compile(r"\b(fast|slow|speed|pays?\b|(?<!ahead of )time|latency|millisecond|ms\b)|%", re.IGNORECASE)

Text = Callable[..., str]


@pytest.fixture(name="text")
def _text(capsys: pytest.CaptureFixture[str]) -> Text:
    """Return a function that calls a print function and gives what it printed to stdout."""

    def text(show: Callable[..., None], *arguments: object) -> str:
        capsys.readouterr()
        show(*arguments)
        out, err = capsys.readouterr()
        assert not err
        return out

    return text


def rows(text: str) -> dict[str, list[str]]:
    """Read the lines of tables: what is left of the first gap of two blanks, and the cells right of it."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {first: cells for first, *cells in lines}


def test_in_a_pipe(text: Text, pair: Explanation) -> None:
    """No colours and no control characters, and no line longer than the pipe's width."""
    shown = text(print_explanation, pair)
    assert shown.replace("\n", "").isprintable()
    assert max(map(len, shown.splitlines())) <= 120


def test_on_a_terminal(text: Text, pair: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where colours are wanted they are there, around the same words."""
    plain = text(print_explanation, pair)
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = text(print_explanation, pair)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_the_balance(text: Text, pair: Explanation) -> None:
    """Each side's kernels and bytes, and their difference; bytes of the hand-drawn rows add up to these."""
    shown = rows(text(print_explanation, pair))
    assert shown["kernels"] == ["3", "6", "+3"]
    assert shown["traffic"] == ["3.80 MB", "5.75 MB", "+1.95 MB"]


def test_the_groups(text: Text, pair: Explanation) -> None:
    """A row for each group that has kernels on either side, with both sides' kernels and bytes."""
    shown = rows(text(print_explanation, pair))
    assert shown["conv"] == ["2", "3.50 MB", "2", "2.70 MB"]
    assert shown["quantize"] == ["0", "0 MB", "1", "750.0 kB"]
    assert "norm" not in shown


def test_the_quantizes(text: Text, pair: Explanation) -> None:
    """What quantizing costs is an interval, and each verdict that occurs is explained."""
    shown = " ".join(text(print_explanation, pair).split())
    assert "between the 1 that do nothing else (750.0 kB) and all 3 (2.75 MB)" in shown
    assert "alone: the kernel reads the tensor in high precision and only quantizes" in shown
    assert "lost:" not in shown


def test_the_findings(text: Text, pair: Explanation) -> None:
    """Findings are numbered, with where they are, what to try, and whether that was tried; the rest is counted."""
    tried = replace(pair.findings[2], trials=(Trial("per-tensor", -2, -500_000),))
    many = tuple(replace(pair.findings[3], key=f"other-{index}") for index in range(9))
    shown = text(print_explanation, replace(pair, findings=(tried, *many)))
    assert "1. about epilogue-split (900.0 kB)" in shown
    assert "try: scale the weights per tensor (proved)" in shown
    assert "tried in per-tensor: -2 kernels, -500.0 kB of traffic" in shown
    assert "4 more: see the report or --json" in shown


def test_observed_and_expected(text: Text, pair: Explanation) -> None:
    """What was observed of one compiler and what is expected of another are separate sentences."""
    shown = " ".join(text(print_explanation, pair).split())
    assert pair.observed in shown
    assert pair.expected in shown
    assert shown.index(pair.observed) < shown.index(pair.expected)


def test_one_engine(text: Text, pair: Explanation) -> None:
    """Without a baseline there is one column and no difference."""
    alone = replace(pair, baseline=None, baseline_layers=None, groups=pair.groups[["quantized"]])
    shown = text(print_explanation, alone)
    assert rows(shown)["kernels"] == ["6"]
    assert "difference" not in shown
    assert "against" not in shown.splitlines()[1]


def test_what_is_not_understood(text: Text, pair: Explanation) -> None:
    """Each kind of gap is counted and shown, whatever it holds."""
    coverage = Coverage(7, 5, 5_750_000, 5_000_000, (HOSTILE,), ("mystery",), ("fp3",), 4, ("/gone",))
    shown = " ".join(text(print_explanation, replace(pair, coverage=coverage)).split())
    for word in ("mystery", "fp3", "/gone", "4 tensors", "2 layers", " ".join(SHOWN.split())):
        assert word in shown


def test_names_appear_as_text(text: Text, pair: Explanation) -> None:
    """Markup, emoji codes and control characters of names are shown, never obeyed."""
    origin = replace(pair.quantized.provenance, name=HOSTILE, model_name=HOSTILE, weights=HOSTILE, scales=HOSTILE)
    finding = replace(
        pair.findings[2],
        title=HOSTILE,
        detail=HOSTILE,
        nodes=(HOSTILE,) * 5,
        remedy=HOSTILE,
        trials=(Trial(HOSTILE, 0, 0),),
    )
    hostile = replace(
        pair,
        quantized=replace(pair.quantized, provenance=origin),
        reasons=pair.reasons.rename(index=lambda _: HOSTILE),
        findings=(finding,),
        observed=HOSTILE,
        expected=HOSTILE,
    )
    for show, what in ((print_explanation, hostile), (print_comparison, [hostile])):
        shown = text(show, what)
        assert shown.replace("\n", "").isprintable()
        assert SHOWN.split(maxsplit=1)[0] in shown
        assert ":warning:" in shown


def test_sites_appear_as_text(text: Text) -> None:
    """The same of the sites of a graph: tensors, operations, readers and reasons may be called anything."""
    site = QuantizeSite(
        tensor=HOSTILE,
        format="fp8",
        quantize=("q",),
        dequantize=(),
        producer=HOSTILE,
        producer_kind=HOSTILE,
        path=(),
        readers=("r",),
        high_precision_readers=(HOSTILE,),
        branch_readers=(),
        is_graph_output=False,
        shape=None,
        dtype="",
    )
    prediction = Prediction("separate", "rule", HOSTILE, "explanation", "source", "")
    shown = text(print_sites, [site], [prediction])
    assert shown.replace("\n", "").isprintable()
    assert "1 Quantize site," in shown
    joined = re.sub(r"\s", "", shown)
    assert joined.count(re.sub(r"\s", "", r"[red]n[/red][/dim]")) == 4


@pytest.mark.compiles
class TestCompiled:
    """What is printed of engines that were compiled."""

    def test_no_word_about_speed(self, text: Text, tiny_study: tuple[Path, StudyResult]) -> None:
        """Nothing ran, so nothing is said of speed, time or percent."""
        explanations = tiny_study[1].explanations
        for shown in (text(print_comparison, explanations), *(text(print_explanation, each) for each in explanations)):
            assert not SPEED.search(shown), SPEED.search(shown)

    def test_a_line_per_engine(self, text: Text, tiny_study: tuple[Path, StudyResult]) -> None:
        """The baseline is there once, and each engine with its own figures."""
        first, second = tiny_study[1].explanations
        shown = rows(text(print_comparison, [first, second]))
        assert list(shown)[2:] == ["fp16", "fp8", "fp8-per-tensor"]
        assert first.baseline
        for side in (first.baseline, first.quantized, second.quantized):
            batch, kernels, _, traffic, *_ = shown[side.provenance.name]
            assert (batch, kernels, traffic) == ("1", count(side.kernels), megabytes(side.traffic_bytes))

    def test_the_terminal_says_what_the_data_says(self, text: Text, tiny_study: tuple[Path, StudyResult]) -> None:
        """Every group with kernels has its row, with the figures of the explanation."""
        (explanation, _) = tiny_study[1].explanations
        shown = rows(text(print_explanation, explanation))
        for group, figures in explanation.groups.iterrows():
            kernels = (figures["baseline", "kernels"], figures["quantized", "kernels"])
            if any(kernels):
                assert (int(shown[str(group)][0]), int(shown[str(group)][2])) == kernels
            else:
                assert group not in shown
