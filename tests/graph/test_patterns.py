"""The fusion pattern suite: its models are sound, show what they ask, and are predicted as the documents say."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, graph_of
from fusescope.graph.patterns import PATTERNS, Case, Pattern, case_named, cases, user_case
from fusescope.graph.patterns.builder import Net
from fusescope.graph.rules import RULES, predictions
from fusescope.graph.sites import quantize_sites
from fusescope.graph.structure import strip

EVERY_CASE = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
EVERY_PATTERN = pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)

# What the documentation of full TensorRT says becomes of the Quantizes in question, read from its sections on Q/DQ
# propagation, placement and limitations, and from its release notes. On sm120, where the 7x7 limit holds.
DOCUMENTED = {
    "conv-chain": {"first": "fuses"},
    "conv-unquantized": {"relu": "uncertain"},
    "conv-second-reader": {"relu": "separate"},
    "conv-relu": {"relu": "fuses"},
    "conv-clip": {"clip": "fuses"},
    "conv-gelu": {"gelu": "fuses"},
    "residual-add-fp16-skip": {"relu": "separate"},
    "residual-add-quantized-skip": {"relu": "fuses"},
    "residual-add-fp16-skip-second-reader": {"relu": "separate"},
    "residual-add-quantized-skip-second-reader": {"relu": "separate"},
    "residual-add-quantized-skip-chain": {"relu": "fuses"},
    "residual-add-both-quantized": {"first": "fuses"},
    "residual-add-fp16-skip-relu-before": {"sum": "separate"},
    "residual-silu": {"sum": "separate"},
    "fuse-sum-strided": {"relu": "separate"},
    "fuse-sum-strided-quantized-branch": {"relu": "fuses"},
    "fuse-sum-strided-second-reader": {"relu": "separate"},
    "fuse-sum-nearest": {"relu": "separate"},
    "fuse-sum-linear": {"relu": "separate"},
    "fuse-sum-three-branches": {"relu": "separate"},
    "concat-quantized-equal-scales": {"left": "fuses", "right": "fuses"},
    "concat-quantized-different-scales": {"left": "fuses", "right": "fuses"},
    "two-readers": {"relu": "fuses"},
    "shared-dequantize": {"relu": "fuses"},
    "duplicate-quantizes": {"relu": "fuses"},
    "graph-input": {"x": "separate"},
    "graph-input-float32": {"half": "separate"},
    "graph-output": {"relu": "separate"},
    "graph-output-dequantized": {"relu": "fuses"},
    "quantize-then-max-pool": {"relu": "fuses"},
    "average-pool-then-quantize": {"pool": "separate"},
    "squeeze-excite": {"excited": "separate"},
    "dilated-conv": {"relu": "fuses"},
    "large-kernel-conv/fp8": {"relu": "lost"},
    "large-kernel-conv/int8": {"relu": "fuses"},
    "transposed-conv/fp8": {"relu": "lost"},
    "transposed-conv/int8": {"relu": "fuses", "up_relu": "fuses"},
    "depthwise-conv/fp8": {"depthwise_relu": "uncertain"},
    "depthwise-conv/int8": {"relu": "fuses", "depthwise_relu": "fuses"},
    "run-time-weights": {"relu": "fuses"},
    "unquantized-weights": {"relu": "lost"},
    "gemm-chain": {"relu": "fuses"},
    "attention-fp16-scores": {"context": "uncertain"},
    "layer-norm": {"norm": "separate"},
    "attention-quantized": {"q": "fuses", "k": "fuses", "v": "fuses", "weights": "separate"},
}

# Where the rules do not say what the documents say.
DISPUTED = {
    "max-pool-then-quantize": {"pool": "fuses"},  # "Max Pooling commutes": the Quantize moves back into the conv
    "average-pool-quantized": {"pool": "fuses"},  # "fused with a DQ layer and a Q layer" into one of 8 bits
    "quantize-then-split": {"relu": "fuses"},  # data movement commutes: the convs behind it run in 8 bits
    "quantize-then-pad": {"relu": "fuses"},  # a Pad becomes part of the conv, and zero is zero in 8 bits
    "different-quantizes": {"relu": "separate"},  # Quantizes move back together only if their scales are equal
}


def predicted(case: Case, tensors: dict[str, str]) -> dict[str, str]:
    """Return what the rules say of the sites on `tensors` in full TensorRT on sm120."""
    graph = graph_for(case.name)
    sites = quantize_sites(graph)
    found = zip(sites, predictions(graph, sites, "tensorrt", "sm120"), strict=True)
    return {site.tensor: prediction.prediction for site, prediction in found if site.tensor in tensors}


def cases_of(name: str) -> list[Case]:
    """Return the cases of the suite that belong to a pattern, or to a pattern in one format."""
    return [case for case in cases() if f"{case.name}/".startswith(f"{name}/")]


def activation_scales(proto: onnx.ModelProto) -> list[float]:
    """Return the scales of the Quantizes that read activations."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    return [
        float(numpy_helper.to_array(stored[node.input[1]]))
        for node in proto.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in stored
    ]


def computed(proto: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    """Return the first output of a model, by ONNX's reference implementation, as float64."""
    outputs = list(ReferenceEvaluator(proto).run(None, inputs))
    return np.asarray(outputs[0], float)


@cache
def graph_for(name: str) -> ModelGraph:
    """Return the graph of a case."""
    return graph_of(case_named(name).model())


class TestModels:
    """Every case is a sound, small, reproducible float16 model."""

    @EVERY_CASE
    def test_passes_the_checker(self, case: Case) -> None:
        """The ONNX checker, with shape inference, accepts the model."""
        onnx.checker.check_model(case.model(), full_check=True)

    @EVERY_CASE
    def test_is_deterministic(self, case: Case) -> None:
        """Two builds give the same bytes."""
        first, second = (case.model().SerializeToString(deterministic=True) for _ in range(2))
        assert first == second

    @EVERY_CASE
    def test_is_small_and_named(self, case: Case) -> None:
        """Every node has a name of its own, and the file is no more than 64 kB."""
        proto = case.model()
        names = [node.name for node in proto.graph.node]
        assert all(names)
        assert len(set(names)) == len(names)
        assert proto.ByteSize() <= 64 * 1024

    @EVERY_CASE
    def test_is_float16_between_8_bits(self, case: Case) -> None:
        """What a Quantize reads and a Dequantize writes is float16, and the codes are those of the case's format."""
        graph = graph_for(case.name)
        codes = {"fp8": "float8e4m3fn", "int8": "int8"}[case.format]
        for node in graph.nodes.values():
            if node.op in {"QuantizeLinear", "DequantizeLinear"}:
                dtypes = [graph.tensors[tensor].dtype for tensor in (node.inputs[0], node.outputs[0])]
                assert sorted(dtypes) == sorted(["float16", codes])

    @EVERY_CASE
    def test_asks_about_its_own_sites(self, case: Case) -> None:
        """What the pattern asks about are Quantize sites of the model, of the case's format."""
        sites = {site.tensor: site.format for site in quantize_sites(graph_for(case.name))}
        assert case.pattern.tensors
        assert set(case.pattern.tensors) <= sites.keys()
        assert set(sites.values()) == {case.format}

    @EVERY_CASE
    def test_weight_scales_have_the_granularity(self, case: Case) -> None:
        """Weights have one scale, or one for each output channel, and the axis is that of the output channels."""
        graph = graph_for(case.name)
        for node in case.model().graph.node:
            if node.op_type != "DequantizeLinear" or node.output[0] not in graph.constants:
                continue
            (reader,) = graph.readers(node.output[0])
            axis = 1 if reader.op in {"MatMul", "ConvTranspose"} else 0
            shape = graph.tensors[node.output[0]].shape or ()
            per_channel = case.weights == "per-channel"
            assert graph.tensors[node.input[1]].shape == ((shape[axis],) if per_channel else ())
            assert [attribute.i for attribute in node.attribute] == ([axis] if per_channel else [])

    def test_activation_scales_differ(self) -> None:
        """No two activations have the same scale, as after calibration, but where equal scales are the question."""
        equal = {"concat-quantized-equal-scales", "duplicate-quantizes"}
        for case in cases():
            values = activation_scales(case.model())
            assert (len(set(values)) < len(values)) == (case.pattern.name in equal), case.name

    def test_biases_are_no_zeros(self) -> None:
        """No conv has a bias of zeros, which a compiler takes away."""
        for case in cases():
            proto = case.model()
            stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
            biases = [stored[node.input[2]] for node in proto.graph.node if node.op_type.startswith("Conv")]
            assert all(np.all(bias != 0) for bias in biases), case.name


class TestNumbers:
    """The models compute what they seem to."""

    @pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
    @pytest.mark.parametrize("form", ["fp8", "int8"])
    @pytest.mark.parametrize(("shape", "axis"), [((8, 4, 3, 3), 0), ((8, 4, 2, 2), 1), ((16, 8), 1)])
    def test_8_bit_weights_are_the_weights(
        self, form: str, granularity: str, shape: tuple[int, ...], axis: int
    ) -> None:
        """Weights stored in 8 bits, and those quantized at run time, are the float16 ones but for rounding."""
        made = {}
        for kind in ("weight", "weight8", "run_time_weight8"):
            net = Net(form, granularity)
            name = net.weight("w", shape) if kind == "weight" else getattr(net, kind)("w", shape, axis=axis)
            model = net.model("weights", [net.op("Identity", name, name="out")])
            made[kind] = computed(model)
        wanted = made.pop("weight")
        others = tuple(dim for dim in range(len(shape)) if dim != axis) if granularity == "per-channel" else None
        largest = np.abs(wanted).max(axis=others, keepdims=True)
        # FP8 keeps 3 bits of mantissa down to 1/64 of a code, INT8 has 127 codes: half a step, and float16's rounding.
        half_step = np.maximum(np.abs(wanted) / 16, largest / 448 / 1024) if form == "fp8" else largest / 254
        for values in made.values():
            assert np.all(np.abs(values - wanted) <= half_step + largest / 512)
        assert np.any(made["weight8"] != wanted)

    @pytest.mark.parametrize("form", ["fp8", "int8"])
    def test_8_bits_change_the_result_little(self, form: str) -> None:
        """A chain of two convs computes what its float16 twin does, with the noise of 3 bits of mantissa at most."""
        proto = case_named(f"conv-relu/{form}/per-channel").model()
        x = np.random.default_rng(0).uniform(-1, 1, (1, 32, 16, 16)).astype(np.float16)
        net = Net(form, "per-channel")
        twin = net.model("twin", [net.conv(net.relu(net.conv(net.input(), "first")), "second")])
        quantized, plain = (computed(model, x=x) for model in (proto, twin))
        # Two operands of two convs, each with a relative error of 1/16 at most, 1/16/sqrt(3) in the mean.
        assert 0 < np.linalg.norm(quantized - plain) < np.sqrt(4 / 3) / 16 * np.linalg.norm(plain)


class TestSuite:
    """The suite as a whole."""

    def test_names_are_unique(self) -> None:
        """No two patterns, and no two cases, have the same name; names are lower case with dashes."""
        names = [case.name for case in cases()]
        assert len(set(names)) == len(names)
        assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", pattern.name) for pattern in PATTERNS)

    @EVERY_PATTERN
    def test_says_what_it_asks(self, pattern: Pattern) -> None:
        """A pattern asks one question, and says what is documented with its source in brackets."""
        assert re.fullmatch(r"[A-Z][^?]+\?", pattern.question)
        assert re.search(r"\(.+\)[.;, a-z]*", pattern.documented)
        assert pattern.documented.endswith(".")

    def test_every_pattern_comes_in_both_formats(self) -> None:
        """FP8 and INT8 are asked the same questions."""
        named = {case.name for case in cases()}
        assert {name.replace("/fp8/", "/int8/") for name in named} == {name for name in named if "/int8/" in name}

    def test_no_question_is_asked_twice(self) -> None:
        """No two patterns draw the same model, but for names and numbers."""
        drawn: dict[str, str] = {}
        for pattern in PATTERNS:
            (case, *_) = cases([pattern])
            graph = graph_for(case.name)
            equal_scales = len(set(activation_scales(case.model()))) == 2
            key = "|".join((*(_outline(graph, name) for name in graph.nodes), *graph.outputs, str(equal_scales)))
            assert key not in drawn, (pattern.name, drawn.get(key))
            drawn[key] = pattern.name

    def test_covers_the_rules(self) -> None:
        """Every rule of full TensorRT decides in some pattern, but those that no sound model of one recipe meets."""
        deciding = set()
        for case in cases():
            graph = graph_for(case.name)
            sites = quantize_sites(graph)
            deciding |= {prediction.rule for prediction in predictions(graph, sites)}
        unmet = {"nobody reads it", "requantization", "unknown producer", "producer of another format"}
        rules = {rule.name for rule in RULES if "tensorrt" in rule.runtimes}
        assert rules - deciding == unmet

    def test_is_found_by_name(self) -> None:
        """A case is found by its name, and an unknown name is an error that shows one."""
        case = case_named("conv-chain/int8/per-tensor")
        assert (case.pattern.name, case.format, case.weights) == ("conv-chain", "int8", "per-tensor")
        with pytest.raises(UserError, match=r"'conv-chain/int4'.*'conv-chain/fp8/per-tensor'"):
            case_named("conv-chain/int4")


class TestDocumented:
    """The documented rules predict what the documents say."""

    @pytest.mark.parametrize("name", DOCUMENTED)
    def test_prediction(self, name: str) -> None:
        """The Quantizes in question are predicted as the documents say, whatever the format and granularity."""
        found = cases_of(name)
        assert found
        for case in found:
            assert predicted(case, DOCUMENTED[name]) == DOCUMENTED[name], case.name

    @pytest.mark.xfail(reason="the rules do not say what the documents say", raises=AssertionError)
    @pytest.mark.parametrize("name", DISPUTED)
    def test_disputed_prediction(self, name: str) -> None:
        """The same, for what the rules do not have yet."""
        for case in cases_of(name):
            assert predicted(case, DISPUTED[name]) == DISPUTED[name], case.name


class TestUserCase:
    """A user's own model joins the suite."""

    def test_is_called_after_its_file(self, tmp_path: Path) -> None:
        """The case has the file's name, and its model is the file's."""
        proto = case_named("conv-chain/fp8/per-tensor").model()
        onnx.save(proto, tmp_path / "mine.onnx")
        case = user_case(tmp_path / "mine.onnx")
        assert case.name == "mine.onnx"
        assert case.model() == proto

    def test_brings_its_external_data(self, tmp_path: Path) -> None:
        """Weights that lie beside the file are in the model."""
        proto = case_named("conv-chain/fp8/per-tensor").model()
        onnx.save_model(proto, tmp_path / "mine.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        stored = {
            tensor.name: tensor.raw_data for tensor in user_case(tmp_path / "mine.onnx").model().graph.initializer
        }
        wanted = case_named("conv-chain/fp8/per-tensor").model().graph.initializer
        assert stored == {tensor.name: tensor.raw_data for tensor in wanted}

    def test_is_filled_and_named(self, tmp_path: Path) -> None:
        """A structure-only model gets weights, and a node without a name gets one."""
        proto = strip(case_named("conv-chain/fp8/per-tensor").model())
        proto.graph.node[0].name = ""
        onnx.save(proto, tmp_path / "mine.onnx")
        filled = user_case(tmp_path / "mine.onnx").model()
        assert all(node.name for node in filled.graph.node)
        assert all(node.op_type != "ConstantOfShape" for node in filled.graph.node)
        onnx.checker.check_model(filled, full_check=True)

    def test_what_is_no_model_is_refused(self, tmp_path: Path) -> None:
        """A missing file, missing external data and an invalid model are errors that name the file."""
        with pytest.raises(UserError, match=r"none\.onnx"):
            user_case(tmp_path / "none.onnx")
        proto = case_named("conv-chain/fp8/per-tensor").model()
        onnx.save_model(proto, tmp_path / "mine.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        (tmp_path / "w.bin").unlink()
        with pytest.raises(UserError, match=r"mine.onnx: its external data cannot be read"):
            user_case(tmp_path / "mine.onnx")
        proto = case_named("conv-chain/fp8/per-tensor").model()
        proto.graph.node[0].op_type = "Quantise"
        onnx.save(proto, tmp_path / "bad.onnx")
        with pytest.raises(UserError, match=r"bad.onnx: is not a valid ONNX model"):
            user_case(tmp_path / "bad.onnx")


def _outline(graph: ModelGraph, name: str) -> str:
    """Say of a node what it does, to what, with which extents and equalities of scale."""
    node = graph.nodes[name]
    shapes = [str(graph.tensors[tensor].shape) for tensor in (*filter(None, node.inputs), *node.outputs)]
    places = [str(graph.positions.get(producer.name)) if (producer := graph.producer(t)) else "" for t in node.inputs]
    return f"{node.op}{dict(node.attributes)}{shapes}{places}{graph.tensors[node.outputs[0]].dtype}"
