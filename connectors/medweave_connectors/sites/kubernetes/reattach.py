"""A Job whose driver is gone, found again by a new one that is about to make the same.

The same is: the same command of the same step in the same image and place, over inputs with the same content, which are compared
on the claim. Such a Job is gone on with while it waits or runs, or when it has done well. Any other one of the step is ended
before a new one is made. No streamflow in here.
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

from medweave_connectors.host.errors import SiteUnreachable
from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.jobs.reattach import journal, same_work
from medweave_connectors.jobs.reattach.journal import KUBERNETES, Submission
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.kubernetes.job_client import JobCluster
from medweave_connectors.sites.kubernetes.job_object import JOB, WORK, job_name
from medweave_connectors.sites.kubernetes.job_script import JobFiles
from medweave_connectors.sites.kubernetes.job_site import JobSite
from medweave_connectors.sites.kubernetes.job_states import JobState, judge_job
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.cluster import Refused, read_pod
from medweave_connectors.sites.pods.errors import PodLost
from medweave_connectors.sites.pods.exec.step import Step

SILENT_S, PAUSE_S = 600.0, 2.0  # of an API server or a standing pod that does not answer
LEFT_S, LEFT_PAUSE_S = 60.0, 1.0
GONE = "it is gone"

T = TypeVar("T")


def wanted(
    step: Step, site: JobSite, document: Mapping[str, Any], standing: Mapping[str, Any], *, key: str, files: JobFiles
) -> Submission | None:
    """What is about to be made, as it is written down; None where no medweave run goes on.

    Args:
        document: the Job.
        standing: the pod that is its template, as the API server has it.
    """
    run = current()
    if run is None:
        return None
    found = read_pod(standing).container(site.container)
    parts = {
        "words": list(step.words),
        "environment": dict(step.environment),
        "streams": dict(step.streams),
        "pod": _of_the_result(document["spec"]["template"]["spec"]),
        "image": found.image if found else "",  # by digest, where the kubelet tells it: a tag may have moved
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


async def find(site: JobSite, asked: Submission, notice: Callable[[str], None]) -> Submission | None:
    """The Job of a driver that is gone which does what is asked for; it is this run's from then on, in its journal too.

    Raises:
        SiteUnreachable: nobody answered for a while. Nothing is known then, and nothing may be made.
    """
    gone = ""
    for left in _of_the_step(_runs(), asked):
        name = job_name(left.job, left.key)
        doubt = await _patiently(site, name, partial(_doubt, site, left, asked))
        if doubt == GONE:
            gone = gone or f"Job {name} of run {left.run_id} is gone; the step is done anew"
            continue
        own = dataclasses.replace(left, run_id=asked.run_id)
        if not doubt:
            own = dataclasses.replace(
                journal.adopted(left, run_id=asked.run_id, output=asked.outputs[0]), inputs=asked.inputs
            )
        if not journal.adopt(_runs(), KUBERNETES, own):
            continue  # another new driver was quicker
        doubt = doubt or await _patiently(site, name, partial(_hand_over, site, name, left))
        if not doubt:
            return own
        notice(f"Job {name} of run {left.run_id} is ended, and the step is done anew: {doubt}")
        await _patiently(site, name, partial(end, site.jobs, site.deployment, name, left.key))
    if gone:
        notice(gone)
    return None


def may_go_on(deployment: str) -> set[str]:
    """Keys of the Jobs with which a step of this run may go on, and of those that other drivers look after."""
    run = current()
    if run is None:
        return set()
    left = journal.unattended_jobs(_runs(), KUBERNETES)
    mine = {each.key for each in left if (each.deployment, each.workflow) == (deployment, run.workflow)}
    return mine | in_hands()


def in_hands() -> set[str]:
    """Keys of the Jobs that living drivers look after."""
    return journal.attended_keys(_runs(), KUBERNETES) if current() is not None else set()


async def write_down(submission: Submission | None, *, uid: str) -> None:
    """What is known of a Job, on the disk when this returns.

    Raises:
        StorageError: the disk is full; nothing may be made then.
    """
    if submission is not None:
        known = dataclasses.replace(submission, job_id=uid)
        await asyncio.to_thread(journal.of(_runs() / submission.run_id, KUBERNETES).write, known)


async def take_outputs(site: JobSite, left: Submission, name: str) -> None:
    """Puts the output folder of a Job that has ended where this run looks for it.

    Raises:
        SiteUnreachable: it does not move.
    """

    async def move() -> None:
        said, code = await site.ask(same_work.move(left.outputs))
        if code:
            raise PodLost(f"its output folder does not move: {reason_in(said) or f'exit code {code}'}")

    await _patiently(site, name, move)


async def end(jobs: JobCluster, deployment: str, name: str, key: str) -> None:
    """Ends a Job and waits until its pods have gone.

    Raises:
        Refused: nobody answered.
    """
    deadline = time.monotonic() + LEFT_S
    while await jobs.remove(name, key):
        if time.monotonic() > deadline:
            console.say(f"medweave: {deployment}: pods of Job {name} have not ended after {LEFT_S:.0f} s")
            return
        await asyncio.sleep(LEFT_PAUSE_S)


def _of_the_result(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What of a pod matters to the result: memory and time limit grow from attempt to attempt."""
    kept = copy.deepcopy(dict(spec))
    kept.pop("activeDeadlineSeconds", None)
    for container in kept["containers"]:
        container.pop("command")  # the step's words, among names of this run
        for asked in container["resources"].values():
            asked.pop("memory", None)
    return kept


def _of_the_step(runs: Path, asked: Submission) -> list[Submission]:
    """Newest first: of several attempts the last one counts."""
    mine = (asked.job, asked.deployment, asked.workflow)
    return [
        each for each in journal.unattended_jobs(runs, KUBERNETES) if (each.job, each.deployment, each.workflow) == mine
    ]


async def _doubt(site: JobSite, left: Submission, asked: Submission) -> str:
    """Why a Job is not gone on with; empty for none.

    Raises:
        Refused, PodLost: nobody answered.
    """
    name = job_name(left.job, left.key)
    found, pods = await site.jobs.found(name, left.key)
    if found is None and not left.job_id:
        await asyncio.sleep(PAUSE_S)  # the request that makes it may still be on its way
        found, pods = await site.jobs.found(name, left.key)
    if found is None:
        return GONE
    metadata = found["metadata"]
    if left.job_id not in ("", metadata.get("uid")) or metadata.get("deletionTimestamp"):
        return "it is another one of that name, or is being deleted"
    told = metadata.get("annotations") or {}
    if (told.get(JOB), told.get(WORK)) != (left.job, left.fingerprint):
        return "it was changed"
    if left.fingerprint != asked.fingerprint or len(left.inputs) != len(asked.inputs):
        return "its command, image or place is another one"
    if (whose := owner.owner(metadata["labels"])) not in ("ended", "elsewhere"):
        return f"it belongs to somebody else ({whose})"
    state = judge_job(found, pods, site.container)
    if state.state is JobState.FAILED:
        return f"it has not done well ({state.word or f'exit code {state.exit_code}'})"
    _, code = await site.ask(same_work.is_there(left, asked))
    return "its inputs are others, or its folders are not there" if code else ""


async def _hand_over(site: JobSite, name: str, left: Submission) -> str:
    """Writes on it whose it is now; why that cannot be, empty where it is done.

    Raises:
        Refused: nobody answered.
    """
    try:
        await site.jobs.adopt(name, left.key, uid=left.job_id)
    except Refused as error:
        if error.status == 403:
            return f"this account may not patch Jobs ({error})"
        if error.may_pass:
            raise
        return f"it was changed meanwhile ({error})"
    return ""


async def _patiently(site: JobSite, name: str, ask: Callable[[], Awaitable[T]]) -> T:
    began = time.monotonic()
    while True:
        if site.closing():
            raise asyncio.CancelledError  # ended by us
        try:
            return await ask()
        except (Refused, PodLost) as error:
            if time.monotonic() - began > SILENT_S:
                raise SiteUnreachable(
                    f"{site.deployment}: Job {name}, which an earlier driver has left, could not be looked after for "
                    f"{SILENT_S:.0f} s: {error}"
                ) from error
        await asyncio.sleep(PAUSE_S)


def _runs() -> Path:
    run = current()
    assert run is not None, "asked without a run"
    return run.folder.parent
