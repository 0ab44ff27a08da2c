"""The environment of a step on this machine. No streamflow in here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def step_environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """The driver's environment, then the layers; steps report progress as JSON.

    The folder of this interpreter is on the PATH, so `.venv/bin/streamflow run …` finds the steps of its own environment
    without activating it.
    """
    environment = os.environ.copy()
    for layer in layers:
        environment |= layer
    beside = str(Path(sys.executable).parent)
    path = environment.get("PATH", os.defpath)
    if beside not in path.split(os.pathsep):
        environment["PATH"] = os.pathsep.join((beside, path))
    environment["MEDWEAVE_PROGRESS"] = "json"
    return environment
