"""Life cycle of one step's Job: submission, waiting, output and outcome."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import secrets
import time
from typing import Any

from medweave_connectors.host.deadlines import SiteUnresponsive
from medweave_connectors.host.errors import SiteUnreachable, of_the_file
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.jobs import job_requests, queue_messages
from medweave_connectors.jobs.reattach import journal
from medweave_connectors.jobs.reattach.journal import KUBERNETES, Submission
from medweave_connectors.jobs.retries.attempt_script import look_for_checkpoint, read_checkpoint
from medweave_connectors.jobs.retries.attempts import end_attempt, failed_attempt
from medweave_connectors.jobs.retries.policy import Checkpoint, FailedAttempt, FailureKind
from medweave_connectors.runlog import console, current, job_notice
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.kubernetes.job import messages as job_messages
from medweave_connectors.sites.kubernetes.job import reattach
from medweave_connectors.sites.kubernetes.job import script as job_script
from medweave_connectors.sites.kubernetes.job.client import GRACE_S, JobSite, JobSnapshot, response_deadline
from medweave_connectors.sites.kubernetes.job.manifest import WORK, build_job, build_job_name, build_labels
from medweave_connectors.sites.kubernetes.job.messages import UNKNOWN_CODE
from medweave_connectors.sites.kubernetes.job.script import KubernetesJobFiles, ScriptEnd
from medweave_connectors.sites.kubernetes.job.states import JobStatus, KubernetesJobState, judge_job
from medweave_connectors.sites.pods.api.errors import DeploymentRefused, PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.exec.commands import Counters, PodStep
from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod, pod_facts
from medweave_connectors.sites.pods.objects.pod_states import describe_lost_node, unresponsive_node
from medweave_connectors.sites.pods.startup.deadlines import (
    StartState,
    WaitEnd,
    WaitTimes,
    judge_missing_pods,
    judge_start,
)

POLL_S, FOLLOW_S = 0.5, 2.0
MISSING_S = 10.0  # a shared file system may show a file some seconds late
LOST_NODE_S = 120.0  # a node that has not answered for this time is lost
GONE_S = 30.0  # beyond the grace period of a pod
READS = 8  # per poll, for a command with much output


class KubernetesJob:
    """The Job of one step's command.

    Attributes:
        gone: the Job and its pods are deleted.
        over: the Job is deleted as far as possible.
        files: on the claim.
        failure: set if the Job has failed and is over; input of the retry policy.
    """

    def __init__(self, step: PodStep, site: JobSite, *, home: str = "", was_empty: bool = False) -> None:
        """`home` is the folder of the step's first Job; empty in that Job. `was_empty` is passed to the script."""
        token = secrets.token_hex(4)
        self.key, self.job_name = token, build_job_name(step.name, token)
        self.gone = self.over = False
        self.failure: FailedAttempt | None = None
        self._step, self._site = step, site
        self._container = site.container
        self.files = KubernetesJobFiles.next_to(step.output_directory, token)
        self._home, self._was_empty = home or self.files.folder, was_empty
        self._earlier: Submission | None = None
        self._output = JobOutput(step.name)
        self._since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._started, self._made = time.monotonic(), 0.0
        self._offset, self._followed = 0, 0.0
        self._waited, self._events = WaitTimes(), list[ClusterEvent]()
        self._reported_reason, self._num_disrupted = "", 0
        self._last: Pod | None = None
        self._silent_since: float | None = None

    async def run(self) -> tuple[str, int]:
        """Run the Job to its end and remove it; return the cause of a failure and the exit code of the command.

        Raises:
            DeploymentRefused: the cluster rejects the Job, or its pod cannot start.
            TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as the connector's `run`.
        """
        try:
            await self._begin()
            status = await self._until_ended()
            if self._earlier is not None and (
                status.state is KubernetesJobState.COMPLETED or status.kind is not FailureKind.UNKNOWN
            ):
                await reattach.move_outputs(self._site, self._earlier, self.job_name, self._notice)
            outcome = await self._outcome(status)
        finally:
            # In a separate task: the current one may be being cancelled.
            await asyncio.shield(asyncio.ensure_future(self.remove()))
            # A Job that may still run is not submitted again; a Job on a lost node is, since its end will never be reported.
            if self.failure is not None and not self.gone and self.failure.kind is not FailureKind.NODE_FAIL:
                self.failure = FailedAttempt(kind=FailureKind.UNKNOWN)
        own_failure = status.kind in (FailureKind.STEP_FAILED, FailureKind.OUT_OF_MEMORY)
        return end_attempt(
            self._step.name,
            outcome,
            timed_out=status.kind is FailureKind.TIMEOUT,
            ended_by_site=outcome.exit_code != 0 and not own_failure,
        )

    # ---- before it runs

    async def _begin(self) -> None:
        """Submit the Job, or re-attach to an equal Job of a dead driver."""
        with of_the_file():
            request = job_requests.require_request(self._step.name, where=f"deployments.{self._site.deployment}")
        self._script = job_script.build_job_script(
            self._step,
            self.files,
            home=self._home,
            checkpoint_folder=request.hints.checkpoint_folder,
            signal_lead_s=self._site.signal_lead_s,
            was_empty=self._was_empty,
        )
        standing = await self._template_pod()
        document = build_job(
            standing,
            self._container,
            job_script.build_container_command(self._script, self.files),
            name=self.job_name,
            own_labels=build_labels(self._site.deployment, self.key),
            job=self._step.name,
            request=request,
            limit_s=self._step.limit_s,
        )
        submission = reattach.describe_submission(
            self._step, self._site, document, standing, key=self.key, files=self.files
        )
        if submission is not None:
            self._earlier = await reattach.find_job(self._site, submission, self._notice)
        if self._earlier is not None:
            self._adopt(self._earlier)
        else:
            await self._make(document, submission)
        self._made = time.monotonic()

    def _adopt(self, submission: Submission) -> None:
        self.key, self.job_name, self.files = (
            submission.key,
            build_job_name(submission.job, submission.key),
            KubernetesJobFiles(submission.folder),
        )
        self._notice(queue_messages.reattached(f"Job {self.job_name}"))

    async def _make(self, document: dict[str, Any], submission: Submission | None) -> None:
        output, code = await self._site.ask(job_script.build_folder_command(self.files, self._script))
        if code:
            raise PodLost(f"the folder of the job could not be made in {self._site.place}: {known_reason(output)}")
        if submission is not None:
            document["metadata"]["annotations"] |= {WORK: submission.fingerprint}
        await journal.record(KUBERNETES, submission, job_id="")
        try:
            uid = await self._site.jobs.create(document)
        except ApiServerError as error:
            raise self._rejected(error) from error
        await journal.record(KUBERNETES, submission, job_id=uid)
        self._notice(f"Job {self.job_name}")

    async def _template_pod(self) -> dict[str, Any]:
        name = self._site.place.partition(":")[0]
        try:
            return await self._site.jobs.template_pod(name)
        except ApiServerError as error:
            raise PodLost(f"pod {name}, which is the template of the Job: {error}") from error

    def _rejected(self, error: ApiServerError) -> Exception:
        if error.may_pass and error.status not in (401, 403):
            return SiteUnreachable(f"{self._site.deployment}: Job {self.job_name}: {error}")
        self._fail(FailureKind.SUBMIT_REJECTED, UNKNOWN_CODE)
        return job_messages.rejected_error(error, self._site, self._step.name)

    # ---- while it waits and runs

    async def _until_ended(self) -> JobStatus:
        deadline = response_deadline(self._notice)
        while True:
            if self._site.closing():
                raise asyncio.CancelledError  # the run is ending: the job did not fail
            try:
                status = self._judge(await self._site.jobs.look())
            except ApiServerError as error:  # unknown until the next request
                try:
                    deadline.no_answer(str(error))
                except SiteUnresponsive:
                    word = f"Kubernetes has not answered for half an hour: {error}"
                    return JobStatus(state=KubernetesJobState.FAILED, word=word)
                await asyncio.sleep(deadline.pause_s)
            else:
                deadline.answered()
                if status is not None and status.ended:
                    return status
                await self._look_after(status)
                await asyncio.sleep(POLL_S)

    async def _look_after(self, status: JobStatus | None) -> None:
        if self._silent_since is not None:
            return  # its node does not answer
        if status is not None and status.state is KubernetesJobState.WAITING:
            await self._wait_for(status)
        elif status is not None:
            if self._reported_reason:
                self._notice(queue_messages.runs_now())
            self._reported_reason, self._waited = "", WaitTimes()
            await self._follow()

    def _judge(self, seen: JobSnapshot) -> JobStatus | None:
        """Return the status in a snapshot; None for a snapshot from before the Job was created."""
        if seen.requested_s <= self._made:
            return None
        status = judge_job(seen.jobs.get(self.key), seen.pods.get(self.key, []), self._container, last=self._last)
        self._last = status.pod or self._last
        if status.num_disrupted > self._num_disrupted:
            self._num_disrupted, self._offset = status.num_disrupted, 0
            self._notice(f"its pod was disrupted; Kubernetes replaces it ({status.num_disrupted} so far)")
        return self._with_lost_node(status)

    def _with_lost_node(self, status: JobStatus) -> JobStatus:
        pod = status.pod
        if status.ended or pod is None or not unresponsive_node(pod):
            self._silent_since = None
            return status
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since < LOST_NODE_S:
            return status
        word = describe_lost_node(
            pod,
            f"its node has been unreachable for {LOST_NODE_S:.0f} s; the pod may still run there",
        )
        return JobStatus(state=KubernetesJobState.FAILED, kind=FailureKind.NODE_FAIL, word=word, pod=pod)

    async def _wait_for(self, status: JobStatus) -> None:
        """Report what the pod waits for; raise once the wait has no chance or its deadline has passed."""
        names = {self.job_name, *((status.pod.name, *status.pod.claims) if status.pod else ())}
        self._events = await self._site.jobs.events.about(sorted(names), self._since)
        start = judge_start(status.pod, self._events) if status.pod else judge_missing_pods(self.job_name, self._events)
        if status.pod is not None and status.pod.phase in ("Failed", "Succeeded"):
            start = (StartState.STARTING, start[1])  # the Job has not noticed yet, or creates another pod
        self._waited = self._waited.after(time.monotonic(), {self.job_name: start}, self._events)
        end = self._waited.end(timeout_s=self._site.timeout_s, pending_timeout_s=self._site.pending_timeout_s)
        if end is not None:
            raise self._never_started(end, status, start[1])
        if start[0] is StartState.WAITING and start[1] != self._reported_reason:
            self._reported_reason = start[1]
            self._notice(f"waits for up to {self._site.pending_timeout_s:.0f} s: {start[1]}")

    def _never_started(self, end: WaitEnd, status: JobStatus, reason: str) -> DeploymentRefused:
        error = job_messages.never_started_error(
            end, status, self._site, step=self._step.name, job_name=self.job_name, reason=reason, events=self._events
        )
        self._fail(FailureKind.SUBMIT_REJECTED, UNKNOWN_CODE)
        if (run := current()) is not None:
            facts = self._facts(status) | {"failure": FailureKind.SUBMIT_REJECTED}
            seconds = time.monotonic() - self._started
            run.command_ended(
                self._step.name,
                CommandOutcome(
                    exit_code=UNKNOWN_CODE, seconds=seconds, cause=str(error), message=str(error), site=facts
                ),
            )
        return error

    async def _follow(self) -> None:
        """Forward new standard error of the command."""
        if self._step.streams["stderr"] or time.monotonic() - self._followed < FOLLOW_S:
            return
        self._followed = time.monotonic()
        for _ in range(READS):
            data = await self._read(job_script.build_follow_command(self.files.stderr, self._offset))
            self._offset += len(data)
            self._output.stderr(data)
            if len(data) < job_script.TAIL_BYTES:
                return

    # ---- after its end

    async def _outcome(self, status: JobStatus) -> CommandOutcome:
        end = await self._read_script_end(patient=status.state is KubernetesJobState.COMPLETED)
        completed = status.state is KubernetesJobState.COMPLETED and end is not None and end.exit_code == 0
        code, word = (
            (0, "")
            if completed
            else job_messages.describe_failure(status, end, self._step.limit_s, place=self._site.place)
        )
        counters = end.counters if end else Counters()
        kind = status.kind
        if kind is FailureKind.STEP_FAILED and counters.oom_kills:
            kind = FailureKind.OUT_OF_MEMORY
        if not completed:
            self._fail(kind, code)
        await self._read_final_output(failed=not completed)
        return self._output.outcome(
            exit_code=code,
            seconds=float(end.seconds) if end else time.monotonic() - self._started,
            cpu_seconds=counters.cpu_seconds,
            site_word=word,
            kept_at=self._site.kept_at,
            report_folder=await self._site.fetch_reports() if completed else None,
            site=self._facts(status) | ({} if completed else {"failure": kind}),
        )

    async def _read_script_end(self, *, patient: bool) -> ScriptEnd | None:
        """Return the end that the script recorded; None makes a success a failure: the volume does not show the Job's files."""
        deadline = time.monotonic() + (MISSING_S if patient else 0.0)
        while True:
            with contextlib.suppress(PodLost):
                text, code = await self._site.ask(job_script.build_end_command(self.files))
                if code == 0 and (end := job_script.read_end(text)) is not None:
                    return end
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(POLL_S)

    async def _read_final_output(self, *, failed: bool) -> None:
        if failed:
            if not self._step.streams["stderr"]:
                self._output.use_stderr_of(await self._read(job_script.build_tail_command(self.files.stderr)))
            if not self._step.streams["stdout"]:
                self._output.stdout(await self._read(job_script.build_tail_command(self.files.stdout)))
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
        """Delete the Job and wait until its pods are gone."""
        deadline, seen = time.monotonic() + GRACE_S + GONE_S, ""
        while time.monotonic() < deadline:
            try:
                remaining = await self._site.jobs.remove(self.job_name, self.key)
                remaining = [pod for pod in remaining if pod.phase not in ("Succeeded", "Failed")]
                self.gone = self.over = not remaining
                if self.gone:
                    return
                seen = ", ".join(f"pod {pod.name} on {pod.node}" for pod in remaining)
                if all(map(unresponsive_node, remaining)):
                    self.over = True  # a node that comes back ends the pod
                    break
            except ApiServerError as error:
                seen = str(error)
            await asyncio.sleep(POLL_S)
        do = f"kubectl delete job {self.job_name} --namespace {self._site.cluster.namespace}"
        if self.over:
            do = "nothing if its node comes back: the pod then ends; otherwise ask the operators of the cluster to remove the node"
        console.say(
            f"medweave: {self._site.deployment}: Job {self.job_name} may still run.\n  seen:     {seen}\n  do:       {do}"
        )

    @property
    def is_reattached(self) -> bool:
        """Return True if an earlier driver submitted the Job."""
        return self._earlier is not None

    @property
    def folder(self) -> str:
        """Return the folder of the Job's files, on the claim."""
        return self.files.folder

    async def find_checkpoint(self, folder: str) -> Checkpoint:
        """Return the state of the checkpoint folder after the Job, as the standing pod sees it."""
        text, _ = await self._site.ask("; ".join(look_for_checkpoint(folder, since=self.files.begun)))
        return read_checkpoint(text.splitlines())

    def _facts(self, status: JobStatus) -> dict[str, object]:
        pod = status.pod or self._last
        pods = [pod_facts(pod, self._container)] if pod else []
        request = job_requests.request_of(self._step.name)
        gpus = request.hints.gpus_min if request else 0
        return {"namespace": self._site.cluster.namespace, "kubernetes_job": self.job_name, "pods": pods, "gpus": gpus}

    def _fail(self, kind: FailureKind, code: int) -> None:
        self.failure = failed_attempt(self._step.name, kind, code)

    def _notice(self, text: str) -> None:
        job_notice(self._step.name, text)
