"""ONNX Runtime on the CPU, exact: `session`, and models as functions: `onnx_runner`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import TensorProto, helper

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.names import all_nodes

if TYPE_CHECKING:
    import onnxruntime

Array = NDArray[Any]

_LOW_PRECISION = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input that a model must be given."""

    name: str
    """Unique in the model."""
    shape: tuple[int | str | None, ...]
    """Extents; a text is a symbolic extent, None an unknown one."""
    dtype: np.dtype[Any]
    """Element type."""


class Runner(Protocol):
    """A model as a function: arrays by the name of the input, with the images along the first axis, to outputs."""

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Run the model and return its first output."""
        ...


def signature(proto: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return the inputs that a model must be given: those that are no initializers.

    Raises:
        UserError: It takes none, or something else than a tensor.
    """
    stored = {tensor.name for tensor in proto.graph.initializer}
    given = [value for value in proto.graph.input if value.name not in stored]
    if not given:
        raise UserError("the model takes no input", remedy="give one that takes images or arrays")
    if odd := next((value.name for value in given if not value.type.tensor_type.elem_type), None):
        raise UserError(f"the model's input {odd!r} is no tensor", remedy="give a model whose inputs are tensors")
    return tuple(
        InputSpec(
            value.name,
            tuple(_extent(dim) for dim in value.type.tensor_type.shape.dim),
            np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
        )
        for value in given
    )


def session(
    proto: onnx.ModelProto, *, outputs: Sequence[str] = (), threads: int | None = None, name: str = "the model"
) -> "onnxruntime.InferenceSession":
    """Load a model into ONNX Runtime on the CPU.

    The graph optimizer is off for quantized models and those in low precision: ONNX Runtime 1.32 takes a Relu before a
    Quantize to FP8 away, and changes float16 results at its lowest level.

    Args:
        proto: The model, with its weights inside. It is not changed.
        outputs: Tensors to return besides the outputs.
        threads: How many to compute with; all cores by default.
        name: What to call the model in messages.

    Raises:
        UserError: ONNX Runtime is not installed, or cannot run the model on the CPU.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UserError(
            "running a model needs onnxruntime, which is not installed", remedy='pip install "fusescope[quantize]"'
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is in the exception
    options.intra_op_num_threads = threads or 0
    if not _may_be_optimized(proto):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = proto
    there = {value.name for value in proto.graph.output}
    if extra := [name for name in outputs if name not in there]:
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
    providers = ["CPUExecutionProvider"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return onnxruntime.InferenceSession(_content(model, Path(folder)), options, providers=providers)
        except Exception as error:
            raise _explained(error, name, "give it in float32 or float16, with operations of ONNX") from error


def computed(
    loaded: "onnxruntime.InferenceSession", outputs: Sequence[str], fed: Mapping[str, Array], name: str
) -> list[Array]:
    """Run a session.

    Args:
        loaded: The session.
        outputs: The tensors to return, at least one.
        fed: An array for each input.
        name: What to call the model in messages.

    Raises:
        UserError: ONNX Runtime cannot run the model on these inputs.
    """
    try:
        found: list[Array] = loaded.run(list(outputs), dict(fed))
    except Exception as error:
        shapes = ", ".join(f"{each} {list(values.shape)}" for each, values in fed.items())
        remedy = f"give inputs that fit it (they are {shapes}), or pass --batch 1 if it runs on single images only"
        raise _explained(error, name, remedy) from error
    return found


def _explained(error: Exception, name: str, remedy: str) -> UserError:
    """What ONNX Runtime says of a model, as the user's error; another error is raised as it is."""
    if not type(error).__module__.startswith("onnxruntime"):
        raise error
    return UserError(f"ONNX Runtime cannot run it on the CPU ({error})", where=name, remedy=remedy)


def onnx_runner(proto: onnx.ModelProto, *, name: str = "the model") -> Runner:
    """Make a function of a model that runs in ONNX Runtime on the CPU.

    It takes any number of images, whatever batch the model is fixed to, and floats of any precision where the model
    takes floats.

    Args:
        proto: The model, with its weights inside. It is not changed.
        name: What to call it in messages.

    Raises:
        UserError: As `session`; and, when the function is called: an input is missing, or is of a kind that the model
            does not take.
    """
    specs = signature(proto)
    if not proto.graph.output:
        raise UserError("has no output", where=name, remedy="give a model with an output")
    loaded, first = session(proto, name=name), proto.graph.output[0].name
    batches = {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)}
    fixed = batches.pop() if len(batches) == 1 else None

    def run(inputs: Mapping[str, Array]) -> Array:
        fed = {spec.name: _fed(spec, inputs, name) for spec in specs}
        images = len(next(iter(fed.values())))
        step = fixed or images
        parts = []
        for start in range(0, images, step):
            part = {each: values[start : start + step] for each, values in fed.items()}
            taken = min(step, images - start)
            padded = {each: _padded(values, step) for each, values in part.items()}
            (output,) = computed(loaded, [first], padded, name)
            parts.append(output[:taken] if taken < step else output)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return run


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def _may_be_optimized(proto: onnx.ModelProto) -> bool:
    values = (*proto.graph.input, *proto.graph.output)
    dtypes = {value.type.tensor_type.elem_type for value in values}
    dtypes.update(tensor.data_type for tensor in proto.graph.initializer)
    quantized = ops.QUANTIZE | ops.DEQUANTIZE
    return not dtypes & _LOW_PRECISION and all(node.op_type not in quantized for node in all_nodes(proto.graph.node))


def _content(model: onnx.ModelProto, folder: Path) -> bytes | str:
    """Return a model as ONNX Runtime takes it: its bytes, or the path of a copy in a folder if they are too many."""
    try:
        content: bytes = model.SerializeToString()
    except (EncodeError, ValueError):  # a protobuf holds no more than 2 GiB
        path = folder / "model.onnx"
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, path, save_as_external_data=True)
        return str(path)
    return content


def _fed(spec: InputSpec, inputs: Mapping[str, Array], name: str) -> Array:
    if spec.name not in inputs:
        raise UserError(
            f"takes an input {spec.name!r}, and is given {', '.join(map(repr, inputs))}",
            where=name,
            remedy="evaluate variants of one model, with data for it",
        )
    values = inputs[spec.name]
    if values.dtype == spec.dtype:
        return values
    if not all(np.issubdtype(dtype, np.floating) for dtype in (values.dtype, spec.dtype)):
        raise UserError(
            f"takes {spec.dtype.name} as its input {spec.name!r}, and is given {values.dtype.name}",
            where=name,
            remedy="evaluate variants of one model, with data of that type",
        )
    return values.astype(spec.dtype)


def _padded(values: Array, step: int) -> Array:
    """Repeat the last image until there are as many as the model takes."""
    missing = step - len(values)
    return values if missing <= 0 else np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
