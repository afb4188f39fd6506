"""Observed rule sets: what a release was seen to do with the pattern suite, applied to the sites of another graph.

The stored matrices in ``baselines`` are the rule sets. A site is likened to the suite's sites by its signature: what
makes the tensor, what happens to it before the Quantize, who reads it, in which format and granularity.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph
from fusescope.graph.rules import Expectation, Prediction
from fusescope.graph.sites import QuantizeSite
from fusescope.profiler.releases.matrix import FusionMatrix, read_matrix
from fusescope.profiler.releases.signatures import signatures

_EXPECTED: dict[str, Expectation] = {
    "fused": "fuses",
    "epilogue": "separate",
    "merged": "separate",
    "alone": "separate",
    "lost": "lost",
}


def stored_rules(name: str) -> FusionMatrix:
    """The stored matrix that a rule set such as ``tensorrt-rtx-1.7`` is.

    Raises:
        UserError: There is none of that name.
    """
    folder = Path(str(files("fusescope.profiler.releases").joinpath("baselines")))
    stored = {path.stem: path for path in sorted(folder.glob("*.json"))}
    chosen = [path for stem, path in stored.items() if stem == name or stem.startswith(f"{name}.")]
    if not chosen:
        raise UserError(f"there are no rules {name!r}", remedy=f"choose documented, or one of {', '.join(stored)}")
    return read_matrix(chosen[-1])


def observed_predictions(
    graph: ModelGraph, sites: Iterable[QuantizeSite], rules: FusionMatrix
) -> tuple[Prediction, ...]:
    """Predict with what a release was seen to do, in the order of `sites`.

    A site that is like none of the suite's, or like some that came out differently, is ``uncertain``.
    """
    seen: dict[str, list[tuple[str, str]]] = {}
    for row in rules.rows:
        for site in row.sites:
            for signature in site.signatures:
                seen.setdefault(signature, []).append((site.verdict, row.pattern))
    runtime = rules.releases[0].partition("==")[0]
    return tuple(_prediction(signatures(graph, site, runtime, rules.target), seen, rules) for site in sites)


def _prediction(likenesses: Sequence[str], seen: dict[str, list[tuple[str, str]]], rules: FusionMatrix) -> Prediction:
    where = f"compiled with {', '.join(rules.releases)} for {rules.target}"
    signature = next((likeness for likeness in likenesses if likeness in seen), None)
    if signature is None:
        return Prediction(
            "uncertain", "like no pattern", "like no pattern", "No pattern of the suite is like it.", where, ""
        )
    counted = Counter(verdict for verdict, _ in seen[signature])
    patterns = ", ".join(sorted({pattern for _, pattern in seen[signature]})[:3])
    expectations = {_EXPECTED.get(verdict, "uncertain") for verdict in counted}
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counted.most_common())
    return Prediction(
        expectations.pop() if len(expectations) == 1 else "uncertain",
        f"seen in {patterns}",
        counted.most_common(1)[0][0] if len(counted) == 1 else f"seen: {', '.join(sorted(counted))}",
        f"Sites like it ({signature}) were seen as: {listed}.",
        where,
        "",
    )
