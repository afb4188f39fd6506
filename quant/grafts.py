"""Single Quantize sites of a quantized model, grafted onto the model that it was made from: `Grafter`.

What reads the quantized tensor is copied from the quantized model, with its 8-bit weights; everything else stays as in
the reference. Nothing is quantized anew, so this works for any recipe, placement and tool that keeps tensor names.
"""

from collections.abc import Sequence
from graphlib import TopologicalSorter

import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from fusescope.graph import ops
from fusescope.graph.errors import UserError
from fusescope.graph.model import ModelGraph, graph_of
from fusescope.graph.names import name_nodes
from fusescope.graph.sites import QuantizeSite, quantize_sites
from fusescope.graph.weights import constant_tensor

PREFIX = "alone/"
"""What the names of grafted nodes and of their own tensors begin with."""

_Q_DQ = ops.QUANTIZE | ops.DEQUANTIZE


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

    def alone(self, site: QuantizeSite) -> onnx.ModelProto:
        """Make the reference with one site quantized, and the weights of its readers.

        Args:
            site: One of `sites`.

        Raises:
            UserError: A tensor of the variant is not in the reference.
        """
        copier = _Copier(self, site)
        written: dict[str, str] = {}
        for reader in site.readers:
            if self.variant.nodes[reader].op not in _Q_DQ:
                copier.copy(self.protos[reader])
                written |= {PREFIX + tensor: tensor for tensor in self.protos[reader].output if tensor}
        model = onnx.ModelProto()
        model.CopyFrom(self.base)
        for tensor in written.values():
            _refuse_unknown(tensor, self.reference)
        for node in model.graph.node:
            node.output[:] = [f"unread/{tensor}" if PREFIX + tensor in written else tensor for tensor in node.output]
        for node in copier.nodes:
            node.output[:] = [written.get(tensor, tensor) for tensor in node.output]
        model.graph.node.extend(copier.nodes)
        model.graph.initializer.extend(copier.constants.values())
        _sort(model.graph, self.reference)
        return model


class _Copier:
    """Copies nodes of the variant for one site.

    Args:
        models: The two models.
        site: Whose Quantize and Dequantize are copied; those of other activations are passed over.
    """

    def __init__(self, models: Grafter, site: QuantizeSite) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._models = models
        self._own = {*site.quantize, *site.dequantize}
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
        copy.name = PREFIX + node.name
        copy.input[:] = [self._read(tensor) for tensor in node.input]
        copy.output[:] = [PREFIX + tensor if tensor else "" for tensor in node.output]
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
                self.constants[tensor] = self._constant(held, PREFIX + tensor)
                return PREFIX + tensor
        elif tensor in self._models.reference.tensors:
            return tensor
        elif producer is not None and producer.op in _Q_DQ and producer.name not in self._own:
            return self._read(producer.inputs[0])
        if producer is None:
            _refuse_unknown(tensor, self._models.reference)
        else:
            self.copy(self._models.protos[producer.name])
        return PREFIX + tensor

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
