"""Hands for drawing ONNX graphs and engines, and engines that are compiled once per session."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph.model import ModelGraph, graph_of
from fusescope.profiler.layers import Engine, Layer, Tensor

if TYPE_CHECKING:
    from fusescope.profiler.run import Run

SAMPLES = Path(__file__).parents[2] / "samples"

_HEADER = '<ir_version: 9, opset_import: ["" : 19]>\n'
_QDQ = re.compile(r"^\s*QDQ (?P<tensor>\w+) (?P<format>fp8|int8)$", re.MULTILINE)
_TENSOR = re.compile(r"(?P<name>[^\s:]+):(?P<dtype>\w+)\[(?P<shape>[-\d,]*)\]")
_ZEROS = {"fp8": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """Parse ONNX's own text form; `weights` are float16 initializers of seeded values, by shape.

    A line ``QDQ t fp8`` stands for the nodes t_q and t_dq, which quantize t into t_8 and dequantize it into t_d.
    """
    pair = r"[\g<tensor>_q] \g<tensor>_8 = QuantizeLinear(\g<tensor>, \g<tensor>_s, zero_\g<format>)" + "\n"
    pair += r"[\g<tensor>_dq] \g<tensor>_d = DequantizeLinear(\g<tensor>_8, \g<tensor>_s, zero_\g<format>)"
    proto = onnx.parser.parse_model(_HEADER + _QDQ.sub(pair, text))
    rng = np.random.default_rng(7)
    for name, shape in weights.items():
        values = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), name))
    for index, match in enumerate(_QDQ.finditer(text)):
        scale = np.array(0.01 * (1 + index), np.float16)
        proto.graph.initializer.append(numpy_helper.from_array(scale, f"{match['tensor']}_s"))
    for form in sorted({match["format"] for match in _QDQ.finditer(text)}):
        proto.graph.initializer.append(helper.make_tensor(f"zero_{form}", _ZEROS[form], [], b"\0", raw=True))
    onnx.checker.check_model(proto)
    return proto


def graph(text: str, **weights: tuple[int, ...]) -> ModelGraph:
    """The graph of `model`."""
    return graph_of(model(text, **weights), name="drawn.onnx")


def tensors(text: str) -> tuple[Tensor, ...]:
    """Tensors written as ``name:Half[1,8,4,4]``, with blanks between them."""
    assert not _TENSOR.sub("", text).strip(), text
    return tuple(
        Tensor(match["name"], tuple(int(size) for size in match["shape"].split(",") if size), match["dtype"])
        for match in _TENSOR.finditer(text)
    )


def layer(
    kind: str,
    name: str,
    reads: str = "",
    writes: str = "",
    *,
    constants: str = "",
    nodes: str = "",
    stream: int = 0,
    event: int | None = None,
) -> Layer:
    """A layer; its tensors as for `tensors`, the ONNX nodes that it names with blanks between them."""
    return Layer(
        index=0,
        name=name,
        kind=kind,
        inputs=tensors(reads),
        constants=tensors(constants),
        outputs=tensors(writes),
        stream=stream,
        event=event,
        onnx_nodes=tuple(nodes.split()),
    )


def engine(*layers: Layer) -> Engine:
    """An engine that runs these layers in this order."""
    return Engine(tuple(replace(layer, index=index) for index, layer in enumerate(layers)))


_SPEED = re.compile(r"\b(fast|slow|speed|quick|latency|millisecond|pays?\b|worth|time)\w*", re.IGNORECASE)


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, down through data classes, mappings, sequences and tables (not their columns' names)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, pd.DataFrame):
        yield from texts([value.index.to_list(), value.to_numpy().tolist()])
    elif is_dataclass(value):
        yield from (text for item in fields(value) for text in texts(getattr(value, item.name)))
    elif isinstance(value, dict):
        yield from (text for item in value.items() for text in texts(item))
    elif isinstance(value, tuple | list):
        yield from (text for item in value for text in texts(item))


@pytest.fixture(scope="session")
def words_about_speed() -> Callable[[Any], list[str]]:
    """A function that lists the texts in an explanation that speak of time ("ahead of time" excepted)."""
    return lambda value: [text for text in texts(value) if _SPEED.search(text.replace("ahead of time", ""))]


@pytest.fixture(scope="session")
def draw() -> SimpleNamespace:
    """The functions above."""
    return SimpleNamespace(model=model, graph=graph, tensors=tensors, layer=layer, engine=engine)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., "Run"]:
    """A function that compiles a model for sm120, or another target, and returns the run."""
    pytest.importorskip("tensorrt_rtx")
    from fusescope.profiler.build import build, prepare
    from fusescope.profiler.runtimes import CompileOptions

    folder = tmp_path_factory.mktemp("runs")

    def compile_model(proto: onnx.ModelProto, name: str, target: str = "sm120") -> "Run":
        ready = prepare(proto, name)
        return build(ready, folder / f"{name}-{target}", runtime="tensorrt-rtx", options=CompileOptions(target))

    return compile_model


@pytest.fixture(scope="session")
def sample_run(compiled: Callable[..., "Run"]) -> Callable[[str, str], "Run"]:
    """A function that compiles a sample as it is (``fp16``) or quantized with the weights' granularity; each once."""
    from fusescope.graph.structure import fill
    from fusescope.quant.insert import quantize

    filled: dict[str, onnx.ModelProto] = {}
    runs: dict[tuple[str, str], Run] = {}

    def run(sample: str, variant: str) -> "Run":
        if sample not in filled:
            filled[sample] = fill(onnx.load(SAMPLES / f"{sample}.onnx"))
        if (sample, variant) not in runs:
            proto = onnx.ModelProto()
            proto.CopyFrom(filled[sample] if variant == "fp16" else quantize(filled[sample], weights=variant).proto)  # type: ignore[arg-type]
            runs[sample, variant] = compiled(proto, f"{sample}-{variant}")
        return runs[sample, variant]

    return run
