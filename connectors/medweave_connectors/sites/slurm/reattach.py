"""A job whose driver is gone, found again by a new one that is about to submit the same.

The same is: the same command of the same step on the same part of the cluster, over inputs with the same content, which are
compared at the site. Such a job is taken over while it waits or runs, or when it has done well; else a new one is submitted.
No streamflow in here.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from medweave_connectors.jobs.reattach import journal, same_work
from medweave_connectors.jobs.reattach.journal import SLURM, Submission
from medweave_connectors.sites.slurm import commands, reattach_commands, submission
from medweave_connectors.sites.slurm.answers import read_end, sections
from medweave_connectors.sites.slurm.deadlines import Patience
from medweave_connectors.sites.slurm.reattach_commands import Left, read_left
from medweave_connectors.sites.slurm.script import JobFiles, StepCommand
from medweave_connectors.sites.slurm.service import Allocation
from medweave_connectors.sites.slurm.states import JobState, judge
from medweave_connectors.sites.slurm.submission import Ask

IN_FLIGHT_LOOKS, PAUSE_S = 10, 3.0


def fingerprint(step: StepCommand, asked: Allocation, *, place: str, prologue: str, run_id: str) -> str:
    """What is computed and where, without the names of the run and of the engine's folders: 64 hexadecimal digits.

    Memory and time limit are left out: they change nothing about the result, and grow from attempt to attempt.

    Args:
        place: of the deployment and service.
        prologue: text at the head of the job script.
    """
    parts = {
        "words": list(step.words),
        "environment": dict(step.environment),
        "streams": [step.stdin, step.stdout, step.stderr],
        "asked": [asked.num_nodes, asked.cores, asked.gpus],
        "place": place,
        "prologue": prologue,
        "worker": dataclasses.asdict(step.worker),
    }
    return same_work.fingerprint(parts, run_id=run_id)


def inputs_of(step: StepCommand) -> tuple[str, ...]:
    """As `work.inputs_of`."""
    return same_work.inputs_of(step.words, step.environment, output_directory=step.output_directory, stdin=step.stdin)


async def find(ask: Ask, runs: Path, wanted: Submission, patience: Patience) -> Submission | None:
    """The job of a driver that is gone which does what is wanted; it is this run's from then on, in its journal too.

    Args:
        ask: runs a line on the login node and returns its output, or raises.
        runs: folder of all runs of this machine.
        wanted: what this run would submit, not written down yet.
        patience: with a Slurm that does not answer.

    Raises:
        Exception: the site did not answer. Nothing is known then, and nothing may be submitted.
    """
    for left in _alike(runs, wanted):
        job_id = await _job_of(ask, left, wanted, patience)
        if not job_id or not await _is_of_use(ask, left, job_id):
            continue
        own = journal.taken_over(left, run_id=wanted.run_id, output=wanted.outputs[0])
        own = dataclasses.replace(own, job_id=job_id, inputs=wanted.inputs)
        if journal.take(runs, SLURM, own):
            return own
    return None


def _alike(runs: Path, wanted: Submission) -> list[Submission]:
    """Newest first: of several attempts the last one counts."""
    same = [
        each
        for each in journal.left_behind(runs, SLURM)
        if (each.job, each.fingerprint) == (wanted.job, wanted.fingerprint)
    ]
    return [each for each in same if len(each.inputs) == len(wanted.inputs)]


async def _job_of(ask: Ask, left: Submission, wanted: Submission, patience: Patience) -> str:
    """The id that Slurm gave to it; empty where Slurm has no such job, or it computes something else."""
    for _ in range(IN_FLIGHT_LOOKS):
        seen = read_left(await ask(reattach_commands.look(left, wanted)))
        if not seen.is_same:
            return ""
        if seen.job_id or not seen.is_claimed or seen.code:
            break
        await asyncio.sleep(PAUSE_S)  # the line that submits it may still be on its way
    return await _settled(ask, left, seen, patience)


async def _settled(ask: Ask, left: Submission, seen: Left, patience: Patience) -> str:
    if seen.job_id or seen.code not in ("", "0"):
        return seen.job_id
    if not seen.is_claimed:
        # Whoever is late with the line that submits finds that it was submitted.
        await ask(reattach_commands.claim(JobFiles(left.folder)))
        return ""
    return await submission.look_up(ask, left.key, patience)


async def _is_of_use(ask: Ask, left: Submission, job_id: str) -> bool:
    """Whether it waits, runs or has done well."""
    files = JobFiles(left.folder)
    asked = commands.EndOf(job_id, files, starts_again=True)
    end = read_end(sections(await ask(commands.ends([asked])))[job_id], job_id, files.token)
    # It is not known whether its service lets Slurm start it again, and another one beside it would double it.
    told = judge(end.sacct, end.scontrol, end.exit_file, forgotten=end.forgotten, starts_again=True)
    if told is None and not end.answered:
        raise ConnectionError(end.said or "no word of the controller")
    if told is None:
        return not end.forgotten  # what Slurm has forgotten runs no more, and nobody knows how it ended
    return told.state is JobState.COMPLETED
