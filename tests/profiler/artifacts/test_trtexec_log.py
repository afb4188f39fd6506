"""Whole logs: every engine of them with what was said of it, and nothing of one engine told of another."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.files import read_text
from fusescope.profiler.artifacts.recording import Section
from fusescope.profiler.artifacts.trtexec_log import read, recognise

T = "[07/07/2026-02:10:45] "
RUN = "TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=/models/net.onnx --verbose"
EXAMPLES = Path(__file__).parent / "examples"
PARTS = ("options", "list", "dump", "summary", "table")
OPTIONS, LIST, DUMP, SUMMARY, TABLE = ((EXAMPLES / f"log-{part}.txt").read_text(encoding="utf-8") for part in PARTS)
WHOLE = f"&&&& RUNNING {RUN}\n{OPTIONS}{LIST}{DUMP}{SUMMARY}{TABLE}&&&& PASSED {RUN}\n"


def only(text: str) -> Section:
    """What the one section of a log holds."""
    (section,) = read(text, "log")
    return section


def names(section: Section) -> list[str]:
    """Names of the layers of a section."""
    assert section.engine is not None
    return [layer.name for layer in section.engine.layers]


def test_a_whole_log() -> None:
    """Layers with regions, latency, profile and facts of one run of trtexec."""
    section = only(WHOLE)
    assert names(section) == ["a + b", "c_myl1_0", "e_myl7_0"]
    assert section.engine is not None
    assert section.engine.layers[1].onnx_nodes == ("c", "d")
    assert section.profile is not None
    assert [(each.name, each.average_ms) for each in section.profile.layers] == [("a + b", 0.03), ("c_myl1_0", 0.01)]
    assert section.latency is not None
    compute = section.latency.compute
    assert (compute.median_ms, compute.samples, compute.variation) == (0.035, 46125, 0.065)
    assert section.facts == {
        "tensorrt_version": "10.16.1",
        "runtime": "tensorrt",
        "command": "trtexec --onnx=/models/net.onnx --verbose",
        "onnx": "/models/net.onnx",
        "precision": "FP32+FP16",
        "verbosity": "detailed",
        "warmup": "200 ms",
        "streams": "1",
        "cuda_graph": "yes",
        "gpu": "NVIDIA H100 PCIe",
        "compute_capability": "9.0",
        "clock_mhz": "1755",
        "plan_bytes": str(int(12.5 * 2**20)),
        "build_s": "8.09138",
        "batch": "4",
        "iterations": "46125",
        "status": "PASSED",
    }
    assert section.warnings == ("trtexec warns: GPU compute time is unstable, with coefficient of variance = 6.5%.",)
    assert section.label == ""


def test_kernels_map_back_to_their_region() -> None:
    """The K of ``_mylK_I`` is the place of the region in the list; what is no region there names none."""
    section = only(WHOLE)
    assert section.engine is not None
    assert [layer.region for layer in section.engine.layers] == ["", "{ForeignNode[c...d]}", ""]


def test_a_build_alone() -> None:
    """A log of a build without inference: its layers are those of the list, old style or new."""
    section = only(f"&&&& RUNNING {RUN}\n{OPTIONS}{LIST}&&&& PASSED {RUN}\n")
    assert names(section) == ["a + b", "{ForeignNode[c...d]}"]
    assert section.latency is None
    assert section.profile is None
    assert section.engine is not None
    (tensor,) = section.engine.layers[0].outputs
    assert (tensor.name, tensor.shape, tensor.dtype_name, tensor.layout) == ("y", (1, 8, 8, 8), "fp16", ":4")
    old = LIST.replace("x (Float[1,1,8,8]) -> y (Half[1,8:4,8,8])", "x:0[Float(-2,1,8,8)] -> y[Half(1,8,8,8)]")
    section = only(old.replace("0x5b8bf1b8028629d9", "-5121883532434354186"))
    assert section.engine is not None
    assert section.engine.layers[0].inputs[0].name == "x:0"
    assert section.engine.layers[0].inputs[0].shape == (-1, 1, 8, 8)


def test_nothing_but_options() -> None:
    """A quiet build has neither layers nor times, but says what it built."""
    section = only(f"&&&& RUNNING {RUN}\n{OPTIONS}{T}[I] Engine built in 2.5 sec.\n&&&& PASSED {RUN}\n")
    assert section.engine is None
    assert section.facts["build_s"] == "2.5"


def test_several_runs_are_kept_apart() -> None:
    """Each run of trtexec is a section, called after its file; a build by a program between them is one of its own."""
    other = WHOLE.replace("net.onnx", "other.onnx").replace("a + b", "q")
    build = LIST.replace("a + b", "p").replace("[V] [TRT]", "[TRT] [V]")
    sections = read(WHOLE + build + other + WHOLE, "log")
    assert [section.label for section in sections] == ["net.onnx", "build 1", "other.onnx", "net.onnx (2)"]
    assert [names(section)[0] for section in sections] == ["a + b", "p", "q", "a + b"]
    assert [section.latency is not None for section in sections] == [True, False, True, True]
    assert sections[2].profile is not None
    assert sections[2].profile.layers[0].name == "q"
    assert sections[2].profile.origin == "log, other.onnx"


def test_builds_of_a_program() -> None:
    """Without trtexec every list is an engine, and so is a dump, unless it follows the list of the same engine."""
    done = f"{T}[TRT] [I] Engine generation completed in 0.25 seconds.\n"
    sections = read(done + LIST + done + LIST.replace("a + b", "p") + done + DUMP, "log")
    assert [section.label for section in sections] == ["build 1", "build 2", "build 3"]
    assert [names(section)[0] for section in sections] == ["a + b", "p", "a + b"]
    assert [len(names(section)) for section in sections] == [2, 2, 3]
    (section,) = read(LIST + DUMP, "log")
    assert [layer.region for layer in section.engine.layers if section.engine] == ["", "{ForeignNode[c...d]}", ""]


def test_a_list_of_another_engine_names_no_region() -> None:
    """Where list and dump share no name, kernels are not given regions of something else."""
    section = only(WHOLE.replace("Layer(CaskConvolution): a + b", "Layer(CaskConvolution): stranger"))
    assert section.engine is not None
    assert not any(layer.region for layer in section.engine.layers)
    assert any("of another engine" in warning for warning in section.warnings)


def test_excerpts() -> None:
    """A summary or a table alone, with or without the logger's prefix, is read."""
    for text in (SUMMARY, SUMMARY.replace(T, ""), re.sub(r"^\[.*?\] \[.\] ?", "", SUMMARY, flags=re.MULTILINE)):
        section = only(text)
        assert section.latency is not None
        assert section.latency.compute.median_ms == 0.035
    section = only(re.sub(r"^\[.*?\] \[.\] ?", "", TABLE, flags=re.MULTILINE))
    assert section.profile is not None
    assert section.profile.total_ms == 0.04


def test_a_plan_of_no_size() -> None:
    """A size that no memory has is not told, and takes nothing else with it."""
    section = only(WHOLE.replace("12.5 MiB", "1e308 MiB"))
    assert "plan_bytes" not in section.facts
    assert section.latency is not None


def test_warnings_of_trtexec_are_one_line() -> None:
    """What stands for an end of line elsewhere is shown as an escape."""
    section = only(WHOLE.replace("* GPU compute time", "* GPU\x85compute\x1ftime"))
    assert section.warnings[0].startswith(r"trtexec warns: GPU\x85compute\x1ftime")


def test_tensorrt_7() -> None:
    """Its summary has no heading that says so."""
    text = f"""{T}[I] Average on 10 runs - GPU latency: 3.05903 ms
{T}[I] Host Latency
{T}[I] min: 1.5 ms (end to end 1.6 ms)
{T}[I] median: 1.625 ms (end to end 3.01 ms)
{T}[I] GPU Compute
{T}[I] min: 1.25 ms
{T}[I] median: 1.3125 ms
"""
    section = only(text)
    assert section.latency is not None
    assert section.latency.compute.median_ms == 1.3125


def test_words_in_explanations_are_no_summary() -> None:
    """Verbose logs explain ``GPU Compute Time`` behind the summary: that is no figure."""
    section = only(f"&&&& RUNNING {RUN}\n{SUMMARY}&&&& PASSED {RUN}\n")
    assert section.latency is not None
    assert section.latency.compute.mean_ms == 0.036


def test_messages_between_layers() -> None:
    """Another thread may log between layers: its line is no layer and ends nothing."""
    first, second = DUMP.split("Name: c_myl1_0")
    section = only(f"{first}{T}[I] [TRT] The following layers are used for L2 cache management\nName: c_myl1_0{second}")
    assert names(section) == ["a + b", "c_myl1_0", "e_myl7_0"]


def test_auxiliary_streams() -> None:
    """What trtexec says of streams is kept as a fact, and its warning with it."""
    line = f'{T}[W] The engine uses 2 auxiliary streams, so the "Total" latency may not be accurate\n'
    section = only(WHOLE.replace(TABLE, line + TABLE))
    assert section.facts["aux_streams"] == "2"
    assert any("auxiliary streams" in warning for warning in section.warnings)


def test_failure_is_said() -> None:
    """With the first error of the log."""
    section = only(f"&&&& RUNNING {RUN}\n{T}[E] Error[2]: out of memory\n{T}[E] more\n&&&& FAILED {RUN}\n")
    assert section.warnings == ("trtexec says that it FAILED: Error[2]: out of memory",)


@pytest.mark.parametrize("bad", ["-0.035", "nan", "-nan", "inf"])
def test_a_bad_time_is_left_out_and_said(bad: str) -> None:
    """A summary that holds no time does not take the rest of the log with it."""
    section = only(WHOLE.replace("median = 0.035", f"median = {bad}"))
    assert section.latency is None
    assert section.profile is not None
    assert any("the performance summary was left out: it median of GPU" in warning for warning in section.warnings)


def test_cut_anywhere() -> None:
    """Wherever a log ends too early: an error, or a warning that it does; never a profile with a wrong total."""
    end_of_table = WHOLE.index("&&&& PASSED")
    for end in range(end_of_table):
        try:
            sections = read(WHOLE[:end], "log")
        except UserError:
            continue
        (section,) = sections
        assert any("cut short" in warning for warning in section.warnings)


@pytest.mark.parametrize("text", ["hello\nworld\n", f"{T}[I] Starting inference\n", "x" * 1000])
def test_other_text_is_refused(text: str) -> None:
    """What holds neither layers nor times is no recording."""
    with pytest.raises(UserError, match="without layers, times or a run"):
        read(text, "log")


def test_what_is_recognised() -> None:
    """By trtexec's frame, by the logger's prefix, or by one of the headings."""
    assert all(
        recognise(text) for text in (WHOLE, LIST, DUMP, SUMMARY, TABLE, f"{T}[I] Starting", "Engine:\nLayers:\n")
    )
    assert not recognise("hello")
    assert not recognise('{"Layers": []}')


def test_a_long_log_takes_linear_time() -> None:
    """20 MB of a verbose build's noise, and one line of 20 MB, are read within seconds."""
    noise = f"{T}[V] [TRT] Tactic: 0x0000000000000002 Time: 0.0102\n" * 300_000
    for middle in (noise, "Name: " * 3_000_000 + "\n", "&&&& " * 3_000_000 + "\n", " [" * 5_000_000 + "\n"):
        start = time.process_time()
        assert names(only(LIST + middle))[0] == "a + b"
        assert time.process_time() - start < 5


FOLDER = Path(os.environ.get("FUSESCOPE_ARTIFACTS", ""))
FOUND = sorted(path for suffix in ("log", "txt") for path in FOLDER.glob(f"*/*.{suffix}"))
LOGS = [path for path in FOUND if not path.stem.endswith("-parsed-tables")]  # tables of a script, in test_recordings.py


@pytest.fixture(scope="module")
def sections() -> Callable[[str], tuple[Section, ...]]:
    """A function that reads a recorded log."""
    return lambda name: read(read_text(FOLDER / name), name)


@pytest.mark.artifacts
@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_logs(path: Path) -> None:
    """Runs, builds, layers of lists, medians and totals equal what a search of the raw text finds."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    found = read(text, path.name)
    assert sum(section.latency is not None for section in found) == text.count("=== Performance summary ===")
    medians = [float(each) for each in re.findall(r"GPU Compute Time: min.* median = ([0-9.]+) ms", text)]
    assert [section.latency.compute.median_ms for section in found if section.latency] == medians
    iterations = [int(each) for each in re.findall(r"Timing trace has (\d+) queries", text)]
    assert [int(section.facts["iterations"]) for section in found if "iterations" in section.facts] == iterations
    listed = len(re.findall(r"^Layer\(", text, re.MULTILINE))
    dumped = len(re.findall(r"^Layers:$|\] Layers:$", text, re.MULTILINE))
    if not dumped:
        assert sum(len(section.engine.layers) for section in found if section.engine) == listed
    assert not any(section.engine.unread for section in found if section.engine)
    assert [section.facts.get("status") for section in found if "command" in section.facts] == re.findall(
        r"^&&&& (PASSED|FAILED)", text, re.MULTILINE
    )


@pytest.mark.artifacts
def test_real_tables(sections: Callable[[str], tuple[Section, ...]]) -> None:
    """The printed profiles of 8.2, 10.16 and 11.0: rows, and the sum against the printed total."""
    for name, rows, total, iterations in (
        ("lidar-centerpoint-a100/rpn_centerhead_sim.trt8203-a100.log", 94, 2015.23, 781),
        ("cookbook-trt10.16.1/trtexec-result-05.log", 15, 1529.13, 18362),
        ("cookbook-trt11/trtexec-result-05.EXCERPT.log", 12, 2008.22, 17398),
    ):
        (section,) = sections(name)
        assert section.profile is not None
        assert len(section.profile.layers) == rows
        assert section.profile.iterations == iterations
        assert section.profile.total_ms == pytest.approx(total / iterations, abs=0.005 * (rows + 1) / iterations)


@pytest.mark.artifacts
def test_real_regions(sections: Callable[[str], tuple[Section, ...]]) -> None:
    """Two builds of one network with two profiles: K = 7 and 15 are the regions of the list (facts, section 2)."""
    first, second, _ = sections("cookbook-trt10.16.1/ProfilingVerbosity-verbose-2profiles.log")
    for section in (first, second):
        assert section.engine is not None
        kinds = [layer.kind for layer in section.engine.layers]
        assert [place for place, kind in enumerate(kinds) if kind == "Myelin"] == [7, 15]
