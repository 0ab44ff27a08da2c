"""What the user hears of a job that waits in Slurm's queue, and then does not."""

from __future__ import annotations

import asyncio
from typing import Any

from medweave_connectors.sites.slurm.answers import QueueEntry
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from medweave_connectors.sites.slurm.watch import JobWatcher, QueryRate, WatchedJob


def notices_of(*looks: tuple[float, QueueEntry]) -> list[str]:
    """The notices of a job that was submitted at 0 s and looked at then and then, s."""

    async def watched() -> list[str]:
        notices: list[str] = []
        nothing: Any = None
        ended = asyncio.get_running_loop().create_future()
        files = SlurmJobFiles("/scratch/job")
        job = WatchedJob("4711", files, "", nothing, notices.append, ended, since=0.0)
        watch = JobWatcher(nothing, QueryRate())
        for now_s, queued in looks:
            watch._take_state(job, queued, now=now_s)
        return notices

    return asyncio.run(watched())


def test_the_end_of_a_wait_is_told_as_its_reason_was() -> None:
    waits, runs = QueueEntry(word="PENDING", reason="Priority"), QueueEntry(word="RUNNING")
    assert notices_of((6.0, waits), (66.0, waits), (126.0, runs), (127.0, runs)) == [
        "waits in the queue: Priority",
        "runs now, after 2 min 06 s in the queue",
    ]


def test_a_job_that_starts_at_once_is_no_news() -> None:
    assert notices_of((1.0, QueueEntry(word="PENDING", reason="None")), (2.0, QueueEntry(word="RUNNING"))) == []
