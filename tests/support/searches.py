"""Small searches: grids on the tiny training set, and what must be the same however the trials are run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_steps.contracts import codec
from medweave_steps.contracts.search import SearchTable

TINY: dict[str, Any] = {
    "steps": 60, "batch-size": 2, "patch-shape": [8, 8, 8], "channels": [4, 8], "strides": [2], "epoch-steps": 30,
    "validation-interval": 1, "window-shape": [24, 20, 16], "precision": "float32", "device": "cpu",
}  # fmt: skip
TWO_AND_A_WRONG_ONE = [0.001, 0.02, -1.0]
"""Learning rates: `train` refuses the last at its start."""


def write_grid(path: Path, *, rates: list[float] = TWO_AND_A_WRONG_ONE, **changes: Any) -> Path:
    """A grid over learning rates; underscores in names of options stand for dashes."""
    options = TINY | {name.replace("_", "-"): value for name, value in changes.items()}
    path.write_text(json.dumps({"options": options, "product": {"learning-rate": rates}}))
    return path


def table_in(folder: Path) -> SearchTable:
    return codec.from_json(SearchTable, json.loads((folder / "search.json").read_text()), where="search.json")


def same_for_all_ways(table: SearchTable) -> dict[str, Mapping[str, Any]]:
    """By trial: all that does not tell when and where it was run."""
    apart = ("started_at", "ended_at", "seconds", "host")
    return {
        row.trial_id: {name: value for name, value in codec.to_json(row).items() if name not in apart}
        for row in table.rows
    }
