"""Watches all jobs of a deployment by one query at a time: what they print, and when they seem to have ended.

A query that fails says nothing about a job. No streamflow in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import Polled, Queued, read_poll
from medweave_connectors.sites.slurm.deadlines import Patience, SiteSilent, reason_of
from medweave_connectors.sites.slurm.script import JobFiles
from medweave_connectors.sites.slurm.states import HOPELESS_REASONS, JobState, state_of
from medweave_core.contracts.progress import duration

SHORTEST_S, LONGEST_FOLLOW_S = 0.5, 2.0
LONGEST_S, LONGEST_WAITING_S = 10.0, 30.0  # between two questions about the queue: with jobs on nodes, and without
BURST, PER_SECOND = 10, 2 / 3  # 30 questions in any 30 s at most, whatever happens meanwhile
FOLLOWED_AT_ONCE = 16
WAIT_NOTICE_S = 5.0


def interval_s(since_change_s: float, longest_s: float) -> float:
    """Time to the next query: short while something happens, a tenth of the quiet otherwise."""
    return min(max(since_change_s / 10, SHORTEST_S), longest_s)


class Pace:
    """How often the controller may be asked, when hundreds of jobs start and end: a bucket that fills steadily."""

    def __init__(self) -> None:
        self._left, self._since = float(BURST), 0.0

    def take(self, now: float) -> bool:
        """Whether one more question is allowed at this time, s."""
        self._left = min(BURST, self._left + (now - self._since) * PER_SECOND)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class WatchEnded(Exception):
    """The watcher was cancelled while jobs waited for it."""


class NeverStarts(Exception):
    """The job waits for a reason that does not go away; the argument is Slurm's word for it."""


@dataclass(eq=False, slots=True)
class WatchedJob:
    """A job in the queue or on its nodes.

    Attributes:
        followed: the file whose new bytes go to `on_text`.
        on_notice: gets a sentence for the user.
        seems_ended: set when Slurm says so, or no longer knows the job; an exception of this module otherwise.
    """

    job_id: str
    files: JobFiles
    followed: str
    on_text: Callable[[bytes], None]
    on_notice: Callable[[str], None]
    seems_ended: asyncio.Future[None]
    offset: int = 0
    word: str = ""
    since: float = field(default_factory=time.monotonic)
    told: tuple[str, str] = ("", "")
    script_ended: bool = False


class Watch:
    """The one task that asks."""

    def __init__(self, ask: Callable[[str], Awaitable[str]], pace: Pace) -> None:
        """Asks nothing before there is a job.

        Args:
            ask: runs a line on the login node and returns its output, or raises.
            pace: of all questions.
        """
        self._ask, self._pace = ask, pace
        self._jobs: list[WatchedJob] = []
        self._task: asyncio.Task[None] | None = None
        self._queue_asked = 0.0
        self._patience = Patience(self._tell_all)
        self._state_changed = self._text_changed = 0.0
        self._next = 0

    async def until_end(self, job: WatchedJob) -> None:
        """Returns when the job seems to have ended.

        Raises:
            SiteSilent, NeverStarts: it will not be known, or not be.
        """
        now = time.monotonic()
        if not self._jobs:
            self._patience = Patience(self._tell_all)
        self._jobs.append(job)
        self._state_changed = self._text_changed = now
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())
        try:
            await job.seems_ended
        finally:
            self._jobs.remove(job)

    async def _go_on(self) -> None:
        """Poll until no job is left. If the task dies, each waiter gets its error and none waits for ever."""
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
            followers = self._turn()
            parts = [
                commands.follow(number, job.files, job.followed, job.offset) for number, job in enumerate(followers)
            ]
            now = time.monotonic()
            longest_s = LONGEST_S if followers else LONGEST_WAITING_S
            is_due = now - self._queue_asked >= interval_s(now - self._state_changed, longest_s)
            if is_due and self._pace.take(now):
                parts.append(commands.queue())
                self._queue_asked = now
            if not parts:
                continue
            try:
                polled = read_poll(await self._ask(commands.poll(*parts)))
            except Exception as error:  # whatever broke, nothing is known
                polled = Polled(said=reason_of(error))
            self._take(polled, followers)

    def _turn(self) -> list[WatchedJob]:
        """Some of the jobs on nodes, the next ones each time: a login node is no place for hundreds of processes."""
        going = [job for job in self._jobs if state_of(job.word) is not JobState.WAITING]
        start = self._next % max(len(going), 1)
        self._next = start + FOLLOWED_AT_ONCE
        return (going[start:] + going[:start])[:FOLLOWED_AT_ONCE]

    def _take(self, polled: Polled, followers: list[WatchedJob]) -> None:
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
                self._state_changed = now  # Slurm will say so in a moment
        if polled.answered:
            self._patience.answered()
            for job in self._jobs:
                with _only_of(job):
                    self._take_state(job, polled.jobs.get(job.job_id, Queued()), now=now)
            return
        try:
            self._patience.silent(polled.said)
        except SiteSilent as error:
            for job in self._jobs:
                _resolve(job, error)

    def _tell_all(self, text: str) -> None:
        for job in self._jobs:
            job.on_notice(text)

    def _take_state(self, job: WatchedJob, queued: Queued, *, now: float) -> None:
        word, state = queued.word, state_of(queued.word)
        if state is JobState.WAITING and state_of(job.word) is JobState.GOING:
            job.on_notice("Slurm has stopped it and put it back into the queue; it will start anew")
            job.since, job.told, job.script_ended = now, ("", ""), False
        if state is JobState.GOING and state_of(job.word) is JobState.WAITING and any(job.told):
            job.told = ("", "")
            job.on_notice(f"runs now, after {duration(now - job.since)} in the queue")
        if word in ("SUSPENDED", "STOPPED") and job.told != (word, ""):
            job.told = word, ""
            job.on_notice(f"Slurm has stopped it for a while ({word}); it will go on from where it was")
        if word != job.word:
            job.word, self._state_changed = word, now
        if not word or state.ended:
            _resolve(job, None)
        elif state is JobState.WAITING and queued.reason in HOPELESS_REASONS:
            _resolve(job, NeverStarts(queued.reason))
        elif state is JobState.WAITING and now - job.since > WAIT_NOTICE_S and queued.reason != "None":
            _tell_wait(job, queued)


def _tell_wait(job: WatchedJob, queued: Queued) -> None:
    """Says why it waits, and until when; again when the reason is another one, or the expected hour."""
    if job.told != (told := (queued.reason, queued.start[: len("2026-11-22T10")])):
        job.told = told
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
