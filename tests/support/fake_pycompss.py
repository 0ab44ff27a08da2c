"""A stand-in for the Python binding of COMPSs that shows the order of calls. It runs tasks at once, and proves nothing else.

As with the real one, a task called on the master gives futures, tasks take futures, and `compss_wait_on` turns one into its value;
every argument and result goes through pickle.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Future:
    """A result on its way."""

    def __init__(self, value: Any) -> None:
        self.pickled = pickle.dumps(value)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the master looked at .{name} of a result it has not waited for")


def install(patch: pytest.MonkeyPatch, *, in_runtime: bool = True) -> list[str]:
    """Makes `pycompss` importable.

    Returns:
        the calls as they come: `task NAME`, `wait`, `delete`.
    """
    calls: list[str] = []

    def task(*, returns: int) -> Callable[[Any], Any]:
        def decorated(function: Any) -> Any:
            def call(*arguments: Any) -> Any:
                calls.append(f"task {function.__name__}")
                given = [a.pickled if isinstance(a, Future) else pickle.dumps(a) for a in arguments]
                result = function(*map(pickle.loads, given))
                if returns == 1:
                    return Future(result)
                assert len(result) == returns
                return [Future(part) for part in result]

            return call if in_runtime else function

        return decorated

    def compss_wait_on(future: Any) -> Any:
        calls.append("wait")
        return pickle.loads(future.pickled) if in_runtime else future

    def compss_delete_object(_: Any) -> bool:
        calls.append("delete")
        return True

    modules: dict[str, Any] = {
        "pycompss": {},
        "pycompss.api": {},
        "pycompss.api.task": {"task": task},
        "pycompss.api.api": {"compss_wait_on": compss_wait_on, "compss_delete_object": compss_delete_object},
        "pycompss.util": {},
        "pycompss.util.context": {"CONTEXT": SimpleNamespace(in_pycompss=lambda: in_runtime)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, "medweave_steps.train_distributed.engines.compss_tasks", raising=False)
    return calls
