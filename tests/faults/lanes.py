"""The order of a campaign: one lane per site; in each, first the concurrent kinds, then one by one the exclusive ones."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import daemon_kinds, driver_kinds, job_kinds, pod_kinds, slurm_kinds
from faults.case import Case, Kind
from faults.pod_site import MOUNT, ledger_folder
from faults.slurm_site import describe_rows
from faults.stage import Stage
from faults.verdict import Facts, row
from medweave_testbed.layout import POD_UID

KINDS: tuple[Kind, ...] = (
    *slurm_kinds.KINDS, *driver_kinds.KINDS, *pod_kinds.KINDS, *job_kinds.KINDS, *daemon_kinds.KINDS,
)  # fmt: skip
STARTS = 3  # drivers that start at the same time, on two cores
SITES = ("slurm", "pods")


@dataclass(kw_only=True)
class Campaign:
    """All cases of a campaign.

    Attributes:
        name: part of the names of its folders at the sites and of its cases.
        environment: environment of the drivers.
        rows: rows of the summary so far.
    """

    stage: Stage
    name: str
    environment: Mapping[str, str]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="medweave-faults-")))
    rows: list[dict[str, Any]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    _gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(STARTS))

    def play(self, kinds: Sequence[Kind], jobs_per_kind: int) -> None:
        """Run all kinds and collect their rows."""
        layout = self.stage.testbed.layout
        owners = {"slurm": pwd.getpwnam(layout.hpc_user).pw_uid, "pods": POD_UID}
        for site in SITES:
            self._ledgers(site).mkdir()
            os.chown(self._ledgers(site), owners[site], owners[site])
        lanes = [[self._cases(kind, jobs_per_kind) for kind in kinds if kind.site == site] for site in SITES]
        with ThreadPoolExecutor(len(SITES)) as threads:
            try:
                list(threads.map(self._lane, lanes))
            except BaseException:
                self.stop()  # else the lanes would run to their end
                raise
        order = [kind.name for kind in KINDS]
        self.rows.sort(key=lambda row: order.index(row["fault"]))

    def stop(self) -> None:
        """Stop all drivers and start no more."""
        self.stopping.set()
        list(self.stage.threads.map(Case.stop, self.cases))

    def clean(self, *, keep: bool) -> None:
        """Remove the files of the campaign at the sites and, unless they are needed, on this machine."""
        for site in SITES:
            shutil.rmtree(self._ledgers(site), ignore_errors=True)
        shutil.rmtree(self.stage.testbed.layout.hpc / "scratch" / "tests", ignore_errors=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- inside

    def _lane(self, groups: Sequence[Sequence[Case]]) -> None:
        together = [group for group in groups if not group[0].kind.alone]
        with ThreadPoolExecutor(max(len(together), 1)) as threads:
            list(threads.map(self._play, together))
        for group in groups:
            if group[0].kind.alone and not self.stopping.is_set():
                self._play(group)

    def _play(self, cases: Sequence[Case]) -> None:
        try:
            cases[0].kind.play(self.stage, cases)
        except Exception as problem:  # the other kinds continue, and this one is not counted
            for case in cases:
                case.trouble = case.trouble or f"{type(problem).__name__}: {problem}"
        for facts in self.stage.threads.map(self._facts, cases):
            entry = row(facts)
            self.rows.append(entry)
            reported = entry["medweave"]["failure"] or entry["medweave"]["job"] or "nothing"
            self.stage.say(
                f"{facts.fault}: {entry['scheduler'] or 'nothing'}; medweave: {reported}, {entry['seconds_to_know']} s"
            )
            for line in entry["why"]:
                self.stage.say(f"  ! {line}")

    def _facts(self, case: Case) -> Facts:
        case.stop()
        kind, stage = case.kind, self.stage
        if kind.site == "slurm":
            rows = stage.slurm.final_rows(case.name) if case.runs else []
            end = rows[-1].end if rows else None
            return case.facts(
                scheduler=describe_rows(rows),
                happened=kind.proof(case, rows),
                completed=bool(rows) and (rows[-1].state, rows[-1].exit_code) == ("COMPLETED", "0:0"),
                submissions=len(rows),
                replaced=stage.slurm.replaced(rows),
                since=max(end, case.started_at) if end is not None and len(case.runs) > 1 else end,
                look=lambda: stage.slurm.living(case.name),
            )
        history, jobs = stage.pods.history(case.uid), stage.pods.pods_of_jobs(case)
        happened = kind.proof(case, history)
        return case.facts(
            scheduler=history.summary,
            happened=happened,
            completed=not (kind.fatal and happened),
            submissions=len(stage.pods.jobs(case)) or 1,
            replaced=sum(bool(job.disruption) for job in jobs),
            since=case.known_at or case.injected_at,
            look=lambda: [] if kind.name == "pod-memory" else stage.pods.living(case),
        )

    def _cases(self, kind: Kind, jobs_per_kind: int) -> list[Case]:
        cases = []
        for number in range(1, min(jobs_per_kind, kind.most) + 1):
            name = f"{kind.name}-{number}-{self.name}"
            folder = self.folder / name
            folder.mkdir()
            layout = self.stage.testbed.layout
            known = layout.laptop_home / ".ssh" / "known_hosts"
            shutil.copyfile(known, folder / "known_hosts")
            ledger = self._ledgers(kind.site) / name
            case = Case(
                kind=kind,
                number=number,
                name=name,
                chance=random.Random(f"{self.stage.seed}/{kind.name}/{number}"),
                folder=folder,
                ledger=ledger,
                ledger_at_site=str(ledger) if kind.site == "slurm" else f"{MOUNT}/{self._ledgers('pods').name}/{name}",
                environment=self.environment,
                gate=self._gate,
                stopping=self.stopping,
            )
            cases.append(case)
        self.cases += cases
        return cases

    def _ledgers(self, site: str) -> Path:
        layout = self.stage.testbed.layout
        folder = layout.hpc / "scratch" if site == "slurm" else ledger_folder(self.stage.testbed)
        return folder / f"faults-{self.name}"
