"""Single Quantize sites of a quantized model, grafted onto the model that it was made from: `Grafter`.

What reads the quantized tensor is copied from the quantized model, with its 8-bit weights; everything else stays as in
the reference. Nothing is quantized anew, so this works for any recipe, placement and tool that keeps tensor names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, graph_of
from fusescope.graph.names import name_nodes
from fusescope.graph.sites import QuantizeSite, quantize_sites
from fusescope.graph.weights import constant_tensor

SWITCHES = "fusescope.switches"
"""The input of `Grafter.switchable`."""

_Q_DQ = ops.QUANTIZE | ops.DEQUANTIZE


@dataclass(frozen=True, slots=True)
class Graft:
    """What quantizing one site adds to the reference."""

    nodes: tuple[onnx.NodeProto, ...]
    """The site's Quantize and Dequantize, its readers, and what those need, in topological order."""
    constants: tuple[TensorProto, ...]
    """Scales, codes and biases that the nodes read."""
    outputs: Mapping[str, str]
    """Each tensor of the reference that the readers write, and the tensor of `nodes` that takes its place."""


class Grafter:
    """Takes the sites of a quantized model one by one.

    Args:
        reference: The high-precision model, with its weights inside. It is not changed.
        variant: The quantized model, with its weights inside. It is not changed.

    Raises:
        UserError: The reference is quantized, or is too old for Q/DQ nodes and cannot be converted.
    """

    def __init__(self, reference: onnx.ModelProto, variant: onnx.ModelProto) -> None:
        named = _named(variant)
        self.variant = graph_of(named)
        self.protos = {node.name: node for node in named.graph.node}
        self.initializers = {tensor.name: tensor for tensor in named.graph.initializer}
        self.base = _named(_raised(reference, self.variant.opset))
        self.base.ir_version = max(self.base.ir_version, variant.ir_version)
        self.reference = graph_of(self.base)
        if any(node.op in _Q_DQ for node in self.reference.nodes.values()):
            raise UserError("the reference is quantized itself", remedy="give the model that it was made from")
        self.sites: tuple[QuantizeSite, ...] = quantize_sites(self.variant)

    def graft(self, site: QuantizeSite, prefix: str) -> Graft:
        """Copy what reads a site: only the site and its readers' weights are quantized in it.

        Args:
            site: One of `sites`.
            prefix: What the names of new nodes and tensors begin with.

        Raises:
            UserError: A tensor of the variant is not in the reference.
        """
        copier = _Copier(self, site, prefix)
        outputs: dict[str, str] = {}
        for reader in site.readers:
            if self.variant.nodes[reader].op in _Q_DQ:
                continue
            copier.copy(self.protos[reader])
            for tensor in filter(None, self.protos[reader].output):
                _refuse_unknown(tensor, self.reference)
                outputs[tensor] = prefix + tensor
        return Graft(tuple(copier.nodes), tuple(copier.constants.values()), outputs)

    def alone(self, site: QuantizeSite) -> onnx.ModelProto:
        """Make the reference with this one site quantized."""
        graft = self.graft(site, "alone/")
        written = {new: old for old, new in graft.outputs.items()}
        for node in graft.nodes:
            node.output[:] = [written.get(tensor, tensor) for tensor in node.output]
        return self._with(graft.nodes, graft.constants, {old: f"unread/{old}" for old in graft.outputs})

    def switchable(self) -> onnx.ModelProto:
        """Make the reference with all sites, each of them quantized for the images that ask for it.

        It has one more input, `SWITCHES`, with a row per image and a column per site: 1 where it shall be quantized.
        """
        nodes, constants = _rows(self.reference.inputs[0])
        exact: dict[str, str] = {}
        for column, site in enumerate(self.sites):
            graft = self.graft(site, f"site{column}/")
            nodes += graft.nodes
            constants += [*graft.constants, numpy_helper.from_array(np.array([column]), f"site{column}/column")]
            nodes.append(_node("Gather", [SWITCHES, f"site{column}/column"], f"site{column}/number", axis=1))
            nodes.append(_node("Cast", [f"site{column}/number"], f"site{column}/on", to=TensorProto.BOOL))
            for old, new in graft.outputs.items():
                before = exact.get(old, f"exact/{old}")
                exact[old] = f"{new}/switched"
                nodes += _switch(f"site{column}/on", new, before, exact[old])
        nodes += [_node("Identity", [last], old) for old, last in exact.items()]
        model = self._with(nodes, constants, {old: f"exact/{old}" for old in exact})
        switches = helper.make_tensor_value_info(SWITCHES, TensorProto.FLOAT, [None, len(self.sites)])
        model.graph.input.append(switches)
        return model

    def _with(
        self, nodes: Iterable[onnx.NodeProto], constants: Iterable[TensorProto], renamed: Mapping[str, str]
    ) -> onnx.ModelProto:
        """Copy the reference with more nodes, its own writing some tensors under other names."""
        model = onnx.ModelProto()
        model.CopyFrom(self.base)
        for node in model.graph.node:
            node.output[:] = [renamed.get(tensor, tensor) for tensor in node.output]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(constants)
        _sort(model.graph, self.reference)
        return model


def _node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name=output, **attributes)


def _rows(source: str) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Compute `switch/rows`, the shape of a matrix with a row per image, from a tensor whose first axis is images."""
    nodes = [
        _node("Shape", [source], "switch/extents"),
        _node("Gather", ["switch/extents", "switch/first"], "switch/images"),
        _node("Concat", ["switch/images", "switch/rest"], "switch/rows", axis=0),
    ]
    values = {"switch/first": 0, "switch/rest": -1}
    return nodes, [numpy_helper.from_array(np.array([value]), name) for name, value in values.items()]


def _switch(on: str, yes: str, no: str, output: str) -> list[onnx.NodeProto]:
    """Choose for each image between two tensors of any shape, whose elements belong to images in order."""
    return [
        _node("Reshape", [yes, "switch/rows"], f"{output}/yes"),
        _node("Reshape", [no, "switch/rows"], f"{output}/no"),
        _node("Where", [on, f"{output}/yes", f"{output}/no"], f"{output}/rows"),
        _node("Shape", [no], f"{output}/shape"),
        _node("Reshape", [f"{output}/rows", f"{output}/shape"], output),
    ]


class _Copier:
    """Copies nodes of the variant for one site.

    Args:
        models: The two models.
        site: Whose Quantize and Dequantize are copied; those of other activations are passed over.
        prefix: What new names begin with.
    """

    def __init__(self, models: Grafter, site: QuantizeSite, prefix: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._models = models
        self._own = {*site.quantize, *site.dequantize}
        self._prefix = prefix
        self._copied: set[str] = set()
        _refuse_unknown(site.tensor, models.reference)
        dtypes = (graph.tensors[site.tensor].dtype for graph in (models.variant, models.reference))
        self._from, self._to = (TensorProto.DataType.Value(dtype.upper()) if dtype else 0 for dtype in dtypes)

    def copy(self, node: onnx.NodeProto) -> None:
        """Copy a node, and before it whatever it reads that the reference lacks."""
        if node.name in self._copied:
            return
        self._copied.add(node.name)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = self._prefix + node.name
        copy.input[:] = [self._read(tensor) for tensor in node.input]
        copy.output[:] = [self._prefix + tensor if tensor else "" for tensor in node.output]
        self.nodes.append(copy)

    def _read(self, tensor: str) -> str:
        """Return what stands for a tensor of the variant, copying what makes it where the reference lacks it."""
        if not tensor:
            return ""
        graph = self._models.variant
        producer = graph.producer(tensor)
        if tensor in graph.constants:
            held = self._models.initializers.get(tensor)
            if held is None and producer is not None:
                held = constant_tensor(self._models.protos[producer.name])
            if held is not None:
                self.constants[tensor] = self._constant(held, self._prefix + tensor)
                return self._prefix + tensor
        elif tensor in self._models.reference.tensors:
            return tensor
        elif producer is not None and producer.op in _Q_DQ and producer.name not in self._own:
            return self._read(producer.inputs[0])
        if producer is None:
            _refuse_unknown(tensor, self._models.reference)
        else:
            self.copy(self._models.protos[producer.name])
        return self._prefix + tensor

    def _constant(self, tensor: TensorProto, name: str) -> TensorProto:
        """Copy a constant, in the reference's precision: a float16 variant's scales and biases as float32."""
        if tensor.data_type == self._from != self._to:
            values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(self._to))
            return numpy_helper.from_array(values, name)
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = name
        return copy


def _named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with a unique name for each node."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    name_nodes(model)
    return model


def _raised(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Convert a model to an opset, if it is older."""
    if graph_of(proto).opset >= opset:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise UserError(
            f"cannot be converted to opset {opset} of the quantized model ({error})",
            where="the reference",
            remedy=f"export it with opset {opset} and quantize it again",
        ) from error


def _refuse_unknown(tensor: str, reference: ModelGraph) -> None:
    if tensor not in reference.tensors:
        raise UserError(
            "is not in the reference",
            where=f"tensor {tensor!r} of the quantized model",
            remedy="give the reference that the quantized model was made from",
        )


def _sort(graph: onnx.GraphProto, reference: ModelGraph) -> None:
    """Bring nodes into topological order."""
    nodes = {node.name: node for node in graph.node}
    made_by = {tensor: node.name for node in graph.node for tensor in node.output}

    def before(node: onnx.NodeProto) -> Sequence[str]:
        known = reference.nodes.get(node.name)
        reads = node.input if known is None else known.reads
        return [made_by[tensor] for tensor in reads if tensor in made_by]

    order = TopologicalSorter({name: before(node) for name, node in nodes.items()}).static_order()
    ordered = [nodes[name] for name in order]
    del graph.node[:]
    graph.node.extend(ordered)
