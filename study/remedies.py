"""Which remedies a study tries: the changes of recipe that its findings propose, each once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusescope.profiler.explanation import Explanation, Finding
from fusescope.study.config import Variant


@dataclass(frozen=True)
class Remedy:
    """A variant that differs from another just by what findings propose."""

    variant: Variant
    """What to build."""

    of: str
    """The variant whose findings proposed it."""

    findings: tuple[str, ...]
    """Titles of those findings."""

    verdicts: Mapping[str, str] | None
    """For placement "fusable-only": what became of each Quantize site of that variant's engine."""


def remedies(explanations: Sequence[Explanation], variants: Sequence[Variant]) -> tuple[Remedy, ...]:
    """List what to try.

    Args:
        explanations: Those of one batch.
        variants: The study's variants.

    Returns:
        The changes that no variant of the study tries already.
    """
    by_name = {variant.name: variant for variant in variants}
    known = {_settings(variant) for variant in variants}
    found: list[Remedy] = []
    for explanation in explanations:
        origin = by_name.get(explanation.quantized.provenance.name)
        if origin is None:
            continue
        for change, findings in _proposed(explanation.findings):
            variant = _changed(origin, change, findings[0].key, {each.variant.name for each in found} | set(by_name))
            observed = variant.placement == "fusable-only"
            # What was observed of one engine is no setting: such a variant is like no other.
            if observed or _settings(variant) not in known:
                known.add(_settings(variant))
                verdicts = _verdicts(explanation) if observed else None
                found.append(Remedy(variant, origin.name, tuple(finding.title for finding in findings), verdicts))
    return tuple(found)


def _proposed(findings: Iterable[Finding]) -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
    """Each change once, with the findings that propose it."""
    changes: list[tuple[Mapping[str, Any], list[Finding]]] = []
    for finding in findings:
        if finding.change:
            same = next((group for change, group in changes if change == finding.change), None)
            if same is None:
                changes.append((finding.change, [finding]))
            else:
                same.append(finding)
    return iter(changes)


def _changed(origin: Variant, change: Mapping[str, Any], key: str, taken: set[str]) -> Variant:
    settings = {name: value for name, value in change.items() if name != "keep"}
    kept = tuple(change.get("keep", ()))
    if kept:
        settings["keep"] = (*origin.keep, *map(_literal, kept))
    words = [str(value) for name, value in settings.items() if name != "keep"] or [f"without-{key}"]
    name = base = "-".join((origin.name, *words))
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return origin.model_copy(update={**settings, "name": name})


def _literal(name: str) -> str:
    """A pattern that matches just this name."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _settings(variant: Variant) -> str:
    return variant.model_copy(update={"name": "", "recipe": "", "dtype": None}).model_dump_json()


def _verdicts(explanation: Explanation) -> dict[str, str]:
    return dict(zip(explanation.sites["tensor"], explanation.sites["verdict"], strict=True))
