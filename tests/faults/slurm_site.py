"""Slurm as the campaign reads and breaks it: as its administrator, by Slurm's programs, without our connectors."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from medweave_testbed.catalogue import parts_of
from medweave_testbed.cli import make_testbed
from medweave_testbed.part import Testbed, bring_up
from medweave_testbed.slurm import node_trouble, start_node
from support.testbed import Outcome, Sites, wait_for

# Sleeping jobs share cores.
PARTITION, SHARED = "faults", 32
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "End", "NodeList", "ReqMem", "MaxRSS")
SACCT_S = 30.0  # accounting may lag behind
LIVING = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job in sacct.

    Attributes:
        state: first word of its State.
        end: s since 1970; None if it has not ended.
        requested_mib, peak_mib: requested memory, and the peak of its steps, MiB.
    """

    job_id: str
    state: str
    exit_code: str
    end: float | None
    nodes: str
    requested_mib: float | None
    peak_mib: float | None

    @property
    def summary(self) -> str:
        """Return the row in words."""
        return f"{self.state} {self.exit_code} on {self.nodes}"


def read_sacct(text: str) -> list[Row]:
    """Parse `sacct --parsable2 --noheader --units=M` with `FIELDS`: one row per job, with its steps' peak memory."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == len(FIELDS) - 1]
    jobs = []
    for job_id, _, state, exit_code, end, nodes, requested, _ in rows:
        if not job_id.isdecimal():
            continue
        peaks = [_mebibytes(row[-1]) for row in rows if row[0].startswith(f"{job_id}.")]
        known = [peak for peak in peaks if peak is not None]
        jobs.append(
            Row(
                job_id=job_id,
                state=(state.split() or [""])[0],
                exit_code=exit_code,
                end=float(end) if end.isdecimal() else None,
                nodes=nodes,
                requested_mib=_mebibytes(requested),
                peak_mib=max(known, default=None),
            )
        )
    return jobs


def read_replaced(log: str, job_ids: Collection[str]) -> int:
    """Return how often a restarted controller found a job on a node that it had in its queue.

    It saves its state every few seconds. Killed just after a job's start, it does not know of it, ends its processes and starts the
    job again (Slurm 22.05), with the same job id and without counting a restart.

    Args:
        log: text of slurmctld's log.
    """
    matches = re.findall(r"Registered PENDING JobId=(\d+) StepId=\d+\.batch on node", log)
    return sum(job_id in job_ids for job_id in matches)


class Slurm:
    """The testbed's Slurm."""

    def __init__(self, testbed: Sites) -> None:
        self.testbed = testbed
        self._inside = testbed.words_inside("hpc")

    def call(self, *words: str) -> Outcome:
        """Run a program as root, with the site's view."""
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURM_TIME_FORMAT": "%s", "LANG": "C.UTF-8"}
        return subprocess.run(
            [*self._inside, *words], capture_output=True, text=True, timeout=60, check=False, env=environment
        )

    def done(self, *words: str) -> str:
        """Run a program that must succeed and return its output."""
        outcome = self.call(*words)
        if outcome.returncode:
            raise RuntimeError(f"`{' '.join(words)}`: {outcome.stderr.strip() or outcome.stdout.strip()}")
        return outcome.stdout

    # ---- queries

    def jobs(self, name: str) -> list[Row]:
        """Return all jobs of a case, by their name."""
        words = ("--noheader", "--parsable2", "--duplicates", "--units=M", f"--format={','.join(FIELDS)}")
        return read_sacct(self.call("sacct", "--allusers", f"--name=medweave.{name}", *words).stdout)

    def final_rows(self, name: str) -> list[Row]:
        """Return all jobs of a case once they have ended in sacct, or after a time limit."""
        deadline = time.monotonic() + SACCT_S
        while True:
            rows = self.jobs(name)
            if (rows and all(row.state in ENDED for row in rows)) or time.monotonic() > deadline:
                return rows
            time.sleep(0.3)

    def replaced(self, rows: Sequence[Row]) -> int:
        """Return how often the controller has logged that it started one of these jobs again."""
        log = self.testbed.layout.log / "slurmctld.log"
        return read_replaced(log.read_text(encoding="utf-8", errors="replace"), {row.job_id for row in rows})

    def living(self, name: str) -> list[str]:
        """Return the jobs of a case in the controller's queue or on nodes."""
        outcome = self.call(
            "squeue", "--noheader", f"--name=medweave.{name}", f"--states={LIVING}", "--format=job %i %T"
        )
        return outcome.stdout.splitlines() if outcome.returncode == 0 else [f"squeue: {outcome.stderr.strip()}"]

    def job_id(self, name: str) -> str:
        """Return the id of the job of a case; empty if it has none yet."""
        job_ids = self.call(
            "squeue", "--noheader", f"--name=medweave.{name}", "--states=all", "--format=%i"
        ).stdout.split()
        return job_ids[-1] if job_ids else ""

    def boot_time(self) -> str:
        """Return the start time of the controller by its configuration; empty if it does not answer."""
        lines = self.call("scontrol", "show", "config").stdout.splitlines()
        return next((line.partition("=")[2].strip() for line in lines if line.startswith("BOOT_TIME")), "")

    def saved_at(self) -> float:
        """Return when the controller last saved its jobs, s since 1970."""
        file = self.testbed.layout.slurm / "site/var/lib/slurm/slurmctld/job_state"
        return file.stat().st_mtime if file.exists() else 0.0

    # ---- changes

    @contextlib.contextmanager
    def shared_partition(self) -> Iterator[None]:
        """Create a partition whose jobs share cores, for the block."""
        self.call("scontrol", "delete", f"partitionname={PARTITION}")
        words = ("Nodes=n1,n2", f"OverSubscribe=FORCE:{SHARED}", "MaxTime=1-00:00:00", "DefaultTime=01:00:00")
        more = ("PriorityTier=1", "PreemptMode=CANCEL", "State=UP")
        self.done("scontrol", "create", f"partitionname={PARTITION}", *words, *more)
        try:
            yield
        finally:
            self.call("scontrol", "delete", f"partitionname={PARTITION}")

    def resume(self, node: str) -> None:
        """Resume a node and wait until Slurm reports it up."""
        self.call("scontrol", "update", f"nodename={node}", "state=resume")
        wait_for(lambda: True if node_trouble(bed(), node) is None else None, f"node {node} is back", deadline_s=60)

    @contextlib.contextmanager
    def confined(self, node: str) -> Iterator[None]:
        """Run a node with control groups for the block; the configuration of the other nodes is unchanged."""
        testbed = bed()
        folder = testbed.layout.slurm / "confined"
        folder.mkdir(exist_ok=True)
        usual = (testbed.layout.slurm / "etc" / "slurm.conf").read_text(encoding="utf-8")
        (folder / "slurm.conf").write_text(confined_conf(usual), encoding="utf-8")
        (folder / "cgroup.conf").write_text(CGROUP_CONF, encoding="utf-8")
        (folder / "gres.conf").write_bytes((testbed.layout.slurm / "etc" / "gres.conf").read_bytes())
        script = f"hostname {node} && exec slurmd -D -N {node} -f {folder}/slurm.conf"
        path = f"{testbed.layout.environment}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        try:
            testbed.daemons.start(
                f"slurmd-{node}",
                ["unshare", "--uts", "/bin/sh", "-c", script],
                view="hpc",
                environment={"PATH": path},
            )
            self.resume(node)
            yield
        finally:
            start_node(testbed, node)
            self.resume(node)
            for file in sorted(folder.iterdir()):
                file.unlink()
            folder.rmdir()


CGROUP_CONF = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainCores=no\nConstrainDevices=no\n"


def confined_conf(usual: str) -> str:
    """Return the slurm.conf of a node that limits memory by control groups."""
    lines = [line for line in usual.splitlines() if not line.startswith("JobAcctGatherParams=")]
    return "\n".join("TaskPlugin=task/cgroup" if line.startswith("TaskPlugin=") else line for line in lines) + "\n"


def bed() -> Testbed:
    """Return the tools of the testbed."""
    return make_testbed(dict(os.environ))


def restarted(daemon: str, *, after_s: float) -> None:
    """Kill a daemon of the testbed with SIGKILL, start it again after a while, and wait until it is healthy."""
    testbed = bed()
    (part,) = [part for part in parts_of(testbed.layout, existing_cluster=False) if part.daemon == daemon]
    pid = testbed.daemons.pid(daemon)
    testbed.commands.run([*testbed.walls.inside(), "kill", "-KILL", str(pid)])
    time.sleep(after_s)
    bring_up(part, testbed)


def _mebibytes(text: str) -> float | None:
    number = text.rstrip("cnM")
    try:
        return float(number)
    except ValueError:
        return None


def describe_rows(rows: Sequence[Row]) -> str:
    """Return all jobs of a case in words."""
    return " and ".join(row.summary for row in rows) or "no job"
