"""The stand-in for the Python binding of COMPSs (`tests/fakes/compss`), in this process and in those that it starts."""

from __future__ import annotations

import importlib
import sys

import pytest

from support.cwl_files import ROOT

FOLDER = ROOT / "tests" / "fakes" / "compss"
_MODULES = (
    "pycompss",
    *(f"pycompss.{name}" for name in ("api", "api.api", "api.task", "util", "util.context")),
)


def install(patch: pytest.MonkeyPatch, *, in_runtime: bool = True) -> list[str]:
    """Make `pycompss` importable.

    Returns:
        the calls as they come: `task NAME`, `wait`, `delete`.
    """
    patch.syspath_prepend(str(FOLDER))
    for name in (*_MODULES, "medweave_steps.train_distributed.engines.compss_tasks"):
        patch.setitem(sys.modules, name, None)  # so that it is forgotten at the end
        del sys.modules[name]
    stand_in = importlib.import_module("pycompss")
    stand_in.in_runtime = in_runtime
    calls: list[str] = stand_in.calls
    return calls
