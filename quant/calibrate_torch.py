"""Ranges of activations by nvidia-modelopt's torch PTQ: `calibrate_torch`."""

import contextlib
import copy
import importlib.metadata
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import graph_of
from fusescope.quant.calibrate import check_calibratable, model_hash, runnable
from fusescope.quant.device import device, device_name
from fusescope.quant.export import module_path
from fusescope.quant.extras import needs
from fusescope.quant.ort import onnx_runner
from fusescope.quant.ranges import Ranges, sorted_out
from fusescope.quant.scales import format_named
from fusescope.quant.torch_runner import torch_runner

if TYPE_CHECKING:
    import torch

    from fusescope.quant.data import Batch

_CONFIGS = {"fp8": "FP8_DEFAULT_CFG", "int8": "INT8_DEFAULT_CFG"}

_SAME = 0.05
"""Most that outputs of one model may differ in ONNX Runtime and torch, relative to the largest: weights in float16
move them by less than a hundredth, other weights by as much as they are."""


def calibrate_torch(
    net: "torch.nn.Module",
    proto: onnx.ModelProto,
    batches: "Iterable[Batch]",
    *,
    format: str = "fp8",  # noqa: A002 - the word of the command and of the recipe
    data: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    name: str = "the model",
) -> Ranges:
    """Find the magnitude of what convolutions and gemms read, on the GPU if torch has one.

    The method is ModelOpt's default for the format, `max`. A module that is called several times has one magnitude.
    What is no input of a torch module (an operand of a residual sum) is not looked at.

    Args:
        net: The torch model, with its weights. It is not changed.
        proto: The ONNX model that was exported from it by `fusescope.quant.export.export`.
        batches: Images, read once.
        format: The number format that ModelOpt is asked for; its ranges are the same in all.
        data: What the images are, for the record: `Dataset.describe`.
        progress: Called with the number of images of each batch that is done.
        name: What to call the ONNX model in messages.

    Raises:
        UserError: torch or modelopt is missing, the ONNX model is quantized, structure-only or not one of this torch
            model, an activation is not finite, or there is no image.
    """
    check_calibratable(proto, name)
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise UserError("there is no image to calibrate with", remedy="check --data and --images")
    copied = copy.deepcopy(net)
    run = torch_runner(copied)
    _check_same(proto, run(first.inputs), first, name)
    images = 0

    def forward(_: "torch.nn.Module") -> None:
        nonlocal images
        for batch in chain((first,), stream):
            run(batch.inputs)
            images += len(batch.names)
            if progress is not None:
                progress(len(batch.names))

    with _quiet():
        modelopt = needs("modelopt.torch.quantization", "calibrating a torch model")
        try:
            # It replaces the modules inside the copy, which `run` then runs.
            modelopt.quantize(copied, getattr(modelopt, _CONFIGS[format_named(format).name]), forward_loop=forward)
        except AssertionError as error:
            what = f"ModelOpt cannot calibrate it ({error})"
            raise UserError(what, where=name, remedy="calibrate without --model, which names such tensors") from error
    amax, unusable = sorted_out(_by_tensor(copied, proto, name), name)
    versions = {each: importlib.metadata.version(each) for each in ("nvidia-modelopt", "torch")}
    return Ranges(
        amax=amax,
        unusable=unusable,
        method="max",
        images=images,
        data=data or {},
        model_sha256=model_hash(proto),
        tool=f"{' and '.join(f'{each} {version}' for each, version in versions.items())} on {device_name(device())}",
    )


def _check_same(proto: onnx.ModelProto, expected: np.ndarray[Any, Any], batch: "Batch", name: str) -> None:
    """Refuse an ONNX model that does not compute on the first images what the torch model does."""
    found = onnx_runner(runnable(proto), name=name)(batch.inputs)
    same = found.shape == expected.shape
    if not same or not np.abs(found - expected).max() <= _SAME * np.abs(expected).max():
        raise UserError(
            "does not compute what the torch model does",
            where=name,
            remedy="export it from the same model with the same weights",
        )


def _by_tensor(net: "torch.nn.Module", proto: onnx.ModelProto, name: str) -> dict[str, float]:
    """Return what the quantizers found, by the tensors of the ONNX model, whose nodes are named after modules."""
    modules = dict(net.named_modules())
    graph = graph_of(proto)
    magnitudes: dict[str, float] = {}
    for node in graph.nodes.values():
        quantizer = getattr(modules.get(module_path(node.name)), "input_quantizer", None)
        amax = getattr(quantizer, "amax", None)
        read = graph.activations(node)
        if node.op in ops.WEIGHTED and len(read) == 1 and amax is not None:
            magnitudes[read[0]] = max(float(amax), magnitudes.get(read[0], 0.0))
    if not magnitudes:
        what = "no convolution of it is named after a module of the torch model"
        raise UserError(what, where=name, remedy="export it with `fusescope export`")
    return magnitudes


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep modelopt's words from stdout, which is for results, and its warnings of what is not used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
