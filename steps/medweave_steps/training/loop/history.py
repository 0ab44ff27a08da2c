"""Training curves: in memory and in checkpoints, written as TensorBoard events and as curves.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.write import write_text

CURVES_FILE = "curves.json"
EVENTS_FILE = "events.out.tfevents.0.medweave"
EVENTS = "events.out.tfevents.*.medweave"
"""While they are written their name holds the machine's."""


def rename_events(folder: Path) -> None:
    """Rename the events file of a finished training, so that its name no longer contains the machine's name."""
    for path in folder.glob(EVENTS):
        path.rename(folder / EVENTS_FILE)


def read_points(folder: Path) -> list[dict[str, Any]]:
    """Return the points of a training log that another training wrote.

    Raises:
        UserInputError: the log has no points that can be read.
    """
    try:
        points: list[dict[str, Any]] = json.loads((folder / CURVES_FILE).read_text(encoding="utf-8"))
        if all(isinstance(point["step"], int) for point in points):
            return points
        seen = "a step that is not an integer"
    except FileNotFoundError:
        seen = f"no file {CURVES_FILE}"
    except (ValueError, TypeError, KeyError, NotADirectoryError) as error:
        seen = f"{type(error).__name__} while reading it"
    raise UserInputError(
        f"the training log to extend ({CURVES_FILE}) cannot be read.",
        seen=seen,
        expected="a training log folder of train",
        do="use a training log of train, or omit the option",
    )


class History:
    """Points of the curves, each a dict with `step` and the figures of that step.

    Training points have `loss` (mean since the point before) and `learning_rate`; validation points have `dice`,
    `sensitivity`, `false_positives_per_scan` and the like. Only the first rank has a folder; the others write nothing.
    Events are on the disk as soon as they are added, so that the training can be followed.
    """

    def __init__(
        self, folder: Path | None, points: list[dict[str, Any]],
        *, on_add: Callable[[int, Mapping[str, float | None]], None] = lambda _step, _figures: None,
    ) -> None:  # fmt: skip
        """Write the events of earlier points, if there are any.

        Args:
            on_add: is called with step and figures of each new point.
        """
        self.folder, self.points, self._on_add = folder, points, on_add
        self._events: Any = None
        for point in points:
            self._write_events(point)

    def add(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Add one point."""
        point = {"step": step, **figures}
        self.points.append(point)
        self._write_events(point)
        self._on_add(step, figures)

    def add_event(self, step: int, name: str, value: float | None) -> None:
        """Add a figure to the events only: one that differs between trainings with equal curves."""
        self._write({f"training/{name}": value}, step)

    def add_series(self, name: str, points: Iterable[tuple[float, float, float]]) -> None:
        """Add a figure to the events only, over time.

        Args:
            points: seconds since the start of the training, Unix time, and value of each.
        """
        if self._events is None:  # no step was trained
            return
        for second, unix_s, value in points:
            self._events.add_scalar(name, value, round(second), walltime=unix_s)

    def close(self) -> None:
        """Write curves.json and finish the events file."""
        if self.folder is None:
            return
        if self._events is not None:
            self._events.close()
        rename_events(self.folder)
        write_text(self.folder / CURVES_FILE, json.dumps(self.points, indent=1, allow_nan=False) + "\n")

    def _write_events(self, point: Mapping[str, Any]) -> None:
        group = "training" if "loss" in point else "validation"
        self._write({f"{group}/{name}": value for name, value in point.items() if name != "step"}, point["step"])

    def _write(self, figures: Mapping[str, float | None], step: int) -> None:
        known = {name: value for name, value in figures.items() if value is not None}
        if self.folder is None or not known:
            return
        if self._events is None:  # not before: a training that fails at its start leaves no file
            tensorboard = require("torch.utils.tensorboard", extra="train")
            self._events = tensorboard.SummaryWriter(log_dir=str(self.folder), filename_suffix=".medweave")
        for name, value in known.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()
