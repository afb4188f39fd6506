"""The matrix: what each release made of each case, what changed from one release to the next, and the gate.

A matrix is plain data that is the same, byte for byte, whenever it is made from the same releases.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fusescope.graph.errors import UserError
from fusescope.profiler.attribution import Attribution
from fusescope.profiler.kinds import tokens
from fusescope.profiler.releases import Release
from fusescope.profiler.releases.suite import CaseResult

SCHEMA = "fusescope.releases"
VERSION = 1
FAILED = "does not build"

HARM: Mapping[str, int] = {
    "fused": 0,
    "absent": 0,
    "epilogue": 1,
    "merged": 2,
    "unknown": 3,
    "alone": 3,
    "lost": 4,
    FAILED: 5,
}
"""Verdict to how much it costs: what a change is better or worse by."""

# Which verdicts bear a prediction out. `uncertain` predicts nothing.
_BORNE_OUT: Mapping[str, frozenset[str]] = {
    "fuses": frozenset({"fused"}),
    "separate": frozenset({"alone", "merged", "epilogue"}),
    "lost": frozenset({"lost"}),
}
_COUNTERS = re.compile(r"_U\d+|_my[el]+\d+_\d+$")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, without what differs from build to build."""

    what: str
    """Its tokens, or its name without the compiler's numbers."""

    group: str
    """Its group."""

    reads: tuple[str, ...]
    """Element types of the activations that it reads."""

    writes: tuple[str, ...]
    """Element types of what it writes."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One Quantize of a case."""

    tensor: str
    """The tensor."""

    verdict: str
    """What the release made of it."""

    prediction: str
    """What the documented rules of that runtime expect."""

    rule: str
    """The rule that says so."""

    signatures: tuple[str, ...]
    """What the site is like, most precisely first: `fusescope.profiler.releases.signatures`."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one release made of one case."""

    pattern: str
    """Name of the case: pattern, format and weight granularity."""

    release: str
    """Name of the release."""

    verdict: str
    """The verdicts in one text, such as ``alone`` or ``1 alone, 2 merged``; ``does not build``."""

    kernels: tuple[Kernel, ...]
    """Kernels in execution order."""

    sites: tuple[SiteRow, ...]
    """Its Quantizes."""

    failure: str
    """The compiler's words where it does not build; else empty."""


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two releases."""

    pattern: str
    """Name of the case."""

    before: str
    """The earlier release."""

    after: str
    """The later release."""

    what: str
    """The difference in words."""

    direction: str
    """``better``, ``worse`` or ``different``."""

    harm: int
    """How much worse, to sort by; negative where it is better."""


@dataclass(frozen=True, slots=True)
class RuleScore:
    """How a documented rule fares with a release."""

    release: str
    """Name of the release."""

    rule: str
    """Name of the rule."""

    sites: int
    """Sites that it predicts something of."""

    borne_out: int
    """Those where the verdict is what it predicts."""


@dataclass(frozen=True, slots=True)
class FusionMatrix:
    """Cases by releases."""

    target: str
    """What was compiled for."""

    questions: Mapping[str, str]
    """Case to the question that it asks."""

    rows: tuple[Row, ...]
    """One per case and release."""

    @property
    def releases(self) -> tuple[str, ...]:
        """Names of the releases, in the order of the rows."""
        return tuple(dict.fromkeys(row.release for row in self.rows))


def matrix(results: Mapping[Release, Sequence[CaseResult]], target: str) -> FusionMatrix:
    """Make the matrix from what each release made of the cases."""
    rows = [_row(release, result) for release, found in results.items() for result in found]
    questions = {result.case.name: result.case.pattern.question for found in results.values() for result in found}
    return FusionMatrix(target, questions, tuple(rows))


def changes(found: FusionMatrix) -> tuple[Change, ...]:
    """What differs from each release to the next one of the same runtime, most harmful first."""
    by_release: dict[str, dict[str, Row]] = {}
    for row in found.rows:
        by_release.setdefault(row.release, {})[row.pattern] = row
    differences = [
        change
        for before, after in pairwise(by_release)
        if _runtime(before) == _runtime(after)
        for pattern, row in by_release[after].items()
        if pattern in by_release[before]
        for change in _differences(by_release[before][pattern], row)
    ]
    return tuple(sorted(differences, key=lambda change: (-change.harm, change.pattern, change.what)))


def against(baseline: FusionMatrix, found: FusionMatrix) -> tuple[Change, ...]:
    """What differs from a stored matrix, for each runtime from its newest release there.

    Raises:
        UserError: The baseline was made for another target, or has no release of a runtime that was checked.
    """
    if baseline.target != found.target:
        raise UserError(f"the baseline is for {baseline.target}, not {found.target}", remedy="check the same target")
    kept: dict[str, list[Row]] = {}
    for row in baseline.rows:
        kept.setdefault(row.release, []).append(row)
    result: list[Change] = []
    for release in found.releases:
        stored = [name for name in kept if _runtime(name) == _runtime(release)]
        if not stored:
            raise UserError(f"the baseline has no release of {_runtime(release)}", where=release)
        rows = (*kept[stored[-1]], *(row for row in found.rows if row.release == release))
        if stored[-1] == release:
            # The same release again: give the stored rows another name, so that the two can be told apart.
            rows = tuple(_as_stored(row) if index < len(kept[stored[-1]]) else row for index, row in enumerate(rows))
        result.extend(changes(FusionMatrix(found.target, found.questions, rows)))
    return tuple(result)


def scores(found: FusionMatrix) -> tuple[RuleScore, ...]:
    """How often each documented rule of a release's own runtime is borne out by it."""
    counted: dict[tuple[str, str], list[bool]] = {}
    for row in found.rows:
        for site in row.sites:
            if site.prediction in _BORNE_OUT:
                held = site.verdict in _BORNE_OUT[site.prediction]
                counted.setdefault((row.release, site.rule), []).append(held)
    return tuple(RuleScore(release, rule, len(held), sum(held)) for (release, rule), held in counted.items())


def matrix_document(found: FusionMatrix, differences: Iterable[Change]) -> dict[str, Any]:
    """The document of ``fusescope releases check --json``."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "target": found.target,
        "questions": dict(found.questions),
        "rows": [asdict(row) for row in found.rows],
        "rules": [asdict(score) for score in scores(found)],
        "changes": [
            {"pattern": c.pattern, "from": c.before, "to": c.after, "what": c.what, "direction": c.direction}
            for c in differences
        ],
    }


def read_matrix(path: Path) -> FusionMatrix:
    """Read a stored matrix.

    Raises:
        UserError: It cannot be read or is no matrix.
    """
    remedy = "make one with `fusescope releases check --write-baseline FILE`"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read ({error})", where=path, remedy=remedy) from error
    if not isinstance(document, dict) or (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        raise UserError("is no matrix of releases that this fusescope reads", where=path, remedy=remedy)
    try:
        return FusionMatrix(
            document["target"], document["questions"], tuple(_read_row(row) for row in document["rows"])
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"is damaged ({error})", where=path, remedy=remedy) from error


def _read_row(row: Mapping[str, Any]) -> Row:
    kernels = (Kernel(k["what"], k["group"], tuple(k["reads"]), tuple(k["writes"])) for k in row["kernels"])
    sites = tuple(SiteRow(**{**site, "signatures": tuple(site["signatures"])}) for site in row["sites"])
    return Row(row["pattern"], row["release"], row["verdict"], tuple(kernels), sites, row["failure"])


def _row(release: Release, result: CaseResult) -> Row:
    sites = tuple(
        SiteRow(verdict.site.tensor, verdict.verdict, expected.prediction, expected.rule, likeness)
        for verdict, expected, likeness in zip(result.verdicts, result.predictions, result.signatures, strict=True)
    )
    kernels = tuple(_kernel(attribution) for attribution in result.kernels)
    return Row(result.case.name, release.name, _summary(sites, result.failure), kernels, sites, result.failure)


def _kernel(attribution: Attribution) -> Kernel:
    layer = attribution.layer
    return Kernel(
        what="".join(tokens(layer.name)) or _COUNTERS.sub("", layer.name),
        group=attribution.group,
        reads=tuple(tensor.dtype_name for tensor in layer.inputs),
        writes=tuple(tensor.dtype_name for tensor in layer.outputs),
    )


def _summary(sites: Sequence[SiteRow], failure: str) -> str:
    if failure:
        return FAILED
    seen = [site.verdict for site in sites]
    distinct = sorted(set(seen), key=lambda verdict: (-HARM[verdict], verdict))
    if len(seen) == 1:
        return seen[0]
    return ", ".join(f"{seen.count(verdict)} {verdict}" for verdict in distinct) or "no Quantize"


def _runtime(release: str) -> str:
    return release.partition("==")[0]


def _as_stored(row: Row) -> Row:
    return Row(row.pattern, f"{row.release} (stored)", row.verdict, row.kernels, row.sites, row.failure)


def _differences(before: Row, after: Row) -> list[Change]:
    def change(what: str, harm: int) -> Change:
        direction = "worse" if harm > 0 else "better" if harm < 0 else "different"
        return Change(after.pattern, before.release, after.release, what, direction, harm)

    if before.failure or after.failure:
        if before.failure and after.failure:
            return []
        words = f"no longer builds: {after.failure}" if after.failure else "builds now"
        return [change(words, HARM[FAILED] if after.failure else -HARM[FAILED])]
    was = {site.tensor: site.verdict for site in before.sites}
    found = [
        change(f"{site.tensor}: {was[site.tensor]} became {site.verdict}", HARM[site.verdict] - HARM[was[site.tensor]])
        for site in after.sites
        if was.get(site.tensor, site.verdict) != site.verdict
    ]
    if before.kernels != after.kernels:
        grown = len(after.kernels) - len(before.kernels)
        found.append(change(_kernel_words(before.kernels, after.kernels), grown))
    return found


def _kernel_words(before: Sequence[Kernel], after: Sequence[Kernel]) -> str:
    gone, new = _without_common(before, after), _without_common(after, before)
    if [k.what for k in gone] == [k.what for k in new]:
        pairs = [f"{k.what} writes {_types(new[i])} instead of {_types(k)}" for i, k in enumerate(gone) if k != new[i]]
        return "; ".join(pairs) or "the order of kernels changed"
    return f"{_count(gone)} became {_count(new)}: {_listed(gone)} became {_listed(new)}"


def _without_common(some: Sequence[Kernel], others: Sequence[Kernel]) -> list[Kernel]:
    rest = list(others)
    left = []
    for kernel in some:
        if kernel in rest:
            rest.remove(kernel)
        else:
            left.append(kernel)
    return left


def _count(kernels: Sequence[Kernel]) -> str:
    words = ("no kernel", "one kernel", "two kernels", "three kernels")
    return words[len(kernels)] if len(kernels) < len(words) else f"{len(kernels)} kernels"


def _listed(kernels: Sequence[Kernel]) -> str:
    return " + ".join(f"{kernel.what} ({_types(kernel)})" for kernel in kernels) or "nothing"


def _types(kernel: Kernel) -> str:
    return ", ".join(kernel.writes) or "nothing"
