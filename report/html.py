"""The interactive report: one HTML file that holds all it needs. Only this module knows jinja2.

Names come from other people's models: jinja2 escapes them in the page, the data block is JSON without ``<``, the script
writes text only as text, and a Content-Security-Policy allows nothing but the two scripts of the file, by their hashes.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from fusescope import __version__
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.releases.matrix import Change, FusionMatrix
from fusescope.profiler.tables import LAYER_COLUMNS, SITE_COLUMNS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.report import figures, shaping, units
from fusescope.report.documents import explanation_document, header, records
from fusescope.report.palette import GROUP_COLORS, PREDICTION_COLORS, VERDICT_COLORS
from fusescope.report.releases import by_pattern, grouped_changes

_FIGURE = re.compile(r"(?<![\w#&.-])[\d,.]*\d(?: [kKM]?i?B)?(?![\w-])")


def render_html(explanations: Sequence[Explanation], *, title: str) -> str:
    """Make the report of one or more explanations.

    Args:
        explanations: What to show, in this order: those of a study's variants and batches, or a single one.
        title: Heading of the page.

    Returns:
        A whole HTML document that loads nothing from anywhere.
    """
    report = shaping.gather(explanations)
    environment = _environment()
    script = environment.get_template("report.js").render()
    plotly = get_plotlyjs()
    page = environment.get_template("report.html").render(
        title=title,
        version=__version__,
        policy=_policy(plotly, script),
        plotly=Markup(plotly),  # noqa: S704 - scripts of our own, not text from a model
        script=Markup(script),  # noqa: S704 - as above
        data=Markup(_json(page_data(explanations, report))),  # noqa: S704 - JSON without any <
        explanations=explanations,
        report=report,
        groups=GROUPS,
        verdicts=VERDICTS,
        verdict_colors=VERDICT_COLORS,
        prediction_colors=PREDICTION_COLORS,
        shaping=shaping,
        units=units,
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a dump may hold bytes that are no text


def render_releases(found: FusionMatrix, differences: Sequence[Change]) -> str:
    """Make the page of a matrix of releases: every pattern is a row that opens to the kernels side by side."""
    page = (
        _environment()
        .get_template("releases.html")
        .render(
            title="TensorRT releases and their fusions",
            version=__version__,
            found=found,
            differences=differences,
            grouped=grouped_changes(differences),
            patterns=by_pattern(found),
            changed={change.pattern for change in differences if change.direction == "worse"},
        )
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def page_data(explanations: Sequence[Explanation], report: shaping.Report) -> dict[str, Any]:
    """The data of the page: the documents of ``explain --json``, their tables by column, and the figures.

    A layer table is there once for each engine; ``layers`` and ``baseline_layers`` of an explanation are its place.
    """
    documents = []
    for explanation, (base, quantized) in zip(explanations, report.pairs, strict=True):
        document = explanation_document(explanation)
        document["sites"] = shaping.pivot(document["sites"], SITE_COLUMNS)
        documents.append({**document, "layers": quantized, "baseline_layers": base})
    return {
        **header("report"),
        "explanations": documents,
        "engines": [
            {"label": engine.label, "layers": shaping.pivot(records(engine.layers), LAYER_COLUMNS)}
            for engine in report.engines
        ],
        "figures": _figures(explanations, report),
        "colors": {"group": GROUP_COLORS, "verdict": VERDICT_COLORS, "prediction": PREDICTION_COLORS},
        "help": {"layers": LAYER_COLUMNS, "sites": SITE_COLUMNS},
    }


def _figures(explanations: Sequence[Explanation], report: shaping.Report) -> dict[str, figures.Figure]:
    drawn = {"engines": figures.engines_figure(report.engines)} if len(report.engines) > 1 else {}
    for number, explanation in enumerate(explanations):
        if steps := shaping.waterfall(explanation):
            drawn[f"waterfall-{number}"] = figures.waterfall_figure(explanation, steps)
        drawn[f"groups-{number}"] = figures.groups_figure(explanation)
        drawn[f"modules-{number}"] = figures.modules_figure(
            shaping.modules(explanation.layers, explanation.baseline_layers)
        )
        if len(explanation.sites):
            drawn[f"reasons-{number}"] = figures.reasons_figure(explanation)
    return drawn


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fusescope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["strong_figures"] = _strong_figures
    return environment


def _strong_figures(text: str) -> Markup:
    """A sentence with its figures set in bold."""
    return Markup(_FIGURE.sub(r"<strong>\g<0></strong>", str(escape(text))))  # noqa: S704 - escaped here


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts, style itself (plotly writes styles), show images that it drew itself."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: it has no character that HTML reads."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
