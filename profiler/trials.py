"""What came of trying a remedy: engines of one model whose recipes differ only in what the remedy changes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusescope.profiler.explanation import AccuracyChange, Explanation, Finding, Trial

Pair = tuple[str, str]
"""Names of two variants."""


def with_trials(
    explanations: Sequence[Explanation],
    *,
    built_for: Mapping[Pair, Collection[str]] | None = None,
    accuracy: Mapping[Pair, AccuracyChange] | None = None,
) -> tuple[Explanation, ...]:
    """Set beside each finding the engines in which its remedy was tried.

    Args:
        explanations: Explanations of engines of one model.
        built_for: A variant and one that was built to try remedies for it, to the titles of the findings that proposed
            it. Other engines are recognised by their recipes.
        accuracy: A variant and another, to by how much the other's top-1 differs.

    Returns:
        The same explanations, their findings with trials where another one differs just by the finding's change.
    """
    return tuple(_tried(explanation, explanations, built_for or {}, accuracy or {}) for explanation in explanations)


def _tried(
    explanation: Explanation,
    others: Sequence[Explanation],
    built_for: Mapping[Pair, Collection[str]],
    accuracy: Mapping[Pair, AccuracyChange],
) -> Explanation:
    first: dict[str, int] = {}
    findings = []
    for place, finding in enumerate(explanation.findings):
        trials = []
        for other in _trying(explanation, finding, others, built_for):
            trial = _trial(explanation, other, accuracy)
            trials.append(replace(trial, same_as=first.get(trial.variant)))
            first.setdefault(trial.variant, place)
        findings.append(replace(finding, trials=tuple(trials)))
    return replace(explanation, findings=tuple(findings))


def _trying(
    explanation: Explanation,
    finding: Finding,
    others: Sequence[Explanation],
    built_for: Mapping[Pair, Collection[str]],
) -> list[Explanation]:
    """The engines that differ from the explained one just by the finding's change."""
    own = explanation.quantized.provenance
    if not finding.change:
        return []
    wanted = _changed(own.recipe, finding.change)
    return [
        other
        for other in others
        if other is not explanation
        and other.quantized.provenance.batch == own.batch
        and (
            finding.title in built_for.get((own.name, other.quantized.provenance.name), ())
            or _changed(other.quantized.provenance.recipe, {}) == wanted
        )
    ]


def _trial(explanation: Explanation, other: Explanation, accuracy: Mapping[Pair, AccuracyChange]) -> Trial:
    own, tried = explanation.quantized, other.quantized
    return Trial(
        variant=tried.provenance.name,
        kernels=tried.kernels - own.kernels,
        bytes=tried.traffic_bytes - own.traffic_bytes,
        accuracy=accuracy.get((own.provenance.name, tried.provenance.name)),
    )


def _changed(recipe: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with a change, in a form that can be compared: of what is kept, the nodes and not the reasons."""
    rest = {key: value for key, value in change.items() if key != "keep"}
    return {**recipe, **rest, "kept": {*recipe.get("kept", ()), *change.get("keep", ())}}
