"""Whether two runs may be held against each other, and what a reader must know if they are."""

from fusescope.graph.errors import UserError
from fusescope.graph.ops import WEIGHTED
from fusescope.profiler.run import Run


def check_comparable(run: Run, baseline: Run) -> tuple[str, ...]:
    """Refuse a baseline that differs in more than how the model is quantized.

    Returns:
        What differs or is not known and does not forbid it, one sentence each.

    Raises:
        UserError: The baseline is of another model, runtime, target, GPU or batch.
    """
    for what, (mine, other) in _pairs(run, baseline).items():
        if _is_known(mine) and _is_known(other) and mine != other:
            raise UserError(
                f"cannot be the baseline of {run.provenance.name}: {what} {other}, not {mine}",
                where=baseline.folder,
                remedy=f"build both for the same {what}",
            )
    _check_models(run, baseline)
    return cautions(run, baseline)


def cautions(run: Run, reference: Run) -> tuple[str, ...]:
    """What two runs differ in beside the model, and what of it is not known, one sentence each."""
    ours, theirs = run.provenance, reference.provenance
    warnings = []
    for what, (mine, other) in _pairs(run, reference).items():
        if _is_known(mine) and _is_known(other) and mine != other:
            warnings.append(f"The {what} differs, {other} and {mine}: a difference may come from that.")
        elif _is_known(mine) != _is_known(other):
            unknown = ours.name if _is_known(other) else theirs.name
            warnings.append(f"The {what} of {unknown} is not known: whether it is the same cannot be told.")
        elif not _is_known(mine) and ours.artifacts and theirs.artifacts:
            warnings.append(f"The {what} of neither recording is known: whether it is the same cannot be told.")
    if ours.runtime_version != theirs.runtime_version:
        versions = " and ".join(each.runtime_version or "an unknown one" for each in (ours, theirs))
        warnings.append(f"They are of different releases, {versions}: a difference may come from the release.")
    return tuple(warnings)


def _pairs(run: Run, other: Run) -> dict[str, tuple[str | int | None, str | int | None]]:
    """What must be the same for a difference to come from the model alone."""
    ours, theirs = run.provenance, other.provenance
    return {
        "runtime": (ours.runtime, theirs.runtime),
        "target": (ours.target, theirs.target),
        "batch": (ours.batch, theirs.batch),
        "GPU": (ours.facts.get("gpu", ""), theirs.facts.get("gpu", "")),
    }


def _is_known(value: str | int | None) -> bool:
    return value not in {"", None}


def _check_models(run: Run, baseline: Run) -> None:
    if not (run.has_model and baseline.has_model):
        return
    weighted = [{name for name, node in each.graph.nodes.items() if node.op in WEIGHTED} for each in (run, baseline)]
    if all(weighted) and not weighted[0] & weighted[1]:
        raise UserError(
            f"cannot be the baseline: it has no convolution or gemm in common with {run.provenance.name}",
            where=baseline.folder,
            remedy="give the run of the unquantized model",
        )
