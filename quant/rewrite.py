"""Puts Q/DQ nodes into a graph: `Rewriter`. What goes where has been decided before."""

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusescope.graph.names import all_nodes
from fusescope.quant.constants import constants_of, drop_unread, replace_all
from fusescope.quant.placement import Read
from fusescope.quant.scales import Array, Format, amax_of, encode, scales_of

Store = Literal["folded", "qdq"]
"""How weights are kept: as 8-bit codes behind a Dequantize, or in high precision behind a Quantize and a Dequantize."""


class Rewriter:
    """Rewrites one graph, in place.

    Args:
        graph: The main graph; its nodes have unique names.
        form: The number format.
        store: How weights are kept.
        ranges: Gives an activation tensor's largest magnitude.
        dtypes: Gives the dtype of an activation tensor, which its scale has too.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        form: Format,
        *,
        store: Store,
        ranges: Callable[[str], float],
        dtypes: Callable[[str], np.dtype[np.generic]],
    ) -> None:
        self.activations: dict[str, str] = {}
        self.zero_channels: dict[str, int] = {}
        self._graph = graph
        self._form = form
        self._store = store
        self._ranges = ranges
        self._dtypes = dtypes
        self._weights: dict[tuple[str, int | None], str] = {}
        self._constants = constants_of(graph)
        self._taken = {value.name for value in (*graph.input, *graph.initializer)}
        for node in all_nodes(graph.node):
            self._taken.update((node.name, *node.input, *node.output))
        self._zero_point = self._constant(f"{form.name}_zero_point", np.zeros((), form.dtype))

    def run(self, reads: Collection[Read], weights: Mapping[Read, int | None]) -> None:
        """Insert the pairs.

        Args:
            reads: The inputs that shall read through a pair.
            weights: The inputs that are kernels, each with the axis of its scales; None for one scale.
        """
        nodes: list[onnx.NodeProto] = []
        replaced: list[str] = []
        for node in self._graph.node:
            for position, tensor in enumerate(node.input):
                if (node.name, position) in reads:
                    nodes += self._pair(tensor)
                    node.input[position] = self.activations[tensor]
                elif (node.name, position) in weights:
                    key = (tensor, weights[node.name, position])
                    nodes += self._weight(*key)
                    node.input[position] = self._weights[key]
                    replaced.append(tensor)
            nodes.append(node)
        replace_all(self._graph.node, nodes)
        drop_unread(self._graph, replaced)

    def _pair(self, tensor: str) -> list[onnx.NodeProto]:
        """Return the Q/DQ pair of an activation tensor; nothing when it has one."""
        if tensor in self.activations:
            return []
        largest = np.array(self._ranges(tensor), np.float64)
        scale = self._constant(f"{tensor}_scale", scales_of(largest, self._form, self._dtypes(tensor), tensor=tensor))
        nodes = self._quantize_dequantize(tensor, scale, self._zero_point, None)
        self.activations[tensor] = nodes[-1].output[0]
        return nodes

    def _weight(self, tensor: str, axis: int | None) -> list[onnx.NodeProto]:
        """Return what gives a kernel in 8 bits, its codes' DequantizeLinear or a pair; nothing when it is there."""
        if (tensor, axis) in self._weights:
            return []
        weight = numpy_helper.to_array(self._constants[tensor])
        amax = amax_of(weight, axis)
        if zeros := int((amax == 0).sum()):
            self.zero_channels[tensor] = zeros
        values = scales_of(amax, self._form, weight.dtype, tensor=tensor)
        if self._store == "folded":
            codes = self._constant(f"{tensor}_quantized", encode(weight, values, self._form, axis))
            scale = self._constant(f"{tensor}_scale", values)
            nodes = [self._node("DequantizeLinear", tensor, [codes, scale], f"{tensor}_dequantized", axis)]
        else:
            scale = self._constant(f"{tensor}_scale", values)
            zeros_of_axis = np.zeros(values.shape, self._form.dtype)
            zero_point = self._constant(f"{tensor}_zero_point", zeros_of_axis) if values.shape else self._zero_point
            nodes = self._quantize_dequantize(tensor, scale, zero_point, axis)
        self._weights[tensor, axis] = nodes[-1].output[0]
        return nodes

    def _quantize_dequantize(self, tensor: str, scale: str, zero_point: str, axis: int | None) -> list[onnx.NodeProto]:
        quantize = self._node("QuantizeLinear", tensor, [tensor, scale, zero_point], f"{tensor}_quantized", axis)
        inputs = [quantize.output[0], scale, zero_point]
        return [quantize, self._node("DequantizeLinear", tensor, inputs, f"{tensor}_dequantized", axis)]

    def _node(self, op: str, tensor: str, inputs: list[str], output: str, axis: int | None) -> onnx.NodeProto:
        node = helper.make_node(op, inputs, [self._unique(output)], name=self._unique(f"{tensor}_{op}"))
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        return node

    def _constant(self, name: str, value: Array) -> str:
        unique = self._unique(name)
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), unique))
        return unique

    def _unique(self, name: str) -> str:
        """Return `name`, without control characters and with a number if it is in use."""
        base = "".join(character if character.isprintable() else "_" for character in name)
        unique, number = base, 1
        while unique in self._taken:
            number += 1
            unique = f"{base}_{number}"
        self._taken.add(unique)
        return unique
