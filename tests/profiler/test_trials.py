"""A remedy is proved by another engine whose recipe differs only in what the remedy changes."""

from dataclasses import replace
from typing import Any, cast

import pytest

from fusescope.profiler.explanation import Explanation, Finding, Side, Trial
from fusescope.profiler.run import Provenance
from fusescope.profiler.trials import with_trials

FINDING = Finding(
    key="epilogue-split",
    title="",
    detail="",
    kernels=1,
    bytes=1,
    layers=(),
    nodes=(),
    remedy="scale per tensor",
    source="",
    change={"weights": "per-tensor"},
)
PROVENANCE = Provenance(
    name="",
    runtime="tensorrt-rtx",
    runtime_version="1.7.1",
    target="sm120",
    how="",
    model_name="",
    model_sha256="",
    weights="",
    scales="",
    recipe={},
    request="",
    batch=1,
    options={},
    plan_bytes=None,
    parse_s=None,
    build_s=None,
    created="",
    fusescope_version="",
)


def explained(
    name: str, recipe: dict[str, Any], kernels: int, traffic: int, batch: int = 1, *findings: Finding
) -> Explanation:
    """An explanation of which only a few figures matter here."""
    side = Side(
        provenance=replace(PROVENANCE, name=name, recipe=recipe, batch=batch),
        layers=kernels,
        kernels=kernels,
        plan_bytes=None,
        traffic_bytes=traffic,
        conv_write_bytes=0,
        weighted_in_8_bits=0,
        weighted=0,
        streams=1,
        chain_kernels=0,
        latency=None,
        layer_time=None,
    )
    unused: Any = None
    fields = dict.fromkeys(Explanation.__dataclass_fields__, unused)
    return Explanation(**{**fields, "quantized": side, "findings": findings})


PER_CHANNEL = {"format": "fp8", "weights": "per-channel", "kept": {"stem": "reads 3 channels"}}
PER_TENSOR = {**PER_CHANNEL, "weights": "per-tensor"}


def trials(finding: Finding, *others: Explanation) -> tuple[Trial, ...]:
    """What is set beside a finding of an engine of 100 kernels and 1000 bytes."""
    first, *_ = with_trials([explained("own", PER_CHANNEL, 100, 1000, 1, finding), *others])
    return first.findings[0].trials


def test_the_engine_with_the_changed_recipe_is_the_trial() -> None:
    """The differences in kernels and bytes are those of the two engines."""
    assert trials(FINDING, explained("tensor", PER_TENSOR, 100, 700)) == (Trial("tensor", 0, -300),)


@pytest.mark.parametrize(
    "other",
    [
        explained("same recipe", PER_CHANNEL, 90, 900),
        explained("int8 too", {**PER_TENSOR, "format": "int8"}, 90, 900),
        explained("another batch", PER_TENSOR, 90, 900, 32),
        explained("keeps more", {**PER_TENSOR, "kept": {"stem": "", "c2": ""}}, 90, 900),
    ],
    ids=lambda other: cast("str", other.quantized.provenance.name),
)
def test_an_engine_that_differs_in_anything_else_is_no_trial(other: Explanation) -> None:
    """Of the format, the batch and what is kept, all must be the same."""
    assert trials(FINDING, other) == ()


def test_keeping_nodes_is_tried_by_an_engine_that_keeps_them_whatever_the_reason() -> None:
    """A change of `keep` names nodes; a recipe records them with reasons."""
    finding = replace(FINDING, change={"keep": ("c1", "c2")})
    kept = {"stem": "reads 3 channels", "c1": "asked for: c?", "c2": "asked for: c?"}
    assert trials(finding, explained("keeps", {**PER_CHANNEL, "kept": kept}, 90, 1000)) == (Trial("keeps", -10, 0),)


def test_a_remedy_that_is_no_change_of_the_recipe_is_not_tried() -> None:
    """Nor is its own engine a trial of itself."""
    assert trials(replace(FINDING, change={}), explained("tensor", PER_TENSOR, 90, 900)) == ()


@pytest.mark.parametrize(
    ("kernels", "moved", "status"),
    [
        (-1, 0, "proved"),
        (0, -1, "proved"),
        (-5, -100, "proved"),
        (0, 0, "tried, did not help here"),
        (-5, 100, "tried, did not help here"),
        (3, -100, "tried, did not help here"),
    ],
)
def test_a_remedy_is_proved_if_something_fell_and_nothing_rose(kernels: int, moved: int, status: str) -> None:
    """Fewer kernels at the price of more bytes, or the reverse, prove nothing without a clock."""
    finding = replace(FINDING, trials=(Trial("t", kernels, moved),))
    assert finding.status == status


def test_what_was_not_tried_says_so() -> None:
    """And a finding without a remedy has no status."""
    assert FINDING.status == "documented, not tried"
    assert replace(FINDING, remedy="").status == ""
    assert replace(FINDING, trials=(Trial("bad", 1, 1), Trial("good", -1, 0))).status == "proved"
