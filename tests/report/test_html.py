"""The page: one safe file that loads nothing and says what the explanation says."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
from plotly.offline import get_plotlyjs

from fusescope.profiler.explanation import Explanation
from fusescope.quant.evaluate import Evaluation
from fusescope.report.accuracy import evaluation_document
from fusescope.report.documents import explanation_document
from fusescope.report.html import render_html

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"quoted\" 'twice' &lt;",
    "emoji \U0001f600",
    "\u202eright to left \u05d0\u05d1",
    "line\u2028separator",
    "{{ 7 * 7 }} ${7 * 7}",
    "x" * 5000,
)
"""Names that a model may have."""

LOADING = {"src", "srcset", "href", "data", "action", "formaction", "poster", "background", "xlink:href"}


def _name(value: Any, path: list[str], names: list[str]) -> None:
    """Put names back where the page has their places."""
    if isinstance(value, list):
        for item in value:
            _name(item, path, names)
    elif value is not None and len(path) > 1:
        _name(value[path[0]], path[1:], names)
    elif value is not None:
        value[path[0]] = _named(value[path[0]], names)


def _named(value: Any, names: list[str]) -> Any:
    return [_named(item, names) for item in value] if isinstance(value, list) else names[value]


class Page(HTMLParser):
    """A page as a browser reads it: tags with attributes, text outside scripts, and the scripts."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self.open = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag with its attributes."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.open = tag

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        if tag == self.open:
            self.open = ""

    def handle_data(self, data: str) -> None:
        """Keep what a script holds, and what is read as text."""
        if self.open == "script":
            self.scripts.append((self.tags[-1][1].get("type", ""), data))
        elif self.open != "style":
            self.text.append(data)

    @cached_property
    def words(self) -> str:
        """All text, attributes that are read out among it."""
        spoken = [attributes.get(name, "") for _, attributes in self.tags for name in ("aria-label", "title")]
        return "\n".join([*self.text, *spoken])

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data block."""
        (block,) = (text for kind, text in self.scripts if kind == "application/json")
        found: dict[str, Any] = json.loads(block)
        for path in found["named"]:
            _name(found, path, found["names"])
        return found

    def policy(self) -> str:
        """The Content-Security-Policy."""
        (content,) = (
            attributes["content"]
            for tag, attributes in self.tags
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        )
        return content


def _page(*explanations: Explanation, title: str = "A study") -> Page:
    return Page(render_html(explanations, title=title))


def _single(pair: Explanation) -> Explanation:
    return replace(
        pair,
        baseline=None,
        baseline_layers=None,
        blocks=None,
        groups=pd.concat({"quantized": pair.groups["quantized"]}, axis=1),
    )


def _hostile(pair: Explanation) -> Explanation:
    """The pair with a hostile name wherever a model or a user may put one."""
    names = [HOSTILE[place % len(HOSTILE)] for place in range(len(pair.layers))]
    side = pair.quantized
    return replace(
        pair,
        quantized=replace(side, provenance=replace(side.provenance, name=HOSTILE[1], model_name=HOSTILE[0])),
        layers=pair.layers.assign(name=names, work=[(f"/{name}/Conv",) for name in names]),
        sites=pair.sites.assign(tensor=names[: len(pair.sites)]),
        findings=tuple(replace(finding, title=HOSTILE[0], nodes=HOSTILE) for finding in pair.findings),
        coverage=replace(pair.coverage, unread_lines=HOSTILE),
    )


def _rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


class TestAccuracy:
    """The section of an evaluation."""

    def test_its_figures(self, pair: Explanation, evaluation: Evaluation) -> None:
        """Shares are dots on their intervals, differences to the reference too; the engine's own row is marked."""
        page = Page(render_html([pair], title="A study", evaluation=evaluation))
        assert page.data["accuracy"] == json.loads(json.dumps(evaluation_document(evaluation)))
        shares, differences = page.data["figures"]["accuracy"]["data"]
        assert (shares["y"], differences["y"]) == (["fp32", "fp16", "fp8"], ["fp16", "fp8"])
        assert shares["x"] == pytest.approx([117800 / 1500, 117900 / 1500, 116700 / 1500])
        assert differences["x"] == pytest.approx([100 / 1500, -1100 / 1500])
        low = [x - less for x, less in zip(differences["x"], differences["error_x"]["arrayminus"], strict=True)]
        assert low == pytest.approx([found.low for found in evaluation.pairs if found.first == "fp32"])
        assert "fp8 is 0.73 points worse than fp32 on 1,500 images" in page.words
        assert "77.80 % (75.8 to 79.8)" in page.words

    def test_without_labels(self, pair: Explanation, evaluation: Evaluation) -> None:
        """Without labels there is one panel: agreement with the reference."""
        models = tuple(replace(model, top1=None, top5=None) for model in evaluation.models)
        page = Page(render_html([pair], title="", evaluation=replace(evaluation, models=models, pairs=())))
        (shares,) = page.data["figures"]["accuracy"]["data"]
        assert shares["y"] == ["fp16", "fp8"]
        assert shares["x"] == pytest.approx([149700 / 1500, 143600 / 1500])

    def test_none(self, pair: Explanation) -> None:
        """No section, no figure where no output was looked at."""
        page = _page(pair)
        assert page.data["accuracy"] is None
        assert "accuracy" not in page.data["figures"]
        assert "Accuracy" not in page.text

    def test_hostile_names(self, pair: Explanation, evaluation: Evaluation) -> None:
        """A variant's name shows as text, whatever it holds."""
        models = (evaluation.models[0], replace(evaluation.models[1], name=HOSTILE[1]))
        pairs = (replace(evaluation.pairs[0], second=HOSTILE[1]),)
        page = Page(render_html([pair], title="", evaluation=replace(evaluation, models=models, pairs=pairs)))
        assert HOSTILE[1] in page.words
        assert "img" not in {tag for tag, _ in page.tags}
        assert page.data["figures"]["accuracy"]["data"][1]["y"] == ["&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"]


def test_the_page_holds_the_figures_of_the_json(pair: Explanation) -> None:
    """What `explain --json` says is read back from the page, value for value."""
    page = _page(pair)
    (found,) = page.data["explanations"]
    engines = page.data["engines"]
    found["sites"], found["blocks"] = _rows(found["sites"]), _rows(found["blocks"])
    found["graph"] = page.data["graphs"][found["graph"]]
    for side in ("layers", "baseline_layers"):
        found[side] = _rows(engines[found[side]]["layers"])
    assert found == json.loads(json.dumps(explanation_document(pair)))


def test_nothing_is_loaded(pair: Explanation) -> None:
    """No element loads anything; only links that a person follows lead outside."""
    outside = [
        (tag, name, value)
        for tag, attributes in _page(_hostile(pair)).tags
        for name, value in attributes.items()
        if name in LOADING and not value.startswith("#")
    ]
    assert {(tag, name) for tag, name, _ in outside} == {("a", "href")}
    assert {value for *_, value in outside} == {"https://docs.nvidia.com/tensorrt"}


def test_the_policy_allows_only_the_two_scripts(pair: Explanation) -> None:
    """Everything is forbidden but the scripts of the file, by hash, the styles, and images that it drew."""
    page = _page(_hostile(pair))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy().split(";"))
    scripts = [text for kind, text in page.scripts if kind != "application/json"]
    assert len(scripts) == 2
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert set(rules.pop("script-src").split()) == {f"'sha256-{digest}'" for digest in hashes}
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_hostile_names_are_text(pair: Explanation) -> None:
    """Names with tags, quotes, template signs, separators or 5,000 characters make no element and no attribute."""
    page, plain = _page(_hostile(pair), title=HOSTILE[1]), _page(pair)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3
    for name in HOSTILE[:7]:
        assert name in page.words
    assert set(page.data["explanations"][0]["findings"][0]["nodes"]) == set(HOSTILE)


def test_bytes_that_are_no_text_do_not_stop_the_report(pair: Explanation) -> None:
    """A dump's undecodable bytes are replaced where they are shown."""
    source = render_html([replace(pair, layers=pair.layers.assign(name="a\udcffb"))], title="t")
    assert "a?b" in source.encode("utf-8").decode("utf-8")


def test_there_is_no_word_about_speed(pair: Explanation) -> None:
    """No clock ran: nothing on the page is said to be quick or slow, or takes time."""
    words = _page(pair, _single(pair)).words.lower().replace("ahead of time", "")
    assert not re.findall(r"fast|slow|speed|quick|latenc|\btime|\bpays?\b|percent|milliseconds|\bms\b", words)


def test_observed_and_expected_are_kept_apart(pair: Explanation) -> None:
    """What was compiled and what rules expect are two statements under two headings."""
    text = _page(pair).text
    assert "observed" in text
    assert "compiled by hand for sm120" in text
    assert "expected of full TensorRT (rules, not built), of 3 Quantize sites" in text


def test_a_remedy_says_whether_it_was_tried(pair: Explanation) -> None:
    """The status stands beside the remedy."""
    words = " ".join(_page(pair).words.split())
    assert "Try: scale the weights per tensor documented, not tried" in words


def _engine_rows(page: Page) -> Iterator[str]:
    table = " ".join(" ".join(page.text).split()).split("All engines", 1)[1].split("Findings", 1)[0]
    yield from re.findall(r"(\S+) 1 (\d) [35]\.8 1\.0 (\d) (\d of 3)", table)


def test_all_engines_of_a_study_are_compared(pair: Explanation) -> None:
    """Each engine has its row: name, kernels, longest chain, convs in 8 bits."""
    side = pair.quantized
    other = replace(pair, quantized=replace(side, kernels=5, provenance=replace(side.provenance, name="int8")))
    rows = list(_engine_rows(_page(pair, other)))[:3]
    assert rows == [("fp16", "3", "3", "0 of 3"), ("fp8", "6", "6", "1 of 3"), ("int8", "5", "6", "1 of 3")]


def test_tabs_and_panels_belong_together(pair: Explanation) -> None:
    """Each explanation of a study is a tab; one alone has none. Every id is there once."""
    page = _page(pair, pair)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    tabs = [attributes for _, attributes in page.tags if attributes.get("role") == "tab"]
    assert [tab["aria-controls"] for tab in tabs] == ["explanation-0", "explanation-1"]
    assert {tab["aria-controls"] for tab in tabs} <= set(ids)
    assert not [1 for _, attributes in _page(pair).tags if attributes.get("role") == "tab"]


def _no_sites(pair: Explanation) -> Explanation:
    cost = replace(pair.quantize, sites=0, kernels_alone=0, kernels_carrying=0)
    return replace(
        pair, quantize=cost, sites=pair.sites.iloc[:0], reasons=pair.reasons.iloc[:0], expected="", findings=()
    )


def _one_layer(pair: Explanation) -> Explanation:
    return replace(_single(_no_sites(pair)), layers=pair.layers.iloc[:1])


@pytest.mark.parametrize("shape", [_single, _no_sites, _one_layer])
def test_small_and_strange_reports_are_whole(pair: Explanation, shape: Any) -> None:
    """Without baseline, without sites, with one layer: every figure that the page asks for is there, and no other."""
    page = _page(shape(pair))
    asked = {attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes}
    assert asked == set(page.data["figures"])


def test_a_study_of_which_nothing_was_built_says_so() -> None:
    """No explanation is no error."""
    page = _page()
    assert "There is no engine to explain: none was built." in page.words
    assert page.data["explanations"] == []


def test_every_figure_has_words(pair: Explanation) -> None:
    """Who does not see a figure is told what it shows; the waterfall with its numbers."""
    plots = [attributes for _, attributes in _page(pair).tags if "data-figure" in attributes]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in plots)
    (told,) = (plot["aria-label"] for plot in plots if plot["data-figure"] == "waterfall-0")
    assert "quantize, nothing else +1 kernels, +750.0 kB" in told


def test_ten_thousand_layers_stay_small(pair: Explanation) -> None:
    """Beside plotly the file has less than 1 kB for each layer, and the rows are not in the document."""
    many = pd.concat([pair.layers] * 1429, ignore_index=True)
    many["index"] = range(len(many))
    source = render_html([replace(_single(pair), layers=many)], title="large")
    assert len(many) >= 10_000
    assert len(source) - len(get_plotlyjs()) < 1000 * len(many)
    assert len([tag for tag, _ in Page(source).tags if tag == "tr"]) < 100
