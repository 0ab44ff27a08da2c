"""The environment of a step on this machine. Does not import streamflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def step_environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's environment with the layers over it, and the variable that makes steps report progress as JSON.

    The folder of this interpreter is on the PATH, so `.venv/bin/streamflow run …` finds the steps of that environment
    without activating it.
    """
    environment = os.environ.copy()
    for layer in layers:
        environment |= layer
    interpreter_folder = str(Path(sys.executable).parent)
    path = environment.get("PATH", os.defpath)
    if interpreter_folder not in path.split(os.pathsep):
        environment["PATH"] = os.pathsep.join((interpreter_folder, path))
    environment["MEDWEAVE_PROGRESS"] = "json"
    return environment
