"""A stand-in for the Python binding of COMPSs that shows the order of calls. It runs tasks at once, and tests nothing else.

As with the real one, a task called on the master gives futures, tasks take futures, and `compss_wait_on` turns one into its value;
every argument and result goes through pickle.
"""

from __future__ import annotations

import pickle
from typing import Any

in_runtime = True
calls: list[str] = []  # as they come: `task NAME`, `wait`, `delete`


class Future:
    """A result that is not ready yet."""

    def __init__(self, value: Any) -> None:
        self.pickled = pickle.dumps(value)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the master looked at .{name} of a result it has not waited for")
