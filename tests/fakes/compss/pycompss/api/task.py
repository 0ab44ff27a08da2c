"""The decorator of a task."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pycompss
from pycompss import Future


def task(*, returns: int) -> Callable[[Any], Any]:
    """Return a function that returns so many futures; outside the runtime, the function itself."""

    def decorated(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            pycompss.calls.append(f"task {function.__name__}")
            pickled = [a.pickled if isinstance(a, Future) else pickle.dumps(a) for a in arguments]
            result = function(*map(pickle.loads, pickled))
            if returns == 1:
                return Future(result)
            assert len(result) == returns
            return [Future(part) for part in result]

        return call if pycompss.in_runtime else function

    return decorated
