"""Python's garbage collector, held back while many objects are made and none is garbage."""

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def without_collector(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` without cyclic garbage collection.

    A graph of 100,000 nodes is a million small objects; scanning them again and again costs a fifth of the time.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()

    return run
