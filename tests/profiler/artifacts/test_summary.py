"""The performance summary of every version, and the metadata that TREx made of it."""

import json
import os
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts import metadata
from fusescope.profiler.artifacts.summary import is_summary, read_summary


def lines(text: str) -> list[str]:
    """The lines of a text, as a log's reader hands them over."""
    return text.split("\n")


EXAMPLES = Path(__file__).parent / "examples"
V11 = lines((EXAMPLES / "log-summary-11.txt").read_text(encoding="utf-8"))[:-1]
V8 = lines((EXAMPLES / "log-summary-8.txt").read_text(encoding="utf-8"))[:-1]
V7 = lines((EXAMPLES / "log-summary-7.txt").read_text(encoding="utf-8").replace("[I] ", ""))[:-1]


def test_three_percentiles() -> None:
    """From 8.5 on; the GPU time is the latency, copies included is another figure."""
    latency = read_summary(V11, "log")
    compute = latency.compute
    assert (compute.min_ms, compute.median_ms, compute.mean_ms, compute.max_ms) == (0.05, 0.055, 0.06, 0.08)
    assert (compute.p90_ms, compute.p95_ms, compute.p99_ms) == (0.06, 0.065, 0.07)
    assert latency.total is not None
    assert latency.total.median_ms == 0.065
    assert latency.enqueue is not None
    assert latency.enqueue.median_ms == 0.0025
    assert latency.throughput_qps == 16200.3


def test_end_to_end_is_not_the_latency() -> None:
    """8.0 to 8.2 print a host latency end to end too, which counts waiting: it is not taken for either."""
    latency = read_summary(V8, "log")
    assert latency.compute.median_ms == 0.1536
    assert latency.total is not None
    assert latency.total.median_ms == 0.159
    assert latency.compute.p90_ms is None
    assert latency.compute.p99_ms == 0.157


def test_tensorrt_7() -> None:
    """A heading per quantity; a throughput of 0 with an explicit batch is none."""
    latency = read_summary(V7, "log")
    assert (latency.compute.median_ms, latency.compute.p99_ms) == (1.3125, 1.4)
    assert latency.total is not None
    assert (latency.total.median_ms, latency.total.p99_ms) == (1.625, 1.9)
    assert latency.enqueue is not None
    assert latency.enqueue.median_ms == 0.9
    assert latency.throughput_qps is None
    assert all(is_summary(line) for line in V7[:-1])
    assert not is_summary("Explanations of the performance metrics")


@pytest.mark.parametrize("bad", ["-1", "nan", "-nan", "inf"])
def test_a_time_that_is_none_is_refused(bad: str) -> None:
    """A summary of no inference prints NaN."""
    with pytest.raises(UserError, match=r"median of GPU Compute Time is .* no time"):
        read_summary([line.replace("median = 0.055", f"median = {bad}") for line in V11], "log")


def test_a_cut_summary_is_refused() -> None:
    """A figure without its unit is cut in the middle: it is not believed."""
    with pytest.raises(UserError, match="cut short"):
        read_summary(V11[:4], "log")
    with pytest.raises(UserError, match="cut short"):
        read_summary([*V11[:5], "GPU Compute Time: min = 0.05 ms, max = 0.08 ms, mean = 0.06 ms, median = 0.05"], "log")


PROFILE = json.loads((EXAMPLES / "metadata-profile.json").read_text(encoding="utf-8"))


class TestMetadata:
    """What TREx's scripts kept."""

    def test_of_a_profile(self) -> None:
        """The summary in trtexec's order, options and GPU by fusescope's words."""
        (section,) = metadata.read(json.dumps(PROFILE), "m.json")
        assert section.latency is not None
        assert (section.latency.compute.median_ms, section.latency.compute.p99_ms) == (1.25, 3)
        assert section.latency.total is not None
        assert section.latency.total.max_ms == 5
        assert section.latency.throughput_qps == 100.5
        assert section.facts == {
            "gpu": "NVIDIA A100",
            "compute_capability": "8.0",
            "clock_mhz": "1410",
            "memory_clock_mhz": "1512",
            "batch": "32",
            "warmup": "200 ms",
            "streams": "2",
            "cuda_graph": "yes",
        }

    def test_of_three_percentiles(self) -> None:
        """Seven figures are those of 8.5 and later."""
        summary = {"GPU Compute Time": [1, 7, 3, 2, 4, 5, 6]}
        (section,) = metadata.read(json.dumps({"performance_summary": summary}), "m.json")
        assert section.latency is not None
        compute = section.latency.compute
        assert (compute.p90_ms, compute.p95_ms, compute.p99_ms) == (4, 5, 6)

    def test_of_a_build(self) -> None:
        """Precision and model; the precision of a run that loads an engine is not the engine's."""
        options = {"build_options": {"Precision": "FP32+INT8"}, "model_options": {"Format": "ONNX", "Model": "a.onnx"}}
        (section,) = metadata.read(json.dumps(options), "m.json")
        assert section.facts == {"precision": "FP32+INT8", "onnx": "a.onnx"}
        options["build_options"]["Load engine"] = "a.plan"
        assert "precision" not in metadata.read(json.dumps(options), "m.json")[0].facts

    def test_of_gpus(self) -> None:
        """Clocks are in kHz there. Of several GPUs that differ none is taken, and it is said."""
        one = {"Name": "A", "ComputeCapability": [8, 6], "CLOCK_RATE": 1410000, "MEMORY_CLOCK_RATE": 1215500}
        text = json.dumps([one])
        assert metadata.recognise(text)
        facts = {"gpu": "A", "compute_capability": "8.6", "clock_mhz": "1410", "memory_clock_mhz": "1215.5"}
        assert metadata.read(text, "m.json")[0].facts == facts
        assert metadata.read(json.dumps([one, one]), "m.json")[0].facts == facts
        (section,) = metadata.read(json.dumps([one, {**one, "Name": "B"}]), "m.json")
        assert section.facts == {}
        assert section.warnings == ("the machine has several GPUs, and which of them ran is not said: A, B",)

    @pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "fast", None])
    def test_a_time_that_is_none_is_refused(self, bad: object) -> None:
        """As everywhere."""
        summary = {**PROFILE["performance_summary"], "GPU Compute Time": [1, 2, 3, bad, 5]}
        with pytest.raises(UserError, match="median of GPU Compute Time"):
            metadata.read(json.dumps({"performance_summary": summary}), "m.json")

    @pytest.mark.parametrize("text", ["{}", "[]", "7", '{"performance_summary": {"GPU Compute Time": []}}', '{"a": 1}'])
    def test_other_json_is_refused(self, text: str) -> None:
        """What says nothing is no metadata."""
        with pytest.raises(UserError):
            metadata.read(text, "m.json")

    def test_a_cut_file_is_refused(self) -> None:
        """Wherever it ends too early."""
        text = json.dumps(PROFILE)
        for end in range(len(text)):
            with pytest.raises(UserError):
                metadata.read(text[:end], "m.json")

    @pytest.mark.artifacts
    def test_real_metadata(self) -> None:
        """Every file of TREx is recognised, and holds the latency that stands in it."""
        paths = sorted(Path(os.environ["FUSESCOPE_ARTIFACTS"]).glob("**/*.metadata.json"))
        assert len(paths) == 15
        for path in paths:
            text = path.read_text(encoding="utf-8")
            assert metadata.recognise(text)
            (section,) = metadata.read(text, path.name)
            raw = json.loads(text)
            if "performance_summary" in raw:
                assert section.latency is not None
                assert section.latency.compute.median_ms == raw["performance_summary"]["GPU Compute Time"][3]
            else:
                assert section.facts.keys() & {"precision", "gpu"}
