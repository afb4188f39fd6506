"""An evaluation in words and tables: true for ties, for nothing lost, for a handful of images."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.quant.evaluate import Evaluation, paired
from fusescope.quant.sensitivity import SiteSensitivity
from fusescope.report.accuracy import (
    accuracy_document,
    accuracy_markdown,
    accuracy_tables,
    print_accuracy,
    print_sensitivity,
    verdict_sentence,
)

HOSTILE = "a|b [red]\x1b[31m\n<b>"


def test_0_73_points_on_1500_images() -> None:
    """The sentence that the study needs: how much, of how many, by which images, and that it can be chance."""
    assert verdict_sentence(paired("fp32", "fp8", 36, 25, 1500)) == (
        "fp8 is 0.73 points worse than fp32 on 1,500 images (36 lost, 25 gained), which can be chance: models that are "
        "equally good differ this much in 20 % of all tries, and the true difference is -1.80 to +0.30 points, "
        "with 95 % confidence; to show a difference of this size takes about 5,900 images."
    )


def test_a_difference_that_is_shown() -> None:
    """Where the test is below 5 %, the sentence says so; a p too small for its digits is an upper bound."""
    shown = verdict_sentence(paired("fp32", "int8", 60, 20, 1500))
    assert shown.startswith(
        "int8 is 2.67 points worse than fp32 on 1,500 images (60 lost, 20 gained), more than chance"
    )
    assert "in less than 0.01 % of all tries" in shown
    assert "takes about" not in shown
    assert "2.67 points better" in verdict_sentence(paired("int8", "fp32", 20, 60, 1500))


@pytest.mark.parametrize(
    ("lost", "gained", "images", "expected"),
    [
        (
            0,
            0,
            1500,
            "b is right on the very images that a is right on, of 1,500 images (0 lost, 0 gained): the true diff",
        ),
        (
            0,
            0,
            1,
            "b is right on the very images that a is right on, of 1 image (0 lost, 0 gained): the true difference",
        ),
        (
            12,
            12,
            1500,
            "b is right on as many of 1,500 images as a (12 lost, 12 gained): the true difference is -0.69 to",
        ),
        (2, 0, 3, "b is 66.67 points worse than a on 3 images (2 lost, 0 gained), too few to show any difference: "),
        (6, 16, 161, "b is 6.21 points better than a on 161 images (6 lost, 16 gained), which is at the edge of what "),
        (1, 0, 50_000, "b is 0.002 points worse than a on 50,000 images (1 lost, 0 gained), which can be chance: mod"),
    ],
)
def test_ties_and_few_images(lost: int, gained: int, images: int, expected: str) -> None:
    """Nothing lost is no proof of equality, and a tie none either: the interval tells how far apart they may be."""
    sentence = verdict_sentence(paired("a", "b", lost, gained, images))
    assert sentence.startswith(expected)
    assert "95 % confidence" in sentence


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 4000))
def test_one_sentence_that_does_not_contradict_itself(lost: int, gained: int, rest: int) -> None:
    """One line that ends in a full stop; it claims a difference only where zero is outside of the interval."""
    if not lost + gained + rest:
        return
    pair = paired("a", "b", lost, gained, lost + gained + rest)
    sentence = verdict_sentence(pair)
    assert sentence.count(". ") == 0
    assert sentence.endswith(".")
    assert ("more than chance" in sentence) == (pair.p < 0.05)
    if "more than chance" in sentence:
        assert pair.low > 0 or pair.high < 0
    if "can be chance" in sentence:
        assert pair.low <= 0 <= pair.high
    if takes := re.search(r"about ([\d,]+) images", sentence):
        assert float(takes[1].replace(",", "")) >= 0.95 * pair.images


def test_the_terminal(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    """A row per model and per pair, a sentence per variant, and a warning about many comparisons."""
    print_accuracy(evaluation)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "fp32 78.53 % (76.5 to 80.5) 93.33 % (91.3 to 95.3) - - 0" in lines
    assert any(line.startswith("fp8 77.80 % (75.8 to 79.8)") and line.endswith("21.2 dB 0") for line in lines)
    assert "fp8 fp16 -0.80 -1.88 to +0.24 37 25 0.16 5,100" in lines
    assert sum("confidence" in line for line in lines) == 2
    assert any("Each p is for one pair by itself" in line for line in lines)


def test_only_against_the_reference_and_the_baseline(evaluation: Evaluation) -> None:
    """A study with many variants compares each with two models, and still says how sure it is of each."""
    every, few = accuracy_tables(evaluation), accuracy_tables(evaluation, against=())
    assert [row[:2] for row in every.pairs] == [("fp16", "fp32"), ("fp8", "fp32"), ("fp8", "fp16")]
    assert [row[:2] for row in few.pairs] == [("fp16", "fp32"), ("fp8", "fp32")]
    assert accuracy_tables(evaluation, against=("fp16",)).pairs == every.pairs
    assert few.sentences == every.sentences


def test_markdown(evaluation: Evaluation) -> None:
    """The same cells, in tables that GitHub shows; without a warning where there is one pair."""
    shown = accuracy_markdown(evaluation)
    assert "| `fp8` | 77.80 % (75.8 to 79.8) |" in shown
    assert "| `fp8` | `fp32` | -0.73 |" in shown
    alone = replace(evaluation, models=evaluation.models[::2], pairs=evaluation.pairs[1:2])
    assert "by itself" not in accuracy_markdown(alone)


def test_the_document(evaluation: Evaluation) -> None:
    """Every pair has its sentence; the document is JSON."""
    document = json.loads(json.dumps(accuracy_document(evaluation, data={"items": 1500}), allow_nan=False))
    assert document["schema"] == "fusescope.evaluate"
    assert document["models"][2]["top1"]["count"] == 1167
    assert document["pairs"][1]["sentence"] == verdict_sentence(evaluation.pairs[1])
    assert document["sensitivity"] == []


def test_without_labels(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    """No column for accuracy, no table of pairs, and the reason."""
    models = tuple(replace(model, top1=None, top5=None) for model in evaluation.models)
    print_accuracy(replace(evaluation, models=models, pairs=(), labelled=False, notes=("The images have no labels.",)))
    shown = capsys.readouterr().out
    assert "top-1" not in shown
    assert "McNemar" not in shown
    assert "The images have no labels." in shown


def test_equal_and_broken_outputs(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    """No noise is either equality or nothing finite to compare, and the table tells which."""
    same = replace(evaluation.models[1], name="same", snr_db=None, equal=1500)
    broken = replace(evaluation.models[1], name="broken", snr_db=None, equal=0, nonfinite=1500)
    print_accuracy(replace(evaluation, models=(evaluation.models[0], same, broken), pairs=()))
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["same"][-2:] == ["equal", "0"]
    assert rows["broken"][-2:] == ["-", "1,500"]


def test_sites(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    """Sites that ran on all images have more cells than the others; the worst stay first."""
    model, difference = evaluation.models[2], evaluation.pairs[1]
    tried = SiteSensitivity("stage4.sum", ("stage4.conv",), 18.5, 0, model, difference)
    print_sensitivity([tried, SiteSensitivity("stem", ("a", "b"), 55.5, 0, None, None)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "stage4.sum stage4.conv 18.5 dB 21.2 dB 95.73 % -0.73 0.2" in lines
    assert "stem a, b 55.5 dB - - - -" in lines


def test_names_from_files_show_as_text(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup, escapes and table cells in a name stay what they are: characters."""
    hostile = replace(
        evaluation,
        models=(evaluation.models[0], replace(evaluation.models[2], name=HOSTILE)),
        pairs=(replace(evaluation.pairs[1], second=HOSTILE),),
    )
    show: list[Callable[[], object]] = [
        lambda: print_accuracy(hostile),
        lambda: print_sensitivity([SiteSensitivity(HOSTILE, (HOSTILE,), None, 0, None, None)]),
    ]
    for each in show:
        each()
        shown = capsys.readouterr().out
        assert shown.replace("\n", "").isprintable()
        assert "[red]" in shown
    rows = [line for line in accuracy_markdown(hostile).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:4]}) == 1
    assert "<b>" not in accuracy_markdown(hostile).replace("`", "")
