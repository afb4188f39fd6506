"""What came of trying a remedy: engines of one model whose recipes differ only in what the remedy changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusescope.profiler.explanation import Explanation, Finding, Trial


def with_trials(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Set beside each finding the engines in which its remedy was tried.

    Args:
        explanations: Explanations of engines of one model.

    Returns:
        The same explanations, their findings with trials where another one differs just by the finding's change.
    """
    return tuple(
        replace(
            explanation,
            findings=tuple(
                replace(finding, trials=_trials(explanation, finding, explanations)) for finding in explanation.findings
            ),
        )
        for explanation in explanations
    )


def _trials(explanation: Explanation, finding: Finding, others: Sequence[Explanation]) -> tuple[Trial, ...]:
    own = explanation.quantized
    if not finding.change:
        return ()
    wanted = _changed(own.provenance.recipe, finding.change)
    return tuple(
        Trial(
            variant=other.quantized.provenance.name,
            kernels=other.quantized.kernels - own.kernels,
            bytes=other.quantized.traffic_bytes - own.traffic_bytes,
        )
        for other in others
        if other is not explanation
        and _changed(other.quantized.provenance.recipe, {}) == wanted
        and other.quantized.provenance.batch == own.provenance.batch
    )


def _changed(recipe: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with a change, in a form that can be compared: of what is kept, the nodes and not the reasons."""
    rest = {key: value for key, value in change.items() if key != "keep"}
    return {**recipe, **rest, "kept": {*recipe.get("kept", ()), *change.get("keep", ())}}
