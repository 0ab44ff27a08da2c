"""Slurm as the campaign asks and breaks it: as its administrator, by Slurm's own programs, without a connector of ours."""

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

# Jobs that sleep do not need a core each: they share.
PARTITION, SHARED = "faults", 32
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "End", "NodeList", "ReqMem", "MaxRSS")
SACCT_S = 30.0  # accounting may lag behind
LIVING = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job as sacct tells it.

    Attributes:
        state: its first word.
        end: s since 1970; None before it.
        asked_mib, peak_mib: memory that it asked for, and the most that one of its steps was seen to use, MiB.
    """

    job_id: str
    state: str
    exit_code: str
    end: float | None
    nodes: str
    asked_mib: float | None
    peak_mib: float | None

    @property
    def word(self) -> str:
        """For people."""
        return f"{self.state} {self.exit_code} on {self.nodes}"


def read_sacct(text: str) -> list[Row]:
    """Rows of `sacct --parsable2 --noheader --units=M` with `FIELDS`: one per job, its steps' memory in it. Pure."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == len(FIELDS) - 1]
    jobs = []
    for job_id, _, state, exit_code, end, nodes, asked, _ in rows:
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
                asked_mib=_mebibytes(asked),
                peak_mib=max(known, default=None),
            )
        )
    return jobs


def read_replaced(log: str, job_ids: Collection[str]) -> int:
    """How often a controller that came back found a job on a node that it had in its queue. Pure.

    It saves its state every few seconds: killed just after a job's start, it knows nothing of it, ends what runs on the node, and
    starts the job anew (Slurm 22.05). The same job id, and no restart in its count.

    Args:
        log: of slurmctld.
    """
    found = re.findall(r"Registered PENDING JobId=(\d+) StepId=\d+\.batch on node", log)
    return sum(job_id in job_ids for job_id in found)


class Slurm:
    """The testbed's Slurm."""

    def __init__(self, testbed: Sites) -> None:
        self.testbed = testbed
        self._inside = testbed.words_inside("hpc")

    def call(self, *words: str) -> Outcome:
        """Runs a program as root, with the site's view."""
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURM_TIME_FORMAT": "%s", "LANG": "C.UTF-8"}
        return subprocess.run(
            [*self._inside, *words], capture_output=True, text=True, timeout=60, check=False, env=environment
        )

    def done(self, *words: str) -> str:
        """The same, for what must not fail."""
        outcome = self.call(*words)
        if outcome.returncode:
            raise RuntimeError(f"`{' '.join(words)}`: {outcome.stderr.strip() or outcome.stdout.strip()}")
        return outcome.stdout

    # ---- what it says

    def jobs(self, name: str) -> list[Row]:
        """All jobs of a case, by their name."""
        words = ("--noheader", "--parsable2", "--duplicates", "--units=M", f"--format={','.join(FIELDS)}")
        return read_sacct(self.call("sacct", "--allusers", f"--name=medweave.{name}", *words).stdout)

    def last_words(self, name: str) -> list[Row]:
        """The same, when all of them have ended as sacct says, or after a while."""
        deadline = time.monotonic() + SACCT_S
        while True:
            rows = self.jobs(name)
            if (rows and all(row.state in ENDED for row in rows)) or time.monotonic() > deadline:
                return rows
            time.sleep(0.3)

    def replaced(self, rows: Sequence[Row]) -> int:
        """Times that the controller itself says it has started one of these jobs again."""
        log = self.testbed.layout.log / "slurmctld.log"
        return read_replaced(log.read_text(encoding="utf-8", errors="replace"), {row.job_id for row in rows})

    def living(self, name: str) -> list[str]:
        """The jobs of a case that the controller has in its queue or on nodes."""
        told = self.call("squeue", "--noheader", f"--name=medweave.{name}", f"--states={LIVING}", "--format=job %i %T")
        return told.stdout.splitlines() if told.returncode == 0 else [f"squeue: {told.stderr.strip()}"]

    def job_id(self, name: str) -> str:
        """The id of the job of a case; empty where it has none yet."""
        told = self.call(
            "squeue", "--noheader", f"--name=medweave.{name}", "--states=all", "--format=%i"
        ).stdout.split()
        return told[-1] if told else ""

    def boot_time(self) -> str:
        """When the controller was started, in its own words; empty where it does not answer."""
        told = self.call("scontrol", "show", "config").stdout.splitlines()
        return next((line.partition("=")[2].strip() for line in told if line.startswith("BOOT_TIME")), "")

    def saved_at(self) -> float:
        """When the controller has saved its jobs last, s since 1970."""
        file = self.testbed.layout.slurm / "site/var/lib/slurm/slurmctld/job_state"
        return file.stat().st_mtime if file.exists() else 0.0

    # ---- what is done to it

    @contextlib.contextmanager
    def shared_partition(self) -> Iterator[None]:
        """A partition whose jobs share cores, while the block runs."""
        self.call("scontrol", "delete", f"partitionname={PARTITION}")
        words = ("Nodes=n1,n2", f"OverSubscribe=FORCE:{SHARED}", "MaxTime=1-00:00:00", "DefaultTime=01:00:00")
        more = ("PriorityTier=1", "PreemptMode=CANCEL", "State=UP")
        self.done("scontrol", "create", f"partitionname={PARTITION}", *words, *more)
        try:
            yield
        finally:
            self.call("scontrol", "delete", f"partitionname={PARTITION}")

    def resume(self, node: str) -> None:
        """Puts a node back to work, and waits until Slurm says that it is."""
        self.call("scontrol", "update", f"nodename={node}", "state=resume")
        wait_for(lambda: True if node_trouble(bed(), node) is None else None, f"node {node} is back", deadline_s=60)

    @contextlib.contextmanager
    def confined(self, node: str) -> Iterator[None]:
        """A node whose jobs are confined by control groups, while the block runs; the others know nothing of it."""
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
    """slurm.conf of a node that leaves memory to the kernel's control groups. Pure."""
    lines = [line for line in usual.splitlines() if not line.startswith("JobAcctGatherParams=")]
    return "\n".join("TaskPlugin=task/cgroup" if line.startswith("TaskPlugin=") else line for line in lines) + "\n"


def bed() -> Testbed:
    """The testbed's own tools."""
    return make_testbed(dict(os.environ))


def restarted(daemon: str, *, after_s: float) -> None:
    """Kills a daemon of the testbed with SIGKILL, and starts it again after a while; returns when it is healthy."""
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


def words_of(rows: Sequence[Row]) -> str:
    """For people: all jobs of a case."""
    return " and ".join(row.word for row in rows) or "no job"
