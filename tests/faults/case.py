"""One job of the campaign: its workflow, its drivers and its traces. Each case is a workflow of one step with a unique name."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.verdict import Facts, ReportedOutcome, read_reported
from medweave_connectors.jobs.retries.policy import FailureKind
from support.engine import Run, start
from support.processes import processes_with

MARK = "MEDWEAVE_FAULT"  # in the environment of all processes of a job, with the name of its case
GONE_S = 20.0  # processes of a job must end within this time after its run
LINES = 6000
HALF = f"seq 1 {LINES // 2} > result.txt"
NAP_S = 0.05


class CannotPlay(Exception):
    """The campaign could not inject a fault; the argument says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        site: `slurm` or `pods`.
        play: starts the jobs of these cases, injects the faults, and returns when their runs have ended.
        proof: from a case and the site's records (rows of sacct, or the history of a pod), whether the fault took place.
        right: correct kinds of failure; empty if the job must complete despite the fault.
        fatal: whether the site ends the job.
        alone: whether no other kind may run at its site at the same time.
        most: upper limit of the number of jobs.
    """

    name: str
    site: str
    play: Callable[[Any, Sequence[Case]], None]
    proof: Callable[[Case, Any], bool]
    right: frozenset[FailureKind] = frozenset()
    fatal: bool = True
    alone: bool = False
    most: int = 1000


@dataclass(kw_only=True)
class Case:
    """A job and its fault.

    Attributes:
        name: name of its step and part of the job's name at the site; unique.
        chance: its random generator; the same for the same seed.
        ledger: file on this machine to which the job writes a line each time it starts.
        ledger_at_site: path of that file as the job sees it.
        environment: environment of its drivers.
        gate: limits the number of drivers that start at the same time.
        stopping: set when the campaign is stopped.
        uid: uid of its pod.
        injected, injected_at: the fault and its time (s since 1970).
        evidence: evidence of the fault from other sources than the scheduler; `refuted` if it did not take place.
        right_code: the exit code that a failure must report.
        known_at: time of the scheduler's record, if the evidence has it, s since 1970.
        trouble: why the campaign could not inject the fault.
        stopped: whether the campaign had to stop the driver.
    """

    kind: Kind
    number: int
    name: str
    chance: random.Random
    folder: Path
    ledger: Path
    ledger_at_site: str
    environment: Mapping[str, str]
    gate: threading.Semaphore
    stopping: threading.Event
    uid: str = ""
    runs: list[Run] = field(default_factory=list)
    started_at: float = 0.0
    injected: str = ""
    injected_at: float | None = None
    evidence: list[str] = field(default_factory=list)
    refuted: bool = False
    right_code: int | None = None
    known_at: float | None = None
    trouble: str = ""
    stopped: bool = False

    # ---- the job

    def script(self, body: str, *, rest: str = "") -> str:
        """Return a shell script that records its start, writes half of its output, runs a body, and writes the whole output.

        Args:
            rest: commands at its end.
        """
        lines = (
            f"export {MARK}={self.name}",
            f"echo $$ >> {self.ledger_at_site}",
            HALF,
            body,
            f"{{ seq 1 {LINES}; echo {self.name}; }} > result.txt",
            rest,
        )
        return "\n".join(line for line in lines if line) + "\n"

    @property
    def whole(self) -> bool:
        """Return whether the delivered output has exactly the bytes of a complete job."""
        expected = "".join(f"{number}\n" for number in range(1, LINES + 1)) + f"{self.name}\n"
        with contextlib.suppress(OSError):
            return (self.folder / "results" / "result.txt").read_text(encoding="utf-8") == expected
        return False

    @property
    def processes(self) -> list[int]:
        """Return the process ids of the job's shell on its machine, one for each start."""
        with contextlib.suppress(OSError):
            return [int(line) for line in self.ledger.read_text(encoding="utf-8").split()]
        return []

    # ---- its drivers

    @property
    def run(self) -> Run:
        """Return the latest driver."""
        return self.runs[-1]

    @property
    def record(self) -> Path:
        """Return the folder of the run of that driver."""
        return self.folder / "runs" / f"{self.name}-{len(self.runs)}"

    @property
    def run_ids(self) -> list[str]:
        """Return the ids of its runs."""
        return [f"{self.name}-{number}" for number in range(1, len(self.runs) + 1)]

    @property
    def next_record(self) -> Path:
        """Return the folder of the run that is started next."""
        return self.folder / "runs" / f"{self.name}-{len(self.runs) + 1}"

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the events of the complete lines of its event log."""
        with contextlib.suppress(OSError):
            text = (self.record / "events.jsonl").read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return []

    def begin(self) -> None:
        """Start a driver; the output of earlier ones is renamed.

        Raises:
            CannotPlay: the campaign is being stopped.
        """
        if self.stopping.is_set():
            raise CannotPlay("the campaign was stopped")
        stderr = self.folder / "stderr.txt"
        if stderr.exists():
            stderr.rename(self.folder / f"stderr-{len(self.runs)}.txt")
        run_id = f"{self.name}-{len(self.runs) + 1}"
        self.started_at = time.time()
        self.runs.append(start(self.folder, environment={**self.environment, "MEDWEAVE_RUN_ID": run_id}))

    def begin_and_wait(self, condition: Callable[[], Any] | None = None, *, what: str = "its job begins") -> None:
        """Start a driver and wait until its job has started, or for another condition; `gate` limits concurrent starts."""
        with self.gate:
            self.begin()
            self.wait_for(condition or (lambda: self.processes), what, limit_s=120)

    def wait_for(self, condition: Callable[[], Any], what: str, *, limit_s: float, nap_s: float = NAP_S) -> None:
        """Poll a condition while the driver is running.

        Raises:
            CannotPlay: the driver has ended, or the time limit is over.
        """
        deadline = time.monotonic() + limit_s
        while not condition():
            if self.run.process.exitcode is not None:
                raise CannotPlay(f"the driver ended while the campaign waited until {what}")
            if time.monotonic() > deadline:
                raise CannotPlay(f"not within {limit_s:.0f} s: {what}")
            time.sleep(nap_s)

    def inject(self, what: str) -> None:
        """Record the fault that is injected now."""
        seconds = time.time() - self.started_at
        self.injected, self.injected_at = f"{what}, {seconds:.1f} s after the start", time.time()

    def end(self, limit_s: float = 180.0) -> None:
        """Wait until the driver has ended.

        Raises:
            CannotPlay: it did not.
        """
        self.run.process.join(limit_s)
        if self.run.process.exitcode is None:
            raise CannotPlay(f"the driver had not ended {limit_s:.0f} s after the fault")

    def stop(self) -> None:
        """Stop a running driver, so that it cleans up."""
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            if self.runs and self.run.process.exitcode is None:
                self.stopped = True
                self.run.signal(number)
                self.run.process.join(0 if number == signal.SIGCONT else 40)

    # ---- facts

    def reported(self) -> ReportedOutcome:
        """Return what medweave reported at the end; a driver that had to be stopped has no exit code."""
        if not self.runs:
            return ReportedOutcome(exit_code=None)
        return read_reported(self.events, self.run.stderr, None if self.stopped else self.run.process.exitcode)

    def alive(self, look: Callable[[], Sequence[str]]) -> list[str]:
        """Return the traces of the job that still exist some time after its run.

        Args:
            look: lists the traces at the site.
        """
        deadline = time.monotonic() + GONE_S
        while traces := [*look(), *(f"process {line[:60]}" for line in processes_with(self.name, MARK))]:
            if time.monotonic() > deadline:
                return traces
            time.sleep(0.5)
        return []

    def facts(
        self, *, scheduler: str, happened: bool, completed: bool, submissions: int, since: float | None,
        look: Callable[[], Sequence[str]], replaced: int = 0,
    ) -> Facts:  # fmt: skip
        """Return all facts after the driver has ended.

        Args:
            scheduler, happened, completed, submissions, since, replaced: by the records of the site.
            look: lists the traces of the job at the site.
        """
        return Facts(
            fault=self.kind.name,
            injected=self.injected,
            happened=happened and not self.refuted and self.injected_at is not None,
            scheduler=", ".join((scheduler, *self.evidence)),
            completed=completed,
            right=self.kind.right,
            right_code=self.right_code,
            whole=self.whole,
            submissions=submissions,
            executions=len(self.processes),
            replaced=replaced,
            alive=self.alive(look),
            since=since,
            reported=self.reported(),
            trouble=self.trouble,
        )
