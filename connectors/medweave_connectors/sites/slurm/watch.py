"""Polls all jobs of a deployment with one query at a time: their output, and whether they seem to have ended.

A failed query says nothing about a job. Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from medweave_connectors.host.deadlines import ResponseDeadline, SiteUnresponsive, reason_of
from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.host.token_bucket import TokenBucket
from medweave_connectors.jobs import queue_messages
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import QueueEntry, QueuePoll, parse_poll
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from medweave_connectors.sites.slurm.states import PERMANENT_PENDING_REASONS, SlurmJobState, state_of

SHORTEST_S, LONGEST_FOLLOW_S = 0.5, 2.0
LONGEST_S, LONGEST_WAITING_S = 10.0, 30.0  # between two queries of the queue: with running jobs, and without
BURST, PER_SECOND = 10, 2 / 3  # at most 30 queries in any 30 s
FOLLOWED_AT_ONCE = 16
WAIT_NOTICE_S = 5.0


def interval_s(since_change_s: float, longest_s: float) -> float:
    """Return the time to the next query: a tenth of the time since the last change, within limits."""
    return min(max(since_change_s / 10, SHORTEST_S), longest_s)


class QueryRate(TokenBucket):
    """Rate limit of queries to the controller."""

    def __init__(self) -> None:
        super().__init__(BURST, PER_SECOND)


class WatchEnded(Exception):
    """The watcher was cancelled while jobs waited for it."""


class NeverStarts(Exception):
    """The job is pending for a permanent reason; the argument is Slurm's Reason."""


@dataclass(eq=False, slots=True)
class WatchedJob:
    """A pending or running job.

    Attributes:
        followed: the file whose new bytes are passed to `on_text`.
        on_notice: called with a sentence for the user.
        seems_ended: resolved when Slurm reports an end or no longer has the job; fails with an exception of this module.
    """

    job_id: str
    files: SlurmJobFiles
    followed: str
    on_text: Callable[[bytes], None]
    on_notice: Callable[[str], None]
    seems_ended: asyncio.Future[None]
    offset: int = 0
    word: str = ""
    since: float = field(default_factory=time.monotonic)
    last_notice: tuple[str, str] = ("", "")
    script_ended: bool = False


class JobWatcher:
    """The one task that polls."""

    def __init__(self, run_line: Callable[[str], Awaitable[str]], rate: QueryRate) -> None:
        """Create it; no query runs before there is a job.

        Args:
            run_line: runs a line on the login node and returns its output, or raises.
            rate: limits the rate of all queries.
        """
        self._run_line, self._rate = run_line, rate
        self._jobs: list[WatchedJob] = []
        self._task: asyncio.Task[None] | None = None
        self._queue_asked = 0.0
        self._deadline = ResponseDeadline("Slurm", self._notify_all)
        self._state_changed = self._text_changed = 0.0
        self._next = 0

    async def until_end(self, job: WatchedJob) -> None:
        """Return when the job seems to have ended.

        Raises:
            SiteUnresponsive: Slurm has not answered for half an hour.
            NeverStarts: the job cannot start.
        """
        now = time.monotonic()
        if not self._jobs:
            self._deadline = ResponseDeadline("Slurm", self._notify_all)
        self._jobs.append(job)
        self._state_changed = self._text_changed = now
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await job.seems_ended
        finally:
            self._jobs.remove(job)

    async def close(self) -> None:
        """End the polling."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        """Poll until no job waits. If the task dies, each waiter gets its error and none waits forever."""
        try:
            await self._poll()
        except BaseException as error:
            for job in self._jobs:
                _resolve(
                    job, error if isinstance(error, Exception) else WatchEnded("the watcher of jobs was cancelled")
                )
            if not isinstance(error, Exception):
                raise

    async def _poll(self) -> None:
        while self._jobs:
            now = time.monotonic()
            pause = interval_s(now - max(self._text_changed, self._state_changed), LONGEST_FOLLOW_S)
            await asyncio.sleep(pause)
            if not self._jobs:
                return
            followers = self._turn()
            parts = [
                commands.follow(number, job.files, job.followed, job.offset) for number, job in enumerate(followers)
            ]
            now = time.monotonic()
            longest_s = LONGEST_S if followers else LONGEST_WAITING_S
            is_due = now - self._queue_asked >= interval_s(now - self._state_changed, longest_s)
            if is_due and self._rate.take(now):
                parts.append(commands.queue())
                self._queue_asked = now
            if not parts:
                continue
            try:
                polled = parse_poll(await self._run_line(commands.poll(*parts)))
            except Exception as error:  # any failure: nothing is known
                polled = QueuePoll(error=reason_of(error))
            self._take(polled, followers)

    def _turn(self) -> list[WatchedJob]:
        """Return some of the running jobs, the next ones each time, to limit processes on the login node."""
        running = [job for job in self._jobs if state_of(job.word) is not SlurmJobState.WAITING]
        start = self._next % max(len(running), 1)
        self._next = start + FOLLOWED_AT_ONCE
        return (running[start:] + running[:start])[:FOLLOWED_AT_ONCE]

    def _take(self, polled: QueuePoll, followers: list[WatchedJob]) -> None:
        now = time.monotonic()
        for number, data in polled.text.items():
            if data and number < len(followers):
                job = followers[number]
                job.offset += len(data)
                self._text_changed = now
                with _only_of(job):
                    job.on_text(data)
        for number in polled.ended:
            if number < len(followers) and not followers[number].script_ended:
                followers[number].script_ended = True
                self._state_changed = now  # Slurm will report the end in a moment
        if polled.answered:
            self._deadline.answered()
            for job in self._jobs:
                with _only_of(job):
                    self._take_state(job, polled.jobs.get(job.job_id, QueueEntry()), now=now)
            return
        try:
            self._deadline.no_answer(polled.error)
        except SiteUnresponsive as error:
            for job in self._jobs:
                _resolve(job, error)

    def _notify_all(self, text: str) -> None:
        for job in self._jobs:
            job.on_notice(text)

    def _take_state(self, job: WatchedJob, queued: QueueEntry, *, now: float) -> None:
        word, state = queued.word, state_of(queued.word)
        if state is SlurmJobState.WAITING and state_of(job.word) is SlurmJobState.RUNNING:
            job.on_notice("Slurm requeued the job; it will restart")
            job.since, job.last_notice, job.script_ended = now, ("", ""), False
        if state is SlurmJobState.RUNNING and state_of(job.word) is SlurmJobState.WAITING and any(job.last_notice):
            job.last_notice = ("", "")
            job.on_notice(queue_messages.runs_now(now - job.since))
        if word in ("SUSPENDED", "STOPPED") and job.last_notice != (word, ""):
            job.last_notice = word, ""
            job.on_notice(f"Slurm suspended the job ({word}); it will continue from where it was")
        if word != job.word:
            job.word, self._state_changed = word, now
        if not word or state.ended:
            _resolve(job, None)
        elif state is SlurmJobState.WAITING and queued.reason in PERMANENT_PENDING_REASONS:
            _resolve(job, NeverStarts(queued.reason))
        elif state is SlurmJobState.WAITING and now - job.since > WAIT_NOTICE_S and queued.reason != "None":
            _notify_wait(job, queued)


def _notify_wait(job: WatchedJob, queued: QueueEntry) -> None:
    """Notify why the job waits, and until when; again when the reason or the expected hour changes."""
    if job.last_notice != (notice := (queued.reason, queued.start[: len("2026-11-22T10")])):
        job.last_notice = notice
        until = f"; Slurm expects it to start at {queued.start} of the site's clock" if queued.start else ""
        job.on_notice(f"waits in the queue: {queued.reason}{until}")


@contextlib.contextmanager
def _only_of(job: WatchedJob) -> Iterator[None]:
    """Keep an error of one job's text or notices from the jobs that the same task watches."""
    try:
        yield
    except Exception as error:
        _resolve(job, error)


def _resolve(job: WatchedJob, error: Exception | None) -> None:
    if job.seems_ended.done():
        return
    if error is None:
        job.seems_ended.set_result(None)
    else:
        job.seems_ended.set_exception(error)
