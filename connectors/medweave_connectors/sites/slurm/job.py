"""One job from its request to its outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import secrets
import time
from pathlib import PurePosixPath

from medweave_connectors.host.deadlines import (
    GIVE_UP_AFTER_S,
    ResponseDeadline,
    SiteUnresponsive,
    reason_of,
    retry_until_answered,
)
from medweave_connectors.host.errors import (
    SiteConfigError,
    SiteUnreachable,
    of_the_file,
)
from medweave_connectors.jobs import job_requests, queue_messages
from medweave_connectors.jobs.reattach import journal
from medweave_connectors.jobs.reattach.journal import SLURM, Submission
from medweave_connectors.jobs.retries.attempts import end_attempt
from medweave_connectors.jobs.retries.policy import Checkpoint, FailedAttempt, FailureKind
from medweave_connectors.runlog import current, job_notice
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.slurm import commands, messages, reattach, reattach_commands, submission
from medweave_connectors.sites.slurm.answers import FinalReport, parse_poll, read_checkpoint
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand, gang_script, node_script, single_script
from medweave_connectors.sites.slurm.service import Allocation, allocation, refuse_if_too_large
from medweave_connectors.sites.slurm.site import SlurmSite
from medweave_connectors.sites.slurm.states import (
    SchedulerState,
    SlurmJobState,
    apply_time_limit,
    failure_kind,
    judge,
    shell_exit_code,
)
from medweave_connectors.sites.slurm.watch import NeverStarts, WatchedJob

END_KNOWN_S, END_PAUSE_S = 180.0, 1.0
COST_TRIES = 3  # accounting may lag behind the controller by a moment
MOVES, MOVE_PAUSE_S = 6, 5.0  # of an output folder that does not move; a job that has just ended may hold a file


class SlurmJob:
    """A step's command as a Slurm job.

    Attributes:
        key: the job's comment, unique to the submission.
        job_id: Slurm's id, once it is known.
        sent: Slurm may have the job.
        over: the job has ended for Slurm.
        failure: set if the job has failed; the site's retry policy decides what follows.
    """

    def __init__(self, name: str, step: StepCommand, site: SlurmSite) -> None:
        run = current()
        token = secrets.token_hex(4)
        self.name, self.job_id, self.sent, self.over = name, "", False, False
        self.failure: FailedAttempt | None = None
        self.key = f"medweave:{run.owner.process_key if run else '-'}:{name}:{token}"
        self._step, self._site = step, site
        self._files = SlurmJobFiles.next_to(step.output_directory, token)
        self._output = JobOutput(name)
        self._started = time.monotonic()
        self._offset = 0
        self._earlier: Submission | None = None
        self._allocation: Allocation

    async def run(self, time_limit_s: int | None) -> tuple[str, int]:
        """Submit or re-attach the job and wait. Return the cause of a failure, and the exit code of the command.

        Raises:
            SiteConfigError, TimeLimitExceeded, JobEndedBySite, SiteUnreachable: see the connector's `run`.
        """
        self._allocation = self._request_allocation(time_limit_s)
        self._step = dataclasses.replace(
            self._step,
            worker=self._site.service.environment,
            worker_setting=f"{self._site.label.setting}.environment",
            gpus=self._allocation.gpus > 0,
        )
        planned = self._plan_submission()
        self._earlier = earlier = await self._find_earlier_job(planned) if planned else None
        if earlier is not None:
            self.key, self.job_id, self._files, self.sent = (
                earlier.key,
                earlier.job_id,
                SlurmJobFiles(earlier.folder),
                True,
            )
            self._notice(queue_messages.reattached(f"Slurm job {self.job_id}"))
        else:
            self.job_id = await self._submit(planned)
            self._notice(
                f"Slurm job {self.job_id}" + (f" on {self._allocation.num_nodes} nodes" if self._is_node_group else "")
            )
        end, state = await self._wait_for_final_state()
        state = apply_time_limit(state, end.exit_file, time_limit_s)
        self.over = state.state.ended
        if earlier is not None and self.over:
            await self._move_outputs(earlier)
        return end_attempt(
            self.name,
            await self._outcome(end, state),
            timed_out=state.state is SlurmJobState.TIMEOUT,
            ended_by_site=state.state not in (SlurmJobState.COMPLETED, SlurmJobState.FAILED),
            closing=self._site.closing(),
        )

    def _request_allocation(self, time_limit_s: int | None) -> Allocation:
        where = self._site.label.setting
        with of_the_file():
            request = job_requests.require_request(self.name, where=f"deployments.{self._site.deployment}")
            requested = allocation(request, self._site.service, time_limit_s=time_limit_s, where=where)
            refuse_if_too_large(requested, self._site.nodes, where=where)
            return requested

    def _plan_submission(self) -> Submission | None:
        """Return the planned submission, as the journal stores it; None outside of a medweave run."""
        run, site = current(), self._site
        if run is None:
            return None
        printed = reattach.fingerprint(
            self._step, self._allocation, place=site.label.name, prologue=site.prologue, run_id=run.run_id
        )
        return Submission(
            key=self.key,
            run_id=run.run_id,
            job=self.name,
            deployment=site.deployment,
            service=site.service_name,
            fingerprint=printed,
            folder=self._files.folder,
            outputs=(self._step.output_directory,),
            inputs=reattach.inputs_of(self._step),
        )

    async def _find_earlier_job(self, planned: Submission) -> Submission | None:
        """Return a matching job of an earlier driver, if any. Nothing is submitted until the site has answered."""
        deadline = ResponseDeadline("Slurm", self._notice)
        try:
            return await retry_until_answered(
                lambda: reattach.find(self._site.run_line, journal.runs_folder(), planned, deadline), deadline
            )
        except SiteUnresponsive as error:
            raise queue_messages.earlier_job_unknown(self._site.label.name, self.name, GIVE_UP_AFTER_S, error) from None

    async def _move_outputs(self, earlier: Submission) -> None:
        line, reason = reattach_commands.move(earlier.outputs), f"{MOVES} attempts failed"
        try:
            for _ in range(MOVES):
                if reattach_commands.read_move(
                    await retry_until_answered(
                        lambda: self._site.run_line(line), ResponseDeadline("Slurm", self._notice)
                    )
                ):
                    return
                await asyncio.sleep(MOVE_PAUSE_S)
        except SiteUnresponsive as error:
            reason = f"no answer for half an hour: {error}"
        raise queue_messages.outputs_not_moved(self._site.label.name, f"Slurm job {self.job_id}", self.name, reason)

    async def _submit(self, planned: Submission | None) -> str:
        site, files, requested = self._site, self._files, self._allocation
        title = self.key  # identifies the job in its script
        if self._is_node_group:
            scripts = {
                files.script: gang_script(
                    self._step,
                    files,
                    num_nodes=requested.num_nodes,
                    cores=requested.cores,
                    prologue=site.prologue,
                    title=title,
                ),
                files.node_script: node_script(self._step, files),
            }
        else:
            scripts = {files.script: single_script(self._step, files, prologue=site.prologue, title=title)}
        label = re.sub(r"[^A-Za-z0-9._-]+", ".", f"medweave{PurePosixPath(self.name).parent}")
        sbatch = commands.sbatch_words(files, requested, site.service, job_name=label, key=self.key)
        await journal.record(SLURM, planned, job_id="")
        try:
            job_id = await submission.submit(
                site.run_line,
                sbatch,
                files,
                scripts,
                self.key,
                rate=site.submissions,
                deadline=ResponseDeadline("Slurm", self._notice),
                note_sent=self._note_sent,
            )
            await journal.record(SLURM, planned, job_id=job_id)
            return job_id
        except submission.SubmissionRefused as error:
            self.over = True
            self.failure = FailedAttempt(kind=FailureKind.SUBMIT_REJECTED, memory_mib=requested.memory_mib)
            setting, do = messages.refused_setting(str(error))
            raise SiteConfigError(
                f"{site.label.setting}.{setting}: Slurm refuses the job of {self.name}.",
                seen=str(error).replace("\n", " "),
                expected=f"a partition with {messages.expected(requested)}",
                do=do,
            ) from None
        except submission.SubmissionLost as error:
            raise SiteUnreachable(f"{site.label.name}: Slurm did not accept the job of {self.name}: {error}") from None
        except SiteUnresponsive as error:
            known = "the job may have been submitted" if self.sent else "nothing was submitted"
            raise SiteUnreachable(
                f"{site.label.name}: Slurm has not answered for half an hour; {known} for {self.name}: {error}"
            ) from None

    def _note_sent(self, sent: bool) -> None:
        self.sent = sent

    async def _wait_for_final_state(self) -> tuple[FinalReport, SchedulerState]:
        """Wait for the end, and for a source that reports the final state."""
        await self._wait_until_ended()
        deadline = ResponseDeadline("Slurm", self._notice)
        give_up_at, tries = time.monotonic() + END_KNOWN_S, 0
        while True:
            end = await self._query_final_report()
            state = judge(
                end.sacct,
                end.scontrol,
                end.exit_file,
                purged=end.purged,
                may_requeue=self._site.service.requeue,
            )
            if state is not None or end.answered:
                deadline.answered()
            tries += state is not None
            # Accounting reports the cost a moment after the controller reports the end.
            late = end.sacct is not None and not end.sacct.state.ended and tries < COST_TRIES
            if state is not None and not late:
                return end, dataclasses.replace(state, reason=end.reason)
            if end.scontrol is not None and end.scontrol.state is SlurmJobState.WAITING:
                await self._wait_until_ended()  # Slurm has requeued it
                deadline.answered()
            if not end.answered:
                self._no_answer(deadline, end.error)
            if not end.answered or (end.scontrol is not None and not end.scontrol.state.ended):
                give_up_at = time.monotonic() + END_KNOWN_S  # no answer, still running, or completing
            if time.monotonic() > give_up_at:
                return end, SchedulerState(source="sacct, scontrol and the job's exit file", word="UNKNOWN")
            await asyncio.sleep(END_PAUSE_S if end.answered else deadline.pause_s)

    def _no_answer(self, deadline: ResponseDeadline, message: str) -> None:
        try:
            deadline.no_answer(message)
        except SiteUnresponsive as error:
            raise self._unresponsive_error(error) from None

    def _unresponsive_error(self, error: SiteUnresponsive) -> SiteUnreachable:
        self.over = True  # a job cannot be canceled at a site that does not answer
        return SiteUnreachable(
            f"{self._site.label.name}: Slurm has not answered for half an hour; job {self.job_id} may still run: {error}"
        )

    async def _wait_until_ended(self) -> None:
        watched = WatchedJob(
            job_id=self.job_id,
            files=self._files,
            followed=self._followed,
            on_text=self._output.stderr,
            on_notice=self._notice,
            seems_ended=asyncio.get_running_loop().create_future(),
        )
        try:
            await self._site.watch.until_end(watched)
        except SiteUnresponsive as error:
            raise self._unresponsive_error(error) from None
        except NeverStarts as error:
            setting, do = messages.blocking_setting(str(error))
            raise SiteConfigError(
                f"{self._site.label.setting}.{setting}: Slurm job {self.job_id} of {self.name} can never start; "
                "it was canceled.",
                seen=f"state PENDING, reason {error}",
                expected=f"a partition with {messages.expected(self._allocation)}",
                do=do,
            ) from None
        finally:
            self._offset = watched.offset

    async def _query_final_report(self) -> FinalReport:
        """Return the reports of all sources; empty if the query failed."""
        try:
            requested = commands.FinalStateQuery(self.job_id, self._files, may_requeue=self._site.service.requeue)
            return await self._site.final_states.query(requested)
        except Exception as error:  # any failure: nothing is known
            return FinalReport(error=reason_of(error))

    async def _read_rest(self) -> None:
        """Read the job's output after the last poll."""
        more = commands.FOLLOW_BYTES
        while more == commands.FOLLOW_BYTES:
            part = commands.follow(0, self._files, self._followed, self._offset)
            try:
                data = parse_poll(await self._site.run_line(commands.poll(part))).text.get(0, b"")
            except Exception:  # missing output does not change how the job ended
                return
            self._output.stderr(data)
            more = len(data)
            self._offset += more

    async def _outcome(self, end: FinalReport, state: SchedulerState) -> CommandOutcome:
        await self._read_rest()
        self._output.stdout(end.tails.get("stdout.0" if self._is_node_group else "stdout", b""))
        self._output.close()
        completed = state.state is SlurmJobState.COMPLETED
        exit_code, site_word = (0, "") if completed else self._failure(end, state)
        known = [report for report in (end.sacct, state, end.exit_file) if report is not None]
        folder = self._step.output_directory
        return self._output.outcome(
            exit_code=exit_code,
            seconds=next(
                (report.seconds for report in known if report.seconds is not None), time.monotonic() - self._started
            ),
            cpu_seconds=end.sacct.cpu_seconds if end.sacct else None,
            peak_memory_mib=end.sacct.peak_memory_mib if end.sacct else None,
            site_word=site_word,
            kept_at=f"{self._site.deployment}:{folder}",
            report_folder=await self._site.fetch_reports(self.name, folder) if completed else None,
            site={
                "slurm_job_id": self.job_id,
                "state": state.word,
                "source": state.source,
                "nodes": next((report.nodes for report in known if report.nodes), ""),
                "num_nodes": self._allocation.num_nodes,
                "gpus": self._allocation.gpus * self._allocation.num_nodes,
                "queue_seconds": next(
                    (report.queue_seconds for report in known if report.queue_seconds is not None), None
                ),
            }
            | ({"reason": state.reason} if state.reason else {})
            | ({"failure": self.failure.kind} if self.failure else {}),
        )

    def _failure(self, end: FinalReport, state: SchedulerState) -> tuple[int, str]:
        """Return the exit code of the failure, and the site's part of the cause."""
        strange = end.tails.get("stderr", b"").decode(errors="replace").splitlines()
        memory = messages.looks_out_of_memory(state, [*strange, *self._output.stderr_tail])
        word = messages.site_word(self.job_id, state, self._allocation, self._site.label, out_of_memory=memory)
        rank = messages.lost_rank(end.ranks) if self._is_node_group else None
        code, _, host = (
            end.ranks[rank] if rank is not None else (shell_exit_code(state, end.scontrol, end.exit_file), 0, "")
        )
        kind, memory_mib = failure_kind(state, out_of_memory=memory), self._allocation.memory_mib
        self.failure = FailedAttempt(kind=kind, exit_code=code, memory_mib=memory_mib)
        if rank is None:
            if (
                self._is_node_group
            ):  # no node recorded a failure: srun, the prologue or Slurm may have printed the cause
                self._output.stderr(end.tails.get("stderr", b"") + b"\n")
            return code, word
        if rank:  # only the output of node 0 was followed
            self._output.use_stderr_of(end.tails.get(f"stderr.{rank}", b""))
        return code, f"{word}\nnode rank {rank} ({host}) ended first, exit code {code}; the others were ended with it."

    def _notice(self, text: str) -> None:
        job_notice(self.name, text)

    @property
    def folder(self) -> str:
        """Return the folder of the job's files, at the site."""
        return self._files.folder

    @property
    def is_reattached(self) -> bool:
        """Return True if an earlier driver submitted the job."""
        return self._earlier is not None

    async def find_checkpoint(self, folder: str) -> Checkpoint:
        """Return the state of the checkpoint folder after the job."""
        return read_checkpoint(await self._site.run_line(commands.checkpoint(folder, self._files)))

    @property
    def _is_node_group(self) -> bool:
        return self._allocation.num_nodes > 1

    @property
    def _followed(self) -> str:
        return self._files.followed(gang=self._is_node_group)
