"""Training curves: kept in memory and in checkpoints, written as TensorBoard events and as curves.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.runtime.write import write_text

CURVES_FILE = "curves.json"
EVENTS_FILE = "events.out.tfevents.0.medweave"


class History:
    """Points of the curves, each a dict with `step` and the figures of that step.

    Training points hold `loss` (mean since the point before) and `learning_rate`; validation points hold `dice`,
    `sensitivity`, `false_positives_per_scan` and the like.
    """

    def __init__(self, folder: Path, points: list[dict[str, Any]]) -> None:
        tensorboard = require("torch.utils.tensorboard", extra="train")
        self.folder, self.points = folder, points
        self._events = tensorboard.SummaryWriter(log_dir=str(folder), flush_secs=10)
        for point in points:
            self._write_events(point)

    def add(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Adds one point."""
        point = {"step": step, **figures}
        self.points.append(point)
        self._write_events(point)

    def close(self) -> None:
        """Writes curves.json and finishes the events file, whose usual name holds the machine's name."""
        self._events.close()
        for path in self.folder.glob("events.out.tfevents.*"):
            path.rename(self.folder / EVENTS_FILE)
        write_text(self.folder / CURVES_FILE, json.dumps(self.points, indent=1, allow_nan=False) + "\n")

    def _write_events(self, point: Mapping[str, Any]) -> None:
        group = "training" if "loss" in point else "validation"
        for name, value in point.items():
            if name != "step" and value is not None:
                self._events.add_scalar(f"{group}/{name}", value, point["step"])
