"""One job of the campaign: its workflow, its drivers, and what it has left. Each case is a workflow of one step of its own name."""

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

from faults.verdict import Facts, Said, read_said
from medweave_connectors.jobs.retries.policy import FailureKind
from support.engine import Run, start
from support.processes import processes_with

MARK = "MEDWEAVE_FAULT"  # in the environment of all processes of a job, with the name of its case
GONE_S = 20.0  # after the end of a run nothing of its job may live longer
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
        proof: from a case and the site's word (rows of sacct, or the story of a pod), whether the fault took place.
        right: kinds of failure that tell the truth about it; none where the job must do well in spite of it.
        fatal: the site ends the job. Else the fault only gets in its way.
        alone: no other kind may be at work at its site meanwhile.
        most: most jobs, whatever is asked for.
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
        name: of its step, and so a part of the job's name at the site; no other job has it.
        chance: what is drawn for it; the same for the same seed.
        ledger: where the job writes a line each time that it begins, as this machine sees it.
        there: the same file, as the job sees it.
        environment: of its drivers.
        gate: at most so many drivers start at once.
        stopping: set when the campaign is being ended.
        uid: of its pod.
        injected, injected_at: what was done, and when (s since 1970).
        evidence: words of others than the scheduler that the fault took place; `refuted` says that it did not.
        right_code: the exit code that a failure must tell.
        known_at: moment of the scheduler's word, where the evidence has it, s since 1970.
        trouble: why the campaign could not do its part.
        stopped: the driver did not end by itself.
    """

    kind: Kind
    number: int
    name: str
    chance: random.Random
    folder: Path
    ledger: Path
    there: str
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
        """A shell script that says that it begins, writes half of its output, does something, and writes the whole.

        Args:
            rest: what it does at its end.
        """
        lines = (
            f"export {MARK}={self.name}",
            f"echo $$ >> {self.there}",
            HALF,
            body,
            f"{{ seq 1 {LINES}; echo {self.name}; }} > result.txt",
            rest,
        )
        return "\n".join(line for line in lines if line) + "\n"

    @property
    def whole(self) -> bool:
        """Whether the output that the run delivered is that of a complete job, to the byte."""
        expected = "".join(f"{number}\n" for number in range(1, LINES + 1)) + f"{self.name}\n"
        with contextlib.suppress(OSError):
            return (self.folder / "results" / "result.txt").read_text(encoding="utf-8") == expected
        return False

    @property
    def processes(self) -> list[int]:
        """Process ids of the job's shell, as its machine counts, one for each time that it began."""
        with contextlib.suppress(OSError):
            return [int(line) for line in self.ledger.read_text(encoding="utf-8").split()]
        return []

    # ---- its drivers

    @property
    def run(self) -> Run:
        """The driver that was started last."""
        return self.runs[-1]

    @property
    def record(self) -> Path:
        """The folder of the run of that driver."""
        return self.folder / "runs" / f"{self.name}-{len(self.runs)}"

    @property
    def run_ids(self) -> list[str]:
        """The names of its runs."""
        return [f"{self.name}-{number}" for number in range(1, len(self.runs) + 1)]

    @property
    def next_record(self) -> Path:
        """The folder of the run that is started next."""
        return self.folder / "runs" / f"{self.name}-{len(self.runs) + 1}"

    @property
    def events(self) -> list[dict[str, Any]]:
        """The whole lines of its event log."""
        with contextlib.suppress(OSError):
            text = (self.record / "events.jsonl").read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return []

    def begin(self) -> None:
        """Starts a driver; what earlier ones printed is kept aside.

        Raises:
            CannotPlay: the campaign is being ended.
        """
        if self.stopping.is_set():
            raise CannotPlay("the campaign was ended")
        told = self.folder / "stderr.txt"
        if told.exists():
            told.rename(self.folder / f"stderr-{len(self.runs)}.txt")
        run_id = f"{self.name}-{len(self.runs) + 1}"
        self.started_at = time.time()
        self.runs.append(start(self.folder, environment={**self.environment, "MEDWEAVE_RUN_ID": run_id}))

    def begin_and_wait(self, condition: Callable[[], Any] | None = None, *, what: str = "its job begins") -> None:
        """The same, and waits until its job has begun, or for something else; only so many cases do so at once."""
        with self.gate:
            self.begin()
            self.wait_for(condition or (lambda: self.processes), what, limit_s=120)

    def wait_for(self, condition: Callable[[], Any], what: str, *, limit_s: float, nap_s: float = NAP_S) -> None:
        """Looks again and again while the driver lives.

        Raises:
            CannotPlay: the driver has ended, or the time is over.
        """
        deadline = time.monotonic() + limit_s
        while not condition():
            if self.run.process.exitcode is not None:
                raise CannotPlay(f"the driver ended while the campaign waited until {what}")
            if time.monotonic() > deadline:
                raise CannotPlay(f"not within {limit_s:.0f} s: {what}")
            time.sleep(nap_s)

    def inject(self, what: str) -> None:
        """Notes what is done now."""
        seconds = time.time() - self.started_at
        self.injected, self.injected_at = f"{what}, {seconds:.1f} s after the start", time.time()

    def end(self, limit_s: float = 180.0) -> None:
        """Waits until the driver has ended.

        Raises:
            CannotPlay: it did not.
        """
        self.run.process.join(limit_s)
        if self.run.process.exitcode is None:
            raise CannotPlay(f"the driver had not ended {limit_s:.0f} s after the fault")

    def stop(self) -> None:
        """Ends a driver that still runs, so that it undoes what it made."""
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            if self.runs and self.run.process.exitcode is None:
                self.stopped = True
                self.run.signal(number)
                self.run.process.join(0 if number == signal.SIGCONT else 40)

    # ---- what there is to say

    def said(self) -> Said:
        """What medweave said at last; a driver that had to be ended has said nothing that counts."""
        if not self.runs:
            return Said(exit_code=None)
        return read_said(self.events, self.run.stderr, None if self.stopped else self.run.process.exitcode)

    def alive(self, look: Callable[[], Sequence[str]]) -> list[str]:
        """What of the job still lives a while after its run.

        Args:
            look: asks the site.
        """
        deadline = time.monotonic() + GONE_S
        while found := [*look(), *(f"process {line[:60]}" for line in processes_with(self.name, MARK))]:
            if time.monotonic() > deadline:
                return found
            time.sleep(0.5)
        return []

    def facts(
        self, *, scheduler: str, happened: bool, completed: bool, submissions: int, since: float | None,
        look: Callable[[], Sequence[str]], replaced: int = 0,
    ) -> Facts:  # fmt: skip
        """All that is known, when the driver has ended.

        Args:
            scheduler, happened, completed, submissions, since, replaced: as the site's own word is.
            look: asks the site what of the job lives.
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
            said=self.said(),
            trouble=self.trouble,
        )
