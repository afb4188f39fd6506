"""The page in a real browser, Debian's Chromium: it is used as a person would, and must not say or load a thing.

Every page that a test opens is watched: a message in the console, an error, a dialog or a request fails the test.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from fusescope.graph.neighbourhood import Excerpt, Place, Wire
from fusescope.graph.units import count, megabytes
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.spots import Spot
from fusescope.quant.evaluate import Evaluation
from fusescope.report.documents import explanation_document
from fusescope.report.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from fusescope.study.runner import StudyResult

pytestmark = pytest.mark.browser

SILENT = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""What keeps Chromium from doing anything of its own."""

LOCAL = ("file:", "data:", "blob:")
PATIENCE_MS = 60_000
"""How long a step may take on a busy machine. No test depends on how long it does take."""

Open = Callable[..., "Page"]
PUBLISHED = ["78.53 %", "78.60 %", "77.80 %"]
"""Top-1 of HRNet-W18 in fp32, fp16 and FP8 (NVIDIA's study), which `evaluation` has."""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, started once."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(SILENT))
        yield started
        started.close()


@pytest.fixture
def open_page(browser: "Browser", tmp_path: Path) -> Iterator[Open]:
    """A function that opens the page of some explanations, and afterwards the proof that all was silent."""
    noise: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)

    def opened(*explanations: Explanation, evaluation: Evaluation | None = None) -> "Page":
        path = tmp_path / "report.html"
        path.write_text(render_html(explanations, title="A study", evaluation=evaluation), encoding="utf-8")
        page = context.new_page()
        page.on("console", lambda message: noise.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(LOCAL) or noise.append(f"request: {request.url}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield opened
    context.close()
    assert noise == []


def table(page: "Page", kind: str) -> "Locator":
    """The table of layers or sites of the first explanation."""
    return page.locator(f'[data-table="{kind}"][data-explanation="0"]')


def column(page: "Page", kind: str, heading: str) -> "Locator":
    """The cells of a column, from top to bottom."""
    heads = table(page, kind).locator("thead th").all_inner_texts()
    place = next(number for number, head in enumerate(heads) if re.fullmatch(rf"{heading}( [▲▼])?", head.strip()))
    return table(page, kind).locator(f"tbody tr:not(.detail) > td:nth-child({place + 1})")


def cells(page: "Page", kind: str, heading: str) -> list[str]:
    """The texts of a column that nothing is about to change."""
    return column(page, kind, heading).all_inner_texts()


def shows(page: "Page", kind: str, heading: str, *texts: str) -> None:
    """Wait until a column has just these texts: the page answers when it can."""
    from playwright.sync_api import expect

    expect(column(page, kind, heading)).to_have_text(list(texts), timeout=PATIENCE_MS)


def spot_heading(page: "Page", name: str) -> None:
    """Wait until the drawing is that of a name."""
    from playwright.sync_api import expect

    heading = page.get_by_role("dialog").get_by_role("heading", level=2)
    expect(heading).to_have_text(name, timeout=PATIENCE_MS)


def draw_all(page: "Page") -> list[str]:
    """Scroll to every figure that is shown, wait until it is drawn, and return their keys."""
    keys = []
    for figure in page.locator("[data-figure]:visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
        keys.append(figure.get_attribute("data-figure") or "")
    return keys


class TestFigures:
    """What plotly draws."""

    def test_all_are_drawn(self, open_page: Open, pair: Explanation) -> None:
        """Each tab draws every figure that the page has for it."""
        page = open_page(pair, replace(pair, quantized=replace(pair.quantized, kernels=5)))
        drawn = draw_all(page)
        page.get_by_role("tab").nth(1).click()
        drawn += draw_all(page)
        asked = page.locator("[data-figure]").evaluate_all("figures => figures.map(figure => figure.dataset.figure)")
        assert sorted(drawn) == sorted(asked)
        assert {"waterfall-0", "blocks-0", "streams-0", "reasons-1"} <= set(drawn)

    def test_accuracy(self, open_page: Open, pair: Explanation, evaluation: Evaluation) -> None:
        """The published study's accuracies are in the table and in the figure, and names in neither do anything."""
        evil = "<script>alert(1)</script>"
        models = tuple(replace(model, name=evil + model.name) for model in evaluation.models)
        pairs = tuple(
            replace(found, first=evil + found.first, second=evil + found.second) for found in evaluation.pairs
        )
        page = open_page(pair, evaluation=replace(evaluation, models=models, pairs=pairs))
        rows = page.locator("table.accuracy tbody tr")
        assert rows.locator("th").all_inner_texts() == [model.name for model in models]
        assert [text[:7] for text in rows.locator("td:nth-child(2)").all_inner_texts()] == PUBLISHED
        figure = page.locator('[data-figure="accuracy"]')
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
        drawn = figure.locator("text").all_text_contents()
        assert [text for text in drawn if text in PUBLISHED] == PUBLISHED
        assert "-0.73 points, p 0.2" in drawn

    def test_nothing_moves_when_they_are_drawn(self, open_page: Open, pair: Explanation) -> None:
        """Figures come after the page can be used: what a hand is about to touch stays where it is."""
        page = open_page(pair)
        places = "() => [...document.querySelectorAll('h2, .table')].map((element) => element.offsetTop)"
        before = page.evaluate(places)
        draw_all(page)
        assert page.evaluate(places) == before

    def test_dark_is_another_page(self, open_page: Open, pair: Explanation) -> None:
        """When the theme turns dark, paper and ink change places, in figures that are already drawn too."""
        page = open_page(pair)
        draw_all(page)
        ink = "() => getComputedStyle(document.querySelector('.main-svg text')).fill"
        paper = "() => getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ink), page.evaluate(paper)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"light => ({ink})() !== light", arg=light[0])
        brightness = [
            [sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors]
            for colors in (light, (page.evaluate(ink), page.evaluate(paper)))
        ]
        assert brightness[0][0] < brightness[0][1]
        assert brightness[1][0] > brightness[1][1]

    def test_a_kernel_of_the_streams_leads_to_its_row(self, open_page: Open, pair: Explanation) -> None:
        """A click on a kernel of the baseline shows that layer of the baseline, and no other."""
        page = open_page(pair)
        figure = page.locator('[data-figure="streams-0"]')
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
        x, y = figure.evaluate(
            """figure => {
                const { _fullLayout: { xaxis, yaxis, _size } } = figure;
                const box = figure.getBoundingClientRect();
                return [box.x + xaxis._offset + xaxis.d2p(1.08), box.y + yaxis._offset + yaxis.d2p(0)];
            }"""
        )
        page.mouse.move(x, y)
        page.mouse.move(x + 1, y)
        page.locator(".hoverlayer .hovertext").wait_for()
        page.mouse.click(x + 1, y)
        page.get_by_text("a kernel of the streams").wait_for()
        shows(page, "layers", "layer", "b")
        shows(page, "layers", "traffic, MB", "2.000")


class TestTables:
    """Search, sort, filter and pages."""

    def test_search(self, open_page: Open, pair: Explanation) -> None:
        """It finds names and ONNX nodes, whatever their case, and counts what is left."""
        page = open_page(pair)
        table(page, "layers").get_by_role("searchbox").fill("/STEM/")
        shows(page, "layers", "layer", "stem", "stem_q")
        assert table(page, "layers").locator(".total").inner_text() == "2 of 7 layers: 2 kernels, 2.3 MB of traffic"

    def test_sort(self, open_page: Open, pair: Explanation) -> None:
        """Numbers come largest first, and smallest first at the second click."""
        page = open_page(pair)
        head = table(page, "layers").get_by_role("button", name="traffic, MB")
        head.click()
        falling = ["1.500", "1.200", "1.100", "0.900", "0.750", "0.300", "0"]
        shows(page, "layers", "traffic, MB", *falling)
        head.click()
        shows(page, "layers", "traffic, MB", *falling[::-1])
        assert table(page, "layers").locator("[aria-sort=ascending]").count() == 1

    def test_filter(self, open_page: Open, pair: Explanation) -> None:
        """A group and a flag together leave the rows that pass both; the other engine has rows of its own."""
        page = open_page(pair)
        layers = table(page, "layers")
        layers.get_by_label("carries a Quantize").check()
        shows(page, "layers", "layer", "stem_q", "b_end", "add")
        layers.get_by_label("group").select_option(label="pointwise (1)")
        shows(page, "layers", "layer", "add")
        layers.get_by_label("engine").select_option(label="fp16")
        shows(page, "layers", "layer", "stem", "b", "fc", "signal")

    def test_a_finding_leads_to_its_layers(self, open_page: Open, pair: Explanation) -> None:
        """Its button shows them alone; the button that says so takes it back."""
        page = open_page(pair)
        page.locator(".top").get_by_role("button", name="Show its layer").first.click()
        shows(page, "layers", "layer", "add")
        page.get_by_role("button", name="about pointwise").click()
        shows(page, "layers", "layer", *pair.layers["name"])

    def test_a_row_opens(self, open_page: Open, pair: Explanation) -> None:
        """A click on a name shows all that is known of the layer, a second one hides it."""
        page = open_page(pair)
        name = table(page, "layers").get_by_role("button", name="b_end", exact=True)
        name.click()
        assert "/block/block.0/b/Conv" in table(page, "layers").locator(".detail").inner_text()
        name.click()
        table(page, "layers").locator(".detail").wait_for(state="detached")

    def test_tabs_by_keyboard(self, open_page: Open, pair: Explanation) -> None:
        """The arrow keys go round the tabs; the panel follows, and the address remembers it."""
        page = open_page(pair, pair)
        page.get_by_role("tab").nth(0).focus()
        page.keyboard.press("ArrowLeft")
        page.locator("#explanation-1").wait_for()
        assert not page.locator("#explanation-0").is_visible()
        assert page.url.endswith("#engine-1")


class TestGraphSpots:
    """The drawing of a spot of the graph."""

    def open_stem(self, open_page: Open, explanation: Explanation) -> "Page":
        """Open the spot of the stem's output, the first site."""
        page = open_page(explanation)
        table(page, "sites").get_by_role("button", name="Draw the graph around /stem/Relu_output_0").click()
        page.get_by_role("dialog").wait_for()
        return page

    def test_the_second_reader_is_seen(self, open_page: Open, pair: Explanation) -> None:
        """Every node and the dtype of every edge are drawn; that which makes the Quantize stand apart stands out."""
        page = self.open_stem(open_page, pair)
        nodes = page.locator("dialog [data-node]").evaluate_all("nodes => nodes.map(node => node.dataset.node)")
        assert nodes == [place.name for place in pair.excerpt.places]
        edges = page.locator("dialog path.edge").evaluate_all("edges => edges.map(edge => edge.textContent)")
        labels = page.locator("dialog .dtype").all_text_contents()
        assert [(edge.split("\n")[1].split()[0]) for edge in edges] == labels
        assert sorted(labels) == ["fp16"] * 6 + ["fp8"]
        assert page.locator("dialog path.edge.narrow").count() == 1
        (second,) = page.locator("dialog path.edge.second").all_text_contents()
        assert second == "/stem/Relu_output_0\nfp16 1\u00d78\u00d74\u00d74"
        words = page.get_by_role("dialog").get_by_role("img").get_attribute("aria-label") or ""
        assert "Relu /stem/Relu to Add /block/block.0/Add in fp16, a reader in high precision" in words

    def test_the_kernels_before_and_after(self, open_page: Open, pair: Explanation) -> None:
        """Both engines' kernels are beside it; pointing at one lights up the nodes that it computes."""
        page = self.open_stem(open_page, pair)
        before, after = page.locator("dialog .kernels section").all()
        assert before.get_by_role("button").all_inner_texts() == ["stem", "b"]
        assert after.get_by_role("button").all_inner_texts() == ["stem", "stem_q", "b", "b_end", "add"]
        assert "only quantizes" in after.locator("li").nth(1).inner_text()
        before.locator("li").nth(1).hover()
        page.locator("dialog .lit").first.wait_for()
        lit = page.locator("dialog .lit").evaluate_all("nodes => nodes.map(node => node.dataset.node)")
        assert lit == ["/block/block.0/b/Conv", "/block/block.0/Add"]
        before.get_by_role("button", name="b", exact=True).click()
        page.get_by_role("dialog").wait_for(state="hidden")
        shows(page, "layers", "layer", "b")

    def test_one_spot_after_another(self, open_page: Open, pair: Explanation) -> None:
        """The arrows go through the sites that the table shows, round; Escape closes."""
        page = self.open_stem(open_page, pair)
        page.get_by_role("button", name="Next spot").click()
        spot_heading(page, "/block/b_out")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        spot_heading(page, "/block/sum")
        assert "3 readers more than can be drawn" in page.get_by_role("dialog").inner_text()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")

    def test_from_a_finding(self, open_page: Open, pair: Explanation) -> None:
        """A finding draws what it names; where nothing of it can be drawn there is no button."""
        known = replace(pair.findings[1], nodes=("/elsewhere", "/block/sum"))
        page = open_page(replace(pair, findings=(known, pair.findings[2])))
        button = page.locator(".top").get_by_role("button", name="Draw the graph there")
        assert button.count() == 1
        button.click()
        spot_heading(page, "/block/sum")

    @pytest.mark.parametrize("size", [1, 3, 12, 40])
    def test_nothing_overlaps(self, open_page: Open, pair: Explanation, size: int) -> None:
        """Boxes of up to 40 nodes, with edges across columns, stand apart in the picture, readers to the right."""
        edges = {(max(0, node - skip), node) for node in range(1, size) for skip in (1, 3, 7)}
        edges = {(one, other) for one, other in edges if one < other}
        places = tuple(Place(f"/n{node}", "Add", "") for node in range(size))
        wires = tuple(
            Wire(f"t{one}", "float16", (1, 8), one, tuple(sorted(to for start, to in edges if start == one)))
            for one in range(size)
        )
        spot = Spot("/stem/Relu_output_0", tuple(range(size)), 0, (), ())
        page = self.open_stem(open_page, replace(pair, excerpt=Excerpt(places, wires), spots=(spot,)))
        boxes = page.locator("dialog .box").evaluate_all(
            "boxes => boxes.map(({ x, y, width, height }) => [x, y, width, height].map(side => side.baseVal.value))"
        )
        wide, high = page.locator("dialog .drawing svg").evaluate(
            "({ viewBox: { baseVal: { width, height } } }) => [width, height]"
        )
        assert len(boxes) == size
        for place, (x, y, width, height) in enumerate(boxes):
            assert x >= 0
            assert y >= 0
            assert x + width <= wide
            assert y + height <= high
            for other in boxes[:place]:
                assert abs(other[0] - x) >= width or abs(other[1] - y) >= height
        for one, other in edges:
            assert boxes[one][0] < boxes[other][0]


HOSTILE = (
    "<script>window.pwned = 1</script>",
    "</script><img src=x onerror='window.pwned = 1'>",
    "\"quoted\" 'twice' &lt;",
    "emoji \U0001f600",
    "\u202eright to left \u05d0\u05d1",
    "__proto__",
    "x" * 5000,
)
"""Names that a model may have."""


def hostile(pair: Explanation) -> Explanation:
    """The pair with a hostile name wherever a model may put one."""
    names = [HOSTILE[place % len(HOSTILE)] for place in range(len(pair.layers))]
    places = tuple(replace(place, name=name) for place, name in zip(pair.excerpt.places, HOSTILE, strict=False))
    wires = tuple(
        replace(wire, tensor=f"{name} tensor") for wire, name in zip(pair.excerpt.wires, HOSTILE, strict=True)
    )
    assert pair.blocks is not None
    return replace(
        pair,
        quantized=replace(pair.quantized, provenance=replace(pair.quantized.provenance, name=HOSTILE[1])),
        layers=pair.layers.assign(name=names, work=[(name,) for name in names]),
        sites=pair.sites.assign(tensor=list(HOSTILE[:3]), producer=list(HOSTILE[3:6])),
        blocks=pair.blocks.assign(convs=[(name,) for name in HOSTILE[:3]]),
        excerpt=Excerpt(places, wires),
        spots=tuple(Spot(name, tuple(range(6)), 0, tuple(range(6)), ()) for name in HOSTILE),
        findings=tuple(replace(finding, title=HOSTILE[0], nodes=HOSTILE) for finding in pair.findings),
    )


class TestStrangeAndLarge:
    """Names and sizes that nobody would choose."""

    def test_hostile_names_are_text(self, open_page: Open, pair: Explanation) -> None:
        """They show as they are, in tables, figures and drawings, and nothing of them runs."""
        page = open_page(hostile(pair))
        draw_all(page)
        shown = cells(page, "layers", "layer")
        assert shown[:6] == list(HOSTILE[:6])
        assert shown[6] == f"{'x' * 100}…{'x' * 50}"
        for place, name in enumerate(HOSTILE[:3]):
            table(page, "sites").locator("button.draw").nth(place).click()
            spot_heading(page, name)
            nodes = page.locator("dialog [data-node]").evaluate_all("nodes => nodes.map(node => node.dataset.node)")
            assert nodes == list(HOSTILE[:6])
            page.keyboard.press("Escape")
        finding = page.locator("details.finding").first
        finding.locator("summary").click()
        finding.locator("li").last.wait_for()
        assert finding.locator("li").all_inner_texts() == list(HOSTILE)
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img").count() == 0

    def test_ten_thousand_layers(self, open_page: Open, pair: Explanation) -> None:
        """The page is usable: rows come a page at a time, and search, sort and turning the page find them all."""
        many = pd.concat([pair.layers] * 1429, ignore_index=True)
        many["index"] = range(len(many))
        many["name"] = [f"layer {index}" for index in many["index"]]
        page = open_page(replace(pair, layers=many))
        layers = table(page, "layers")
        shows(page, "layers", "layer", *(f"layer {index}" for index in range(100)))
        layers.get_by_role("button", name="Next").click()
        shows(page, "layers", "layer", *(f"layer {index}" for index in range(100, 200)))
        layers.get_by_role("searchbox").fill("layer 9999")
        shows(page, "layers", "layer", "layer 9999")
        layers.get_by_role("searchbox").fill("")
        layers.get_by_role("button", name=re.compile("^#")).click()
        layers.get_by_role("button", name=re.compile("^#")).click()
        shows(page, "layers", "layer", *(f"layer {len(many) - 1 - index}" for index in range(100)))
        draw_all(page)


@pytest.fixture(params=["by hand", pytest.param("compiled", marks=pytest.mark.compiles)])
def explanation(request: pytest.FixtureRequest, pair: Explanation) -> Explanation:
    """The pair drawn by hand, and one that was compiled."""
    if request.param == "by hand":
        return pair
    result: StudyResult = request.getfixturevalue("tiny_study")[1]
    return result.explanations[0]


class TestFiguresAreThoseOfTheJson:
    """What a person reads is what `explain --json` says."""

    def test_first_screen(self, open_page: Open, explanation: Explanation) -> None:
        """The tiles show before, after and change of both engines' figures."""
        document = explanation_document(explanation)
        page = open_page(explanation)
        tiles = dict(
            zip(page.locator(".tiles dt").all_inner_texts(), page.locator(".tiles dd").all_inner_texts(), strict=True)
        )
        before, after = document["baseline"], document["quantized"]
        for label, key, unit in (
            ("kernels", "kernels", count),
            ("traffic", "traffic_bytes", megabytes),
            ("written by convolutions", "conv_write_bytes", megabytes),
            ("longest chain of kernels", "chain_kernels", count),
            ("convs and gemms in 8 bits", "weighted_in_8_bits", count),
        ):
            change = unit(after[key] - before[key], signed=True)
            assert tiles[label].split() == f"{unit(before[key])} → {unit(after[key])} {change}".split()

    def test_tables(self, open_page: Open, explanation: Explanation) -> None:
        """Layers and sites show the rows of the document, in order."""
        document = json.loads(json.dumps(explanation_document(explanation)))
        page = open_page(explanation)
        layers: list[dict[str, Any]] = document["layers"]
        assert len(layers) <= 100, "one page"
        assert cells(page, "layers", "layer") == [layer["name"] for layer in layers]
        assert cells(page, "layers", "group") == [layer["group"] for layer in layers]
        sizes = [f"{layer['traffic_bytes'] / 1e6:.3f}" if layer["traffic_bytes"] else "0" for layer in layers]
        assert cells(page, "layers", "traffic, MB") == sizes
        assert cells(page, "sites", "compiled here") == [site["verdict"] for site in document["sites"]]
        assert cells(page, "sites", "8-bit readers") == [str(len(site["readers"])) for site in document["sites"]]

    def test_plots(self, open_page: Open, explanation: Explanation) -> None:
        """Waterfall, blocks and streams are drawn from the document's numbers."""
        document = explanation_document(explanation)
        page = open_page(explanation)
        draw_all(page)
        data = {
            key: page.locator(f'[data-figure="{key}-0"]').evaluate(
                "figure => figure.data.map(({ x, y, customdata }) => ({ x, y, customdata }))"
            )
            for key in ("waterfall", "blocks", "streams")
        }
        ends = [(trace["x"][0], trace["x"][-1]) for trace in data["waterfall"][:2]]
        before, after = document["baseline"], document["quantized"]
        assert ends[0] == (before["kernels"], after["kernels"])
        assert ends[1] == (before["traffic_bytes"] / 1e6, after["traffic_bytes"] / 1e6)
        points = [
            point for trace in data["blocks"] for point in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
        ]
        for block, across, up in points:
            row = document["blocks"][block]
            assert abs(across) * across == pytest.approx(row["bytes"] - row["baseline_bytes"])
            assert up * up == pytest.approx(row["feeding_bytes"])
        fed = [number for number, row in enumerate(document["blocks"]) if row["convs"] and row["quantize_kernels"]]
        assert sorted(block for block, *_ in points) == fed
        drawn = [index for trace in data["streams"] for index in trace["customdata"][::3]]
        layers = [*document["baseline_layers"], *document["layers"]]
        assert sorted(drawn) == sorted(layer["index"] for layer in layers if layer["kernel"])
