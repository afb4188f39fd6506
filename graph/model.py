"""An ONNX model as a graph of nodes and tensors, read without its weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import networkx as nx
import onnx
import onnx.checker
import onnx.shape_inference
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fusescope.graph.collector import without_collector
from fusescope.graph.errors import UserError
from fusescope.graph.names import Renamed, planned_names, subgraphs
from fusescope.graph.weights import without_weights

Attribute: TypeAlias = int | float | str | tuple[int | float | str, ...]
Shape: TypeAlias = tuple[int | str | None, ...]

_RANDOM = frozenset({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"})
"""Operations whose outputs differ from run to run although their inputs are constants."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the graph."""

    name: str
    """Unique in the graph."""
    op: str
    """ONNX operation type, such as "Conv"."""
    domain: str
    """Operator set that the operation is from; empty for ONNX's own."""
    inputs: tuple[str, ...]
    """Tensors read, by position; "" for an optional input that is left out."""
    outputs: tuple[str, ...]
    """Tensors written, by position; "" for an optional output that is left out."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """Numbers, texts and lists of them. Tensors and bodies are not kept."""
    subgraph_reads: tuple[str, ...] = ()
    """Tensors of this graph that the bodies of an If, Loop or Scan read; empty for other operations."""

    reads: tuple[str, ...] = field(init=False)
    """All tensors read, each once: inputs, then what the bodies read."""

    def __post_init__(self) -> None:
        reads = tuple(filter(None, dict.fromkeys(self.inputs + self.subgraph_reads)))
        object.__setattr__(self, "reads", reads)

    def integers(self, attribute: str) -> tuple[int, ...]:
        """Return an attribute of one or more integers; empty when the node does not have it."""
        value = self.attributes.get(attribute, ())
        return tuple(item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, int))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of a tensor without running the model."""

    name: str
    """Unique in the graph."""
    dtype: str = ""
    """ONNX element type in lower case, such as "float16" or "float8e4m3fn"; "" when unknown."""
    shape: Shape | None = None
    """Extents; a text is a symbolic extent, None an unknown one. None as a whole when the rank is unknown."""


class _Tensors(Mapping[str, TensorInfo]):
    """The tensors of a graph, each described when it is first asked for.

    Args:
        names: All tensors.
        describe: Tells what is known of one.
    """

    def __init__(self, names: Iterable[str], describe: Callable[[str], TensorInfo]) -> None:
        self._known: dict[str, TensorInfo | None] = dict.fromkeys(names)
        self._describe = describe

    def __getitem__(self, name: str) -> TensorInfo:
        info = self._known[name]
        if info is None:
            info = self._known[name] = self._describe(name)
        return info

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class ModelGraph:
    """The nodes and tensors of a model's main graph. Bodies of If and Loop count as part of their node.

    Args:
        name: What to call the model in messages, such as its file name.
        nodes: The nodes in any order; their names are unique.
        describe: Tells what is known of a tensor, by name.
        inputs: Inputs to the graph, without those that are initializers too.
        outputs: Outputs of the graph.
        initializers: Tensors whose values are stored in the file.
        opset: Version of the ONNX operator set; 0 when the model imports none.
        renamed: Nodes that go by another name than in the file.
        metadata: The model's metadata properties.

    Raises:
        UserError: A tensor is written by two nodes, or the nodes form a cycle.
    """

    def __init__(
        self,
        name: str,
        nodes: Iterable[Node],
        *,
        describe: Callable[[str], TensorInfo] = TensorInfo,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        initializers: Iterable[str] = (),
        opset: int = 0,
        renamed: tuple[Renamed, ...] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.opset = opset
        self.inputs = inputs
        self.outputs = outputs
        self.renamed = renamed
        self.metadata = dict(metadata or {})
        nodes = list(nodes)
        self._producers = self._index_producers(nodes)
        self.nodes = {node.name: node for node in self._in_order(nodes)}
        self._readers: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            for tensor in node.reads:
                self._readers.setdefault(tensor, []).append(node)
        self.constants = self._constants(frozenset(initializers))
        mentioned = (*self._producers, *self._readers, *inputs, *outputs, *self.constants)
        self.tensors: Mapping[str, TensorInfo] = _Tensors(mentioned, describe)

    def producer(self, tensor: str) -> Node | None:
        """Return the node that writes `tensor`; None for a graph input or an initializer."""
        return self._producers.get(tensor)

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """Return the nodes that read `tensor`, in topological order, each once."""
        return tuple(self._readers.get(tensor, ()))

    @cached_property
    def positions(self) -> dict[str, int]:
        """Place of each node, by name, in the topological order."""
        return {name: position for position, name in enumerate(self.nodes)}

    def activations(self, node: Node) -> tuple[str, ...]:
        """Return the inputs of `node` that are no constants, in order; one read twice is there twice."""
        constants = self.constants
        return tuple([tensor for tensor in node.inputs if tensor and tensor not in constants])

    @cached_property
    def digraph(self) -> "nx.DiGraph[tuple[str, str]]":
        """The graph as networkx sees it: `("node", name)` and `("tensor", name)`, edges along the data."""
        graph: nx.DiGraph[tuple[str, str]] = nx.DiGraph()
        graph.add_nodes_from(("tensor", tensor) for tensor in self.tensors)
        for node in self.nodes.values():
            graph.add_node(("node", node.name))
            graph.add_edges_from((("tensor", tensor), ("node", node.name)) for tensor in node.reads)
            graph.add_edges_from((("node", node.name), ("tensor", tensor)) for tensor in node.outputs if tensor)
        return graph

    def _index_producers(self, nodes: Iterable[Node]) -> dict[str, Node]:
        producers: dict[str, Node] = {}
        for node in nodes:
            for tensor in filter(None, node.outputs):
                if tensor in producers:
                    raise UserError(
                        f"tensor {tensor!r} is written by both {producers[tensor].name!r} and {node.name!r}",
                        where=self.name,
                        remedy="export the model again; ONNX wants each tensor written once",
                    )
                producers[tensor] = node
        return producers

    def _in_order(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes in file order if that is topological, as ONNX wants, else in an order that is."""
        written: set[str] = set()
        for node in nodes:
            if any(tensor in self._producers and tensor not in written for tensor in node.reads):
                return self._sorted(nodes)
            written.update(node.outputs)
        return nodes

    def _sorted(self, nodes: list[Node]) -> list[Node]:
        order: nx.DiGraph[int] = nx.DiGraph()
        order.add_nodes_from(range(len(nodes)))
        position = {node.name: index for index, node in enumerate(nodes)}
        for index, node in enumerate(nodes):
            sources = (self._producers[tensor] for tensor in node.reads if tensor in self._producers)
            order.add_edges_from((position[source.name], index) for source in sources)
        try:
            return [nodes[index] for index in nx.lexicographical_topological_sort(order)]
        except nx.NetworkXUnfeasible:
            cycle = " -> ".join(nodes[source].name for source, _ in nx.find_cycle(order))
            raise UserError(f"the nodes form a cycle: {cycle}", where=self.name, remedy="export it again") from None

    def _constants(self, initializers: frozenset[str]) -> frozenset[str]:
        constants = set(initializers)
        for node in self.nodes.values():
            reads = node.reads
            computed = reads and node.op not in _RANDOM and all(tensor in constants for tensor in reads)
            if computed or node.op == "Constant":
                constants.update(filter(None, node.outputs))
        return frozenset(constants)


def load_proto(path: Path) -> onnx.ModelProto:
    """Read an ONNX file, but not the external data that it refers to.

    Raises:
        UserError: There is no such file, it is a folder, is empty, is no ONNX model, is cut short, or
            has no graph.
    """
    again = "export or download it again"
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise UserError("is a folder, not an ONNX file", where=path, remedy="name the .onnx file in it") from None
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot be read ({reason})", where=path, remedy="check the path") from error
    if not content:
        raise UserError("is empty", where=path, remedy=again)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise UserError("is not an ONNX file, or was cut short", where=path, remedy=again) from None
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise UserError("holds no ONNX graph", where=path, remedy="pass an ONNX model with at least one node")
    return proto


def check_proto(proto: onnx.ModelProto, where: object) -> None:
    """Hold a model against the ONNX specification, without its weights.

    Args:
        proto: The model; its external data may be missing.
        where: The file to name in the message.

    Raises:
        UserError: The complaint of the ONNX checker, which names the node.
    """
    try:
        onnx.checker.check_model(without_weights(proto))
    except onnx.checker.ValidationError as error:
        raise UserError(
            f"is not a valid ONNX model: {error}", where=where, remedy="mend or export the model again"
        ) from None


def read_graph(path: Path) -> ModelGraph:
    """Read an ONNX file as a graph; the weights are dropped at once.

    Raises:
        UserError: As `load_proto` and `graph_of`.
    """
    return graph_of(load_proto(path), name=path.name)


@without_collector
def graph_of(proto: onnx.ModelProto, *, name: str = "") -> ModelGraph:
    """Make the graph of a model, with dtypes and shapes as far as ONNX infers them; `proto` stays as it is.

    Args:
        proto: The model. Weights are neither needed nor copied.
        name: What to call it in messages; the graph's own name by default.

    Raises:
        UserError: A tensor is written by two nodes, or the nodes form a cycle.
    """
    graph = proto.graph
    names, renamed = planned_names(graph.node)
    initializers = [tensor.name for tensor in graph.initializer]
    initializers += [tensor.values.name for tensor in graph.sparse_initializer]
    stored = frozenset(initializers)
    return ModelGraph(
        name or graph.name,
        [_node(node, new) for node, new in zip(graph.node, names, strict=True)],
        describe=_describer(proto),
        inputs=tuple(value.name for value in graph.input if value.name not in stored),
        outputs=tuple(value.name for value in graph.output),
        initializers=initializers,
        opset=next((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), 0),
        renamed=renamed,
        metadata={entry.key: entry.value for entry in proto.metadata_props},
    )


def _node(node: onnx.NodeProto, name: str) -> Node:
    attributes: dict[str, Attribute] = {}
    reads: dict[str, None] = {}
    for attribute in node.attribute:
        value = _attribute(attribute)
        if value is not None:
            attributes[attribute.name] = value
    if len(attributes) < len(node.attribute):
        reads = dict.fromkeys(tensor for body in subgraphs(node) for tensor in _outer_reads(body))
    return Node(
        name=name,
        op=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=attributes,
        subgraph_reads=tuple(reads),
    )


def _attribute(attribute: onnx.AttributeProto) -> Attribute | None:
    value: Any
    match attribute.type:
        case onnx.AttributeProto.INT:
            value = attribute.i
        case onnx.AttributeProto.FLOAT:
            value = attribute.f
        case onnx.AttributeProto.INTS:
            value = tuple(attribute.ints)
        case onnx.AttributeProto.FLOATS:
            value = tuple(attribute.floats)
        case onnx.AttributeProto.STRING:
            value = attribute.s.decode("utf-8", "replace")
        case onnx.AttributeProto.STRINGS:
            value = tuple(text.decode("utf-8", "replace") for text in attribute.strings)
        case _:
            value = None
    return cast("Attribute | None", value)


def _outer_reads(body: onnx.GraphProto) -> list[str]:
    """List the tensors that a body, or a body inside it, takes from outside."""
    reads: list[str] = []
    known = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    for node in body.node:
        reads += node.input
        for inner in subgraphs(node):
            reads += _outer_reads(inner)
        known.update(node.output)
    reads += [value.name for value in body.output]
    return [tensor for tensor in reads if tensor and tensor not in known]


def _describer(proto: onnx.ModelProto) -> Callable[[str], TensorInfo]:
    """Infer dtypes and shapes; return what tells them of a tensor. Most are never asked for."""
    light = without_weights(proto)
    try:
        graph = onnx.shape_inference.infer_shapes(light).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # Shapes are a help, not a condition: go on with those that the file declares. The other two are what
        # exceptions of onnx's C++ become, such as length_error on a Loop of one input.
        graph = light.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    declared = {value.name: value for value in (*graph.output, *graph.input, *graph.value_info)}

    def describe(name: str) -> TensorInfo:
        if name in stored:
            return TensorInfo(name, _dtype_name(stored[name].data_type), tuple(stored[name].dims))
        if name not in declared:
            return TensorInfo(name)
        kind = declared[name].type.tensor_type
        shape = tuple([_extent(dim) for dim in kind.shape.dim]) if kind.HasField("shape") else None
        return TensorInfo(name, _dtype_name(kind.elem_type), shape)

    return describe


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    number: int = dim.dim_value
    if number or dim.HasField("dim_value"):
        return number
    return dim.dim_param or None


@cache
def _dtype_name(element_type: int) -> str:
    if element_type == onnx.TensorProto.UNDEFINED:
        return ""
    return str(onnx.TensorProto.DataType.Name(element_type)).lower()
