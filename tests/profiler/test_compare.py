"""Engines compared: rows add up to the engines, and say what differs. Expected figures come from the raw files."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusescope.graph.errors import UserError
from fusescope.profiler.artifacts.reading import read_recording
from fusescope.profiler.compare import UNMATCHED, compare
from fusescope.profiler.comparison import CHANGES, ORDERS, PRESENCES, Comparison
from fusescope.profiler.layers import Engine
from fusescope.profiler.run import Provenance, Run
from fusescope.profiler.timing import Latency, LayerProfile, LayerTime, Spread

H = "Half[4,8,8,8]"
Q = "Int8[4,8,8,8]"
ELEMENTS = 4 * 8 * 8 * 8
PROVENANCE = Provenance(
    name="fp16",
    runtime="tensorrt",
    runtime_version="10.4",
    target="",
    how="recorded by others",
    model_name="",
    model_sha256="",
    weights="",
    scales="",
    recipe={},
    request="",
    batch=4,
    options={},
    plan_bytes=None,
    parse_s=None,
    build_s=None,
    created="",
    fusescope_version="0.1.0",
)


def run_of(engine: Engine, times: list[float] | None = None, latency_ms: float | None = None, **provenance: Any) -> Run:
    """A recording without its model, whose layers took these microseconds."""
    entries = [LayerTime(layer.name, time / 1e3) for layer, time in zip(engine.layers, times or [], strict=False)]
    profile = None if times is None else LayerProfile(tuple(entries), 100, "recorded", "profile.json")
    spread = Spread(median_ms=latency_ms)
    latency = None if latency_ms is None else Latency(spread, None, None, None, "recorded", "times.json")
    return Run(replace(PROVENANCE, **provenance), engine, Path("nowhere"), profile, latency)


@pytest.fixture(name="plain", scope="module")
def _plain(draw: SimpleNamespace) -> Run:
    """Two convolutions in fp16, 30 and 20 us, and 40 us as a whole."""
    engine = draw.engine(
        draw.layer("conv", "c1", f"x:{H}", f"a:{H}", nodes="/c1/Conv"),
        draw.layer("conv", "c2", f"a:{H}", f"y:{H}", nodes="/c2/Conv /add/Add"),
    )
    return run_of(engine, [30.0, 20.0], 0.04)


@pytest.fixture(name="quantized", scope="module")
def _quantized(draw: SimpleNamespace) -> Run:
    """The same in INT8: a Quantize of 10 us before the first, the sum of the second in a kernel of its own."""
    engine = draw.engine(
        draw.layer("Reformat", "q", f"x:{H}", f"q:{Q}", nodes="/q/QuantizeLinear"),
        draw.layer("conv", "c1", f"q:{Q}", f"a:{Q}", nodes="/c1/Conv"),
        draw.layer("conv", "c2", f"a:{Q}", f"b:{H}", nodes="/c2/Conv"),
        draw.layer("pointwise", "s", f"b:{H}", f"y:{H}", nodes="/add/Add"),
    )
    return run_of(engine, [10.0, 12.0, 11.0, 9.0], 0.03, name="int8")


def test_a_row_per_region(plain: Run, quantized: Run) -> None:
    """Time, bytes, kernels and element types on each side, and in words what changed."""
    found = compare([plain, quantized])
    rows = {region.name: region for region in found.regions}
    assert set(rows) == {"/c1/Conv", "/c2/Conv", "quantize of an input to /c1/Conv"}
    conv, whole = rows["/c1/Conv"], rows["/c2/Conv"]
    assert [side.layers for side in conv.sides] == [(0,), (1,)]
    assert [side.bytes for side in conv.sides] == [4 * ELEMENTS, 2 * ELEMENTS]
    assert [side.read_dtypes for side in conv.sides] == [("fp16",), ("int8",)]
    assert conv.time_difference(1) == pytest.approx(-18)
    assert [(change.kind, change.what) for change in conv.sides[1].changes] == [
        ("precision", "reads int8 instead of fp16"),
        ("precision", "writes int8 instead of fp16"),
    ]
    assert [side.kernels for side in whole.sides] == [1, 2]
    assert whole.time_difference(1) == pytest.approx(0)
    assert ("split", "1 kernel to 2") in {(change.kind, change.what) for change in whole.sides[1].changes}
    added = rows["quantize of an input to /c1/Conv"]
    assert [change.kind for change in added.sides[1].changes] == ["added"]
    assert not any(region.sides[0].changes for region in found.regions)


def test_sum_and_latency_stand_side_by_side(plain: Run, quantized: Run) -> None:
    """What lies between them is told, and rates are per sample: engines of different batches compare by them."""
    first, second = compare([plain, quantized]).runs
    assert (first.gap_us, second.gap_us) == (pytest.approx(10), pytest.approx(12))
    assert (first.side.profile_overhead_us, second.side.profile_overhead_us) == (pytest.approx(5), pytest.approx(3))
    assert (first.sample_us, second.sample_us) == (pytest.approx(10), pytest.approx(7.5))
    assert first.samples_per_s == pytest.approx(100_000)
    assert first.sample_bytes == 2 * 2 * 2 * ELEMENTS / 4
    assert compare([plain, replace(quantized, latency=None)]).runs[1].samples_per_s is None


@pytest.mark.parametrize("order", ORDERS)
def test_orders(plain: Run, quantized: Run, order: str) -> None:
    """The largest difference first, by what was asked for; or as the model runs."""
    found = compare([plain, quantized])
    differences = {
        "time": [abs(region.time_difference(1) or 0) for region in found.ordered(order)],
        "bytes": [abs(region.byte_difference(1)) for region in found.ordered(order)],
        "kernels": [abs(region.kernel_difference(1)) for region in found.ordered(order)],
    }
    if order == "model":
        assert [region.name for region in found.ordered(order)][-1] == "/c2/Conv"
    else:
        assert differences[order] == sorted(differences[order], reverse=True)


def test_contributions_add_up(plain: Run, quantized: Run) -> None:
    """By what layers do and which engines have them."""
    found = {(each.what, each.presence): each for each in compare([plain, quantized]).contributions(1)}
    assert set(found) == {("compute", "both"), ("quantize", "engine")}
    computing = found["compute", "both"]
    assert (computing.regions, computing.less, computing.more, computing.kernels) == (2, 1, 0, 1)
    assert computing.time_us == pytest.approx(-18)
    assert sum(each.time_us or 0 for each in found.values()) == pytest.approx(42 - 50)


def test_without_a_clock_bytes_and_kernels(
    words_about_speed: Callable[[Any], list[str]], plain: Run, quantized: Run
) -> None:
    """No time, and no word of it."""
    found = compare([replace(each, profile=None, latency=None) for each in (plain, quantized)])
    assert not found.is_timed
    assert {region.time_difference(1) for region in found.regions} == {None}
    assert {each.time_us for each in found.contributions(1)} == {None}
    assert words_about_speed([found.regions, [run.findings for run in found.runs], list(found.warnings)]) == []


def test_what_a_reader_must_know(plain: Run, quantized: Run) -> None:
    """Other releases, GPUs and batches."""
    other = replace(
        quantized,
        provenance=replace(quantized.provenance, runtime_version="11.0", batch=8, facts={"gpu": "B200"}),
    )
    warnings = "\n".join(compare([plain, other]).warnings)
    assert "The batch differs, 4 and 8" in warnings
    assert "different releases, 11.0 and 10.4" in warnings
    assert "The GPU of fp16 is not known" in warnings


def test_runs_of_one_name(plain: Run) -> None:
    """They are numbered, and do not differ from themselves."""
    found = compare([plain, plain, plain])
    assert [run.label for run in found.runs] == ["fp16 (1)", "fp16 (2)", "fp16 (3)"]
    assert not any(side.changes for region in found.regions for side in region.sides)
    assert {region.time_difference(2) for region in found.regions} == {0.0}


def test_one_run_is_no_comparison(plain: Run) -> None:
    """A clear error."""
    with pytest.raises(UserError, match="one run cannot be compared"):
        compare([plain])


def test_time_that_matches_no_layer(plain: Run, quantized: Run) -> None:
    """It has a row of its own, so that rows add up to the profile."""
    assert quantized.profile is not None
    entries = (*quantized.profile.layers, LayerTime("somebody else's", 0.005))
    odd = replace(quantized, profile=replace(quantized.profile, layers=entries))
    found = compare([plain, odd])
    row = next(region for region in found.regions if region.name == UNMATCHED)
    assert [side.time_us for side in row.sides] == [pytest.approx(0), pytest.approx(5)]
    assert sum(region.time_difference(1) or 0 for region in found.regions) == pytest.approx(47 - 50)


ROW = st.tuples(
    st.sampled_from(["conv", "Reformat", "pooling", "NoOp", "kgen"]),
    st.sampled_from("abcd"),
    st.sampled_from("abcd"),
    st.sampled_from([H, Q, "Half[4,8,4,4]"]),
    st.sampled_from(["", "/c1/Conv", "/c2/Conv", "Conv_3 MaxPool_4", "QuantizeLinear_2"]),
    st.floats(0, 1e4),
)
ROWS = st.lists(ROW, min_size=1, max_size=7)


@given(ROWS, ROWS)
def test_rows_add_up_to_the_engines(draw: SimpleNamespace, before: list[Any], after: list[Any]) -> None:
    """Random engines: times, bytes and kernels of the rows, of the groups and of the contributions are the whole."""
    runs = [
        run_of(
            draw.engine(
                *(
                    draw.layer(kind, f"layer {place}", f"{read}:{H}", f"{write}:{form}", nodes=nodes)
                    for place, (kind, read, write, form, nodes, _) in enumerate(rows)
                )
            ),
            [row[-1] for row in rows],
        )
        for rows in (before, after)
    ]
    found = compare(runs)
    totals = [sum(row[-1] for row in rows) for rows in (before, after)]
    for place, run in enumerate(found.runs):
        sides = [region.sides[place] for region in found.regions]
        assert sum(side.time_us or 0 for side in sides) == pytest.approx(totals[place])
        assert sum(side.bytes for side in sides) == run.side.traffic_bytes
        assert sum(side.kernels for side in sides) == run.side.kernels
        assert found.groups[run.label]["time_us"].sum() == pytest.approx(totals[place])
    made_of = found.contributions(1)
    assert sum(each.time_us or 0 for each in made_of) == pytest.approx(totals[1] - totals[0], abs=1e-6)
    assert sum(each.kernels for each in made_of) == found.runs[1].side.kernels - found.runs[0].side.kernels
    assert {each.presence for each in made_of} <= set(PRESENCES)
    assert {change.kind for region in found.regions for change in region.sides[1].changes} <= set(CHANGES)


RECORDED = Path(os.environ.get("FUSESCOPE_ARTIFACTS", "")) / "trex-a100-resnet18"


def recorded_run(name: str) -> Run:
    """One of the ResNet-18 engines that were recorded on an A100."""
    files = {kind: next((RECORDED / name).glob(f"*.engine.{kind}.json")) for kind in ("graph", "profile", "timing")}
    layers, profile, times = (read_recording(path).sections[0] for path in files.values())
    assert layers.engine is not None
    provenance = replace(PROVENANCE, name=name, runtime_version="", batch=32)
    return Run(provenance, layers.engine, RECORDED / name, profile.profile, times.latency, profile.warnings)


def raw_times(name: str) -> Mapping[str, float]:
    """Microseconds by layer, straight from the recorded profile; no name repeats in it."""
    path = next((RECORDED / name).glob("*.engine.profile.json"))
    header, *entries = json.loads(path.read_text())
    assert header == {"count": 1}
    return {entry["name"]: 1e3 * entry["averageMs"] for entry in entries}


@pytest.fixture(name="resnet", scope="module")
def _resnet() -> Comparison:
    """INT8 ResNet-18 with and without Quantizes on the residual branches."""
    return compare([recorded_run("qat"), recorded_run("qat-residual")])


@pytest.mark.artifacts
class TestResidualQuantizes:
    """The recordings that show what Quantizes on residual branches change, region by region."""

    def test_rows_are_the_whole_difference(self, resnet: Comparison) -> None:
        """Of the profile, in which every layer stands once."""
        before, after = (sum(raw_times(name).values()) for name in ("qat", "qat-residual"))
        assert sum(region.time_difference(1) or 0 for region in resnet.regions) == pytest.approx(after - before)
        assert after - before == pytest.approx(-364.544)

    def test_each_weight_is_one_row(self, resnet: Comparison) -> None:
        """By the weight that TensorRT puts first in a conv's name, with what is recorded for it."""
        expected: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for side, name in enumerate(("qat", "qat-residual")):
            for layer, time in raw_times(name).items():
                if ".weight + " in layer and not layer.startswith("Reformatting"):
                    expected[layer.partition(".weight")[0]][side] += time
                elif layer == "MaxPool_12":  # fused with the first conv in one of the engines
                    expected["conv1"][side] += time
        found = {region.name: [side.time_us for side in region.sides] for region in resnet.regions}
        assert len(expected) == 21
        assert {name: found[name] for name in expected} == {
            name: pytest.approx(both) for name, both in expected.items()
        }

    def test_the_residual_quantizes_are_a_part_of_it(self, resnet: Comparison) -> None:
        """Eight kernels that only quantize, those behind the input and the last pool excepted, went: 45 % of it."""
        names = [f"QuantizeLinear_{number}" for number in (15, 40, 65, 101, 126, 162, 187, 223)]
        cost = sum(raw_times("qat")[name] for name in names)
        found = {(each.what, each.presence): each for each in resnet.contributions(1)}
        removed = found["quantize", "reference"]
        assert (removed.regions, removed.kernels) == (8, -8)
        assert removed.time_us == pytest.approx(-cost)
        whole = sum(each.time_us or 0 for each in found.values())
        assert 0.44 < (removed.time_us or 0) / whole < 0.46
        assert (found["compute", "both"].time_us or 0) < (removed.time_us or 0)

    def test_not_every_block_got_better(self, resnet: Comparison) -> None:
        """The last sum runs in fp32 behind a Dequantize, and the input's Quantize takes more."""
        worse = {region.name: region for region in resnet.regions if (region.time_difference(1) or 0) > 2}
        assert set(worse) == {
            "layer4.1.conv2",
            "quantize of an input to conv1",
            "dequantize from layer4.0.conv2 to layer4.1.conv2",
        }
        last = worse["layer4.1.conv2"]
        raw = [raw_times(name) for name in ("qat", "qat-residual")]
        conv = [next(time for layer, time in times.items() if layer.startswith("layer4.1.conv2")) for times in raw]
        assert last.time_difference(1) == pytest.approx(conv[1] - conv[0])
        assert last.sides[1].read_dtypes == ("int8", "fp32")

    def test_a_sum_that_moved(self, resnet: Comparison) -> None:
        """Where a block has a strided shortcut, the sum is computed by another of its convolutions."""
        changes = {
            region.name: [change.what for change in region.sides[1].changes if change.kind == "operations"]
            for region in resnet.regions
        }
        for block in ("layer2.0", "layer3.0", "layer4.0"):
            assert changes[f"{block}.downsample.0"] == ["without Add"]
            assert changes[f"{block}.conv2"] == ["with Add"]

    def test_one_iteration_is_said(self, resnet: Comparison) -> None:
        """Of both, in one sentence."""
        (told,) = (warning for warning in resnet.warnings if "one inference was profiled" in warning)
        assert told.startswith("qat, qat-residual: ")

    def test_fp16_aligns_by_shapes(self) -> None:
        """Its convolutions go by other names; each of the 20 convs and the gemm still meets its own."""
        found = compare([recorded_run("fp16"), recorded_run("qat")])
        weights = next(RECORDED.glob("qat/*.engine.graph.json")).read_text()
        order = [layer["Name"] for layer in json.loads(weights)["Layers"] if ".weight + " in layer["Name"][:40]]
        pairs = [
            region for region in found.regions if all(side.layers for side in region.sides) and not region.converts
        ]
        convs = [region for region in pairs if region.name.startswith(("Conv", "Gemm"))]
        qat = recorded_run("qat").engine.layers
        assert [qat[region.sides[1].layers[0]].name for region in convs] == order
        assert {region.aligned_by for region in convs} == {"shapes"}
