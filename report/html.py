"""The interactive report: one HTML file that holds all it needs. Only this module knows jinja2.

Names come from other people's models: jinja2 escapes them in the page, the data block is JSON without ``<``, the script
writes text only as text, and a Content-Security-Policy allows nothing but the two scripts of the file, by their hashes.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from fusescope import __version__
from fusescope.graph import units
from fusescope.profiler.blocks import BLOCK_COLUMNS
from fusescope.profiler.explanation import Explanation
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.releases.matrix import Change, FusionMatrix
from fusescope.profiler.tables import LAYER_COLUMNS, SITE_COLUMNS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.quant.evaluate import Evaluation
from fusescope.report import caveats, figures, panels, plots, shaping, waterfall
from fusescope.report.accuracy import accuracy_tables, evaluation_document
from fusescope.report.documents import explanation_document, header, records
from fusescope.report.palette import GROUP_COLORS, PREDICTION_COLORS, VERDICT_COLORS
from fusescope.report.releases import by_pattern, grouped_changes

_FIGURE = re.compile(r"(?<![\w#&.-])[\d,.]*\d(?: [kKM]?i?B)?(?![\w-])")

NAMED = (
    *(("engines", "layers", column) for column in ("name", "work", "onnx_nodes", "quantizes", "finishes")),
    *(("explanations", "sites", column) for column in ("tensor", "producer", "readers", "high_precision_readers")),
    ("explanations", "findings", "nodes"),
    ("explanations", "blocks", "convs"),
    ("explanations", "spots", "name"),
    ("graphs", "nodes", "name"),
    ("graphs", "tensors", "tensor"),
)
"""Where the page's data holds names of layers, nodes and tensors: they are written once, in ``names``, and meant by
their places there."""


def render_html(explanations: Sequence[Explanation], *, title: str, evaluation: Evaluation | None = None) -> str:
    """Make the report of one or more explanations.

    Args:
        explanations: What to show, in this order: those of a study's variants and batches, or a single one.
        title: Heading of the page.
        evaluation: Accuracy of the models; None if no output of theirs was looked at.

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
        data=Markup(_json(page_data(explanations, report, evaluation))),  # noqa: S704 - JSON without any <
        explanations=explanations,
        report=report,
        evaluation=evaluation,
        accuracy=None if evaluation is None else accuracy_tables(evaluation),
        groups=GROUPS,
        verdicts=VERDICTS,
        verdict_colors=VERDICT_COLORS,
        prediction_colors=PREDICTION_COLORS,
        group_colors=GROUP_COLORS,
        panels=panels,
        shaping=shaping,
        waterfall=waterfall,
        caveats=caveats,
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


def page_data(
    explanations: Sequence[Explanation], report: shaping.Report, evaluation: Evaluation | None = None
) -> dict[str, Any]:
    """The data of the page: the documents of ``explain --json``, their tables by column, and the figures.

    A layer table and a graph are there once; ``layers``, ``baseline_layers`` and ``graph`` of an explanation are their
    places.
    """
    documents, graphs = [], []
    for explanation, (base, quantized) in zip(explanations, report.pairs, strict=True):
        document = explanation_document(explanation)
        document["sites"] = shaping.pivot(document["sites"], SITE_COLUMNS)
        if document["blocks"] is not None:
            document["blocks"] = shaping.pivot(document["blocks"], BLOCK_COLUMNS)
        if document["graph"] not in graphs:
            graphs.append(document["graph"])
        places = {"layers": quantized, "baseline_layers": base, "graph": graphs.index(document["graph"])}
        documents.append({**document, **places})
    data = {
        **header("report"),
        "explanations": documents,
        "engines": [
            {"label": engine.label, "layers": shaping.pivot(records(engine.layers), LAYER_COLUMNS)}
            for engine in report.engines
        ],
        "graphs": graphs,
        "operations": panels.operation_groups(explanations),
        "dtypes": panels.short_dtypes(explanations),
        "accuracy": None if evaluation is None else evaluation_document(evaluation),
        "figures": _figures(explanations, report, evaluation),
        "colors": {"group": GROUP_COLORS, "verdict": VERDICT_COLORS, "prediction": PREDICTION_COLORS},
        "help": {"layers": LAYER_COLUMNS, "sites": SITE_COLUMNS},
    }
    return {**data, "names": _share_names(data), "named": NAMED}


def _share_names(data: dict[str, Any]) -> list[str]:
    """Replace the names that are found at `NAMED` by their places in a list; return the list."""
    places: dict[str, int] = {}

    def shared(value: Any) -> Any:
        return (
            [shared(item) for item in value]
            if isinstance(value, list | tuple)
            else places.setdefault(value, len(places))
        )

    for *path, last in NAMED:
        for holder in _holders(data, path):
            holder[last] = shared(holder[last])
    return list(places)


def _holders(value: Any, path: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The objects at the end of a path, through every item of the lists on it."""
    if isinstance(value, list):
        for item in value:
            yield from _holders(item, path)
    elif value is not None and path:
        yield from _holders(value[path[0]], path[1:])
    elif value is not None:
        yield value


def _figures(
    explanations: Sequence[Explanation], report: shaping.Report, evaluation: Evaluation | None
) -> dict[str, figures.Figure]:
    drawn = {"engines": figures.engines_figure(report.engines)} if len(report.engines) > 1 else {}
    if evaluation is not None:
        drawn["accuracy"] = plots.accuracy_figure(evaluation)
    for number, explanation in enumerate(explanations):
        if steps := waterfall.waterfall(explanation):
            drawn[f"waterfall-{number}"] = figures.waterfall_figure(explanation, steps)
        drawn[f"groups-{number}"] = figures.groups_figure(explanation)
        drawn[f"modules-{number}"] = figures.modules_figure(
            shaping.modules(explanation.layers, explanation.baseline_layers)
        )
        drawn[f"streams-{number}"] = plots.streams_figure(panels.lanes(explanation))
        if trades := panels.trades(explanation):
            drawn[f"blocks-{number}"] = plots.blocks_figure(trades)
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
