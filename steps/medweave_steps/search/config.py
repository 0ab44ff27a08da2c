"""The options of `search`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import option

PARTS = ("all", "plan", "trial", "collect")
_TAKES = {
    "all": ("grid", "training_set", "best_model"),
    "plan": ("grid",),
    "trial": ("trial", "training_set"),
    "collect": ("grid", "results", "best_model"),
}
_INPUTS = ("grid", "trial", "training_set", "results")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Options of `search`."""

    part: Literal["all", "plan", "trial", "collect"] = option(
        "what to do: all trains every trial of --grid side by side; plan writes a file per trial; trial trains the one of --trial; "
        "collect makes one table of --results",
        default="all",
    )
    grid: Path | None = option("JSON file: options of train, and the values that they may have", default=None)
    trial: Path | None = option("file of one trial, as plan writes it", default=None)
    training_set: Path | None = option(
        "folder of prepared training and validation cases, as preprocess writes it", default=None
    )
    results: tuple[Path, ...] = option("folders that --part trial has written", default=(), metavar="PATH")
    output: Path = option(
        "folder to write: search.json, trials.csv and what each trial has left; of plan, a file per trial"
    )
    best_model: Path = option("model folder to write: that of the best trial", default=Path("best_model"))
    metric: str = option(
        "what trials are chosen by, the highest is the best: a metric of train's report", default="validation_dice"
    )
    slots: int = option("trials at the same time", default=1)
    threads_per_trial: int = option("compute threads of each trial; equal numbers give equal weights", default=1)
    scheduler: Literal["all", "asha"] = option(
        "of --part all: all trains each trial to its end, asha stops those that others are better than at the same epoch",
        default="all",
    )
    grace_epochs: int = option("epochs that asha gives each trial at least; put a validation into them", default=1)
    reduction_factor: int = option(
        "asha lets one of so many trials go on from a rung to the next, at so many times the epochs", default=4
    )

    def __post_init__(self) -> None:
        taken = _TAKES[self.part]
        for name in _INPUTS:
            is_set = bool(getattr(self, name))
            if is_set != (name in taken):
                raise UsageError(
                    f"--{name.replace('_', '-')} {'has no use in' if is_set else 'is missing for'} --part {self.part}.",
                    expected=f"--part {self.part} with {', '.join('--' + option.replace('_', '-') for option in taken)}",
                )
        for name, least in (("slots", 1), ("threads_per_trial", 1), ("grace_epochs", 1), ("reduction_factor", 2)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"--{name.replace('_', '-')} cannot be used.",
                    seen=str(getattr(self, name)),
                    expected=f"{least} or more",
                )
        if self.scheduler != "all" and self.part != "all":
            raise UsageError(
                f"--scheduler {self.scheduler} has no use in --part {self.part}.",
                expected="--part all: jobs that share nothing cannot be compared while they run",
            )
        if self.output.resolve() == self.best_model.resolve():
            raise UsageError("--output and --best-model name the same folder.", expected="two folders")
