"""Measure the page of a run with 10,000 layers in Chromium: `python benchmarks/report_page.py`.

* from the start of loading until the layer table is there and answers a search (goal: at most 2 s);
* until the figures of the first screen are drawn as well, which start after the page can be used;
* the size of the file without plotly.js, for each layer (goal: at most 1 kB).

The layers are those of the HRNet-W18 sample, over and over. It needs what `fusescope[test]` brings, and Chromium.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
from playwright.sync_api import Browser, sync_playwright
from plotly.offline import get_plotlyjs

from fusescope.profiler.explain import explain
from fusescope.profiler.run import read_run
from fusescope.report.html import render_html

SAMPLE = Path(__file__).parents[1] / "samples" / "hrnet_w18.toml"
LAYERS = 10_000
RUNS = 5
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

# As soon as the page has been read: searches the table, and notes when the answer can be seen, in milliseconds.
SEARCH = """
addEventListener("DOMContentLoaded", () => {
    const table = document.querySelector('[data-table="layers"]');
    const search = table.querySelector('input[type="search"]');
    search.value = "layer 9999";
    search.dispatchEvent(new Event("input"));
    requestAnimationFrame(() => {
        if (table.querySelectorAll("tbody tr").length === 1) window.answered = performance.now();
    });
});
"""


def page(folder: Path) -> tuple[str, int]:
    """Render the page of an engine with `LAYERS` layers; return it and their number in all engines."""
    subprocess.run(
        [sys.executable, "-m", "fusescope", "study", str(SAMPLE), "-o", str(folder)], check=True, capture_output=True
    )
    runs = folder / "runs"
    explanation = explain(read_run(runs / "b1-fp8-per-channel"), read_run(runs / "b1-fp16"))
    own = len(explanation.layers)
    many = pd.concat([explanation.layers] * (LAYERS // own + 1), ignore_index=True).head(LAYERS)
    many = many.assign(index=range(LAYERS), name=[f"layer {index}" for index in range(LAYERS)])
    assert explanation.baseline_layers is not None
    return render_html([replace(explanation, layers=many)], title="large"), LAYERS + len(explanation.baseline_layers)


def measured(browser: Browser, path: Path) -> tuple[float, float]:
    """Milliseconds until the page can be used, and until its first figures are drawn."""
    tab = browser.new_page()
    tab.add_init_script(SEARCH)
    tab.goto(path.as_uri())
    tab.wait_for_selector('[data-figure="waterfall-0"] .main-svg')
    drawn = float(tab.evaluate("performance.now()"))
    usable = float(tab.evaluate("window.answered"))
    tab.close()
    return usable, drawn


def main() -> None:
    """Print one line per claim."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        source, layers = page(Path(name) / "study")
        path = Path(name) / "report.html"
        path.write_text(source, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        usable, drawn = (
            statistics.median(times) for times in zip(*(measured(browser, path) for _ in range(RUNS)), strict=True)
        )
        browser.close()
    rest = len(source.encode()) - len(get_plotlyjs().encode())
    print(f"{LAYERS} layers: usable after {usable / 1000:.2f} s (goal 2 s), first figures after {drawn / 1000:.2f} s")
    print(f"{rest / layers:.0f} bytes for each of {layers} layers beside plotly.js (goal 1000)")


if __name__ == "__main__":
    main()
