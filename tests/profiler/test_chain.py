"""The longest dependent chain, on streams and events drawn by hand."""

from types import SimpleNamespace

from fusescope.graph.model import ModelGraph
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.chain import longest_chain
from fusescope.profiler.layers import Layer

NO_GRAPH = ModelGraph("none", [], inputs=(), outputs=())


def chain(draw: SimpleNamespace, *layers: Layer) -> tuple[int, ...]:
    """The longest chain of an engine of these layers."""
    engine = draw.engine(*layers)
    return longest_chain(engine, EngineView(engine, NO_GRAPH).attributions)


def kernel(draw: SimpleNamespace, reads: str = "", writes: str = "", *, stream: int = 0) -> Layer:
    """A kernel that reads and writes tensors of one element, by name."""
    one = {side: " ".join(f"{name}:Half[1]" for name in text.split()) for side, text in (("r", reads), ("w", writes))}
    layer: Layer = draw.layer("kgen", "__myl_Add_myl0_0", one["r"], one["w"], stream=stream)
    return layer


def test_an_empty_engine_has_no_chain(draw: SimpleNamespace) -> None:
    """No layers, no chain."""
    assert chain(draw) == ()


def test_kernels_of_one_stream_wait_for_each_other(draw: SimpleNamespace) -> None:
    """A stream runs in order, whether its kernels share tensors or not."""
    assert chain(draw, kernel(draw), kernel(draw), kernel(draw)) == (0, 1, 2)


def test_streams_run_side_by_side(draw: SimpleNamespace) -> None:
    """Of two streams that do not meet, the longer one is the chain."""
    layers = [kernel(draw), kernel(draw, stream=1), kernel(draw, stream=1), kernel(draw, stream=1)]
    assert chain(draw, *layers) == (1, 2, 3)


def test_a_tensor_ties_streams_together(draw: SimpleNamespace) -> None:
    """A kernel waits for those that write what it reads; slices of a tensor have several writers."""
    layers = [
        kernel(draw, writes="t"),
        kernel(draw, stream=1),
        kernel(draw, writes="t", stream=1),
        kernel(draw, reads="t", stream=2),
    ]
    assert chain(draw, *layers) == (1, 2, 3)


def test_an_event_ties_streams_together(draw: SimpleNamespace) -> None:
    """A wait lets its stream go on after the signal of its event, and is no kernel itself."""
    layers = [
        kernel(draw),
        kernel(draw),
        draw.layer("signal", "signal", stream=0, event=7),
        kernel(draw, stream=1),
        draw.layer("wait", "wait", stream=1, event=7),
        kernel(draw, stream=1),
    ]
    assert chain(draw, *layers) == (0, 1, 5)


def test_an_event_that_nobody_signalled_ties_nothing(draw: SimpleNamespace) -> None:
    """A wait whose signal is not in the dump depends on its own stream alone."""
    layers = [kernel(draw), kernel(draw), draw.layer("wait", "wait", stream=1, event=9), kernel(draw, stream=1)]
    assert chain(draw, *layers) == (0, 1)


def test_a_second_wait_for_an_event_depends_on_its_signal(draw: SimpleNamespace) -> None:
    """One signal can release several streams."""
    layers = [
        kernel(draw),
        draw.layer("signal", "signal", event=1),
        draw.layer("wait", "wait", stream=1, event=1),
        draw.layer("wait", "wait", stream=2, event=1),
        kernel(draw, stream=2),
        kernel(draw, stream=2),
    ]
    assert chain(draw, *layers) == (0, 4, 5)


def test_bookkeeping_is_no_kernel(draw: SimpleNamespace) -> None:
    """Constants and the runtime's own entries keep the order but do not count."""
    layers = [kernel(draw), draw.layer("NoOp", "n"), draw.layer("Constant", "c"), kernel(draw)]
    assert chain(draw, *layers) == (0, 3)
