"""Submission of a job exactly once, also if sbatch's answer is lost. Does not import streamflow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from medweave_connectors.host.deadlines import ResponseDeadline, reason_of
from medweave_connectors.host.token_bucket import TokenBucket
from medweave_connectors.sites.slurm import commands, messages
from medweave_connectors.sites.slurm.answers import QueuePoll, parse_poll, parse_submission
from medweave_connectors.sites.slurm.script import SlurmJobFiles

UNKNOWN_LOOKS = 5  # tries of a submission without result, while Slurm answers and has no such job
LOOK_PAUSE_S = 2.0

# Together with the queries (`watch`): 30 requests at once and 2 per second, which is what Slurm allows each user where
# `SlurmctldParameters=rl_enable` is set and its defaults are kept.
BURST, PER_SECOND = 20, 4 / 3

RunLine = Callable[[str], Awaitable[str]]


class SubmissionRate(TokenBucket):
    """Rate limit of submissions: hundreds of jobs may become ready at once."""

    def __init__(self) -> None:
        super().__init__(BURST, PER_SECOND)


class SubmissionRefused(Exception):
    """sbatch refused the job; the argument is its error output."""


class SubmissionLost(Exception):
    """The submitting line does not finish, and Slurm has no such job; the argument is the last error."""


async def submit(
    run_line: RunLine,
    sbatch: Sequence[str],
    files: SlurmJobFiles,
    scripts: Mapping[str, str],
    key: str,
    *,
    rate: TokenBucket,
    deadline: ResponseDeadline,
    note_sent: Callable[[bool], None],
) -> str:
    """Submit a job and return its id.

    Without a complete answer, the job is looked up by its key before it is submitted again.

    Args:
        run_line: runs a line on the login node and returns its output, or raises.
        sbatch: its words.
        scripts: path to text.
        key: in the job's comment.
        rate: limits the rate of submissions.
        deadline: for a controller that does not answer, started with this submission.
        note_sent: called with True when Slurm may have the job from now on, with False when it has not.

    Raises:
        SubmissionRefused: sbatch refused the job.
        SubmissionLost: the submitting line had no result; Slurm answers and has no such job.
        SiteUnresponsive: Slurm did not answer for half an hour.
    """
    line, unknown = commands.submit(sbatch, files, scripts), 0
    while True:
        job_id = refusal = message = ""
        await rate.wait()
        note_sent(True)
        try:
            job_id, refusal = parse_submission(await run_line(line))
        except Exception as error:  # any failure: it is unknown whether sbatch ran
            message = reason_of(error)
        if refusal and not messages.is_unanswered(refusal):
            deadline.answered()
            raise SubmissionRefused(refusal)
        note_sent(not messages.is_not_sent(refusal))
        job_id = job_id or await look_up(run_line, key, deadline, refusal or message)
        if job_id:
            note_sent(True)
            deadline.answered()
            return job_id
        note_sent(False)
        if refusal:  # this sbatch has ended; otherwise it may still run, and its claim stays
            deadline.no_answer(refusal)
            await _quietly(run_line, commands.open_claim(files))
        elif (unknown := unknown + 1) == UNKNOWN_LOOKS:
            raise SubmissionLost(message or "its files could not be written there, or sbatch does not return")


async def look_up(run_line: RunLine, key: str, deadline: ResponseDeadline, message: str = "") -> str:
    """Return the id of the job with this key; empty if Slurm answered and has none.

    Args:
        message: why it is looked up.

    Raises:
        SiteUnresponsive: Slurm has not answered for half an hour.
    """
    answers = 0
    while answers < 2:  # a controller that was busy may show a job a moment later
        await asyncio.sleep(LOOK_PAUSE_S if answers else deadline.pause_s)
        try:
            polled = parse_poll(await run_line(commands.poll(commands.queue())))
        except Exception as error:  # any failure: nothing is known
            polled = QueuePoll(error=reason_of(error))
        if job_id := polled.by_key.get(key):
            return job_id
        answers += polled.answered
        if not polled.answered:
            deadline.no_answer(polled.error or message)
    return ""


async def _quietly(run_line: RunLine, line: str) -> None:
    try:
        await run_line(line)
    except Exception:  # the next try finds the claim and repeats this
        return
