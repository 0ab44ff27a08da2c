"""Small searches: grids on the tiny training set, and what must be the same however the trials are run."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.search import SearchTable

TINY: dict[str, Any] = {
    "steps": 60, "batch-size": 2, "patch-shape": [8, 8, 8], "channels": [4, 8], "strides": [2], "epoch-steps": 30,
    "validation-interval": 1, "window-shape": [24, 20, 16], "precision": "float32", "device": "cpu",
}  # fmt: skip
TWO_AND_A_WRONG_ONE = [0.001, 0.02, -1.0]
"""Learning rates: `train` refuses the last at its start."""


def write_grid(path: Path, *, rates: list[float] = TWO_AND_A_WRONG_ONE, **changes: Any) -> Path:
    """Write a grid over learning rates; underscores in names of options mean dashes."""
    options = TINY | {name.replace("_", "-"): value for name, value in changes.items()}
    path.write_text(json.dumps({"options": options, "product": {"learning-rate": rates}}))
    return path


def table_in(folder: Path) -> SearchTable:
    return codec.from_json(SearchTable, json.loads((folder / "search.json").read_text()), where="search.json")


def without_time_and_host(table: SearchTable) -> dict[str, Mapping[str, Any]]:
    """Return each trial's row without the fields for its time, energy and host."""
    apart = ("started_at", "ended_at", "seconds", "energy_wh", "host")
    return {
        row.trial_id: {name: value for name, value in codec.to_json(row).items() if name not in apart}
        for row in table.rows
    }


def parent_of_the_training_with(word: str, engine: subprocess.Popen[str]) -> int:
    """Wait for a training with a word on its command line; return the id of its supervising process.

    Args:
        engine: the process that must keep running.
    """
    while engine.poll() is None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if word in words and "medweave_steps.search.process" in words:
                return int(words[words.index("medweave_steps.search.process") + 1])
        time.sleep(0.05)
    raise AssertionError("it ended before the trial began")
