"""Garbage of one test does not fail another."""

from __future__ import annotations

import ast
import gc
import inspect


class Left:
    """What only the garbage collector frees, and what parses when it does, as pytest's traceback of a ResourceWarning does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("x = (1, [2, {3: 4}])")


def test_a_finalizer_that_parses_does_not_disturb_a_parser() -> None:
    source, limits = inspect.getsource(ast), gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(20):
            for _ in range(20):
                Left()
            assert isinstance(ast.parse(source), ast.Module)
    finally:
        gc.set_threshold(*limits)
