"""Mappings of layer names to times: means, medians and samples are those of the raw lists."""

import json
import os
from pathlib import Path
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.mapping import read, recognise
from fusescope.profiler.artifacts.recording import Section

FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", ""))
REAL = sorted(FOLDER.glob("*/*.layer_latency.json"))


def only(text: str) -> Section:
    """What the one section of a file holds."""
    (section,) = read(text, "m.json")
    return section


def test_lists_give_spread() -> None:
    """Every time of every layer is kept, in order; mean and median are theirs."""
    profile = only('{"stem": [3.0, 1.0, 2.0], "body": [0.5, 0.5, 0.8], "act": [0.0, 0.0, 0.0]}').profile
    assert profile is not None
    assert [(each.name, each.average_ms, each.median_ms) for each in profile.layers] == [
        ("stem", 2.0, 2.0),
        ("body", pytest.approx(0.6), 0.5),
        ("act", 0.0, 0.0),
    ]
    assert profile.layers[0].samples_ms == (3.0, 1.0, 2.0)
    assert profile.iterations == 3
    assert profile.ordered


def test_single_times() -> None:
    """A mapping to single times says nothing of inferences, and the reader says so."""
    section = only('{"stem": 3, "body": 0.5}')
    assert section.profile is not None
    assert section.profile.iterations is None
    assert section.profile.total_ms == 3.5
    assert "does not say how many inferences" in section.warnings[0]


def test_sorted_names_lost_their_order() -> None:
    """Names in the order of the alphabet were sorted: nothing may be read out of their order."""
    section = only('{"a": [1], "b": [1], "c": [1]}')
    assert section.profile is not None
    assert not section.profile.ordered
    assert any("order of execution is not in the file" in warning for warning in section.warnings)


def test_layers_of_one_name() -> None:
    """Two layers of one name put two times per inference into its list: they are told apart by turns."""
    section = only('{"b": [1, 10, 2, 20], "a": [5, 6], "c": [7, 8]}')
    assert section.profile is not None
    assert [(each.name, each.samples_ms) for each in section.profile.layers] == [
        ("b", (1, 2)),
        ("b", (10, 20)),
        ("a", (5, 6)),
        ("c", (7, 8)),
    ]
    assert section.profile.total_ms == pytest.approx(1.5 + 15 + 5.5 + 7.5)
    assert section.profile.iterations == 2
    assert not section.profile.ordered


def test_uneven_lists_are_said() -> None:
    """A layer with another number of times is averaged over its own, and named."""
    section = only('{"b": [1, 2], "a": [1, 2], "c": [3, 4, 5]}')
    assert section.profile is not None
    assert section.profile.layers[2].average_ms == 4
    assert section.warnings[0] == "1 name has another number of times than the 2 of most, such as c"


def test_keys_that_repeat_are_kept() -> None:
    """Python would keep the last of two equal keys; both are layers."""
    section = only('{"b": 1, "a": 2, "b": 4}')
    assert section.profile is not None
    assert section.profile.total_ms == 7
    assert not section.profile.ordered


@given(st.lists(st.tuples(st.text(), st.floats(0, 1e6)), min_size=1, max_size=20))
def test_whatever_the_names(pairs: list[tuple[str, float]]) -> None:
    """No name is lost or changed, and the sum is that of the file."""
    text = "{" + ", ".join(f"{json.dumps(name)}: [{time!r}]" for name, time in pairs) + "}"
    profile = only(text).profile
    assert profile is not None
    assert [each.name for each in profile.layers] == [name for name, _ in pairs]
    assert profile.total_ms == pytest.approx(sum(time for _, time in pairs))


@pytest.mark.parametrize(
    "value", ["-1", "NaN", "[0.5, -Infinity]", "[]", '"1"', "null", "true", "[[1]]", '{"a": 1}', "1e999", "1e300"]
)
def test_what_is_no_time_is_refused(value: str) -> None:
    """The layer is named."""
    with pytest.raises(UserError, match="bad"):
        read(f'{{"good": 1, "bad": {value}}}', "m.json")


def test_a_cut_file_is_refused() -> None:
    """Wherever it ends too early."""
    text = '{"stem": [3.0, 1.0], "body": [0.5, 0.5]}'
    for end in range(len(text)):
        with pytest.raises(UserError):
            read(text[:end], "m.json")


def test_what_is_recognised() -> None:
    """Names to numbers or to lists of them; nothing else that is an object."""
    assert recognise('{"a": 1')
    assert recognise('{\n "a \\" b": [\n -0.5')
    assert not recognise('{"Layers": ["a"')
    assert not recognise('{"model_options": {')
    assert not recognise("[1]")


@pytest.mark.artifacts
@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_real_mappings(path: Path) -> None:
    """Names, means and medians of recorded mappings are those of the raw JSON."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    profile = only(path.read_text(encoding="utf-8")).profile
    assert profile is not None
    assert [each.name for each in profile.layers] == list(raw)
    assert {len(times) for times in raw.values()} == {profile.iterations}
    assert profile.total_ms == pytest.approx(sum(fmean(times) for times in raw.values()))
    assert [each.median_ms for each in profile.layers] == [pytest.approx(median(times)) for times in raw.values()]
