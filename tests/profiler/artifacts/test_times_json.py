"""Times of inferences: numpy's figures of the raw numbers, without the warm-up where a file holds it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.times_json import read, recognise

FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", ""))
REAL = sorted(FOLDER.glob("**/*.timing.json"))


def inference(start: float, compute: float, **more: float) -> dict[str, float]:
    """An inference as TensorRT 8.4 writes it, with copies of 0.1 and 0.2 ms."""
    begin, end = start + 0.1, start + 0.1 + compute
    return {
        "startEnqMs": start - 0.05,
        "endEnqMs": start - 0.02,
        "startH2dMs": start,
        "endH2dMs": begin,
        "startComputeMs": begin,
        "endComputeMs": end,
        "startD2hMs": end,
        "endD2hMs": end + 0.2,
        "h2dMs": 0.1,
        "computeMs": compute,
        "d2hMs": 0.2,
        "latencyMs": compute + 0.3,
        **more,
    }


def file(rows: list[dict[str, float]]) -> str:
    """A file as trtexec lays it out."""
    return "[\n  " + "\n, ".join(json.dumps(row) for row in rows) + "\n]\n"


def only(text: str, **options: float) -> Section:
    """What the one section of a file holds."""
    (section,) = read(text, "t.json", **options)
    return section


def test_figures_are_those_of_numpy() -> None:
    """Median, mean, extremes, percentiles and variation are numpy's, of every inference."""
    computes = np.random.default_rng(3).uniform(0.4, 0.6, 101)
    rows = [inference(300 + 2 * place, compute) for place, compute in enumerate(computes)]
    latency = only(file(rows)).latency
    assert latency is not None
    assert latency.compute.median_ms == pytest.approx(np.median(computes))
    assert latency.compute.mean_ms == pytest.approx(computes.mean())
    assert (latency.compute.min_ms, latency.compute.max_ms) == (computes.min(), computes.max())
    assert latency.compute.p99_ms == pytest.approx(np.percentile(computes, 99))
    assert latency.compute.variation == pytest.approx(computes.std() / computes.mean())
    assert latency.compute.samples == 101
    assert latency.total is not None
    assert latency.total.median_ms == pytest.approx(np.median(computes) + 0.3)
    assert latency.enqueue is not None
    assert latency.enqueue.median_ms == pytest.approx(0.03)
    assert only(file(rows)).warnings == ()


def test_the_warm_up_is_left_out() -> None:
    """A file that begins at the start, as up to 8.4, holds the warm-up: the reader leaves it out and says how much."""
    cold = [inference(float(place), 0.9) for place in range(1, 200)]
    warm = [inference(200.0 + place, 0.5) for place in range(50)]
    section = only(file(cold + warm))
    assert section.latency is not None
    assert (section.latency.compute.samples, section.latency.compute.max_ms) == (50, 0.5)
    (warning,) = section.warnings
    assert "the 199 inferences of the warm-up of 249 in it were left out" in warning
    assert section.facts["iterations"] == "50"


def test_the_warm_up_may_be_of_another_length() -> None:
    """Whoever knows ``--warmUp`` says it."""
    rows = [inference(float(place), 0.5) for place in range(1, 100)]
    latency = only(file(rows), warmup_ms=50).latency
    assert latency is not None
    assert latency.compute.samples == 50


def test_a_short_measurement_is_kept() -> None:
    """Where every inference lies within the warm-up none is left out, and it is said."""
    section = only(file([inference(float(place), 0.5) for place in range(1, 6)]))
    assert section.latency is not None
    assert section.latency.compute.samples == 5
    assert "none was left out" in section.warnings[0]


def test_tensorrt_7() -> None:
    """The keys of 7.1: in and out instead of copies, no enqueue."""
    row = {
        "startInMs": 300,
        "endInMs": 301,
        "startComputeMs": 301,
        "endComputeMs": 303,
        "startOutMs": 303,
        "endOutMs": 304,
        "inMs": 1,
        "computeMs": 2,
        "outMs": 1,
        "latencyMs": 4,
        "endToEndMs": 4,
    }
    latency = only(file([row])).latency
    assert latency is not None
    assert latency.compute.median_ms == 2
    assert latency.total is not None
    assert latency.total.median_ms == 4
    assert latency.enqueue is None
    assert latency.throughput_qps == pytest.approx(250)


def test_inferences_at_once_are_recognised() -> None:
    """Four streams whose inferences overlap: a latency of one alone cannot be told, and that is said."""
    rows = [inference(300 + place, 4.0) for place in range(100)]
    (warning,) = only(file(rows)).warnings
    assert warning.startswith("3.9 inferences ran at once")


def test_inferences_that_took_no_time() -> None:
    """Where begin and end are one, nothing is told of how many inferences ran in a second."""
    row = inference(300.0, 0.5, endD2hMs=300.0 + 1e-13, startComputeMs=300.0, endComputeMs=300.0)
    latency = only(file([row])).latency
    assert latency is not None
    assert latency.throughput_qps is None


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "0.5 ms", None, True, 1e200, 10**400])
@pytest.mark.parametrize("key", ["computeMs", "latencyMs", "startComputeMs"])
def test_a_time_that_is_none_is_refused(value: float, key: str) -> None:
    """Not one of thousands may be bad without notice."""
    rows = [inference(300.0 + place, 0.5) for place in range(10)]
    with pytest.raises(UserError, match=f"{key} of inference 7 is .* no time"):
        read(file([*rows[:6], {**rows[6], key: value}, *rows[7:]]), "t.json")


def test_a_cut_file_is_refused() -> None:
    """Wherever it ends too early."""
    text = file([inference(300, 0.5), inference(301, 0.6)]).rstrip()
    for end in range(len(text)):
        with pytest.raises(UserError):
            read(text[:end], "t.json")


@pytest.mark.parametrize("text", ["[]", "{}", "[1]", '[{"latencyMs": 1}]', '[{"count": 3}]'])
def test_other_json_is_refused(text: str) -> None:
    """What holds no GPU time is no measurement."""
    with pytest.raises(UserError):
        read(text, "t.json")


def test_what_is_recognised() -> None:
    """The list is told by its first key."""
    assert recognise(file([inference(1, 1)]))
    assert recognise('[{"startInMs": 1')
    assert not recognise('[{"count": 1')


@pytest.mark.artifacts
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_times(path: Path) -> None:
    """After the warm-up was left out, figures are those that trtexec printed of the same measurement."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    summary = json.loads(path.with_name(path.name.replace("timing", "profile.metadata")).read_text(encoding="utf-8"))
    lowest, highest, mean, median = summary["performance_summary"]["GPU Compute Time"][:4]
    section = only(path.read_text(encoding="utf-8"))
    assert section.latency is not None
    compute = section.latency.compute
    assert (compute.min_ms, compute.max_ms, compute.median_ms) == (lowest, highest, median)
    assert compute.mean_ms == pytest.approx(mean, rel=1e-4)
    assert section.latency.throughput_qps == pytest.approx(summary["performance_summary"]["Throughput"], rel=1e-5)
    warm = [row["computeMs"] for row in rows if row["startComputeMs"] >= 200]
    assert compute.samples == len(warm)
    assert bool(section.warnings) == (len(warm) < len(rows))
