"""A pair of engines drawn by hand, small enough to add up in the head.

The baseline is conv, conv, gemm. Quantized, the first conv's output is quantized by a kernel of its own, the second
conv's epilogue is split off and quantizes, and the Add that was inside it is a kernel that quantizes too.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from fusescope.graph.neighbourhood import Excerpt, Place, Wire
from fusescope.profiler.blocks import BLOCK_COLUMNS
from fusescope.profiler.explanation import Coverage, Explanation, Finding, Latency, LayerTime, QuantizeCost, Side
from fusescope.profiler.kinds import GROUPS
from fusescope.profiler.run import Provenance
from fusescope.profiler.spots import Spot
from fusescope.profiler.tables import LAYER_COLUMNS, SITE_COLUMNS
from fusescope.profiler.verdicts import VERDICTS
from fusescope.quant.evaluate import Evaluation, ModelAccuracy, Proportion, paired

Row = tuple[str, str, tuple[str, ...], int, bool]

STUDY = {"fp32": 1178, "fp16": 1179, "fp8": 1167}
"""Right of 1500 images, as in the published study of HRNet-W18: 78.53, 78.60 and 77.80 %."""


def _block(
    kernels: tuple[int, ...],
    baseline_kernels: tuple[int, ...],
    convs: tuple[str, ...],
    moved: int,
    baseline_moved: int,
    fed: tuple[int, ...] = (),
    fed_verdicts: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "convs": convs,
        "kernels": kernels,
        "baseline_kernels": baseline_kernels,
        "bytes": 1000 * moved,
        "baseline_bytes": 1000 * baseline_moved,
        "quantize_kernels": fed,
        "feeding_bytes": sum(1000 * QUANTIZED[index][3] for index in fed),
        "fed_verdicts": fed_verdicts,
        "shared": False,
    }


BASELINE: list[Row] = [
    ("stem", "conv", ("/stem/Conv",), 1500, False),
    ("b", "conv", ("/block/block.0/b/Conv", "/block/block.0/Add"), 2000, False),
    ("fc", "gemm", ("/head/fc/Gemm",), 300, False),
    ("signal", "sync", (), 0, False),
]
QUANTIZED: list[Row] = [
    ("stem", "conv", ("/stem/Conv",), 1500, False),
    ("stem_q", "quantize", ("/stem/Relu_output_0_QuantizeLinear",), 750, True),
    ("b", "conv", ("/block/block.0/b/Conv",), 1200, False),
    ("b_end", "epilogue", ("/block/block.0/b/Conv",), 900, True),
    ("add", "pointwise", ("/block/block.0/Add",), 1100, True),
    ("fc", "gemm", ("/head/fc/Gemm",), 300, False),
    ("signal", "sync", (), 0, False),
]
"""Name, group, ONNX nodes, kB, and whether it carries a Quantize."""

SITES: list[dict[str, Any]] = [
    {"tensor": "/stem/Relu_output_0", "verdict": "alone", "kernels": (1,), "prediction": "uncertain", "reason": "stem"},
    {"tensor": "/block/b_out", "verdict": "epilogue", "kernels": (3,), "prediction": "fuses", "reason": "conv output"},
    {"tensor": "/block/sum", "verdict": "merged", "kernels": (4,), "prediction": "separate", "reason": "residual sum"},
]

BLOCKS: list[dict[str, Any]] = [
    _block((0,), (0,), ("/stem/Conv",), 1500, 1500),
    _block((2, 3, 4), (1,), ("/block/block.0/b/Conv",), 3200, 2000, fed=(1,), fed_verdicts=("alone",)),
    _block((5,), (2,), ("/head/fc/Gemm",), 300, 300),
]
"""The engines side by side: only `stem_q` is there for a Quantize alone."""

EXCERPT = Excerpt(
    places=(
        Place("/stem/Conv", "Conv", ""),
        Place("/stem/Relu", "Relu", ""),
        Place("/stem/Relu_output_0_QuantizeLinear", "QuantizeLinear", ""),
        Place("/stem/Relu_output_0_DequantizeLinear", "DequantizeLinear", ""),
        Place("/block/block.0/b/Conv", "Conv", "fp8"),
        Place("/block/block.0/Add", "Add", ""),
    ),
    wires=(
        Wire("image", "float16", (1, 3, 8, 8), None, (0,)),
        Wire("/stem/Conv_output_0", "float16", (1, 8, 4, 4), 0, (1,)),
        Wire("/stem/Relu_output_0", "float16", (1, 8, 4, 4), 1, (2, 5)),
        Wire("/stem/Relu_output_0_8", "float8e4m3fn", (1, 8, 4, 4), 2, (3,)),
        Wire("/stem/Relu_output_0_d", "float16", (1, 8, 4, 4), 3, (4,)),
        Wire("/block/b_out", "float16", (1, 8, 4, 4), 4, (5,)),
        Wire("/block/sum", "float16", (1, 8, 4, 4), 5, ()),
    ),
)
"""The stem's output is read by the Quantize of the conv `b`, and as it is by the sum."""

SPOTS = (
    Spot("/stem/Relu_output_0", (0, 1, 2, 3, 4, 5), 0, (0, 1, 2, 3, 4), (0, 1)),
    Spot("/block/b_out", (4, 5), 0, (2, 3, 4), (1,)),
    Spot("/block/sum", (4, 5), 3, (4,), (1,)),
)


@pytest.fixture
def pair() -> Explanation:
    """The quantized engine against its baseline."""
    layers, baseline_layers = _layers(QUANTIZED), _layers(BASELINE)
    return Explanation(
        observed="observed: compiled by hand for sm120",
        expected="expected of full TensorRT (rules, not built), of 3 Quantize sites: 1 fuse, 1 separate, 1 uncertain",
        baseline=_side("fp16", baseline_layers, 0),
        quantized=_side("fp8", layers, 1),
        groups=pd.concat({"baseline": _groups(baseline_layers), "quantized": _groups(layers)}, axis=1),
        quantize=QuantizeCost(
            sites=3,
            verdicts={**dict.fromkeys(VERDICTS, 0), "alone": 1, "epilogue": 1, "merged": 1},
            kernels_carrying=3,
            kernels_alone=1,
            bytes_carrying=2_750_000,
            bytes_alone=750_000,
            bytes_own=850_000,
            predicted={"fuses": 1, "separate": 1, "lost": 0, "uncertain": 1},
        ),
        reasons=_reasons(),
        findings=(
            _finding("growth", 1950, ()),
            _finding("pointwise", 1100, (4,)),
            _finding("epilogue-split", 900, (3,), remedy="scale the weights per tensor"),
            _finding("quantize-alone", 750, (1,)),
            _finding("channel-padding", 10, (1,)),
        ),
        coverage=Coverage(7, 7, 5_750_000, 5_750_000, (), (), (), 0, ()),
        sites=pd.DataFrame([_site(**site) for site in SITES], columns=list(SITE_COLUMNS)),
        layers=layers,
        baseline_layers=baseline_layers,
        blocks=pd.DataFrame(BLOCKS, columns=list(BLOCK_COLUMNS)),
        excerpt=EXCERPT,
        spots=SPOTS,
        judged=(),
        gpu="",
    )


@pytest.fixture
def timed(pair: Explanation) -> Explanation:
    """The same with recorded times: of each kernel as many microseconds as it moves 100 kB."""
    assert pair.baseline is not None
    assert pair.baseline_layers is not None
    layers = {"baseline": pair.baseline_layers, "quantized": pair.layers}
    layers = {side: table.assign(time_us=table["traffic_bytes"] / 1e5) for side, table in layers.items()}
    groups = pair.groups.copy()
    for side, table in layers.items():
        groups[(side, "time_us")] = groups[(side, "bytes")] / 1e5
        groups[(side, "share")] = groups[(side, "time_us")] / table["time_us"].sum()
    sums = {side: LayerTime(table["time_us"].sum() / 1e3, "recorded") for side, table in layers.items()}
    return replace(
        pair,
        layers=layers["quantized"],
        baseline_layers=layers["baseline"],
        groups=groups,
        baseline=replace(pair.baseline, layer_time=sums["baseline"], latency=Latency(1.25, "recorded")),
        quantized=replace(pair.quantized, layer_time=sums["quantized"], latency=Latency(1.5, "recorded")),
        quantize=replace(pair.quantize, time_alone_us=7.5, time_carrying_us=27.5),
    )


def _layers(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                **dict.fromkeys(LAYER_COLUMNS, ""),
                **dict.fromkeys(("pads", "dequantizes", "partial"), False),
                "on_chain": group != "sync",
                "quantizes": tuple(node for node in nodes if "Quantize" in node),
                **dict.fromkeys(("read_bytes", "unsized", "stream", "quantize_bytes", "flops"), 0),
                **dict.fromkeys(("time_us", "time_median_us", "net_us")),
                "members": (),
                "index": index,
                "name": name,
                "kind": "kgen",
                "group": group,
                "kernel": group != "sync",
                "shape": (1, 8, 4, 4),
                "write_bytes": 1000 * moved,
                "traffic_bytes": 1000 * moved,
                "carries_quantize": carries,
                "work": nodes,
                "onnx_nodes": nodes,
            }
            for index, (name, group, nodes, moved, carries) in enumerate(rows)
        ],
        columns=list(LAYER_COLUMNS),
    )


def _groups(layers: pd.DataFrame) -> pd.DataFrame:
    rows: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        members = layers[layers["group"] == group]
        rows[group] = {
            "layers": len(members),
            "kernels": int(members["kernel"].sum()),
            "bytes": int(members["traffic_bytes"].sum()),
            **dict.fromkeys(("floor_us", "time_us", "net_us", "share", "net_share"), float("nan")),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _reasons() -> pd.DataFrame:
    rows = [
        {
            "reason": site["reason"],
            "sites": 1,
            **dict.fromkeys(VERDICTS, 0),
            str(site["verdict"]): 1,
            "kernels": 1,
            "kernels_alone": int(site["verdict"] == "alone"),
            "bytes": sum(1000 * QUANTIZED[kernel][3] for kernel in site["kernels"]),
            "quantize_bytes": 0,
            "time_us": None,
        }
        for site in SITES
    ]
    return pd.DataFrame(rows).set_index("reason")


def _side(name: str, layers: pd.DataFrame, eight_bit: int) -> Side:
    kernels = int(layers["kernel"].sum())
    return Side(
        provenance=Provenance(
            name=name,
            runtime="tensorrt-rtx",
            runtime_version="1.7.1",
            target="sm120",
            how="compiled ahead of time on a CPU",
            model_name="tiny",
            model_sha256=name,
            weights="as given",
            scales="as given" if eight_bit else "",
            recipe={},
            request="",
            batch=1,
            options={"opt_level": 1, "aux_streams": None},
            plan_bytes=1 << 20,
            parse_s=0.1,
            build_s=1.0,
            created="2026-12-01T15:45:50+00:00",
            fusescope_version="0.1.0",
        ),
        layers=len(layers),
        kernels=kernels,
        plan_bytes=1 << 20,
        traffic_bytes=int(layers["traffic_bytes"].sum()),
        conv_write_bytes=500,
        weighted_in_8_bits=eight_bit,
        weighted=3,
        streams=1,
        chain_kernels=kernels,
        latency=None,
        layer_time=None,
    )


def _finding(key: str, moved: int, layers: tuple[int, ...], remedy: str = "") -> Finding:
    return Finding(
        key=key,
        title=f"about {key}",
        detail=f"what {key} means.",
        kernels=len(layers),
        bytes=1000 * moved,
        layers=layers,
        nodes=tuple(f"/node/{index}" for index in layers),
        remedy=remedy,
        source="a document: https://docs.nvidia.com/tensorrt",
    )


def _site(**known: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(SITE_COLUMNS, ""),
        "format": "fp8",
        "readers": ("/reader/Conv",),
        "high_precision_readers": (),
        "lost_readers": (),
        **known,
    }


def _share(number: int, images: int = 1500) -> Proportion:
    """Make a share with an interval that a reader can tell from others."""
    return Proportion(number, 100 * number / images, 100 * number / images - 2, 100 * number / images + 2)


@pytest.fixture
def evaluation() -> Evaluation:
    """The published study's accuracies, with made-up discordant counts."""
    models = tuple(
        ModelAccuracy(
            name=name,
            top1=_share(right),
            top5=_share(1400),
            agreement=None if name == "fp32" else _share(1436 if name == "fp8" else 1497),
            nonfinite=0,
            equal=1500 if name == "fp32" else 0,
            snr_db=None if name == "fp32" else 21.25,
        )
        for name, right in STUDY.items()
    )
    pairs = (
        paired("fp32", "fp16", 1, 2, 1500),
        paired("fp32", "fp8", 36, 25, 1500),
        paired("fp16", "fp8", 37, 25, 1500),
    )
    return Evaluation(images=1500, labelled=True, models=models, pairs=pairs, notes=())
