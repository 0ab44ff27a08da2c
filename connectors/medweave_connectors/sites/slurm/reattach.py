"""Re-attach: find a job of a dead driver that does what a new driver is about to submit.

It must have the same command of the same step on the same partition, and inputs with the same content, compared at the site. It is
re-attached while it waits or runs, or if it completed; otherwise a new job is submitted. Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from medweave_connectors.host.deadlines import ResponseDeadline
from medweave_connectors.jobs.reattach import journal, same_work
from medweave_connectors.jobs.reattach.journal import SLURM, Submission
from medweave_connectors.sites.slurm import commands, reattach_commands, submission
from medweave_connectors.sites.slurm.answers import parse_final_report, split_by_job
from medweave_connectors.sites.slurm.reattach_commands import SubmissionStatus, parse_status
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand
from medweave_connectors.sites.slurm.service import Allocation
from medweave_connectors.sites.slurm.states import SlurmJobState, judge
from medweave_connectors.sites.slurm.submission import RunLine

IN_FLIGHT_LOOKS, PAUSE_S = 10, 3.0


def fingerprint(step: StepCommand, allocation: Allocation, *, place: str, prologue: str, run_id: str) -> str:
    """Return a digest of the command and its placement, without run ids and engine folders: 64 hexadecimal digits.

    Memory and time limit are left out: they change nothing about the result, and grow from attempt to attempt.

    Args:
        place: of the deployment and service.
        prologue: text at the head of the job script.
    """
    parts = {
        "words": list(step.words),
        "environment": dict(step.environment),
        "streams": [step.stdin, step.stdout, step.stderr],
        "asked": [allocation.num_nodes, allocation.cores, allocation.gpus],
        "place": place,
        "prologue": prologue,
        "worker": dataclasses.asdict(step.worker),
    }
    return same_work.fingerprint(parts, run_id=run_id)


def inputs_of(step: StepCommand) -> tuple[str, ...]:
    """Return the input paths of a step, as `same_work.inputs_of` does."""
    return same_work.inputs_of(step.words, step.environment, output_directory=step.output_directory, stdin=step.stdin)


async def find(run_line: RunLine, runs: Path, planned: Submission, deadline: ResponseDeadline) -> Submission | None:
    """Return the job of a dead driver that matches the planned one, moved into this run's journal; None without a match.

    Args:
        run_line: runs a line on the login node and returns its output, or raises.
        runs: folder of all runs of this machine.
        planned: the submission of this run, not recorded yet.
        deadline: for a Slurm that does not answer.

    Raises:
        Exception: the site did not answer. Then nothing may be submitted.
    """
    for earlier in _candidates(runs, planned):
        job_id = await _find_job_id(run_line, earlier, planned, deadline)
        if not job_id or not await _is_usable(run_line, earlier, job_id):
            continue
        adopted = dataclasses.replace(journal.adopted(earlier, planned), job_id=job_id)
        if journal.adopt(runs, SLURM, adopted):
            return adopted
    return None


def _candidates(runs: Path, planned: Submission) -> list[Submission]:
    """Return matching submissions, newest first: the last of several attempts counts."""
    return [
        earlier
        for earlier in journal.unattended_jobs(runs, SLURM)
        if earlier.job == planned.job and same_work.has_same_command(earlier, planned)
    ]


async def _find_job_id(run_line: RunLine, earlier: Submission, planned: Submission, deadline: ResponseDeadline) -> str:
    """Return the Slurm id of an earlier submission; empty if Slurm has no such job, or its inputs differ."""
    for _ in range(IN_FLIGHT_LOOKS):
        seen = parse_status(await run_line(reattach_commands.inspect(earlier, planned)))
        if not seen.is_same:
            return ""
        if seen.job_id or not seen.is_claimed or seen.code:
            break
        await asyncio.sleep(PAUSE_S)  # the submitting line may still be running
    return await _resolve_job_id(run_line, earlier, seen, deadline)


async def _resolve_job_id(
    run_line: RunLine, earlier: Submission, seen: SubmissionStatus, deadline: ResponseDeadline
) -> str:
    if seen.job_id or seen.code not in ("", "0"):
        return seen.job_id
    if not seen.is_claimed:
        # A submitting line that starts late then finds the claim and does not submit.
        await run_line(reattach_commands.claim(SlurmJobFiles(earlier.folder)))
        return ""
    return await submission.look_up(run_line, earlier.key, deadline)


async def _is_usable(run_line: RunLine, earlier: Submission, job_id: str) -> bool:
    """Return True if the job waits, runs or completed."""
    files = SlurmJobFiles(earlier.folder)
    allocation = commands.FinalStateQuery(job_id, files, may_requeue=True)
    end = parse_final_report(split_by_job(await run_line(commands.ends([allocation])))[job_id], job_id, files.token)
    # Its service may allow requeueing; submitting another job could duplicate it.
    state = judge(end.sacct, end.scontrol, end.exit_file, purged=end.purged, may_requeue=True)
    if state is None and not end.answered:
        raise ConnectionError(end.error or "no answer of the controller")
    if state is None:
        return not end.purged  # a purged job does not run, and its final state is unknown
    return state.state is SlurmJobState.COMPLETED
