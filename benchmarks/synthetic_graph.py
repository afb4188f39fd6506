"""Measure how long the site analysis of a large model takes: `python benchmarks/synthetic_graph.py [NODES]`.

The model is a chain of quantized residual blocks. The goal is at most 5 s for 100,000 nodes, and linear growth.
"""

import sys
import time

import onnx
from onnx import TensorProto, helper

from fusescope.graph.model import graph_of
from fusescope.graph.rules import predictions
from fusescope.graph.sites import quantize_sites

NODES_PER_BLOCK = 10


def residual_chain(nodes: int) -> onnx.ModelProto:
    """Make a model of about `nodes` nodes: blocks of two FP8 convs and a skip, one after the other."""
    graph = onnx.GraphProto(name="chain")
    graph.input.append(helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, 8, 16, 16]))
    graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]))
    graph.initializer.append(helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True))
    weight = helper.make_tensor("weight", TensorProto.FLOAT8E4M3FN, [8, 8, 3, 3], bytes(576), raw=True)
    graph.initializer.append(weight)
    graph.node.append(helper.make_node("DequantizeLinear", ["weight", "scale"], ["kernel"], name="kernel"))

    def add(op: str, inputs: list[str], output: str, **attributes: list[int]) -> str:
        graph.node.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def conv(tensor: str, name: str) -> str:
        codes = add("QuantizeLinear", [tensor, "scale", "zero"], f"{name}_q")
        values = add("DequantizeLinear", [codes, "scale", "zero"], f"{name}_dq")
        return add("Conv", [values, "kernel"], name, pads=[1, 1, 1, 1])

    tensor = "x0"
    for block in range(max(1, nodes // NODES_PER_BLOCK)):
        first = add("Relu", [conv(tensor, f"a{block}")], f"ar{block}")
        second = conv(first, f"b{block}")
        tensor = add("Relu", [add("Add", [second, tensor], f"sum{block}")], f"x{block + 1}")
        add("Identity", [tensor], f"same{block}")
    graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, [1, 8, 16, 16]))
    opset = helper.make_opsetid("", 19)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def main() -> None:
    """Print one line per size: nodes, sites and seconds for reading, sites and predictions."""
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for size in (largest // 4, largest // 2, largest):
        proto = residual_chain(size)
        start = time.perf_counter()
        graph = graph_of(proto)
        read = time.perf_counter()
        sites = quantize_sites(graph)
        found = time.perf_counter()
        predictions(graph, sites)
        end = time.perf_counter()
        print(
            f"{len(graph.nodes):7} nodes, {len(sites):6} sites: read {read - start:.2f} s, "
            f"sites {found - read:.2f} s, predictions {end - found:.2f} s, all {end - start:.2f} s"
        )


if __name__ == "__main__":
    main()
