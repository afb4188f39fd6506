"""Ranges of activations from images, for any ONNX model: `calibrate`, in ONNX Runtime on the CPU.

Every image is run once, whatever the number of tensors. For the method `max` the reductions are part of the graph, so
that no activation leaves it; the other methods run image by image and keep a histogram of each tensor. Memory does not
grow with the images.
"""

import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from fusescope.graph.batch import with_batch
from fusescope.graph.errors import UserError
from fusescope.graph.structure import is_structure_only
from fusescope.quant.collectors import THRESHOLDS, Histogram, percentile_amax
from fusescope.quant.half import to_dtype
from fusescope.quant.ort import Array, computed, session, signature
from fusescope.quant.ranges import Ranges, sorted_out
from fusescope.quant.recipe import Method
from fusescope.quant.scales import format_named
from fusescope.quant.unquantize import quantizer_in

if TYPE_CHECKING:
    from fusescope.quant.data import Batch

PERCENTILE = 99.99
"""The share of values, in percent, that the method `percentile` keeps."""

_LOW = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
_MARK = "fusescope_range_of_"


def calibrate(
    proto: onnx.ModelProto,
    batches: "Iterable[Batch]",
    *,
    tensors: Sequence[str],
    method: Method = "max",
    percentile: float = PERCENTILE,
    format: str = "fp8",  # noqa: A002 - the word of the command and of the recipe
    data: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    name: str = "the model",
) -> Ranges:
    """Find the magnitude of activation tensors.

    A model in float16 or bfloat16 is run in float32, where ONNX Runtime may optimize it. Ranges of HRNet-W18 in float16
    differ from those in float32 by 0.3 % (the median) in either arithmetic: it is the rounded weights that do it.

    Args:
        proto: The unquantized model with its weights.
        batches: Images, read once.
        tensors: What to look at: `fusescope.quant.placement.calibration_tensors`.
        method: ``max``, ``percentile``, ``mse`` or ``entropy``.
        percentile: For the method of this name, 0 to 100.
        format: The number format that `mse` and `entropy` are to fit.
        data: What the images are, for the record: `Dataset.describe`.
        progress: Called with the number of images of each batch that is done.
        name: What to call the model in messages.

    Raises:
        UserError: The model is quantized or structure-only, cannot be run on the images, or there is no image or no
            tensor.
    """
    check_calibratable(proto, name)
    if not tensors:
        what = "has no convolution, gemm or sum whose inputs could be quantized"
        raise UserError(what, where=name, remedy="check the model, or name tensors with --tensor")
    model = runnable(proto)
    if method == "max":
        look: _Maxima | _Histograms = _Maxima(model, tensors, name)
    else:
        look = _Histograms(model, tensors, name, _threshold(method, percentile, format))
    images = 0
    for batch in batches:
        for fed in _fed(model, batch, one_by_one=method != "max"):
            look.run(fed)
        images += len(batch.names)
        if progress is not None:
            progress(len(batch.names))
    if not images:
        raise UserError("there is no image to calibrate with", remedy="check --data and --images")
    amax, unusable = sorted_out(look.magnitudes(), name)
    words = {"percentile": f"percentile {percentile:g}", "mse": f"mse for {format}", "entropy": f"entropy for {format}"}
    return Ranges(
        amax=amax,
        unusable=unusable,
        method=words.get(method, method),
        images=images,
        data=data or {},
        model_sha256=model_hash(proto),
        tool=f"ONNX Runtime {importlib.metadata.version('onnxruntime')} on the CPU",
    )


def model_hash(proto: onnx.ModelProto) -> str:
    """Hash of what a model computes: its graph with the weights, not its metadata."""
    graph = proto.graph
    whole = hashlib.sha256()
    for part in (*graph.node, *graph.initializer, *graph.sparse_initializer, *graph.input, *graph.output):
        content = part.SerializeToString(deterministic=True)  # part by part: a protobuf holds no more than 2 GiB
        whole.update(len(content).to_bytes(8, "little") + content)
    return whole.hexdigest()


def check_calibratable(proto: onnx.ModelProto, name: str) -> None:
    """Raise UserError if ranges of a model would mean nothing: it has no weights, or is quantized."""
    if is_structure_only(proto):
        raise UserError(
            "is structure-only: ranges of seeded weights say nothing of the trained ones",
            where=name,
            remedy="calibrate the model with its weights",
        )
    if (node := quantizer_in(proto)) is not None:
        raise UserError(
            f"is quantized already (it is a {node.op_type})",
            where=f"node {node.name!r}",
            remedy="calibrate the high-precision model that it was made from",
        )


def runnable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in float32, for one image at a time where its batch is fixed."""
    model = proto
    values = (value.type.tensor_type.elem_type for value in proto.graph.input)
    if _LOW.intersection([*values, *(tensor.data_type for tensor in proto.graph.initializer)]):
        model = to_dtype(proto, "fp32")
    fixed = {spec.shape[0] for spec in signature(model) if spec.shape and isinstance(spec.shape[0], int)}
    return with_batch(model, 1) if len(fixed) == 1 and fixed != {1} else model


def _fed(model: onnx.ModelProto, batch: "Batch", *, one_by_one: bool) -> Iterator[dict[str, Array]]:
    """A batch in parts that the model takes."""
    specs = signature(model)
    one_by_one = one_by_one or any(spec.shape and spec.shape[0] == 1 for spec in specs)
    parts = [slice(i, i + 1) for i in range(len(batch.names))] if one_by_one else [slice(None)]
    for part in parts:
        yield {spec.name: batch.inputs[spec.name][part].astype(spec.dtype, copy=False) for spec in specs}


class _Maxima:
    """The largest magnitude of each tensor, found inside the graph.

    ReduceMax may lose a NaN; the sum of the magnitudes does not.
    """

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str], name: str) -> None:
        self._tensors, self._name = tensors, name
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        self._outputs = []
        for number, tensor in enumerate(tensors):
            magnitude, largest, total = (f"{_MARK}{number}_{what}" for what in ("abs", "max", "sum"))
            model.graph.node.extend(
                (
                    helper.make_node("Abs", [tensor], [magnitude]),
                    helper.make_node("ReduceMax", [magnitude], [largest], keepdims=0),
                    helper.make_node("ReduceSum", [magnitude], [total], keepdims=0),
                )
            )
            self._outputs += [largest, total]
        self._session = session(model, outputs=self._outputs, name=name)
        self._largest = np.zeros(len(tensors))

    def run(self, fed: Mapping[str, Array]) -> None:
        """Look at some images."""
        found = np.array([float(value) for value in computed(self._session, self._outputs, fed, self._name)])
        largest, total = found[::2], found[1::2]
        self._largest = np.maximum(self._largest, np.where(np.isnan(total), np.nan, largest))

    def magnitudes(self) -> dict[str, float]:
        """The magnitude of each tensor."""
        return dict(zip(self._tensors, self._largest.tolist(), strict=True))


class _Histograms:
    """A histogram of each tensor."""

    def __init__(
        self, proto: onnx.ModelProto, tensors: Sequence[str], name: str, threshold: Callable[[Histogram], float]
    ) -> None:
        self._threshold, self._name = threshold, name
        inputs = {spec.name for spec in signature(proto)}
        self._computed = [tensor for tensor in tensors if tensor not in inputs]
        self._session = session(proto, outputs=self._computed, name=name)
        self._histograms = {tensor: Histogram() for tensor in tensors}

    def run(self, fed: Mapping[str, Array]) -> None:
        """Look at some images."""
        found = computed(self._session, self._computed, fed, self._name) if self._computed else []
        seen = {**dict(zip(self._computed, found, strict=True)), **fed}
        for tensor, histogram in self._histograms.items():
            histogram.add(seen[tensor])

    def magnitudes(self) -> dict[str, float]:
        """The threshold of each tensor; its largest magnitude where that is zero, NaN or infinite."""
        return {tensor: self._of(histogram) for tensor, histogram in self._histograms.items()}

    def _of(self, histogram: Histogram) -> float:
        if histogram.has_nan:
            return math.nan
        countable = math.isfinite(histogram.largest) and histogram.largest > 0
        return self._threshold(histogram) if countable else histogram.largest


def _threshold(method: Method, percentile: float, format_name: str) -> Callable[[Histogram], float]:
    if method == "percentile":
        return partial(percentile_amax, percentile=percentile)
    return partial(THRESHOLDS[method], form=format_named(format_name))
