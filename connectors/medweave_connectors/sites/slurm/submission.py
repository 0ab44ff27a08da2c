"""Submitting a job once, also where the answer is lost on its way. No streamflow in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from medweave_connectors.sites.slurm import commands, messages
from medweave_connectors.sites.slurm.answers import Polled, read_poll, read_submission
from medweave_connectors.sites.slurm.deadlines import Patience, reason_of
from medweave_connectors.sites.slurm.script import JobFiles

UNKNOWN_LOOKS = 5  # at a submission about which the login node can say nothing, while Slurm answers and has no such job
LOOK_PAUSE_S = 2.0

Ask = Callable[[str], Awaitable[str]]


class Refused(Exception):
    """sbatch said no; the argument is what it said."""


class NotTaken(Exception):
    """The line that submits does not come to its end, and Slurm has no such job; the argument is the last that was heard."""


async def submit(
    ask: Ask,
    sbatch: Sequence[str],
    files: JobFiles,
    scripts: Mapping[str, str],
    key: str,
    *,
    patience: Patience,
    may_have_it: Callable[[bool], None],
) -> str:
    """Submits and returns the job's id.

    Where no whole answer comes, the job is looked up by its key before it is submitted again.

    Args:
        ask: runs a line on the login node and returns its output, or raises.
        sbatch: its words.
        scripts: path to text.
        key: in the job's comment.
        patience: begun with this submission; a controller that is away is waited for as long.
        may_have_it: gets whether Slurm may have the job from now on.

    Raises:
        Refused: sbatch was heard and said no.
        NotTaken: it is not known what becomes of the line that submits; Slurm answers and has no such job.
        SiteSilent: Slurm could not be asked for half an hour.
    """
    line, unknown = commands.submit(sbatch, files, scripts), 0
    while True:
        job_id = refusal = said = ""
        may_have_it(True)
        try:
            job_id, refusal = read_submission(await ask(line))
        except Exception as error:  # whatever broke, it is not known whether sbatch was heard
            said = reason_of(error)
        if refusal and not messages.unanswered(refusal):
            patience.answered()
            raise Refused(refusal)
        may_have_it(not messages.never_heard(refusal))
        job_id = job_id or await look_up(ask, key, patience, refusal or said)
        if job_id:
            may_have_it(True)
            patience.answered()
            return job_id
        may_have_it(False)
        if refusal:  # this sbatch is over; else it may still be on its way, and its claim holds
            patience.silent(refusal)
            await _quietly(ask, commands.open_claim(files))
        elif (unknown := unknown + 1) == UNKNOWN_LOOKS:
            raise NotTaken(said or "its files could not be written there, or sbatch does not end")


async def look_up(ask: Ask, key: str, patience: Patience, said: str = "") -> str:
    """The id of the job with this key; empty when Slurm answered and has none.

    Args:
        said: why it is looked up.

    Raises:
        SiteSilent: Slurm has not answered for half an hour.
    """
    answers = 0
    while answers < 2:  # a controller that was busy may show a job a moment later
        await asyncio.sleep(LOOK_PAUSE_S if answers else patience.pause_s)
        try:
            polled = read_poll(await ask(commands.poll(commands.queue())))
        except Exception as error:  # whatever broke, nothing is known
            polled = Polled(said=reason_of(error))
        if job_id := polled.by_key.get(key):
            return job_id
        answers += polled.answered
        if not polled.answered:
            patience.silent(polled.said or said)
    return ""


async def _quietly(ask: Ask, line: str) -> None:
    try:
        await ask(line)
    except Exception:  # the next try finds the claim and asks again
        return
