"""Re-attach to a Job of a dead driver that does the same work as the Job about to be submitted.

The same work is: the same command of the same step in the same image and place, over inputs with the same content, which are
compared on the claim. A new driver re-attaches to such a Job while it waits or runs, or after it succeeded. Any other Job of the
step is ended before a new one is submitted. This module does not use StreamFlow.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from medweave_connectors.host.deadlines import GIVE_UP_AFTER_S, SiteUnresponsive, retry_until_answered
from medweave_connectors.host.errors import SiteUnreachable
from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.jobs import queue_messages
from medweave_connectors.jobs.reattach import journal, same_work
from medweave_connectors.jobs.reattach.journal import KUBERNETES, Submission
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.kubernetes.job.client import JobCluster, JobSite, response_deadline
from medweave_connectors.sites.kubernetes.job.manifest import JOB, WORK, build_job_name
from medweave_connectors.sites.kubernetes.job.script import KubernetesJobFiles
from medweave_connectors.sites.kubernetes.job.states import KubernetesJobState, judge_job
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, read_pod
from medweave_connectors.sites.pods.exec.commands import PodStep

PAUSE_S = 2.0
LEFT_S, LEFT_PAUSE_S = 60.0, 1.0
GONE = "it is gone"

T = TypeVar("T")


def describe_submission(
    step: PodStep,
    site: JobSite,
    document: Mapping[str, Any],
    standing: Mapping[str, Any],
    *,
    key: str,
    files: KubernetesJobFiles,
) -> Submission | None:
    """Return the submission for the journal; None outside a medweave run.

    Args:
        document: the Job.
        standing: the pod that is its template, as the API server has it.
    """
    run = current()
    if run is None:
        return None
    container = read_pod(standing).container(site.container)
    parts = {
        "words": list(step.words),
        "environment": dict(step.environment),
        "streams": dict(step.streams),
        "pod": _result_relevant(document["spec"]["template"]["spec"]),
        "image": container.image if container else "",  # by digest, where the kubelet reports it: a tag may have moved
        "place": [site.deployment, site.cluster.namespace, site.container],
    }
    return Submission(
        key=key,
        run_id=run.run_id,
        job=step.name,
        deployment=site.deployment,
        service=site.container,
        fingerprint=same_work.fingerprint(parts, run_id=run.run_id),
        folder=files.folder,
        outputs=(step.output_directory,),
        inputs=same_work.inputs_of(
            step.words, step.environment, output_directory=step.output_directory, stdin=step.streams.get("stdin")
        ),
        workflow=run.workflow,
    )


async def find_job(site: JobSite, submission: Submission, notice: Callable[[str], None]) -> Submission | None:
    """Return the Job of a dead driver that does the same work, moved to this run's journal; None without a match.

    Raises:
        SiteUnreachable: no answer for half an hour. The state is unknown, and no Job may be submitted.
    """
    give_up = partial(queue_messages.earlier_job_unknown, site.deployment, submission.job, GIVE_UP_AFTER_S)
    ask = partial(_ask, site, notice=notice, give_up=give_up)
    notice_of_missing = ""
    for candidate in _submissions_of_step(journal.runs_folder(), submission):
        name = build_job_name(candidate.job, candidate.key)
        mismatch = await ask(partial(_mismatch, site, candidate, submission))
        if mismatch == GONE:
            notice_of_missing = (
                notice_of_missing or f"Job {name} of run {candidate.run_id} is gone; the step runs again"
            )
            continue
        own = (
            dataclasses.replace(candidate, run_id=submission.run_id)
            if mismatch
            else journal.adopted(candidate, submission)
        )
        if not journal.adopt(journal.runs_folder(), KUBERNETES, own):
            continue  # another new driver was quicker
        mismatch = mismatch or await ask(partial(_claim_ownership, site, name, candidate))
        if not mismatch:
            return own
        notice(f"Job {name} of run {candidate.run_id} is ended, and the step runs again: {mismatch}")
        await ask(partial(end_job, site.jobs, site.deployment, name, candidate.key))
    if notice_of_missing:
        notice(notice_of_missing)
    return None


def reusable_keys(deployment: str) -> set[str]:
    """Return the keys of Jobs that a step of this run may re-attach to, and of those with live drivers."""
    run = current()
    if run is None:
        return set()
    earlier = journal.unattended_jobs(journal.runs_folder(), KUBERNETES)
    keys = {
        submission.key
        for submission in earlier
        if (submission.deployment, submission.workflow) == (deployment, run.workflow)
    }
    return keys | attended_keys()


def attended_keys() -> set[str]:
    """Return the keys of Jobs with live drivers."""
    return journal.attended_keys(journal.runs_folder(), KUBERNETES) if current() is not None else set()


async def move_outputs(site: JobSite, submission: Submission, name: str, notice: Callable[[str], None]) -> None:
    """Move the output folder of a re-attached Job to the path that this run expects.

    Raises:
        SiteUnreachable: it does not move.
    """

    async def move() -> None:
        output, code = await site.ask(same_work.move(submission.outputs))
        if code:
            raise PodLost(reason_in(output) or f"exit code {code}")

    await _ask(
        site,
        move,
        notice=notice,
        give_up=lambda error: queue_messages.outputs_not_moved(
            site.deployment, f"Job {name}", submission.job, str(error)
        ),
    )


async def end_job(jobs: JobCluster, deployment: str, name: str, key: str) -> None:
    """Delete a Job and wait until its pods are gone.

    Raises:
        ApiServerError: the API server did not answer.
    """
    deadline = time.monotonic() + LEFT_S
    while await jobs.remove(name, key):
        if time.monotonic() > deadline:
            console.say(f"medweave: {deployment}: pods of Job {name} have not ended after {LEFT_S:.0f} s")
            return
        await asyncio.sleep(LEFT_PAUSE_S)


def _result_relevant(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod specification that affects the result; memory and time limit grow between attempts."""
    relevant = copy.deepcopy(dict(spec))
    relevant.pop("activeDeadlineSeconds", None)
    for container in relevant["containers"]:
        container.pop("command")  # the step's command contains names of this run
        for amounts in container["resources"].values():
            amounts.pop("memory", None)
    return relevant


def _submissions_of_step(runs: Path, submission: Submission) -> list[Submission]:
    """Return earlier submissions of the same step, newest first, since the last attempt counts."""
    mine = (submission.job, submission.deployment, submission.workflow)
    return [
        earlier
        for earlier in journal.unattended_jobs(runs, KUBERNETES)
        if (earlier.job, earlier.deployment, earlier.workflow) == mine
    ]


async def _mismatch(site: JobSite, candidate: Submission, submission: Submission) -> str:
    """Return why this run cannot re-attach to a Job; empty if it can.

    Raises:
        ApiServerError, PodLost: the API server did not answer.
    """
    name = build_job_name(candidate.job, candidate.key)
    job, pods = await site.jobs.find(name, candidate.key)
    if job is None and not candidate.job_id:
        await asyncio.sleep(PAUSE_S)  # the request that creates it may still be in transit
        job, pods = await site.jobs.find(name, candidate.key)
    if job is None:
        return GONE
    metadata = job["metadata"]
    if candidate.job_id not in ("", metadata.get("uid")) or metadata.get("deletionTimestamp"):
        return "it is another Job of that name, or is being deleted"
    annotations = metadata.get("annotations") or {}
    if (annotations.get(JOB), annotations.get(WORK)) != (candidate.job, candidate.fingerprint):
        return "it was changed"
    if not same_work.has_same_command(candidate, submission):
        return "its command, image or place differs"
    if (whose := owner.owner(metadata["labels"])) not in ("ended", "elsewhere"):
        return f"it has another owner ({whose})"
    state = judge_job(job, pods, site.container)
    if state.state is KubernetesJobState.FAILED:
        return f"it has failed ({state.word or f'exit code {state.exit_code}'})"
    _, code = await site.ask(same_work.is_there(candidate, submission))
    return "its inputs differ, or its folders are missing" if code else ""


async def _claim_ownership(site: JobSite, name: str, candidate: Submission) -> str:
    """Label the Job as this run's; return why that failed, empty on success.

    Raises:
        ApiServerError: the API server did not answer.
    """
    try:
        await site.jobs.adopt(name, candidate.key, uid=candidate.job_id)
    except ApiServerError as error:
        if error.status == 403:
            return f"this account may not patch Jobs ({error})"
        if error.may_pass:
            raise
        return f"it has changed since ({error})"
    return ""


async def _ask(
    site: JobSite,
    query: Callable[[], Awaitable[T]],
    *,
    notice: Callable[[str], None],
    give_up: Callable[[Exception], SiteUnreachable],
) -> T:
    """Return the answer to a query, which is repeated while the API server or the standing pod does not answer."""

    async def ask_unless_closing() -> T:
        if site.closing():
            raise asyncio.CancelledError  # the run is ending
        return await query()

    try:
        return await retry_until_answered(
            ask_unless_closing, response_deadline(notice), failures=(ApiServerError, PodLost)
        )
    except SiteUnresponsive as error:
        raise give_up(error) from error
