"""The written study: one Markdown document, ready to commit, of what was compiled and (with a clock) measured.

It says only what its explanations hold. Without a clock there is no word about speed but that there is none.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusescope import __version__
from fusescope.graph.rules import PREDICTIONS
from fusescope.graph.units import count, megabytes, microseconds, plural
from fusescope.profiler.explanation import Explanation, Finding, Side
from fusescope.profiler.run import Provenance
from fusescope.profiler.verdicts import VERDICTS
from fusescope.quant.evaluate import Evaluation
from fusescope.report import caveats, panels, shaping
from fusescope.report.accuracy import accuracy_markdown
from fusescope.report.documents import records
from fusescope.report.markdown_text import bullets, code, fenced, names, shortened, sourced, table, text
from fusescope.report.recipe_text import recipe_told
from fusescope.report.redo import rebuilding, release_checks
from fusescope.report.waterfall import in_all, step_figures, waterfall

_NODES_SHOWN = 5


@dataclass(frozen=True)
class _Study:
    explanations: Sequence[Explanation]
    report: shaping.Report
    command: str
    failures: Sequence[str]
    evaluation: Evaluation | None

    @property
    def sides(self) -> list[Side]:
        return [engine.side for engine in self.report.engines]

    @property
    def is_timed(self) -> bool:
        return any(side.latency or side.layer_time for side in self.sides)

    @property
    def is_quantized(self) -> bool:
        return any(each.quantize.sites or each.quantized.weighted_in_8_bits for each in self.explanations)

    def label(self, place: int) -> str:
        return code(self.report.engines[place].label)

    def pairs(self) -> Iterator[tuple[str, str, Explanation]]:
        """Label of the engine that is explained, of its baseline (empty without one), and the explanation."""
        for explanation, (base, place) in zip(self.explanations, self.report.pairs, strict=True):
            yield self.label(place), "" if base is None else self.label(base), explanation


def render_markdown(
    explanations: Sequence[Explanation],
    *,
    title: str,
    command: str = "",
    failures: Sequence[str] = (),
    evaluation: Evaluation | None = None,
) -> str:
    """Write the study of one or more explanations.

    Args:
        explanations: What to write about, in this order.
        title: Heading of the document.
        command: The command that does all of it again; without one, the commands that built each engine.
        failures: What could not be built, and why, a line for each.
        evaluation: Accuracy of the models; None if no output of theirs was looked at.

    Returns:
        Markdown (GitHub's), in which names from models show as text whatever they hold.
    """
    study = _Study(explanations, shaping.gather(explanations), command, failures, evaluation)
    sections = (_summary, _recipe, _method, _results, _why, _expected, _not_measured, _again, _redo)
    blocks = [f"# {text(shortened(title))}", *(block for section in sections for block in section(study))]
    return "\n\n".join(blocks) + "\n"


def _summary(study: _Study) -> Iterator[str]:
    yield "## Summary"
    if not study.is_timed:
        yield "No clock ran: this study holds facts of compiled engines, and says nothing about speed."
    yield bullets(f"{label}: {text(shaping.answer(explanation))}" for label, _, explanation in study.pairs())
    said = dict.fromkeys(line for each in study.explanations for line in (each.observed, each.expected) if line)
    yield from (f"{text(line[0].upper() + line[1:])}." for line in said)
    if warnings := dict.fromkeys(line for each in study.explanations for line in caveats.cautions(each)):
        yield "\n>\n".join(f"> {text(line)}" for line in warnings)
    yield "### Decision"
    yield bullets(_decision(study))


def _decision(study: _Study) -> Iterator[str]:
    if not study.is_quantized:
        yield "None: nothing is quantized here."
        return
    compared = [
        (label, base, explanation.quantized.latency, explanation.baseline.latency)
        for label, base, explanation in study.pairs()
        if explanation.baseline
    ]
    timed = False
    for label, base, after, before in compared:
        if after and before:
            timed = True
            how = "faster" if after.median_ms < before.median_ms else "not faster"
            ratio = before.median_ms / after.median_ms
            yield (
                f"{label} is {how} than {base}: median latency {after.median_ms:.3f} ms ({after.source}) against "
                f"{before.median_ms:.3f} ms ({before.source}), a ratio of {ratio:.2f}."
            )
    if not timed:
        yield "Open: whether quantizing pays takes a clock on a GPU" + (
            ", and the accuracy. This study has neither." if study.evaluation is None else ". This study has none."
        )
    proved = [
        f"Proved here: {text(finding.remedy)}. In {code(trial.variant)}, against {label}: "
        f"{text(shaping.told_trial(trial, explanation.findings))}."
        for label, _, explanation in study.pairs()
        for finding in explanation.findings
        for trial in finding.trials
        if trial.helped and trial.same_as is None
    ]
    yield from dict.fromkeys(proved)
    untried = {f.remedy for each in study.explanations for f in each.findings if f.remedy and not f.trials}
    if untried:
        yield f"Documented and not tried: {plural(len(untried), 'remedy', 'remedies')}, with the findings below."


def _recipe(study: _Study) -> Iterator[str]:
    yield "## Recipe"
    told = (f"{code(each.quantized.provenance.name)}: {recipe_told(each)}" for each in study.explanations)
    yield bullets(dict.fromkeys(told))


def _method(study: _Study) -> Iterator[str]:
    yield "## Method"
    header = ("engine", "compiler", "target", "how", "batch", "builder options", "weights", "made", "fusescope")
    rows = []
    for place, side in enumerate(study.sides):
        origin = side.provenance
        rows.append(
            (
                study.label(place),
                text(f"{origin.runtime} {origin.runtime_version}"),
                text(origin.target),
                text(origin.how),
                str(origin.batch or "-"),
                _options(origin),
                text(origin.weights) or "-",
                text(origin.created),
                text(origin.fusescope_version),
            )
        )
    yield table(header, rows, left=len(header))
    origins = ((study.label(place), side.provenance) for place, side in enumerate(study.sides))
    models = [(label, code(each.model_name), code(each.model_sha256)) for label, each in origins if each.model_name]
    if models:
        yield "The ONNX models, as they were compiled:"
        yield table(("engine", "model", "SHA-256"), models, left=3)
    yield bullets(
        (
            "Kernels, dtypes and bytes are read from the layers that each engine lists. A kernel is a layer that runs "
            "on the GPU.",
            "Traffic is what kernels read and write: dimensions times dtype size, each tensor of a kernel once. What a "
            "cache saves is not in it.",
            "What full TensorRT does is documented rules applied to the ONNX graph, and is kept apart from what was "
            "compiled. Sites are tensors of the graph, kernels are layers of an engine: their counts do not compare.",
        )
    )


def _options(origin: Provenance) -> str:
    given = [f"{text(key)} {text(str(value))}" for key, value in origin.options.items() if value is not None]
    return ", ".join(given) or "the runtime's defaults"


def _results(study: _Study) -> Iterator[str]:
    yield "## Results"
    figures = [label for label, _, _ in shaping.BALANCE]
    rows = []
    for place, engine in enumerate(study.report.engines):
        cost = engine.quantize
        values = [(figure(engine.side), unit) for _, figure, unit in shaping.BALANCE]
        cells = ["-" if value is None else unit(value) for value, unit in values]
        quantizing = ("-", "-") if cost is None else (count(cost.kernels_alone), count(cost.kernels_carrying))
        rows.append((study.label(place), *cells, f"{count(engine.side.weighted)}", *quantizing))
    yield "### Engines"
    yield table(("engine", *figures, "convs and gemms", "kernels that only quantize", "kernels that quantize"), rows)
    yield "Source: the engines' own layers; the plan is the size of the serialized engine."
    yield "### What convolutions read and write"
    yield _dtypes(study)
    yield "Source: dtypes of the tensors of each engine's convolution kernels."
    yield from _speed(study)
    if study.evaluation is not None:
        yield "### Accuracy"
        yield accuracy_markdown(study.evaluation, shaping.baselines(study.explanations))
        yield "Source: outputs of the ONNX models in ONNX Runtime on the same images, none of which calibrated."


def _dtypes(study: _Study) -> str:
    counted = [panels.conv_dtypes(engine.layers) for engine in study.report.engines]
    header = ("activations read", "written", *(study.label(place) for place in range(len(counted))))
    kinds = dict.fromkeys(kind for each in counted for kind in each)
    return table(header, [(*map(text, kind), *(count(each[kind]) for each in counted)) for kind in kinds], left=2)


def _speed(study: _Study) -> Iterator[str]:
    if not study.is_timed:
        return
    rows = [
        (
            study.label(place),
            f"{side.latency.median_ms:.3f}" if side.latency else "-",
            side.latency.source if side.latency else "-",
            f"{side.layer_time.total_ms:.3f}" if side.layer_time else "-",
            side.layer_time.source if side.layer_time else "-",
            microseconds(side.profile_overhead_us),
        )
        for place, side in enumerate(study.sides)
    ]
    yield "### Speed"
    yield table(
        ("engine", "median latency, ms", "source", "sum of layer times, ms", "source", "overhead per layer"), rows
    )
    yield "The sum of layer times is not the latency: a profiler adds to every layer."


def _why(study: _Study) -> Iterator[str]:
    for label, base, explanation in study.pairs():
        yield f"## Why: {label}" + (f" against {base}" if base else "")
        if steps := waterfall(explanation):
            yield "What lies between the two engines; the steps add up to their difference:"
            timed = ("time",) * (steps[0].time_us is not None)
            rows = [(step.label, *step_figures(step)) for step in (*steps, in_all(steps))]
            yield table(("what changed", "kernels", "traffic", *timed), rows)
        yield "### Kernels and bytes by group"
        yield _groups(explanation)
        yield "Source: the engines' own layers, each in the group of its heaviest work."
        if explanation.quantize.sites:
            yield from _quantizes(explanation)
        yield from _findings(explanation)


def _groups(explanation: Explanation) -> str:
    sides = list(dict.fromkeys(explanation.groups.columns.get_level_values(0)))
    timed = shaping.is_timed(explanation)
    rows = []
    for group in shaping.shown_groups(explanation):
        cells = [explanation.groups.loc[group, side] for side in sides]
        rows.append((group, *(cell for each in cells for cell in shaping.group_figures(each, timed=timed))))
    names = ("kernels", "traffic", *(("time", "share", "share net") if timed else ()))
    figures = [figure if len(sides) == 1 else f"{side} {figure}" for side in sides for figure in names]
    return table(("group", *figures), rows)


def _quantizes(explanation: Explanation) -> Iterator[str]:
    cost = explanation.quantize
    yield "### What became of the Quantizes"
    yield (
        f"{plural(cost.sites, 'site')} of the graph. What quantizing costs lies between the kernels that do nothing "
        f"else ({count(cost.kernels_alone)}, {megabytes(cost.bytes_alone)}) and all that write a quantized tensor "
        f"({count(cost.kernels_carrying)}, {megabytes(cost.bytes_carrying)})."
    )
    shown = [verdict for verdict in VERDICTS if cost.verdicts[verdict]]
    rows = [
        (text(row["reason"]), *(count(row[key]) for key in ("sites", *shown, "kernels")), megabytes(row["bytes"]))
        for row in records(explanation.reasons.reset_index())
    ]
    yield table(("reason", "sites", *shown, "kernels", "traffic"), rows)
    yield bullets(f"{verdict}: {VERDICTS[verdict]}" for verdict in shown)
    yield (
        "Source: the reason is that of the documented rules; the verdict is read from the engine, from the kernel that "
        "writes the 8-bit tensor."
    )


def _findings(explanation: Explanation) -> Iterator[str]:
    shown = shaping.causes(explanation)
    if not shown:
        return
    yield f"### Findings, most {'time' if any(finding.time_us for finding in shown) else 'bytes'} first"
    for number, finding in enumerate(shown, start=1):
        yield f"#### {number}. {text(finding.title)}"
        spent = "" if finding.time_us is None else f", {microseconds(finding.time_us)}"
        yield f"{plural(finding.kernels, 'kernel')}, {megabytes(finding.bytes)}{spent}. {text(finding.detail)}"
        yield bullets(_evidence(finding, explanation.findings))


def _evidence(finding: Finding, findings: Sequence[Finding]) -> Iterator[str]:
    if finding.nodes:
        yield f"Where: {names(finding.nodes, _NODES_SHOWN)}"
    if finding.layers:
        yield f"Layers of the engine: {names([str(index) for index in finding.layers], _NODES_SHOWN)}"
    if finding.remedy:
        yield f"Try: {text(finding.remedy)} ({finding.status})"
    for trial in finding.trials:
        yield f"Tried in {code(trial.variant)}: {text(shaping.told_trial(trial, findings))}"
    yield f"Source: {sourced(finding.source)}"


def _expected(study: _Study) -> Iterator[str]:
    quantized = [(label, each) for label, _, each in study.pairs() if each.quantize.sites]
    if not quantized:
        return
    yield "## What full TensorRT's documented rules expect"
    yield "Rules applied to the ONNX graph, nothing else: no engine was built or measured for this table."
    counted = [Counter(zip(each.sites["prediction"], each.sites["reason"], strict=True)) for _, each in quantized]
    kinds = {kind for each in counted for kind in each}
    ordered = sorted(kinds, key=lambda kind: (PREDICTIONS.index(kind[0]), -counted[0][kind], kind[1]))
    rows = [(kind[0], text(kind[1]), *(count(each[kind]) for each in counted)) for kind in ordered]
    yield table(("expected", "reason", *(f"sites of {label}" for label, _ in quantized)), rows, left=2)
    yield (
        "A Quantize that fuses is computed by the kernel of the producing convolution, one that stands separate by "
        "another kernel; lost means that no reader can run in 8 bits, uncertain that the documents do not say."
    )


def _not_measured(study: _Study) -> Iterator[str]:
    yield "## What was not measured"
    origins = [side.provenance for side in study.sides]
    runtimes = {origin.runtime for origin in origins}
    targets = ", ".join(sorted({text(origin.target) for origin in origins}))
    batches = ", ".join(str(batch) for batch in sorted({origin.batch or 0 for origin in origins} - {0})) or "-"
    gaps = [f"{label}: {text(what)}" for label, _, each in study.pairs() for what in caveats.gaps(each.coverage)]
    yield bullets(
        [
            *([] if study.is_timed else ["Time: no GPU was used, so there is no latency and no layer time."]),
            *(["Full TensorRT: only its documented rules are known here."] if "tensorrt" not in runtimes else []),
            *(["Accuracy: no output of the model was looked at."] if study.evaluation is None else []),
            f"Other targets and batches than those above (targets: {targets}; batches: {batches}).",
            *(f"Not built: {text(failure)}" for failure in study.failures),
            *gaps,
        ]
    )


def _again(study: _Study) -> Iterator[str]:
    yield "## When to look again"
    apart = Counter[str]()
    for each in study.explanations:
        apart |= Counter(each.sites.loc[each.sites["prediction"] == "separate", "reason"])
    remedies = {f.remedy: None for each in study.explanations for f in each.findings if f.remedy and not f.trials}
    yield bullets(
        [
            *(["When there is a GPU to measure on: only a clock tells what this costs."] if not study.is_timed else []),
            *(
                f"When a release fuses this: {text(reason)} ({plural(sites, 'site')}, expected apart today)."
                for reason, sites in apart.most_common()
            ),
            *(f"When this was tried: {text(remedy)}." for remedy in remedies),
            "When the compiler, the model or the recipe changes.",
        ]
    )
    if study.is_quantized and (checks := release_checks(study.sides)):
        yield "After an upgrade, this tells which Quantizes the new release fuses that the one used here did not:"
        yield fenced(checks, "bash")


def _redo(study: _Study) -> Iterator[str]:
    yield "## How to do it again"
    releases = {f"{side.provenance.runtime} {side.provenance.runtime_version}" for side in study.sides}
    yield f"With fusescope {text(__version__)} and {text(', '.join(sorted(releases)))}:"
    yield fenced([study.command] if study.command else rebuilding(study.explanations, study.report), "bash")
    yield "The SHA-256 above tell whether a model is the same."
