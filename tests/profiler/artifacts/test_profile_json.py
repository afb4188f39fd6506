"""Layer profiles of trtexec: what it wrote is read, nothing else, and nothing doubtful is summed."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.profile_json import read, recognise
from fusescope.profiler.artifacts.recording import Section

EXAMPLES = Path(__file__).parent / "examples"
NEW = (EXAMPLES / "profile-8.4.json").read_text(encoding="utf-8")
OLD = (EXAMPLES / "profile-7.json").read_text(encoding="utf-8")
FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", ""))
REAL = sorted(FOLDER.glob("*/*.profile.json")) + sorted(FOLDER.glob("*/*/*.profile.json"))


def only(text: str) -> Section:
    """What the one section of a file holds."""
    (section,) = read(text, "p.json")
    return section


def test_a_profile_is_read_whole() -> None:
    """Entries keep their order, those that took no time too; means, medians and the count are as written."""
    profile = only(NEW).profile
    assert profile is not None
    assert [(each.name, each.average_ms, each.median_ms) for each in profile.layers] == [
        ("Conv_0 + Relu_1", 0.02, 0.0195),
        ("Reshape_2", 0.0, 0.0),
        ("Gemm_3", 0.005, 0.005),
    ]
    assert (profile.iterations, profile.source, profile.origin) == (200, "recorded", "p.json")
    assert profile.total_ms == pytest.approx(0.025)
    assert profile.ordered
    assert only(NEW).warnings == ()


def test_a_profile_of_tensorrt_7_has_no_medians() -> None:
    """Up to 8.2 there is no median; there is none in the profile either."""
    profile = only(OLD).profile
    assert profile is not None
    assert [each.median_ms for each in profile.layers] == [None, None]
    assert profile.total_ms == pytest.approx(0.0878612)


def test_another_layout_is_read_as_json() -> None:
    """What a program has parsed and written again holds the same."""
    again = only(json.dumps(json.loads(NEW)))
    assert again == only(NEW)


@pytest.mark.parametrize("name", ['say "cheese"', "a\x1eb", "a\\b", "two\nlines", '", "timeMs" : 1', "<b>", "x" * 5000])
def test_names_are_not_escaped(name: str) -> None:
    """trtexec writes a name as it is; where that is no valid JSON it is read all the same, byte for byte."""
    profile = only(NEW.replace("Conv_0 + Relu_1", name)).profile
    assert profile is not None
    assert [each.name for each in profile.layers] == [name, "Reshape_2", "Gemm_3"]


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_any_name_survives(rows: list[tuple[str, int]]) -> None:
    """Whatever the names, entries and times come back as they were written."""
    total = sum(time for _, time in rows)
    lines = [
        f', {{ "name" : "{name}", "timeMs" : {time}, "averageMs" : {time / 4:.9g}, "percentage" : '
        f"{100 * time / total if total else 0:.6g} }}"
        for name, time in rows
    ]
    profile = only("\n".join(["[", '  { "count" : 4 }', *lines, "]"])).profile
    assert profile is not None
    assert [(each.name, each.average_ms) for each in profile.layers] == [(name, time / 4) for name, time in rows]


def test_one_inference_is_said() -> None:
    """A profile of one inference has no spread, and the reader is told."""
    (warning,) = only(
        OLD.replace("1000", "1").replace("21.9653, ", "0.0219653, ").replace("65.8959,", "0.0658959,")
    ).warnings
    assert warning.startswith("one inference was profiled")


@pytest.mark.parametrize("count", ["0", "-3", "0.5", "-nan", "NaN", "Infinity", '"many"', "1e999"])
def test_a_count_that_averages_nothing_is_refused(count: str) -> None:
    """No inference, or no number of them: there is no average."""
    with pytest.raises(UserError, match=r"inferences, so that nothing was timed|no valid JSON"):
        read(NEW.replace("200", count), "p.json")


@pytest.mark.parametrize("time", ["-1", "NaN", "-nan", "inf", "Infinity", "-Infinity", "1e999", "1e13", "1_0", "0x1"])
@pytest.mark.parametrize("key", ["averageMs", "timeMs", "medianMs"])
def test_a_time_that_is_none_is_refused(time: str, key: str) -> None:
    """A negative time, or what is no number, is never summed: the layer is named."""
    text = re.sub(rf'(Gemm_3".*"{key}" : )[0-9.]+', rf"\g<1>{time}", NEW)
    with pytest.raises(UserError, match=f"{key} of Gemm_3 is .* no time"):
        read(text, "p.json")


@pytest.mark.parametrize("text", [NEW, OLD, json.dumps(json.loads(NEW))])
def test_a_cut_profile_is_refused(text: str) -> None:
    """Wherever a file ends too early, it is an error, never a smaller total."""
    for end in range(len(text.rstrip())):
        with pytest.raises(UserError):
            read(text[:end], "p.json")


def test_missing_entries_are_noticed() -> None:
    """An entry that somebody took out shows in the percentages."""
    without = "\n".join(line for line in NEW.split("\n") if "Gemm_3" not in line)
    (warning,) = only(without).warnings
    assert "add up to 80" in warning


@pytest.mark.parametrize("damage", ['"percentage" : 0 }', '"percentage" : 0 }\n, { "name" : "'])
def test_a_damaged_end_of_an_entry(damage: str) -> None:
    """The entry is not taken for a part of the next one's name: its time would be lost."""
    with pytest.raises(UserError):
        read(NEW.replace(damage, ""), "p.json")


def test_contradictions_are_noticed() -> None:
    """An average that is not the total over the count is said."""
    (warning,) = only(NEW.replace('"averageMs" : 0.02,', '"averageMs" : 0.03,')).warnings
    assert warning == "averageMs of 1 entry of the profile is not timeMs / count"


def test_without_a_count() -> None:
    """Averages stand for themselves; totals without a count say nothing."""
    section = only(json.dumps([{"name": "a", "averageMs": 0.5}]))
    assert section.profile is not None
    assert section.profile.iterations is None
    assert section.warnings == ("the profile does not say how many inferences it averages",)
    with pytest.raises(UserError, match="nor a count"):
        read(json.dumps([{"name": "a", "timeMs": 0.5}]), "p.json")


@pytest.mark.parametrize(
    "text", ["[]", "{}", "7", '[{"count": 3}]', '[{"count": 3}, 7]', '[{"count": 3}, {"nome": "a"}]']
)
def test_other_json_is_refused(text: str) -> None:
    """What is no profile is not read as one."""
    with pytest.raises(UserError):
        read(text, "p.json")


def test_what_is_recognised() -> None:
    """A profile is told by how it begins, not by its name."""
    assert recognise(NEW)
    assert recognise(OLD)
    assert recognise('[{"name":"a","averageMs":1}]')
    assert not recognise('[{"name": "a"}]')
    assert not recognise('{"Layers": []}')


@pytest.mark.artifacts
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_profiles(path: Path) -> None:
    """Entries, order and totals of recorded profiles are those of the raw JSON."""
    head, *rows = json.loads(path.read_text(encoding="utf-8"))
    profile = only(path.read_text(encoding="utf-8")).profile
    assert profile is not None
    assert profile.iterations == head["count"]
    assert [each.name for each in profile.layers] == [row["name"] for row in rows]
    assert profile.total_ms == pytest.approx(sum(row["averageMs"] for row in rows))
    assert profile.total_ms == pytest.approx(sum(row["timeMs"] for row in rows) / head["count"], rel=1e-5)
    assert [each.median_ms for each in profile.layers] == [row["medianMs"] for row in rows]
