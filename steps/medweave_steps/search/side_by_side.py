"""Parallel trials on this machine by Ray Tune: each in its own process, on cores (and a GPU) that no other trial uses.

Ray runs for this search alone: it listens on the loopback interface, asks for a token, sends no usage data, shows no dashboard, and
its processes and files go when the search ends, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts import codec
from medweave_core.contracts.search import Trial, TrialRow
from medweave_steps.runtime import environment, partials
from medweave_steps.runtime.child import all_ended
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.signals import before_leaving
from medweave_steps.search.trial import ROW, Training, TrialSettings, failed_row

Scheduler = Literal["all", "asha"]
LOST = "the process that monitored this training was lost: perhaps the machine was out of memory"
_EXTRA = "search"
_STORE_BYTES = 80 * 2**20  # the least that Ray takes; trials share files, not objects
_ENDLESS = 10**6  # epochs: the search ends no trial for its length
_SCORE, _EPOCH, _DONE = "score", "epoch", "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Settings of how trials share the machine.

    Attributes:
        slots: trials at the same time, where there are GPUs no more than these.
        scheduler: `all` trains every trial to its end; `asha` stops those that others are better than.
        grace_epochs: epochs with a validation that `asha` gives each trial at least.
        reduction_factor: of the trials that reach a rung, `asha` continues one in so many.
    """

    slots: int
    scheduler: Scheduler
    grace_epochs: int
    reduction_factor: int


def run_side_by_side(
    trials: Sequence[Trial], settings: TrialSettings, folder: Path, spread: Spread, ended: Callable[[TrialRow], None]
) -> list[TrialRow]:
    """Run all trials; a failed one becomes a row and does not stop the others.

    Args:
        folder: absolute path; each trial leaves its files in a folder of its id there.
        ended: called with each trial's row as soon as it has one.
    Returns:
        the rows, in the order of the trials.
    """
    with _ray(spread.slots * settings.num_threads) as (ray, home):
        tune = require("ray.tune", extra=_EXTRA)
        gpus = int(ray.cluster_resources().get("GPU", 0))
        needs = {"cpu": settings.num_threads, "gpu": 1 if gpus else 0}
        actor = tune.with_parameters(_actor(tune), trials=list(trials), settings=settings, folder=str(folder))
        tuner = tune.Tuner(
            tune.with_resources(actor, needs),
            param_space={"place": tune.grid_search(list(range(len(trials))))},
            tune_config=tune.TuneConfig(
                metric=_SCORE, mode="max", scheduler=_scheduler(spread), max_concurrent_trials=spread.slots
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(home / "tune"),
                verbose=0,
                callbacks=[_end_callback(tune, trials, folder, ended)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        tuner.fit()
    return [_row(folder, trial) for trial in trials]


@contextlib.contextmanager
def _ray(num_cpus: int) -> Iterator[tuple[Any, Path]]:
    """Start Ray; yield its module and the folder of its files. The block's end shuts Ray down and removes the folder."""
    environment.keep_ray_at_home(secrets.token_hex(32))
    ray = require("ray", extra=_EXTRA)
    home = _home()
    partials.register(home)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ray takes ten seconds to end, longer than INT and TERM leave, and two of its agents outlive it by a minute.
    with all_ended() as end, before_leaving(end):
        try:
            ray.init(
                address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="error",
                object_store_memory=_STORE_BYTES, _temp_dir=str(home),
            )  # fmt: skip
            for number, handler in handlers.items():
                signal.signal(number, handler)  # Ray puts its own in their place, which prints a stack
            with _quiet():
                yield ray, home
        finally:
            ray.shutdown()
    shutil.rmtree(home, ignore_errors=True)
    partials.forget(home)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray, which prints stacks for a lost process; the table of trials reports the loss."""
    if not environment.wants_traceback():
        for name in ("ray", "ray.tune"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _home() -> Path:
    """Return a new folder with a short name: those of Ray's sockets, which lie below it, may have 107 characters."""
    default = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="mw-", dir=default if len(default) <= 24 else "/tmp"))


def _scheduler(spread: Spread) -> Any:
    schedulers = require("ray.tune.schedulers", extra=_EXTRA)
    if spread.scheduler == "all":
        return schedulers.FIFOScheduler()
    # Source: Li et al. 2020, MLSys, "A System for Massively Parallel Hyperparameter Tuning".
    return schedulers.ASHAScheduler(
        time_attr=_EPOCH, max_t=_ENDLESS, grace_period=spread.grace_epochs, reduction_factor=spread.reduction_factor
    )


def _actor(tune: Any) -> Any:
    """Return the class that Ray makes an object of for each trial: it follows a training from score to score."""

    class TrialActor(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any], trials: list[Trial], settings: TrialSettings, folder: str) -> None:
            trial = trials[config["place"]]
            self.training = Training(trial, settings, Path(folder) / trial.trial_id)
            self.row: TrialRow | None = None

        def step(self) -> dict[str, Any]:
            before = self.training.epochs
            while self.training.next_point() is not None:
                if self.training.score is not None and self.training.epochs > before:
                    return self._figures(done=False)
            self.row = self.training.row()
            return self._figures(done=True)

        def _figures(self, *, done: bool) -> dict[str, Any]:
            score = self.training.score
            return {_SCORE: -1.0 if score is None else score, _EPOCH: max(1, self.training.epochs), _DONE: done}

        def cleanup(self) -> None:
            self.training.end()
            if self.row is None:
                self.training.row(stopped=True)

    return TrialActor


def _end_callback(tune: Any, trials: Sequence[Trial], folder: Path, ended: Callable[[TrialRow], None]) -> Any:
    class EndCallback(tune.Callback):  # type: ignore[misc]
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ended(_row(folder, listed[trial.config["place"]]))

        on_trial_error = on_trial_complete

    listed = list(trials)
    return EndCallback()


def _row(folder: Path, trial: Trial) -> TrialRow:
    """Return the row that a trial wrote; a new one where Ray lost its process."""
    path = folder / trial.trial_id / ROW
    if path.is_file():
        return codec.from_json(TrialRow, json.loads(path.read_text(encoding="utf-8")), where="the row of a trial")
    return failed_row(trial, LOST)
