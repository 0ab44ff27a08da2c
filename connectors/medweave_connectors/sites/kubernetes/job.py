"""One command in a pod of its own, from its Job to its outcome."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import secrets
import time
from typing import Any

from medweave_connectors.host.errors import JobEndedBySite, SiteUnreachable, TimeLimitExceeded, of_the_file
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.reattach.journal import Submission
from medweave_connectors.jobs.retries.policy import FailedAttempt, FailureKind
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.kubernetes import job_messages, job_script, reattach
from medweave_connectors.sites.kubernetes.job_client import GRACE_S, Seen
from medweave_connectors.sites.kubernetes.job_messages import UNKNOWN_CODE
from medweave_connectors.sites.kubernetes.job_object import WORK, build_job, job_name, labels
from medweave_connectors.sites.kubernetes.job_script import JobFiles, ScriptEnd
from medweave_connectors.sites.kubernetes.job_site import JobSite
from medweave_connectors.sites.kubernetes.job_states import JobState, Told, judge_job
from medweave_connectors.sites.pods.api.cluster import Refused
from medweave_connectors.sites.pods.errors import DeploymentRefused, PodLost
from medweave_connectors.sites.pods.exec.commands import Counters
from medweave_connectors.sites.pods.exec.step import Step
from medweave_connectors.sites.pods.startup.deadlines import End, Hope, Waited, hope, hope_of_missing
from medweave_connectors.sites.pods.startup.pod import Event, Pod, pod_facts
from medweave_connectors.sites.pods.startup.states import node_lost, silent_node

POLL_S, FOLLOW_S = 0.5, 2.0
MISSING_S = 10.0  # a shared file system may show a file some seconds late
LOST_NODE_S = 120.0  # a node that has not answered for so long is lost
SILENT_S = 600.0  # an API server that is not heard of for so long has lost the job
GONE_S = 30.0  # beyond the grace of a pod
READS = 8  # at a look: so much is read of a command that says a lot


class KubernetesJob:
    """A step's command as a Job.

    Attributes:
        gone: nothing of it is left.
        over: nothing more can be done about what is left.
        files: on the claim.
        failure: set where it has failed and is over; the site's table says what follows.
    """

    def __init__(self, step: Step, site: JobSite, *, home: str = "", was_empty: bool = False) -> None:
        """`home` is the folder of the step's first Job; empty in the first one itself. `was_empty` is the script's."""
        token = secrets.token_hex(4)
        self.key, self.job_name = token, job_name(step.name, token)
        self.gone = self.over = False
        self.failure: FailedAttempt | None = None
        self._step, self._site = step, site
        self._container = site.container
        self.files = JobFiles.beside(step.output_directory, token)
        self._home, self._was_empty = home or self.files.folder, was_empty
        self._left: Submission | None = None
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
            await self._begin()
            told = await self._until_ended()
            if self._left is not None and (told.state is JobState.COMPLETED or told.kind is not FailureKind.UNKNOWN):
                await reattach.take_outputs(self._site, self._left, self.job_name)
            outcome = await self._outcome(told)
        finally:
            # In a task of its own: this one may be being cancelled.
            await asyncio.shield(asyncio.ensure_future(self.remove()))
            # What may still run is not made a second time; of a lost node, nobody ever hears more.
            if self.failure is not None and not self.gone and self.failure.kind is not FailureKind.NODE_FAIL:
                self.failure = FailedAttempt(kind=FailureKind.UNKNOWN)
        if (run := current()) is not None:
            run.command_ended(self._step.name, outcome)
        if told.kind is FailureKind.TIMEOUT:
            raise TimeLimitExceeded(f"{self._step.name}: {outcome.cause}")
        if outcome.exit_code and told.kind not in (FailureKind.STEP_FAILED, FailureKind.OUT_OF_MEMORY):
            raise JobEndedBySite(f"{self._step.name}: {outcome.cause}")
        return outcome.cause, outcome.exit_code

    # ---- before it runs

    async def _begin(self) -> None:
        """Makes the Job, or goes on with one that does the same and whose driver is gone."""
        with of_the_file():
            request = job_requests.require_request(self._step.name, where=f"deployments.{self._site.deployment}")
        self._script = job_script.job_script(
            self._step,
            self.files,
            home=self._home,
            checkpoint_folder=request.hints.checkpoint_folder,
            signal_lead_s=self._site.signal_lead_s,
            was_empty=self._was_empty,
        )
        standing = await self._standing()
        document = build_job(
            standing,
            self._container,
            job_script.command(self._script, self.files),
            name=self.job_name,
            own_labels=labels(self._site.deployment, self.key),
            job=self._step.name,
            request=request,
            limit_s=self._step.limit_s,
        )
        wanted = reattach.wanted(self._step, self._site, document, standing, key=self.key, files=self.files)
        if wanted is not None:
            self._left = await reattach.find(self._site, wanted, self._notice)
        if self._left is not None:
            self._go_on_with(self._left)
        else:
            await self._make(document, wanted)
        self._made = time.monotonic()

    def _go_on_with(self, left: Submission) -> None:
        self.key, self.job_name, self.files = left.key, job_name(left.job, left.key), JobFiles(left.folder)
        self._notice(f"goes on with Job {self.job_name}, which an earlier driver has made and left")

    async def _make(self, document: dict[str, Any], wanted: Submission | None) -> None:
        told, code = await self._site.ask(job_script.make_folder(self.files, self._script))
        if code:
            raise PodLost(f"the folder of the job could not be made in {self._site.place}: {known_reason(told)}")
        if wanted is not None:
            document["metadata"]["annotations"] |= {WORK: wanted.fingerprint}
        await reattach.write_down(wanted, uid="")
        try:
            uid = await self._site.jobs.make(document)
        except Refused as error:
            raise self._not_taken(error) from error
        await reattach.write_down(wanted, uid=uid)
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
        return job_messages.not_taken(error, self._site, self._step.name)

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
        error = job_messages.never_started(
            end, told, self._site, step=self._step.name, job_name=self.job_name, reason=reason, events=self._events
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
        code, word = (
            (0, "") if completed else job_messages.failure(told, end, self._step.limit_s, place=self._site.place)
        )
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
            kept_at=self._site.kept_at,
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
                self._output.use_stderr_of(await self._read(job_script.tail(self.files.stderr)))
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

    @property
    def taken_over(self) -> bool:
        """An earlier driver has made it."""
        return self._left is not None

    def _facts(self, told: Told) -> dict[str, object]:
        pod = told.pod or self._last
        pods = [pod_facts(pod, self._container)] if pod else []
        request = job_requests.request_of(self._step.name)
        gpus = request.hints.gpus_min if request else 0
        return {"namespace": self._site.cluster.namespace, "kubernetes_job": self.job_name, "pods": pods, "gpus": gpus}

    def _fail(self, kind: FailureKind, code: int) -> None:
        request = job_requests.request_of(self._step.name)
        self.failure = FailedAttempt(kind=kind, exit_code=code, memory_mib=request.memory_mib if request else 0.0)

    def _notice(self, text: str) -> None:
        if (run := current()) is not None:
            run.job_notice(self._step.name, text)
