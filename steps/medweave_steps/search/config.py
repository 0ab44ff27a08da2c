"""The options of `search`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import option
from medweave_steps.search.choice import SCORE, parse_objectives
from medweave_steps.search.grid import parse_selection

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
        "part of the search: all runs all trials of --grid; plan writes one file per trial; trial runs the trial of --trial; "
        "collect makes one table of --results",
        default="all",
    )
    grid: Path | None = option("JSON file with options of train and the values to search", default=None)
    trial: Path | None = option("file of one trial, written by --part plan", default=None)
    training_set: Path | None = option("training_set folder of preprocess", default=None)
    results: tuple[Path, ...] = option("output folders of --part trial", default=(), metavar="PATH")
    output: Path = option(
        "folder to write: search.json, trials.csv and the files of each trial; for plan, one file per trial"
    )
    best_model: Path = option("model folder to write: the model of the best trial", default=Path("best_model"))
    metric: str = option(
        "metric for model selection (higher is better): a metric in the run report of train", default="validation_dice"
    )
    objectives: tuple[str, ...] = option(
        "what to optimize, NAME:max or NAME:min: score (of --metric), seconds (time of a trial), wh (electricity of its training). "
        "The first one selects the best model; of several, the table marks the Pareto front",
        default=("score:max",),
        metavar="NAME:DIRECTION",
    )
    only: tuple[str, ...] = option(
        "train only the combinations with these values of the grid, NAME=VALUE,VALUE for each option, or group=NAME; the table "
        "counts the others as skipped. For all, plan and collect",
        default=(),
        metavar="NAME=VALUE",
    )
    repeats: int = option(
        "number of trainings of each combination of options, with different seeds; combinations are compared by their means",
        default=1,
    )
    slots: int = option("number of concurrent trials", default=1)
    threads_per_trial: int = option(
        "compute threads of each trial; weights are reproducible only for equal numbers", default=1
    )
    scheduler: Literal["all", "asha"] = option(
        "with --part all: all trains every trial to completion; asha stops trials that perform worse than others at the same epoch",
        default="all",
    )
    grace_epochs: int = option("minimum number of epochs per trial with asha; should include a validation", default=1)
    reduction_factor: int = option(
        "reduction factor N of asha: 1 in N trials continues to the next rung, which has N times the epochs", default=4
    )

    def __post_init__(self) -> None:
        taken = _TAKES[self.part]
        for name in _INPUTS:
            is_set = bool(getattr(self, name))
            if is_set != (name in taken):
                raise UsageError(
                    f"--{name.replace('_', '-')} {'is not allowed with' if is_set else 'is required with'} --part {self.part}.",
                    expected=f"--part {self.part} with {', '.join('--' + option.replace('_', '-') for option in taken)}",
                )
        for name, least in (
            ("repeats", 1),
            ("slots", 1),
            ("threads_per_trial", 1),
            ("grace_epochs", 1),
            ("reduction_factor", 2),
        ):
            if getattr(self, name) < least:
                raise UsageError(
                    f"invalid value of --{name.replace('_', '-')}.",
                    seen=str(getattr(self, name)),
                    expected=f"{least} or more",
                )
        if self.scheduler != "all" and self.part != "all":
            raise UsageError(
                f"--scheduler {self.scheduler} is not allowed with --part {self.part}.",
                expected="--part all: independent jobs cannot be compared while they run",
            )
        parse_selection(self.only)
        first = parse_objectives(self.objectives)[0]
        if self.scheduler != "all" and (self.repeats > 1 or (first.name, first.direction) != (SCORE, "max")):
            raise UsageError(
                f"--scheduler {self.scheduler} is not allowed with --repeats, or with another first objective than score:max.",
                expected="--scheduler all: early stopping compares the scores of single trials",
            )
        if self.output.resolve() == self.best_model.resolve():
            raise UsageError("--output and --best-model are the same folder.", expected="two folders")
