"""One case of the campaign: a run whose driver is killed, the runs that resume it, and their common result."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resume.drivers import Driver, Event, events_of, logs_of
from resume.pod_watch import judge_releases
from resume.stage import FINAL, REPLICAS, Stage
from resume.verdict import doubled, repeated, submitted

SACCT = "sacct --allocations --parsable2 --noheader --starttime now-2hours --format JobName%100,WorkDir%300"


@dataclass(frozen=True, kw_only=True)
class Case:
    """The result of a kill, or of several in a row.

    Attributes:
        killed_after: the events after which drivers were killed; an empty text if it had ended before.
        resumed_by: the command that resumed the run.
        exit_code: exit code of the last run.
        same_result: whether its outputs equal those of an undisturbed run, by SHA-256.
        doubled_jobs: number of extra jobs in Slurm's accounting.
        repeated_steps: number of repeated steps in the event logs.
        slurm_jobs: number of submitted Slurm jobs.
        releases: number of releases with pods at the API server; one for each run that got so far.
        doubled_pods: extra pods: ready while another release's was, beyond the replicas, or of more releases than runs.
        seconds: duration of the last run.
    """

    name: str
    killed_after: tuple[str, ...]
    resumed_by: str
    exit_code: int
    same_result: bool
    doubled_jobs: int
    repeated_steps: int
    slurm_jobs: int
    releases: int
    doubled_pods: int
    seconds: float

    @property
    def is_good(self) -> bool:
        """Return whether all results are correct."""
        resumed = self.exit_code == 0 and self.same_result and all(self.killed_after)
        return resumed and not self.doubled_jobs and not self.doubled_pods and not self.repeated_steps


def undisturbed(
    stage: Stage, name: str, *, training: bool = False, alone: bool = False
) -> tuple[dict[str, str], list[Event], float]:
    """Run without a kill; return the digests of the outputs, the events and the duration in s.

    Args:
        training, alone: as `Stage.write`.
    """
    bound = stage.write(name, training=training, alone=alone)
    started = time.monotonic()
    driver = Driver(bound, stage.environment)
    code = driver.wait()
    seconds = time.monotonic() - started
    assert code == 0, (bound.parent / "driver.txt").read_text()[-5000:]
    outputs = digests(bound.parent / "results")
    assert outputs, "the run has delivered nothing"
    events = driver.events()
    clean(stage, name)
    return outputs, events, seconds


def play(
    stage: Stage,
    name: str,
    kills: Sequence[Callable[[Event], bool]],
    expected: Mapping[str, str],
    *,
    training: bool = False,
    plain: bool = False,
) -> Case:
    """Kill a driver after an event, resume, kill after the next event and so on, and compare the final outputs.

    Args:
        kills: tests for these events.
        expected: digests of an undisturbed run.
        plain: whether the same file is started again; else `medweave run --resume`.
    """
    bound = stage.write(name, training=training)
    driver, killed_after = Driver(bound, stage.environment), list[str]()
    for is_it in kills:
        after = driver.kill_after(is_it)
        killed_after.append("" if after is None else " ".join((after["type"], after["job"] or "")).strip())
        started, earlier = time.monotonic(), None if plain else driver.run
        driver = Driver(bound, stage.environment, resumes=earlier)
    code = driver.wait()
    seconds = time.monotonic() - started
    runs = [events_of(log.parent) for log in logs_of(bound.parent)]
    pods = judge_releases(stage.pods.so_far(), stage.deployment(name), replicas=REPLICAS)
    sacct, scratch = stage.testbed.hpc("sh", "-c", SACCT).stdout, str(stage.scratch(name))
    case = Case(
        name=name,
        killed_after=tuple(killed_after),
        resumed_by="streamflow run" if earlier is None else "medweave run --resume",
        exit_code=code,
        same_result=digests(bound.parent / "results") == expected,
        doubled_jobs=sum(doubled(sacct, scratch).values()),
        repeated_steps=sum(repeated(*runs).values()),
        slurm_jobs=submitted(sacct, scratch),
        releases=len(pods.releases),
        doubled_pods=pods.doubled + max(0, len(pods.releases) - len(runs)),
        seconds=round(seconds, 1),
    )
    if case.is_good:
        clean(stage, name)
    return case


def digests(results: Path) -> dict[str, str]:
    """Return the SHA-256 of the delivered masks, tables and weights, by path."""
    files = [path for path in sorted(results.rglob("*")) if path.name in FINAL]
    return {path.relative_to(results).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def clean(stage: Stage, name: str) -> None:
    """Remove the files of a case at the sites and here."""
    for folder in (stage.scratch(name), stage.volume(name), stage.folder / name):
        shutil.rmtree(folder, ignore_errors=True)
