"""A torch model to ONNX: `export`. BatchNorm is folded, nodes are named after torch modules.

torch's TorchScript exporter is used (`dynamo=False`): it names nodes by module path, as in
`/stage2/stage2.0/branches.0/branches.0.0/conv1/Conv`, and keeps the batch out of the graph (Flatten stays
Flatten). The newer exporter names them `node_Conv_4560`, bakes the batch into a Reshape and takes 50 s for
HRNet-W18 instead of 12.
"""

import hashlib
import importlib
import io
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal

import onnx

from fusescope.graph.errors import UserError
from fusescope.graph.names import name_nodes
from fusescope.graph.structure import WEIGHTS
from fusescope.quant.extras import needs
from fusescope.quant.half import to_half
from fusescope.quant.preprocessing import MODES, check_timm_name, configured, record_preprocessing
from fusescope.quant.pretrained import trained

if TYPE_CHECKING:
    import torch

OPSET = 19
"""The oldest opset with FP8 and float16 scales, so that quantizing an export never converts it."""

INPUT, OUTPUT = "input", "output"
"""The names of an exported model's input and output; several outputs are `output_0`, `output_1`, ..."""


def export(
    model: str,
    *,
    dtype: Literal["float32", "float16"] = "float32",
    shape: tuple[int, ...] | None = None,
    batch: int = 1,
    pretrained: bool = False,
    revision: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Export a torch model with fixed shapes.

    Weights are seeded random unless `pretrained` or `weights` is given. BatchNorm's scales and shifts are
    random then too and its statistics those of a random input, so that every convolution has a bias, as in a
    trained model, and activations stay in the range of float16.

    Args:
        model: A timm model name, or `module:callable` where the callable returns a `torch.nn.Module`.
        dtype: The dtype of weights, activations, input and output.
        shape: The shape of one sample, as in `(3, 224, 224)`; by default the timm model's own, else that.
        batch: The first dimension of the input.
        pretrained: Download timm's trained weights from the hub.
        revision: A branch, tag or commit of them; by default the main branch. The model's metadata say the commit.
        weights: A checkpoint file (`.pth`, `.safetensors`) to load instead.
        seed: Of the random weights; not used otherwise.
        opset: The ONNX opset.

    Returns:
        A model that passes the ONNX checker, its input named `input`.

    Raises:
        UserError: torch or timm is missing, the name is unknown, the weights cannot be had, or the model does
            not run on this shape or cannot be exported.
    """
    loaded = load_model(model, shape=shape, pretrained=pretrained, revision=revision, weights=weights, seed=seed)
    torch = needs("torch", "exporting")
    proto = _export(loaded.net, torch.zeros(batch, *loaded.shape), opset, model)
    _drop_identities(proto.graph)
    _lift_constants(proto.graph)
    _name_weights(proto.graph)
    _drop_traces(proto)
    name_nodes(proto)
    proto.metadata_props.add(key=WEIGHTS, value=loaded.origin)
    config = getattr(loaded.net, "pretrained_cfg", {})
    if config and len(loaded.shape) == 3 and loaded.shape[0] in MODES:
        record_preprocessing(proto, configured(config, loaded.shape))
    if dtype == "float16":
        proto = to_half(proto)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A torch model with its weights."""

    net: "torch.nn.Module"
    """The model, set to evaluation."""
    shape: tuple[int, ...]
    """The shape of one sample that it takes."""
    origin: str
    """Where its weights come from."""


def load_model(
    model: str,
    *,
    shape: tuple[int, ...] | None = None,
    pretrained: bool = False,
    revision: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Make a torch model with the weights that `export` would export; arguments and errors are those of `export`."""
    torch = needs("torch", "loading a torch model")
    if pretrained and weights is not None:
        raise UserError("pretrained weights and a weights file exclude each other", remedy="give one of them")
    if revision is not None and not pretrained:
        raise UserError("a revision is one of pretrained weights", where=revision, remedy="pass --pretrained too")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net, origin = _make(model, pretrained=pretrained, revision=revision, seed=seed)
        net.eval()
        config = getattr(net, "pretrained_cfg", {})
        shape = shape or tuple(config.get("input_size", (3, 224, 224)))
        if weights is not None:
            origin = _load(net, weights)
        elif not pretrained:
            _randomise_norms(net, torch.randn(2, *shape), model)
    return LoadedModel(net, shape, origin)


def _make(model: str, *, pretrained: bool, revision: str | None, seed: int) -> "tuple[torch.nn.Module, str]":
    """Make a model, and say where its weights come from."""
    if ":" in model:
        if pretrained:
            raise UserError("only timm models have pretrained weights", where=model, remedy="pass --weights FILE")
        return _call(model), f"values of {model}, seed {seed}"
    check_timm_name(model)
    if not pretrained:
        return needs("timm", "exporting").create_model(model), f"seeded values, seed {seed}"
    return trained(model, revision)


def _call(path: str) -> "torch.nn.Module":
    module, _, name = path.partition(":")
    try:
        net = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(
            f"cannot make a model ({error})", where=path, remedy="name a callable that needs no arguments"
        ) from error
    if not isinstance(net, needs("torch", "exporting").nn.Module):
        raise UserError(f"returned a {type(net).__name__}, not a torch.nn.Module", where=path)
    return net  # type: ignore[no-any-return]


def _load(net: "torch.nn.Module", weights: Path) -> str:
    """Load a checkpoint, and say which it is."""
    if not weights.is_file():
        raise UserError("does not exist", where=weights, remedy="name a .pth or .safetensors file")
    models, broken = needs("timm.models", "exporting"), needs("safetensors", "exporting").SafetensorError
    try:
        models.load_checkpoint(net, str(weights), weights_only=True)
    except (OSError, EOFError, LookupError, RuntimeError, ValueError, UnpicklingError, broken) as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160)
        remedy = "give a checkpoint of this very model"
        raise UserError(f"cannot be loaded ({reason})", where=weights, remedy=remedy) from error
    with weights.open("rb") as file:
        return f"{weights.name}, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def _randomise_norms(net: "torch.nn.Module", sample: "torch.Tensor", model: str) -> None:
    """Give every BatchNorm random scales and shifts, and the statistics of a random input.

    Drawn statistics would not fit the weights, and HRNet's activations would leave the range of float16.
    """
    torch = needs("torch", "exporting")
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    norms = [module for module in net.modules() if isinstance(module, kinds)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average: one pass sets the statistics
        norm.train()
        if norm.affine:
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            torch.nn.init.normal_(norm.bias, std=0.2)
    if norms:
        with torch.no_grad():
            _run(net, sample, model)
    net.eval()


def _run(net: "torch.nn.Module", sample: "torch.Tensor", model: str) -> None:
    try:
        net(sample)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        what = f"does not run on an input of shape {tuple(sample.shape)} ({error})"
        raise UserError(what, where=model, remedy="pass the shape it takes") from error


def _export(net: "torch.nn.Module", sample: "torch.Tensor", opset: int, model: str) -> onnx.ModelProto:
    torch = needs("torch", "exporting")
    with torch.no_grad():
        _run(net, sample, model)
    file = io.BytesIO()
    with warnings.catch_warnings():
        # It warns that it is the older exporter, and of shapes that the trace fixes: they are fixed here.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(net, (sample,), file, dynamo=False, opset_version=opset, input_names=[INPUT])
        except torch.onnx.errors.OnnxExporterError as error:
            raise UserError(f"cannot be exported to ONNX ({error})", where=model) from error
    proto = onnx.load_from_string(file.getvalue())
    _name_outputs(proto.graph)
    return proto


def _name_outputs(graph: onnx.GraphProto) -> None:
    names = [OUTPUT] if len(graph.output) == 1 else [f"{OUTPUT}_{i}" for i in range(len(graph.output))]
    _rename(graph, dict(zip([output.name for output in graph.output], names, strict=True)))


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors everywhere in a graph without bodies."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _drop_identities(graph: onnx.GraphProto) -> None:
    """Let the readers of a weight's Identity read the weight: the exporter stores equal weights once."""
    weights = {tensor.name for tensor in graph.initializer}
    copies = [node for node in graph.node if node.op_type == "Identity" and node.input[0] in weights]
    _remove(graph.node, copies)
    _rename(graph, {node.output[0]: node.input[0] for node in copies})


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers, so that the nodes left are the model's own operations."""
    constants = [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    for node in constants:
        tensor = graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
    _remove(graph.node, constants)


def _remove(nodes: Any, unwanted: Iterable[onnx.NodeProto]) -> None:
    outputs = {node.output[0] for node in unwanted}
    left = [node for node in nodes if node.output[0] not in outputs]
    del nodes[:]
    nodes.extend(left)


def _name_weights(graph: onnx.GraphProto) -> None:
    """Name the weights that folding a BatchNorm made (`onnx::Conv_2012`) after the module that reads them."""
    names: dict[str, str] = {}
    taken = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for name, role in zip(node.input[1:3], ("weight", "bias"), strict=False):
            new = f"{module_path(node.name)}.{role}"
            if name in taken and name.startswith("onnx::") and name not in names and new not in taken:
                names[name] = new
                taken.add(new)
    _rename(graph, names)


def module_path(node: str) -> str:
    """Return the torch module path of a node: `stage2.0.conv1` for `/stage2/stage2.0/conv1/Conv`."""
    scopes = node.strip("/").split("/")[:-1]
    return ".".join(scope for scope, inner in pairwise([*scopes, ""]) if not inner.startswith(f"{scope}."))


def _drop_traces(proto: onnx.ModelProto) -> None:
    """Remove what the exporter writes of itself and of the machine: documentation, metadata, names."""
    for field in ("producer_name", "producer_version", "doc_string", "domain", "metadata_props"):
        proto.ClearField(field)
    proto.graph.name = "model"
    proto.graph.ClearField("doc_string")
    for node in proto.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info, *proto.graph.initializer):
        value.ClearField("doc_string")
