"""The fusion pattern suite: small generated models, each the smallest graph that shows one fusion question."""

from collections.abc import Iterable
from pathlib import Path

from fusescope.graph.errors import UserError
from fusescope.graph.external import load_with_weights
from fusescope.graph.model import check_proto
from fusescope.graph.names import name_nodes
from fusescope.graph.patterns import convs, gemms, readers, routes, spatial, sums
from fusescope.graph.patterns.pattern import FORMATS, GRANULARITIES, Case, Pattern
from fusescope.graph.structure import fill, is_structure_only

__all__ = ["FORMATS", "GRANULARITIES", "PATTERNS", "Case", "Pattern", "case_named", "cases", "user_case"]

PATTERNS: tuple[Pattern, ...] = (
    *convs.PATTERNS,
    *sums.PATTERNS,
    *routes.PATTERNS,
    *spatial.PATTERNS,
    *readers.PATTERNS,
    *gemms.PATTERNS,
)
"""The suite, by family."""


def cases(patterns: Iterable[Pattern] = PATTERNS) -> tuple[Case, ...]:
    """List the cases of patterns: each in all of its formats, with all of its granularities."""
    return tuple(
        Case(pattern, form, weights)
        for pattern in patterns
        for form in pattern.formats
        for weights in pattern.granularities
    )


def case_named(name: str) -> Case:
    """Return the case of the suite that is called `name`, such as "conv-chain/int8/per-tensor".

    Raises:
        UserError: There is none.
    """
    known = {case.name: case for case in cases()}
    if name not in known:
        raise UserError(f"no pattern case is called {name!r}", remedy=f"call it such as {next(iter(known))!r}")
    return known[name]


def user_case(path: Path) -> Case:
    """Make a case of a user's own ONNX model, called after its file.

    A structure-only model is filled with seeded weights, and nodes without a unique name get one.

    Raises:
        UserError: The file or its external data cannot be read, or holds no valid ONNX model.
    """
    proto = load_with_weights(path)
    check_proto(proto, path)
    if is_structure_only(proto):
        proto = fill(proto)
    name_nodes(proto)
    question = "What becomes of the Quantizes of this model?"
    own = Pattern(path.name, "own model", question, "", (), lambda _: proto, formats=(), granularities=())
    return Case(own, "", "")
