"""A connector at work in a test: a description of its site, commands and jobs over it, and their leftovers."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.jobs import job_requests
from medweave_connectors.runlog import current_run
from medweave_connectors.runlog.run import RunRecord
from support.engine import wait_until
from support.processes import processes_with

Act = Callable[[Any, ExecutionLocation], Awaitable[Any]]
JOB = "/train/0"
FIGURES = 'medweave-progress {"unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x"}'
TOKEN = "MEDWEAVE_CONTRACT"  # marks a job's processes
# One that waits for two others, of which one takes no hints.
SLEEPER = "(trap '' TERM INT HUP; while :; do sleep 0.2; done) & sleep 600 & echo ready > begun; wait"


def no_cut() -> None:
    """Raise an error: the site has no connections."""
    raise AssertionError("there is no connection to cut")


@dataclass(frozen=True, kw_only=True)
class Site:
    """The properties of a back-end that tests need.

    Attributes:
        connectors: creates them, each wrapped one before its wrapper; the last is the one under test.
        folder: an absolute path at the site, that commands may make and fill.
        read: the text of a file at the site, not through the connector; empty if it is missing.
        cut: breaks all connections to the site; programs there keep running.
        service: as in a binding.
        external: the deployment exists before, and stays.
        odd_name: name of a folder that jobs can work in.
        kept_at: template of the reported place of a failed job's files.
        before_words: regular expression for the text before the step's own message.
        shortest_limit_s: a job's shortest time limit, s.
        time_limit: regular expression for the message when it is reached.
        broken_from, broken_to: the same for a stream whose command fails with "cut", or for lack of space.
        unknown: the same for a command whose connection is cut.
        lost: the same for a job.
        gone_s: time after a job's end until all its processes are gone, s.
        patience_s: longest time for a test's work over one connector, s.
    """

    connectors: Callable[[], Sequence[Any]]
    folder: str
    read: Callable[[str], str]
    cut: Callable[[], None] = no_cut
    service: str | None = None
    external: bool = False
    odd_name: str = 'it\'s-$HOME-`id`-"x"'
    kept_at: str = "{deployment}:{folder}"
    before_words: str = ""
    shortest_limit_s: int = 1
    time_limit: str = "the time limit of 1 s"
    broken_from: str = "no known reason"
    broken_to: str = "No space"
    unknown: str = "unknown"
    lost: str = "was lost"
    gone_s: float = 10
    patience_s: float = 60
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def work(self) -> str:
        """Return the default working directory of its jobs."""
        return f"{self.folder}/work"

    def folder_of_failed_job(self, deployment: str, place: str, folder: str) -> str:
        """Return the expected report of where a failed job's files are."""
        return self.kept_at.format(deployment=deployment, place=place, folder=folder)


def text_of(path: str) -> str:
    """Return the text of a file of this machine; empty if it is missing."""
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def using(site: Site, act: Act) -> Any:
    """Run `act` with a deployed connector; return its result."""
    return asyncio.run(used(site, act))


def side_by_side(*pairs: tuple[Site, Act]) -> list[Any]:
    """Run several acts at the same time; return their results."""

    async def go() -> list[Any]:
        return await asyncio.gather(*(used(site, act) for site, act in pairs))

    return asyncio.run(go())


async def used(site: Site, act: Act) -> Any:
    """Run `act` with a deployed connector, within the site's `patience_s`; return its result."""

    async def go() -> Any:
        connectors = site.connectors()
        begun: list[Any] = []
        try:
            for connector in connectors:
                begun.append(connector)
                await connector.deploy(site.external)
            (location,) = (await connectors[-1].get_available_locations(site.service)).values()
            return await act(connectors[-1], location.location)
        finally:
            for connector in reversed(begun):
                await connector.undeploy(site.external)

    return await asyncio.wait_for(go(), site.patience_s)


def say(script: str) -> list[str]:
    """Return the words of a command that runs a script in the site's shell."""
    return ["sh", "-c", shlex.quote(script)]


def begin_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """Begin a run record and make it the current one of this process."""
    record = RunRecord(folder / "runs", "lung")
    monkeypatch.setattr(current_run, "_runs", {"": record})
    record.begin()
    return record


def schedule(record: RunRecord, monkeypatch: pytest.MonkeyPatch, *jobs: str) -> None:
    """Register jobs as the scheduler does, with their requests."""
    for job in jobs:
        record.job_scheduled(job, deployment="there", service=None, location="here")
        monkeypatch.setitem(job_requests._jobs, job, job_requests.JobRequest(cores=1, memory_mib=256))


async def run_job(
    site: Site,
    connector: Any,
    place: ExecutionLocation,
    script: str,
    *,
    name: str = JOB,
    folder: str = "",
    environment: dict[str, str] | None = None,
    **keywords: Any,
) -> tuple[str, int]:
    """Create the job's folder and run the job; return the cause of a failure, and the exit code."""
    workdir = folder or site.work
    await connector.run(place, ["mkdir", "-p", shlex.quote(workdir)], capture_output=True)
    outcome: tuple[str, int] = await connector.run(
        place,
        say(script),
        environment={TOKEN: site.token} | (environment or {}),
        workdir=workdir,
        capture_output=True,
        job_name=name,
        **keywords,
    )
    return outcome


def job(site: Site, script: str, **keywords: Any) -> Act:
    """Return an act that runs a job, for `using`."""

    async def act(connector: Any, place: ExecutionLocation) -> tuple[str, int]:
        return await run_job(site, connector, place, script, **keywords)

    return act


async def sleeping(site: Site, connector: Any, place: ExecutionLocation) -> asyncio.Future[Any]:
    """Start a job of several processes that runs until it is canceled; return its future."""
    going = asyncio.ensure_future(run_job(site, connector, place, SLEEPER))
    await until(lambda: bool(site.read(f"{site.work}/begun")) or going.done())
    assert len(running(site)) >= 3, "the test sees the processes while they run"
    return going


async def until(condition: Callable[[], bool], within_s: float = 50) -> None:
    """Poll a condition without blocking the event loop; fail after the timeout."""
    await asyncio.to_thread(wait_until, condition, within_s)
    assert await asyncio.to_thread(condition), f"not within {within_s} s"


def running(site: Site) -> list[str]:
    """Return the command lines of the running processes of the site's jobs."""
    return processes_with(site.token, TOKEN)


def gone(site: Site) -> bool:
    """Return whether all processes of the site's jobs end in time."""
    # Each look reads the environments of all processes of this machine.
    wait_until(lambda: not running(site), site.gone_s, pause_s=0.1)
    return not running(site)
