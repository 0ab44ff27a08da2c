"""One command in a pod of its own, from its Job to its outcome."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_connectors import requests
from medweave_connectors.errors import JobEndedBySite, SiteUnreachable, TimeLimitExceeded, of_the_file
from medweave_connectors.kubernetes import job_script
from medweave_connectors.kubernetes.job_cluster import GRACE_S, JobCluster, Seen
from medweave_connectors.kubernetes.job_object import build_job, job_name, labels
from medweave_connectors.kubernetes.job_script import JobFiles, ScriptEnd
from medweave_connectors.kubernetes.job_states import JobState, Told, judge_job
from medweave_connectors.pods.cluster import Cluster, Refused
from medweave_connectors.pods.commands import Counters, verdict
from medweave_connectors.pods.errors import DeploymentRefused, PodLost
from medweave_connectors.pods.patience import End, Hope, Waited, hope, hope_of_missing
from medweave_connectors.pods.pod import Event, Pod, pod_facts
from medweave_connectors.pods.states import node_lost, silent_node
from medweave_connectors.pods.step import Step
from medweave_connectors.pods.words import tell_events, tell_pods
from medweave_connectors.reactions.table import Failed, FailureKind
from medweave_connectors.record import console, current
from medweave_connectors.record.job import CommandOutcome
from medweave_connectors.record.output import JobOutput

POLL_S, FOLLOW_S = 0.5, 2.0
MISSING_S = 10.0  # a shared file system may show a file some seconds late
LOST_NODE_S = 120.0  # a node that has not answered for so long is lost
SILENT_S = 600.0  # an API server that is not heard of for so long has lost the job
GONE_S = 30.0  # beyond the grace of a pod
READS = 8  # at a look: so much is read of a command that says a lot
UNKNOWN_CODE = 75  # "may succeed when run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSite:
    """The place of a job, as its connector has it.

    Attributes:
        template: key of the deployment's config that describes the pod that stands, which is the template.
        place: `pod:container` of it.
        signal_lead_s: how long before its time limit a step with a checkpoint folder gets USR1, s.
        ask: runs a line there and returns its output and exit code.
        fetch_reports: returns a folder with copies of the reports, or None.
        closing: true once the run is being ended.
    """

    deployment: str
    template: str
    place: str
    cluster: Cluster
    jobs: JobCluster
    timeout_s: float
    pending_timeout_s: float
    signal_lead_s: int
    ask: Callable[[str], Awaitable[tuple[str, int]]]
    fetch_reports: Callable[[], Awaitable[Path | None]]
    closing: Callable[[], bool]


class KubernetesJob:
    """A step's command as a Job.

    Attributes:
        gone: nothing of it is left.
        over: nothing more can be done about what is left.
        files: on the claim.
        failure: set where it has failed and is over; the site's table says what follows.
    """

    def __init__(self, step: Step, site: JobSite, *, home: str = "") -> None:
        """`home` is the folder of the step's first Job; empty in the first one itself."""
        token = secrets.token_hex(4)
        self.key, self.job_name = token, job_name(step.name, token)
        self.gone = self.over = False
        self.failure: Failed | None = None
        self._step, self._site = step, site
        self._container = site.place.partition(":")[2]
        self.files = JobFiles.beside(step.output_directory, token)
        self._home = home or self.files.folder
        self._output = JobOutput(step.name)
        self._since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._started, self._made = time.monotonic(), 0.0
        self._offset, self._followed = 0, 0.0
        self._waited, self._events = Waited(), list[Event]()
        self._told_reason, self._taken_away = "", 0
        self._last: Pod | None = None
        self._silent_since: float | None = None

    async def run(self) -> tuple[str, int]:
        """Returns the cause of a failure, and the exit code of the command. Nothing of the Job is left then.

        Raises:
            DeploymentRefused: the cluster takes no such Job, or its pod cannot start.
            TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as the connector's `run`.
        """
        try:
            await self._make()
            told = await self._until_ended()
            outcome = await self._outcome(told)
        finally:
            # In a task of its own: this one may be being cancelled.
            await asyncio.shield(asyncio.ensure_future(self.remove()))
            # What may still run is not made a second time; of a lost node, nobody ever hears more.
            if self.failure is not None and not self.gone and self.failure.kind is not FailureKind.NODE_FAIL:
                self.failure = Failed(kind=FailureKind.UNKNOWN)
        if (run := current()) is not None:
            run.command_ended(self._step.name, outcome)
        if told.kind is FailureKind.TIMEOUT:
            raise TimeLimitExceeded(f"{self._step.name}: {outcome.cause}")
        if outcome.exit_code and told.kind not in (FailureKind.STEP_FAILED, FailureKind.OUT_OF_MEMORY):
            raise JobEndedBySite(f"{self._step.name}: {outcome.cause}")
        return outcome.cause, outcome.exit_code

    # ---- before it runs

    async def _make(self) -> None:
        with of_the_file():
            request = requests.must_know(self._step.name, where=f"deployments.{self._site.deployment}")
        told, code = await self._site.ask(job_script.make_folder(self.files))
        if code:
            raise PodLost(f"{self.files.folder} could not be made in {self._site.place}: {told}")
        script = job_script.job_script(
            self._step,
            self.files,
            home=self._home,
            checkpoint_folder=request.hints.checkpoint_folder,
            signal_lead_s=self._site.signal_lead_s,
        )
        document = build_job(
            await self._standing(),
            self._container,
            script,
            name=self.job_name,
            own_labels=labels(self._site.deployment, self.key),
            job=self._step.name,
            request=request,
            limit_s=self._step.limit_s,
        )
        try:
            await self._site.jobs.make(document)
        except Refused as error:
            raise self._not_taken(error) from error
        self._made = time.monotonic()
        self._notice(f"Job {self.job_name}")

    async def _standing(self) -> dict[str, Any]:
        name = self._site.place.partition(":")[0]
        try:
            return await self._site.jobs.standing(name)
        except Refused as error:
            raise PodLost(f"pod {name}, which is the template of the Job: {error}") from error

    def _not_taken(self, error: Refused) -> Exception:
        if error.may_pass and error.status not in (401, 403):
            return SiteUnreachable(f"{self._site.deployment}: Job {self.job_name}: {error}")
        self._fail(FailureKind.SUBMIT_REJECTED, UNKNOWN_CODE)
        return DeploymentRefused(
            f"deployments.{self._site.deployment}.config.{'namespace' if error.status == 403 else 'mode'}: "
            f"the cluster does not take the Job of {self._step.name}.",
            seen=str(error),
            expected=f"a namespace '{self._site.cluster.namespace}' in which this account may list, create and delete Jobs",
            do="ask its administrator for that right or more quota, or leave `mode: job` out",
        )

    # ---- while it waits and runs

    async def _until_ended(self) -> Told:
        answered = time.monotonic()
        while True:
            if self._site.closing():
                raise asyncio.CancelledError  # ended by us: the job did not fail
            try:
                told = self._judge(await self._site.jobs.look())
            except Refused as error:  # unknown, asked again
                silent_s = time.monotonic() - answered
                if silent_s > SILENT_S:
                    return Told(state=JobState.FAILED, word=f"no answer about it for {silent_s:.0f} s: {error}")
            else:
                answered = time.monotonic()
                if told is not None and told.ended:
                    return told
                await self._look_after(told)
            await asyncio.sleep(POLL_S)

    async def _look_after(self, told: Told | None) -> None:
        if self._silent_since is not None:
            return  # nothing is to be learnt from there
        if told is not None and told.state is JobState.WAITING:
            await self._wait_for(told)
        elif told is not None:
            if self._told_reason:
                self._notice("its pod runs now")
            self._told_reason, self._waited = "", Waited()
            await self._follow()

    def _judge(self, seen: Seen) -> Told | None:
        """What was seen; None where it was asked before the Job was made."""
        if seen.asked <= self._made:
            return None
        told = judge_job(seen.jobs.get(self.key), seen.pods.get(self.key, []), self._container, last=self._last)
        self._last = told.pod or self._last
        if told.taken_away > self._taken_away:
            self._taken_away, self._offset = told.taken_away, 0
            self._notice(f"its pod was taken away; Kubernetes starts it again ({told.taken_away} so far)")
        return self._with_lost_node(told)

    def _with_lost_node(self, told: Told) -> Told:
        pod = told.pod
        if told.ended or pod is None or not silent_node(pod):
            self._silent_since = None
            return told
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since < LOST_NODE_S:
            return told
        word = node_lost(
            pod,
            f"its node has not answered for {LOST_NODE_S:.0f} s since the cluster missed it; it may still run there",
        )
        return Told(state=JobState.FAILED, kind=FailureKind.NODE_FAIL, word=word, pod=pod)

    async def _wait_for(self, told: Told) -> None:
        """Tells what its pod waits for, and ends the wait where there is no more use in it."""
        names = {self.job_name, *((told.pod.name, *told.pod.claims) if told.pod else ())}
        self._events = await self._site.jobs.events.about(sorted(names), self._since)
        found = hope(told.pod, self._events) if told.pod else hope_of_missing(self.job_name, self._events)
        if told.pod is not None and told.pod.phase in ("Failed", "Succeeded"):
            found = (Hope.STARTING, found[1])  # the Job has not been told of it, or makes another one
        self._waited = self._waited.after(time.monotonic(), {self.job_name: found}, self._events)
        end = self._waited.end(timeout_s=self._site.timeout_s, pending_timeout_s=self._site.pending_timeout_s)
        if end is not None:
            raise self._never_started(end, told, found[1])
        if found[0] is Hope.WAITING and found[1] != self._told_reason:
            self._told_reason = found[1]
            self._notice(f"waits for up to {self._site.pending_timeout_s:.0f} s: {found[1]}")

    def _never_started(self, end: End, told: Told, reason: str) -> DeploymentRefused:
        pods = [told.pod] if told.pod else []
        key, what = {
            End.NEVER: (self._site.template, "its pod cannot start"),
            End.WAITED: ("pendingTimeout", f"its pod could not start within {self._site.pending_timeout_s:.0f} s"),
            End.LATE: ("timeout", f"its pod did not run after {self._site.timeout_s:.0f} s"),
        }[end]
        lines = [*(tell_pods(pods) if pods else [reason]), *tell_events(self._events, pods)]
        error = DeploymentRefused(
            f"deployments.{self._site.deployment}.config.{key}: {what} ({self._step.name}, Job {self.job_name}).",
            seen="\n".join(lines),
            expected=f"a pod that starts in namespace '{self._site.cluster.namespace}', with what the step asks for",
            do="look at what the cluster says above; correct the pod that is the template, the step's requirements, or the time",
        )
        self._fail(FailureKind.SUBMIT_REJECTED, UNKNOWN_CODE)
        if (run := current()) is not None:
            facts = self._facts(told) | {"failure": FailureKind.SUBMIT_REJECTED}
            seconds = time.monotonic() - self._started
            run.command_ended(
                self._step.name,
                CommandOutcome(
                    exit_code=UNKNOWN_CODE, seconds=seconds, cause=str(error), message=str(error), site=facts
                ),
            )
        return error

    async def _follow(self) -> None:
        """Passes on what the command has said on standard error."""
        if self._step.streams["stderr"] or time.monotonic() - self._followed < FOLLOW_S:
            return
        self._followed = time.monotonic()
        for _ in range(READS):
            data = await self._read(job_script.follow(self.files.stderr, self._offset))
            self._offset += len(data)
            self._output.stderr(data)
            if len(data) < job_script.TAIL_BYTES:
                return

    # ---- after its end

    async def _outcome(self, told: Told) -> CommandOutcome:
        end = await self._script_end(patient=told.state is JobState.COMPLETED)
        completed = told.state is JobState.COMPLETED and end is not None and end.exit_code == 0
        code, word = (0, "") if completed else _failure(told, end, self._step.limit_s, place=self._site.place)
        counters = end.counters if end else Counters()
        kind = told.kind
        if kind is FailureKind.STEP_FAILED and counters.oom_kills:
            kind = FailureKind.OUT_OF_MEMORY
        if not completed:
            self._fail(kind, code)
        await self._last_words(failed=not completed)
        return self._output.outcome(
            exit_code=code,
            seconds=float(end.seconds) if end else time.monotonic() - self._started,
            cpu_seconds=counters.cpu_seconds,
            site_word=word,
            kept_at=f"{self._site.deployment}:{self._site.place}:{self._step.output_directory}",
            report_folder=await self._site.fetch_reports() if completed else None,
            site=self._facts(told) | ({} if completed else {"failure": kind}),
        )

    async def _script_end(self, *, patient: bool) -> ScriptEnd | None:
        """What the script wrote at its end; a success without it is none: its files are not there where they are looked for."""
        deadline = time.monotonic() + (MISSING_S if patient else 0.0)
        while True:
            with contextlib.suppress(PodLost):
                text, code = await self._site.ask(job_script.show_end(self.files))
                if code == 0 and (end := job_script.read_end(text)) is not None:
                    return end
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(POLL_S)

    async def _last_words(self, *, failed: bool) -> None:
        if failed:
            if not self._step.streams["stderr"]:
                self._output.tell_instead(await self._read(job_script.tail(self.files.stderr)))
            if not self._step.streams["stdout"]:
                self._output.stdout(await self._read(job_script.tail(self.files.stdout)))
        else:
            self._followed = 0.0
            await self._follow()
        self._output.close()

    async def _read(self, line: str) -> bytes:
        with contextlib.suppress(PodLost, ValueError):
            text, code = await self._site.ask(line)
            return base64.b64decode("".join(text.split())) if code == 0 else b""
        return b""

    async def remove(self) -> None:
        """Removes the Job, and looks whether its pods have gone."""
        deadline, said = time.monotonic() + GRACE_S + GONE_S, ""
        while time.monotonic() < deadline:
            try:
                left = await self._site.jobs.remove(self.job_name, self.key)
                left = [each for each in left if each.phase not in ("Succeeded", "Failed")]
                self.gone = self.over = not left
                if self.gone:
                    return
                said = ", ".join(f"pod {each.name} on {each.node}" for each in left)
                if all(map(silent_node, left)):
                    self.over = True  # a node that comes back is told of it
                    break
            except Refused as error:
                said = str(error)
            await asyncio.sleep(POLL_S)
        do = f"kubectl delete job {self.job_name} --namespace {self._site.cluster.namespace}"
        if self.over:
            do = "nothing if its node comes back, which ends it then; else ask the operators of the cluster to remove the node"
        console.say(
            f"medweave: {self._site.deployment}: Job {self.job_name} may still run.\n  seen:     {said}\n  do:       {do}"
        )

    def _facts(self, told: Told) -> dict[str, object]:
        pod = told.pod or self._last
        pods = [pod_facts(pod, self._container)] if pod else []
        request = requests.request_of(self._step.name)
        gpus = request.hints.gpus_min if request else 0
        return {"namespace": self._site.cluster.namespace, "kubernetes_job": self.job_name, "pods": pods, "gpus": gpus}

    def _fail(self, kind: FailureKind, code: int) -> None:
        request = requests.request_of(self._step.name)
        self.failure = Failed(kind=kind, exit_code=code, memory_mib=request.memory_mib if request else 0.0)

    def _notice(self, text: str) -> None:
        if (run := current()) is not None:
            run.job_notice(self._step.name, text)


def _failure(told: Told, end: ScriptEnd | None, limit_s: int | None, *, place: str) -> tuple[int, str]:
    """The exit code, and the site's part of the cause."""
    if told.kind is FailureKind.TIMEOUT:
        return UNKNOWN_CODE, f"the time limit of {limit_s} s was reached; the step was ended."
    if told.state is JobState.COMPLETED:
        return UNKNOWN_CODE, f"its pod ended well, but in {place} nothing is seen of its files: do they share a volume?"
    code = told.exit_code or (end.exit_code if end else 0) or UNKNOWN_CODE
    if told.kind is FailureKind.OUT_OF_MEMORY:
        return code, told.word and f"out of memory: the container was killed at its memory limit. {told.word}"
    if told.kind is FailureKind.STEP_FAILED:
        return code, verdict(code, Counters(oom_kills=0), end.counters if end else Counters())
    return UNKNOWN_CODE, told.word
