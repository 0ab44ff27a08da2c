"""Submitting a job once, also where the answer is lost on its way. No streamflow in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from medweave_connectors.slurm import commands, words
from medweave_connectors.slurm.answers import read_poll, read_submission
from medweave_connectors.slurm.script import JobFiles

TRIES = 3
LOOKUPS = 4
PAUSE_S = 2.0

Ask = Callable[[str], Awaitable[str]]


class Refused(Exception):
    """sbatch said no; the argument is what it said."""


class NotTaken(Exception):
    """Slurm could not be asked, or did not take the job; it has no such job."""


async def submit(ask: Ask, sbatch: Sequence[str], files: JobFiles, scripts: Mapping[str, str], key: str) -> str:
    """Submits and returns the job's id.

    Where no whole answer comes, the job is looked up by its key before it is submitted again.

    Args:
        ask: runs a line on the login node and returns its output, or raises.
        sbatch: its words.
        scripts: path to text.
        key: in the job's comment.

    Raises:
        Refused: sbatch was heard and said no.
        NotTaken: after several tries Slurm still has no such job.
    """
    line, said = commands.submit(sbatch, files, scripts), ""
    for _ in range(TRIES):
        job_id = refusal = ""
        try:
            job_id, refusal = read_submission(await ask(line))
        except Exception as error:  # whatever broke, it is not known whether sbatch was heard
            said = str(error) or type(error).__name__
        if job_id:
            return job_id
        if refusal and not words.unanswered(refusal):
            raise Refused(refusal)
        said = refusal or said
        if job_id := await look_up(ask, key):
            return job_id
        await _quietly(ask, commands.open_claim(files))
    raise NotTaken(said)


async def look_up(ask: Ask, key: str) -> str:
    """The id of the job with this key; empty when Slurm answered and has none, or never answered."""
    answers = 0
    for _ in range(LOOKUPS):
        await asyncio.sleep(PAUSE_S)
        try:
            polled = read_poll(await ask(commands.poll(commands.queue())))
        except Exception:  # whatever broke, nothing is known
            continue
        if job_id := polled.by_key.get(key):
            return job_id
        answers += polled.answered
        if answers == 2:  # twice: a controller that was busy may show a job a moment later
            return ""
    return ""


async def _quietly(ask: Ask, line: str) -> None:
    try:
        await ask(line)
    except Exception:  # the next try finds the claim and asks again
        return
