"""The written study: what it says is what the explanation holds, read back by a CommonMark parser."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fusescope.graph.units import printable
from fusescope.profiler.explanation import AccuracyChange, Explanation, Latency, LayerTime, Trial
from fusescope.quant.evaluate import Evaluation
from fusescope.report.documents import explanation_document
from fusescope.report.markdown import render_markdown
from fusescope.study.runner import StudyResult

Sections = dict[str, list[Token]]
SPEED_WORDS = re.compile(
    r"\b(fast|faster|slow|slower|speedup|ms|us|µs|seconds?|milliseconds?|pays? off)\b", re.IGNORECASE
)
EVIL = "<img src=x onerror=alert(1)>|`[x](javascript:alert(1))\n# evil\x1b"


def parse(markdown: str) -> list[Token]:
    """Parse a study; asserts that it has neither HTML nor an image, and no link but to documents."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    every = [*tokens, *(child for token in tokens for child in token.children or [])]
    assert not {token.type for token in every} & {"html_block", "html_inline", "image"}
    assert all(str(token.attrs["href"]).startswith("https://docs.") for token in every if token.type == "link_open")
    return tokens


def words(token: Token) -> str:
    """What a reader sees of an inline token."""
    return "".join(" " if child.type == "softbreak" else child.content for child in token.children or [])


def sections(markdown: str) -> Sections:
    """Tokens by the heading that they stand under."""
    found: Sections = {"": []}
    tokens = parse(markdown)
    current = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            current = words(tokens[place + 1])
            assert current not in found or not current[0].isupper() or current.startswith(REPEATED), current
            found.setdefault(current, [])
        found[current].append(token)
    return found


REPEATED = ("Kernels and bytes by group", "What became of the Quantizes", "Findings")
"""Headings that each explanation has once."""


def tables(tokens: list[Token]) -> list[list[dict[str, str]]]:
    """The tables among tokens: rows by column; asserts that all rows have as many cells as the header."""
    found: list[list[list[str]]] = []
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in {"th_open", "td_open"}:
            found[-1][-1].append(words(tokens[place + 1]))
    return [[dict(zip(rows[0], row, strict=True)) for row in rows[1:]] for rows in found]


def prose(tokens: list[Token]) -> str:
    """All text among tokens, a line for each block."""
    return "\n".join(words(token) for token in tokens if token.type == "inline")


@pytest.fixture(name="study")
def _study(pair: Explanation) -> str:
    """The study of the pair that was drawn by hand."""
    return render_markdown([pair], title="Tiny", command="fusescope study tiny.toml -o out")


class TestSections:
    """What the document is made of."""

    def test_the_order(self, study: str) -> None:
        """From the answer to how to do it again."""
        tokens = parse(study)
        headings = [words(tokens[place + 1]) for place, token in enumerate(tokens) if token.tag in {"h1", "h2"}]
        assert [heading for heading in headings if heading] == [
            "Tiny",
            "Summary",
            "Recipe",
            "Method",
            "Results",
            "Why: fp8 against fp16",
            "What full TensorRT's documented rules expect",
            "What was not measured",
            "When to look again",
            "How to do it again",
        ]

    def test_the_engines(self, study: str) -> None:
        """Kernels, traffic and plan of both engines, as drawn: 3 and 6 kernels, 3.8 and 5.75 MB, 1 MiB each."""
        (rows,) = tables(sections(study)["Engines"])
        assert [row["engine"] for row in rows] == ["fp16", "fp8"]
        assert [row["kernels"] for row in rows] == ["3", "6"]
        assert [row["traffic"] for row in rows] == ["3.80 MB", "5.75 MB"]
        assert [row["plan"] for row in rows] == ["1.00 MiB", "1.00 MiB"]
        assert [row["kernels that only quantize"] for row in rows] == ["-", "1"]
        assert [row["kernels that quantize"] for row in rows] == ["-", "3"]

    def test_the_groups(self, study: str) -> None:
        """Rows of the groups that have kernels; the kernels add up to the engines."""
        (rows,) = tables(sections(study)["Kernels and bytes by group"])
        assert {row["group"]: (row["baseline kernels"], row["quantized kernels"]) for row in rows} == {
            "conv": ("2", "2"),
            "gemm": ("1", "1"),
            "epilogue": ("0", "1"),
            "pointwise": ("0", "1"),
            "quantize": ("0", "1"),
        }

    def test_the_steps_add_up(self, study: str) -> None:
        """The last row of what changed is the difference of the engines."""
        (rows,) = tables(sections(study)["Why: fp8 against fp16"])
        assert rows[-1] == {"what changed": "in all", "kernels": "+3", "traffic": "+1.95 MB"}
        assert sum(int(row["kernels"]) for row in rows[:-1]) == 3

    def test_the_reasons(self, study: str) -> None:
        """A row per reason with its verdict; a verdict that no site has is left out, the others are explained."""
        became = sections(study)["What became of the Quantizes"]
        (rows,) = tables(became)
        assert [(row["reason"], row["epilogue"], row["merged"], row["alone"]) for row in rows] == [
            ("stem", "0", "0", "1"),
            ("conv output", "1", "0", "0"),
            ("residual sum", "0", "1", "0"),
        ]
        assert "lost" not in rows[0]
        assert "merged: the kernel does other work of the model" in prose(became)

    def test_the_findings(self, pair: Explanation, study: str) -> None:
        """Each with its evidence, remedy and source, in their order; the balance is not told twice."""
        titles = [heading for heading in sections(study) if re.match(r"\d+\. ", heading)]
        assert [title.split()[-1] for title in titles] == [f.key for f in pair.findings if f.key != "growth"]
        told = prose(sections(study)["2. about epilogue-split"])
        assert "1 kernel, 900.0 kB. what epilogue-split means." in told
        assert "Where: /node/3" in told
        assert "Layers of the engine: 3" in told
        assert "Try: scale the weights per tensor (documented, not tried)" in told
        assert "Source: a document: https://docs.nvidia.com/tensorrt" in told

    def test_what_is_expected_is_apart(self, study: str) -> None:
        """The rules' predictions are a table of their own, in sites, never beside kernels."""
        (rows,) = tables(sections(study)["What full TensorRT's documented rules expect"])
        assert [tuple(row.values()) for row in rows] == [
            ("fuses", "conv output", "1"),
            ("separate", "residual sum", "1"),
            ("uncertain", "stem", "1"),
        ]

    def test_how_to_do_it_again(self, study: str) -> None:
        """The command is there as it was given, and the check of releases names the release and the target."""
        blocks = [token.content for token in parse(study) if token.type == "fence"]
        assert blocks == [
            "fusescope releases check --release tensorrt-rtx==1.7.1 --release installed --target sm120\n",
            "fusescope study tiny.toml -o out\n",
        ]

    def test_what_a_trial_showed(self, pair: Explanation) -> None:
        """A remedy that helped is in the decision, with the engine in which it was tried."""
        trial = Trial("fp8-per-tensor", kernels=0, bytes=-62_000_000)
        tried = [replace(each, trials=(trial,)) if each.remedy else each for each in pair.findings]
        found = sections(render_markdown([replace(pair, findings=tuple(tried))], title="Tiny"))
        assert (
            "Proved here: scale the weights per tensor. In fp8-per-tensor, against fp8: 0 kernels, -62.0 MB of traffic."
        ) in prose(found["Decision"])
        assert "(proved)" in prose(found["2. about epilogue-split"])

    def test_a_trial_of_two_findings_and_its_accuracy(self, pair: Explanation) -> None:
        """The figures stand with the first finding; the second names it; the model's loss has its interval."""
        change = AccuracyChange(points=-0.42, low=-1.09, high=0.15, images=1197)
        trial = Trial("fp8-per-tensor", kernels=0, bytes=-62_000_000, accuracy=change)
        tried = list(pair.findings)
        tried[2] = replace(tried[2], trials=(trial,))
        tried[3] = replace(tried[3], trials=(replace(trial, same_as=2),))
        text = prose(parse(render_markdown([replace(pair, findings=tuple(tried))], title="Tiny")))
        figures = "0 kernels, -62.0 MB of traffic, top-1 -0.42 points (-1.09 to +0.15, 95 % interval, on 1,197 images)"
        assert text.count(f"Tried in fp8-per-tensor: {figures}") == 1
        assert "Tried in fp8-per-tensor: the same engine as for: about epilogue-split" in text
        assert text.count("Proved here") == 1

    def test_a_trial_that_gained_nothing(self, pair: Explanation) -> None:
        """More bytes for fewer kernels is no gain, and is called so of this runtime only."""
        trial = Trial("shared", kernels=-3, bytes=1_000_000)
        tried = tuple(replace(each, trials=(trial,)) for each in pair.findings[1:2])
        text = prose(parse(render_markdown([replace(pair, findings=tried)], title="Tiny")))
        assert "-3 kernels, +1.00 MB of traffic: no gain on this runtime" in text
        assert "Proved here" not in text

    def test_accuracy(self, pair: Explanation, evaluation: Evaluation) -> None:
        """Measured accuracy is among the results, and no longer among what was not measured."""
        found = sections(render_markdown([pair], title="Tiny", evaluation=evaluation))
        assert "fp8 is 0.73 points worse than fp32 on 1,500 images" in prose(found["Accuracy"])
        assert "77.80 % (75.8 to 79.8)" in prose(found["Accuracy"])
        assert "Accuracy: no output" not in prose(found["What was not measured"])
        assert "and the accuracy" not in prose(found["Decision"])

    def test_a_failure(self, pair: Explanation) -> None:
        """What could not be built is among what was not measured."""
        markdown = render_markdown([pair], title="Tiny", failures=["int8, batch 1: no <such> thing"])
        told = prose(sections(markdown)["What was not measured"])
        assert "Not built: int8, batch 1: no <such> thing" in told

    def test_one_engine_alone(self, pair: Explanation) -> None:
        """Without a baseline there is no balance, and nothing is said of one."""
        alone = replace(pair, baseline=None, baseline_layers=None, groups=pair.groups[["quantized"]])
        markdown = render_markdown([alone], title="Tiny")
        found = sections(markdown)
        assert tables(found["Why: fp8"]) == []
        assert "baseline" not in markdown
        assert [row["kernels"] for row in tables(found["Kernels and bytes by group"])[0]] == ["2", "1", "1", "1", "1"]
        assert [row["engine"] for row in tables(found["Engines"])[0]] == ["fp8"]

    def test_nothing_quantized(self, pair: Explanation) -> None:
        """The study of an unquantized engine decides nothing, expects nothing, and checks no release."""
        cost = replace(pair.quantize, sites=0, verdicts=dict.fromkeys(pair.quantize.verdicts, 0))
        side = replace(pair.quantized, weighted_in_8_bits=0)
        plain = replace(
            pair, quantize=cost, quantized=side, expected="", sites=pair.sites[:0], reasons=pair.reasons[:0]
        )
        markdown = render_markdown([plain], title="Tiny")
        found = sections(markdown)
        assert prose(found["Decision"]).splitlines() == ["Decision", "None: nothing is quantized here."]
        assert "What full TensorRT's documented rules expect" not in found
        assert "What became of the Quantizes" not in found
        assert "releases check" not in markdown

    def test_two_batches(self, pair: Explanation) -> None:
        """Engines that share a name are told apart by their batch, and the recipe is told once."""
        assert pair.baseline
        sides = {
            key: replace(side, provenance=replace(side.provenance, batch=8))
            for key, side in (("baseline", pair.baseline), ("quantized", pair.quantized))
        }
        found = sections(render_markdown([pair, replace(pair, **sides)], title="Tiny"))
        assert [row["engine"] for row in tables(found["Engines"])[0]] == [
            "fp16, batch 1",
            "fp8, batch 1",
            "fp16, batch 8",
            "fp8, batch 8",
        ]
        assert prose(found["Recipe"]).count("fp8:") == 1
        assert "batches: 1, 8" in prose(found["What was not measured"])


class TestHonesty:
    """Only what was compiled or measured."""

    def test_no_word_about_speed(self, study: str) -> None:
        """Without a clock it says that there was none, and no word that judges time."""
        assert "No clock ran" in study
        assert "Speed" not in sections(study)
        assert not SPEED_WORDS.search(study)
        assert "no latency and no layer time" in study

    def test_with_a_clock(self, pair: Explanation) -> None:
        """Times stand in a table with their sources, the decision is by the latencies (the published ones)."""
        assert pair.baseline
        timed = replace(
            pair,
            baseline=replace(pair.baseline, latency=Latency(1.298, "recorded"), layer_time=LayerTime(3.5, "recorded")),
            quantized=replace(pair.quantized, latency=Latency(1.418, "measured")),
        )
        markdown = render_markdown([timed], title="Tiny")
        found = sections(markdown)
        assert prose(found["Decision"]).splitlines()[1] == (
            "fp8 is not faster than fp16: median latency 1.418 ms (measured) against 1.298 ms (recorded), "
            "a ratio of 0.92."
        )
        (rows,) = tables(found["Speed"])
        assert [row["median latency, ms"] for row in rows] == ["1.298", "1.418"]
        assert [row["sum of layer times, ms"] for row in rows] == ["3.500", "-"]
        assert "The sum of layer times is not the latency" in prose(found["Speed"])
        assert "No clock ran" not in markdown

    def test_what_the_weights_are(self, pair: Explanation) -> None:
        """Seeded weights and placeholder scales are said in the summary."""
        origin = replace(pair.quantized.provenance, weights="seeded values", scales="uncalibrated: placeholders")
        made_up = replace(pair, quantized=replace(pair.quantized, provenance=origin))
        summary = prose(sections(render_markdown([made_up], title="Tiny"))["Summary"])
        assert "Weights are seeded values." in summary
        assert "Activation scales are uncalibrated: placeholders." in summary

    def test_what_is_not_understood(self, pair: Explanation) -> None:
        """Gaps in the reading of an engine are among what was not measured."""
        coverage = replace(pair.coverage, unknown_kinds=("mystery",))
        told = prose(sections(render_markdown([replace(pair, coverage=coverage)], title="T"))["What was not measured"])
        assert "fp8: 1 layer kind is unknown" in told


class TestNames:
    """Names from other people's models."""

    @pytest.mark.parametrize("evil", [EVIL, "x" * 5000, "שלום \U0001f600", "a\udc80b", "---", "| a | b |"])
    def test_hostile_names(self, pair: Explanation, evil: str) -> None:
        """Whatever engine, model, reason, node and title are called, the document's structure is the same."""
        plain = parse(render_markdown([pair], title="Tiny"))
        origin = replace(pair.quantized.provenance, name=evil, model_name=evil, scales=evil, recipe={"format": evil})
        findings = tuple(replace(each, nodes=(evil,), title=evil, detail=evil) for each in pair.findings)
        named = replace(
            pair,
            quantized=replace(pair.quantized, provenance=origin),
            findings=findings,
            sites=pair.sites.assign(reason=evil),
            reasons=pair.reasons.set_axis([evil, "b", "c"]).rename_axis("reason"),
        )
        markdown = render_markdown([named], title=evil)
        tokens = parse(markdown)
        markdown.encode("utf-8")
        assert {token.type for token in tokens} == {token.type for token in plain}
        assert sum(token.tag == "h2" for token in tokens) == sum(token.tag == "h2" for token in plain)
        assert len(tables(tokens)) == len(tables(plain))
        assert words(tokens[1])[:20] == printable(evil).strip()[:20]


@pytest.mark.compiles
class TestCompiled:
    """The study of engines that were compiled."""

    def test_figures_are_those_of_the_json(self, tiny_study: tuple[Path, StudyResult]) -> None:
        """Kernels, sites and verdicts of every engine equal those of the JSON documents."""
        result = tiny_study[1]
        found = sections(render_markdown(result.explanations, title="Tiny", command="fusescope study tiny.toml"))
        documents: list[dict[str, Any]] = [json.loads(json.dumps(explanation_document(e))) for e in result.explanations]
        (engines,) = tables(found["Engines"])
        by_name = {row["engine"]: row for row in engines}
        for document in documents:
            for key in ("baseline", "quantized"):
                row = by_name[document[key]["provenance"]["name"]]
                assert row["kernels"] == str(document[key]["kernels"])
                assert row["convs and gemms in 8 bits"] == str(document[key]["weighted_in_8_bits"])
            row = by_name[document["quantized"]["provenance"]["name"]]
            assert row["kernels that only quantize"] == str(document["quantize"]["kernels_alone"])
            assert row["kernels that quantize"] == str(document["quantize"]["kernels_carrying"])
        seen = tables(found["What became of the Quantizes"])
        for rows, document in zip(seen, documents, strict=True):
            assert {row["reason"]: int(row["sites"]) for row in rows} == {
                reason["reason"]: reason["sites"] for reason in document["reasons"]
            }

    def test_dtypes_of_convolutions(self, tiny_study: tuple[Path, StudyResult]) -> None:
        """Per engine the table adds up to its conv kernels; the fp16 engine has none in 8 bits."""
        result = tiny_study[1]
        found = sections(render_markdown(result.explanations, title="Tiny"))
        (rows,) = tables(found["What convolutions read and write"])
        baseline = result.explanations[0].baseline_layers
        assert isinstance(baseline, pd.DataFrame)
        assert sum(int(row["fp16"]) for row in rows) == (baseline["group"] == "conv").sum()
        assert all(row["fp16"] == "0" for row in rows if "fp8" in row["activations read"])
        assert any(row["fp8"] != "0" for row in rows if "fp8" in row["activations read"])

    def test_the_commands_rebuild_it(
        self, tiny_study: tuple[Path, StudyResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        run_line: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Without a command of its own a study tells what built its engines; run, that ends in the same kernels."""
        folder, result = tiny_study
        monkeypatch.chdir(tmp_path)
        (tmp_path / "MODEL.onnx").write_bytes((folder / "tiny.onnx").read_bytes())
        (tmp_path / "runs").mkdir()
        markdown = render_markdown(result.explanations[:1], title="Tiny")
        (lines,) = [t.content for t in parse(markdown) if t.type == "fence" and "releases" not in t.content]
        for line in lines.splitlines():
            run_line(line)
        again = (tmp_path / "study.md").read_text(encoding="utf-8")
        assert (
            tables(sections(again)["Engines"])[0][1]["kernels"]
            == tables(sections(markdown)["Engines"])[0][1]["kernels"]
        )


@pytest.fixture(name="run_line")
def _run_line() -> Callable[[str], None]:
    """Return a function that runs a line of the shell's that starts with ``fusescope``."""
    import shlex

    from click.testing import CliRunner

    from fusescope.cli import fusescope

    def run_line(line: str) -> None:
        program, *words = shlex.split(line)
        assert program == "fusescope"
        result = CliRunner().invoke(fusescope, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    return run_line


@pytest.mark.parametrize(
    ("quantization", "told"),
    [
        ("implicit", "the compiler chose 8 bits by itself"),
        ("explicit", "its Quantizes are those of a model that is not known"),
        ("unknown", "the recording does not tell"),
        ("none", "no tensor quantized"),
    ],
)
def test_the_recipe_of_a_recording(pair: Explanation, quantization: str, told: str) -> None:
    """Without sites it is what the layers tell; an engine with 8-bit convolutions is not said to be unquantized."""
    origin = replace(pair.quantized.provenance, model_name="", recipe={})
    recorded = replace(
        pair,
        quantization=quantization,
        quantized=replace(pair.quantized, provenance=origin),
        quantize=replace(pair.quantize, sites=0),
    )
    found = sections(render_markdown([recorded], title="T"))
    assert f"fp8: {told}; 0 Quantize sites" in prose(found["Recipe"])
    assert "None: nothing is quantized here." not in prose(found["Decision"])
