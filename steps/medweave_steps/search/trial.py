"""One trial: `train` in a child process, monitored by its progress lines; its result is a row of the table."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from medweave_core.contracts import codec
from medweave_core.contracts.hardware import HardwareUse
from medweave_core.contracts.progress import JSON_PREFIX
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.search import Trial, TrialRow, TrialState
from medweave_steps.io.model.folder import WEIGHTS_FILE, read_card
from medweave_steps.runtime import environment
from medweave_steps.search.grid import words_of

MODEL, LOG, REPORT, ROW = "trained_model", "training_log", "run_report.json", "trial.json"
FIRST_WORDS = "medweave-step train: "
GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL for a training."""
_LAST_LINES = 12
_SPLIT = "validation_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """Settings that all trials of a search share. They are sent to other processes.

    Attributes:
        training_set: absolute path of the prepared cases.
        num_threads: compute threads of each trial.
        metric: name in the run report of `train`.
        in_node_group: every node of the node group trains its part of a trial; else a trial is this process's alone.
    """

    training_set: Path
    num_threads: int
    metric: str
    in_node_group: bool = False


class Training:
    """A running trial; `next_point` waits for its progress, `end` stops it, `row` returns its result.

    Args:
        folder: a free path; created for the trial's files.
    """

    def __init__(self, trial: Trial, settings: TrialSettings, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.trial, self.settings, self.folder = trial, settings, folder
        self.epochs = 0
        self.score: float | None = None
        self._began_at, self._began = _now(), time.monotonic()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._points: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "medweave_steps.search.process", str(os.getpid()), "train"),
                *words_of(trial.options),
                *("--training-set", str(settings.training_set), "--output", MODEL, "--training-log", LOG),
                *("--run-report", REPORT, "--num-threads", str(settings.num_threads)),
            ],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", env=environment.of_trial(in_node_group=settings.in_node_group),
        )  # fmt: skip
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            if line.startswith(JSON_PREFIX):
                with contextlib.suppress(ValueError):
                    self._points.put(json.loads(line.removeprefix(JSON_PREFIX)))
            else:
                self._last.append(line.rstrip())
        self._points.put(None)

    def next_point(self) -> Mapping[str, Any] | None:
        """Wait for the next epoch and return its figures; None when the training has ended."""
        point = self._points.get()
        if point is None:
            self._process.wait()
            return None
        self.epochs = int(point.get("done", self.epochs))
        value = point.get(self.settings.metric.removeprefix(_SPLIT))
        self.score = float(value) if isinstance(value, int | float) else self.score
        return point

    def end(self) -> None:
        """Stop the training if it is running; it removes its partial outputs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join()

    def row(self, *, stopped: bool = False) -> TrialRow:
        """Return the result after the end of the training; also written to its folder.

        Args:
            stopped: it was ended because others were better.
        """
        self._reader.join()
        code = self._process.returncode
        report = self._report() if code == 0 else None
        metrics: Mapping[str, float | None] = report.results.get("metrics", {}) if report else {}
        state: TrialState = "completed" if report else "stopped" if stopped else "failed"
        score, cause = self.score, ""
        if report:
            score = metrics.get(self.settings.metric)
            if score is None:
                state, cause = (
                    "failed",
                    f"no metric {self.settings.metric}; the metrics are {', '.join(sorted(metrics)) or 'none'}",
                )
        elif not stopped:
            score, cause = None, self._cause(code)
        energy_wh, energy_kind = energy_of(report.results if report else {})
        row = TrialRow(
            trial_id=self.trial.trial_id, varied=self.trial.varied, seed=self.trial.options["seed"], state=state, score=score,
            metrics=metrics, cause=cause, exit_code=code, started_at=self._began_at, ended_at=_now(),
            seconds=round(time.monotonic() - self._began, 3), epochs=self.epochs, host=environment.host_name(),
            weights_sha256=self._weights() if report else "", ranks=int(self.trial.options.get("ranks", 1)),
            energy_wh=energy_wh, energy_kind=energy_kind, group=self.trial.group,
            parameters=report.results.get("parameters") if report else None,
        )  # fmt: skip
        if state != "completed":
            for path in self.folder.iterdir():  # including partial outputs of a killed one
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
        (self.folder / ROW).write_text(codec.dumps(row), encoding="utf-8")
        return row

    def _report(self) -> RunReport:
        document = json.loads((self.folder / REPORT).read_text(encoding="utf-8"))
        return codec.from_json(RunReport, document, where="the run report of a trial")

    def _weights(self) -> str:
        return read_card(self.folder / MODEL, verify=False).files.get(WEIGHTS_FILE, "")

    def _cause(self, code: int) -> str:
        """Return the error message of `train`; its last line where it printed none."""
        lines = list(self._last)
        first = max((place for place, line in enumerate(lines) if line.startswith(FIRST_WORDS)), default=None)
        if first is not None:
            return " ".join(" ".join(lines[first:]).removeprefix(FIRST_WORDS).split())
        if code < 0:
            return f"ended by signal {-code}" + (": perhaps the machine was out of memory" if code == -9 else "")
        return f"exit code {code}: {lines[-1] if lines else 'no output'}"


def energy_of(results: Mapping[str, Any]) -> tuple[float | None, Literal["measured", "modelled"] | None]:
    """Return the electricity of a training by its run report, Wh, and whether it was measured; None, None if it is unknown.

    Counters of the machine come first, if none is missing. Otherwise it is the sum of the components that the hardware monitor
    reports; one component that is modelled makes the sum modelled. Without the energy of a GPU that trains, there is no sum.

    Args:
        results: of the run report of `train`.
    """
    training = results.get("training", {})
    energy, hardware = training.get("energy", {}), training.get("hardware")
    each_wh, components = energy.get("each_wh", ()), energy.get("components", ())
    if each_wh and None not in each_wh and not energy.get("missing"):
        return sum(each_wh), "measured"
    use = codec.from_json(HardwareUse, hardware, where="the hardware figures of the training") if hardware else None
    if components and (use is None or use.has_energy_of_gpus):
        is_measured = all(part["kind"] == "measured" for part in components)
        return sum(part["wh"] for part in components), "measured" if is_measured else "modelled"
    return None, None


def failed_row(trial: Trial, cause: str) -> TrialRow:
    """Return the row of a trial that has written none."""
    return TrialRow(
        trial_id=trial.trial_id, varied=trial.varied, seed=trial.options["seed"], state="failed", cause=cause,
        group=trial.group,
    )  # fmt: skip


def train_to_its_end(trial: Trial, settings: TrialSettings, folder: Path, each_epoch: Any = None) -> TrialRow:
    """Run a trial and return its row, also if it fails.

    Args:
        each_epoch: called with the figures of each epoch.
    """
    training = Training(trial, settings, folder)
    try:
        while (point := training.next_point()) is not None:
            if each_epoch is not None:
                each_epoch(point)
        return training.row()
    finally:
        training.end()


def help_to_train(trial: Trial, settings: TrialSettings, folder: Path) -> None:
    """Run this node's part of a trial; the first node of the group returns the row, also of a training that fails."""
    training = Training(trial, settings, folder)
    try:
        while training.next_point() is not None:
            pass
    finally:
        training.end()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
