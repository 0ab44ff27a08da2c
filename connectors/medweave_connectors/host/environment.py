"""The environment of a step on this machine. Does not import streamflow."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Mapping


def step_environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's environment with the layers over it, and the variable that makes steps report progress as JSON.

    The folder of this interpreter is on the PATH, so `.venv/bin/streamflow run …` finds the steps of that environment
    without activating it.
    """
    environment = os.environ.copy()
    for layer in layers:
        environment |= layer
    environment["PATH"] = _with_interpreter(environment.get("PATH", os.defpath))
    environment["MEDWEAVE_PROGRESS"] = "json"
    return environment


def program_path(environment: Mapping[str, str]) -> str:
    """Return the PATH of `step_environment` with one layer over the driver's environment."""
    return _with_interpreter(environment.get("PATH") or os.environ.get("PATH", os.defpath))


def _with_interpreter(path: str) -> str:
    folder = posixpath.dirname(sys.executable)
    return path if folder in path.split(os.pathsep) else os.pathsep.join((folder, path))
