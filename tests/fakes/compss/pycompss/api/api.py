"""What the master asks of the runtime."""

from __future__ import annotations

import pickle
from typing import Any

import pycompss
from pycompss import Future


def compss_wait_on(future: Any) -> Any:
    """Return the value of a future; any other object is returned unchanged."""
    pycompss.calls.append("wait")
    return pickle.loads(future.pickled) if isinstance(future, Future) else future


def compss_delete_object(_: Any) -> bool:
    """Delete nothing."""
    pycompss.calls.append("delete")
    return True
