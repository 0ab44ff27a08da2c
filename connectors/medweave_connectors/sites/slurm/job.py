"""One job from its request to its outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medweave_connectors.host.errors import (
    JobEndedBySite,
    SiteConfigError,
    SiteUnreachable,
    TimeLimitExceeded,
    of_the_file,
)
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.reattach import journal
from medweave_connectors.jobs.reattach.journal import SLURM, Submission
from medweave_connectors.jobs.retries.policy import Failed, FailureKind
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.slurm import commands, messages, reattach, reattach_commands, submission
from medweave_connectors.sites.slurm.answers import EndWords, read_poll
from medweave_connectors.sites.slurm.deadlines import Patience, SiteSilent, reason_of, until_answered
from medweave_connectors.sites.slurm.final_state import Ends
from medweave_connectors.sites.slurm.script import JobFiles, StepCommand, gang_script, node_script, single_script
from medweave_connectors.sites.slurm.service import Allocation, Service, allocation, refuse_if_too_large
from medweave_connectors.sites.slurm.states import (
    JobState,
    Told,
    failure_kind,
    held_to_limit,
    judge,
    shell_exit_code,
)
from medweave_connectors.sites.slurm.watch import NeverStarts, Watch, WatchedJob

END_KNOWN_S, END_PAUSE_S = 180.0, 1.0
COST_TRIES = 3  # accounting may lag behind the controller by a moment
MOVES, MOVE_PAUSE_S = 6, 5.0  # of an output folder that does not move; a job that has just ended may hold a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place where a job runs, as its connector has it.

    Attributes:
        nodes: (cores, MiB) of the partition's nodes; empty where they are not known.
        ask: runs a line on the login node and returns its output, or raises.
        fetch_reports: gets the job's name and its output folder; returns a folder with copies, or None.
        closing: true once the run is being ended.
    """

    deployment: str
    service_name: str
    service: Service
    nodes: Sequence[tuple[int, int]]
    prologue: str
    ask: Callable[[str], Awaitable[str]]
    watch: Watch
    ends: Ends
    fetch_reports: Callable[[str, str], Awaitable[Path | None]]
    closing: Callable[[], bool]

    @property
    def place(self) -> messages.Place:
        name = f"{self.deployment}/{self.service_name}" if self.service_name else self.deployment
        setting = f"deployments.{self.deployment}.config.services.{self.service_name or '…'}"
        return messages.Place(name=name, setting=setting)


class SlurmJob:
    """A step's command as a job.

    Attributes:
        key: in the job's comment; no other submission has the same.
        job_id: Slurm's, once it is known.
        sent: Slurm may have it.
        over: true when Slurm has nothing more to do with it.
        failure: set where it has failed and is over; the site's table says what follows.
    """

    def __init__(self, name: str, step: StepCommand, site: Site) -> None:
        run = current()
        token = secrets.token_hex(4)
        self.name, self.job_id, self.sent, self.over = name, "", False, False
        self.failure: Failed | None = None
        self.key = f"medweave:{run.owner.process_key if run else '-'}:{name}:{token}"
        self._step, self._site = step, site
        self._files = JobFiles.beside(step.output_directory, token)
        self._output = JobOutput(name)
        self._started = time.monotonic()
        self._offset = 0
        self._allocation: Allocation

    async def run(self, time_limit_s: int | None) -> tuple[str, int]:
        """Returns the cause of a failure, and the exit code of the command.

        Raises:
            SiteConfigError, TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as the connector's `run`.
        """
        self._allocation = self._asked(time_limit_s)
        self._step = dataclasses.replace(
            self._step,
            worker=self._site.service.environment,
            worker_setting=f"{self._site.place.setting}.environment",
            gpus=self._allocation.gpus > 0,
        )
        wanted = self._wanted()
        left = await self._left(wanted) if wanted else None
        if left is not None:
            self.key, self.job_id, self._files, self.sent = left.key, left.job_id, JobFiles(left.folder), True
            self._notice(f"goes on with Slurm job {self.job_id}, which an earlier driver has submitted and left")
        else:
            self.job_id = await self._submit(wanted)
            self._notice(f"Slurm job {self.job_id}" + (f" on {self._allocation.num_nodes} nodes" if self._gang else ""))
        end, told = await self._until_known()
        told = held_to_limit(told, end.exit_file, time_limit_s)
        self.over = told.state.ended
        if left is not None and self.over:
            await self._take_outputs(left)
        outcome = await self._outcome(end, told)
        if (run := current()) is not None:
            run.command_ended(self.name, outcome)
        if self._site.closing():
            raise asyncio.CancelledError  # ended by us: the job did not fail
        if told.state is JobState.TIMEOUT:
            raise TimeLimitExceeded(f"{self.name}: {outcome.cause}")
        if told.state not in (JobState.COMPLETED, JobState.FAILED):
            raise JobEndedBySite(f"{self.name}: {outcome.cause}")
        return outcome.cause, outcome.exit_code

    def _asked(self, time_limit_s: int | None) -> Allocation:
        where = self._site.place.setting
        with of_the_file():
            request = job_requests.must_know(self.name, where=f"deployments.{self._site.deployment}")
            asked = allocation(request, self._site.service, time_limit_s=time_limit_s, where=where)
            refuse_if_too_large(asked, self._site.nodes, where=where)
            return asked

    def _wanted(self) -> Submission | None:
        """What will be submitted, as it is written down; None where no medweave run goes on."""
        run, site = current(), self._site
        if run is None:
            return None
        printed = reattach.fingerprint(
            self._step, self._allocation, place=site.place.name, prologue=site.prologue, run_id=run.run_id
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

    async def _left(self, wanted: Submission) -> Submission | None:
        """The job of an earlier driver that does the same: until the site has answered, nothing may be submitted."""
        patience = Patience(self._notice)
        try:
            return await until_answered(lambda: reattach.find(self._site.ask, self._runs, wanted, patience), patience)
        except SiteSilent as error:
            raise SiteUnreachable(
                f"{self._site.place.name}: a job of {self.name} that an earlier driver has left could not be looked at "
                f"for half an hour; nothing was submitted: {error}"
            ) from None

    async def _take_outputs(self, left: Submission) -> None:
        line, said = reattach_commands.move(left.outputs), "its output folder does not move"
        try:
            for _ in range(MOVES):
                if reattach_commands.read_move(
                    await until_answered(lambda: self._site.ask(line), Patience(self._notice))
                ):
                    return
                await asyncio.sleep(MOVE_PAUSE_S)
        except SiteSilent as error:
            said = f"no answer for half an hour: {error}"
        raise SiteUnreachable(
            f"{self._site.place.name}: Slurm job {self.job_id} of {self.name} has ended, and its outputs could not be "
            f"taken over: {said}"
        )

    async def _submit(self, wanted: Submission | None) -> str:
        site, files, asked = self._site, self._files, self._allocation
        title = self.key  # says in the file whose job it is
        if self._gang:
            scripts = {
                files.script: gang_script(
                    self._step, files, num_nodes=asked.num_nodes, cores=asked.cores, prologue=site.prologue, title=title
                ),
                files.node_script: node_script(self._step, files),
            }
        else:
            scripts = {files.script: single_script(self._step, files, prologue=site.prologue, title=title)}
        label = re.sub(r"[^A-Za-z0-9._-]+", ".", f"medweave{PurePosixPath(self.name).parent}")
        sbatch = commands.sbatch_words(files, asked, site.service, job_name=label, key=self.key)
        await self._write_down(wanted, job_id="")
        try:
            job_id = await submission.submit(
                site.ask,
                sbatch,
                files,
                scripts,
                self.key,
                patience=Patience(self._notice),
                may_have_it=self._note_sent,
            )
            await self._write_down(wanted, job_id=job_id)
            return job_id
        except submission.Refused as error:
            self.over = True
            self.failure = Failed(kind=FailureKind.SUBMIT_REJECTED, memory_mib=asked.memory_mib)
            setting, do = messages.refused_setting(str(error))
            raise SiteConfigError(
                f"{site.place.setting}.{setting}: Slurm refuses the job of {self.name}.",
                seen=str(error).replace("\n", " "),
                expected=f"a place for {messages.expected(asked)}",
                do=do,
            ) from None
        except submission.NotTaken as error:
            raise SiteUnreachable(f"{site.place.name}: Slurm did not take the job of {self.name}: {error}") from None
        except SiteSilent as error:
            known = "it may have the job" if self.sent else "nothing was submitted"
            raise SiteUnreachable(
                f"{site.place.name}: Slurm has not answered for half an hour; {known} of {self.name}: {error}"
            ) from None

    def _note_sent(self, sent: bool) -> None:
        self.sent = sent

    async def _write_down(self, wanted: Submission | None, *, job_id: str) -> None:
        if wanted is not None:
            known = dataclasses.replace(wanted, job_id=job_id)
            await asyncio.to_thread(journal.of(self._runs / wanted.run_id, SLURM).write, known)

    async def _until_known(self) -> tuple[EndWords, Told]:
        """Waits for the end, and for a source that knows how it was."""
        await self._until_ended()
        patience = Patience(self._notice)
        deadline, tries = time.monotonic() + END_KNOWN_S, 0
        while True:
            end = await self._last_words()
            told = judge(
                end.sacct,
                end.scontrol,
                end.exit_file,
                forgotten=end.forgotten,
                starts_again=self._site.service.requeue,
            )
            if told is not None or end.answered:
                patience.answered()
            tries += told is not None
            # Accounting knows the cost, a moment after the controller knows the end.
            late = end.sacct is not None and not end.sacct.state.ended and tries < COST_TRIES
            if told is not None and not late:
                return end, dataclasses.replace(told, reason=end.reason)
            if end.scontrol is not None and end.scontrol.state is JobState.WAITING:
                await self._until_ended()  # Slurm will start it again
                patience.answered()
            if not end.answered:
                self._silent(patience, end.said)
            if not end.answered or (end.scontrol is not None and not end.scontrol.state.ended):
                deadline = time.monotonic() + END_KNOWN_S  # nobody knows; it goes on; or its nodes are being cleaned
            if time.monotonic() > deadline:
                return end, Told(source="sacct, scontrol and the job's exit file", word="UNKNOWN")
            await asyncio.sleep(END_PAUSE_S if end.answered else patience.pause_s)

    def _silent(self, patience: Patience, said: str) -> None:
        try:
            patience.silent(said)
        except SiteSilent as error:
            raise self._lost(error) from None

    def _lost(self, error: SiteSilent) -> SiteUnreachable:
        self.over = True  # nothing can be cancelled at a site that does not answer
        return SiteUnreachable(
            f"{self._site.place.name}: Slurm has not answered for half an hour; job {self.job_id} may still run: {error}"
        )

    async def _until_ended(self) -> None:
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
        except SiteSilent as error:
            raise self._lost(error) from None
        except NeverStarts as error:
            setting, do = messages.hopeless_setting(str(error))
            raise SiteConfigError(
                f"{self._site.place.setting}.{setting}: Slurm job {self.job_id} of {self.name} would wait for ever; "
                "it was cancelled.",
                seen=f"state PENDING, reason {error}",
                expected=f"a place for {messages.expected(self._allocation)}",
                do=do,
            ) from None
        finally:
            self._offset = watched.offset

    async def _last_words(self) -> EndWords:
        """What all sources say; empty where the site could not be asked."""
        try:
            asked = commands.EndOf(self.job_id, self._files, starts_again=self._site.service.requeue)
            return await self._site.ends.of(asked)
        except Exception as error:  # whatever broke, nothing is known
            return EndWords(said=reason_of(error))

    async def _read_rest(self) -> None:
        """What the job printed after the last look."""
        more = commands.FOLLOW_BYTES
        while more == commands.FOLLOW_BYTES:
            part = commands.follow(0, self._files, self._followed, self._offset)
            try:
                data = read_poll(await self._site.ask(commands.poll(part))).text.get(0, b"")
            except Exception:  # the words that are missing change nothing about how the job ended
                return
            self._output.stderr(data)
            more = len(data)
            self._offset += more

    async def _outcome(self, end: EndWords, told: Told) -> CommandOutcome:
        await self._read_rest()
        self._output.stdout(end.tails.get("stdout.0" if self._gang else "stdout", b""))
        self._output.close()
        completed = told.state is JobState.COMPLETED
        exit_code, site_word = (0, "") if completed else self._failure(end, told)
        known = [each for each in (end.sacct, told, end.exit_file) if each is not None]
        folder = self._step.output_directory
        return self._output.outcome(
            exit_code=exit_code,
            seconds=next(
                (each.seconds for each in known if each.seconds is not None), time.monotonic() - self._started
            ),
            cpu_seconds=end.sacct.cpu_seconds if end.sacct else None,
            peak_memory_mib=end.sacct.peak_memory_mib if end.sacct else None,
            site_word=site_word,
            kept_at=f"{self._site.deployment}:{folder}",
            report_folder=await self._site.fetch_reports(self.name, folder) if completed else None,
            site={
                "slurm_job_id": self.job_id,
                "state": told.word,
                "source": told.source,
                "nodes": next((each.nodes for each in known if each.nodes), ""),
                "num_nodes": self._allocation.num_nodes,
                "gpus": self._allocation.gpus * self._allocation.num_nodes,
                "queue_seconds": next((each.queue_seconds for each in known if each.queue_seconds is not None), None),
            }
            | ({"reason": told.reason} if told.reason else {})
            | ({"failure": self.failure.kind} if self.failure else {}),
        )

    def _failure(self, end: EndWords, told: Told) -> tuple[int, str]:
        """The exit code that means something, and the site's part of the cause."""
        strange = end.tails.get("stderr", b"").decode(errors="replace").splitlines()
        memory = messages.looks_out_of_memory(told, [*strange, *self._output.stderr_tail])
        word = messages.site_word(self.job_id, told, self._allocation, self._site.place, out_of_memory=memory)
        rank = messages.lost_rank(end.ranks) if self._gang else None
        code, _, host = end.ranks[rank] if rank is not None else (self._own_code(end, told), 0, "")
        kind, memory_mib = failure_kind(told, out_of_memory=memory), self._allocation.memory_mib
        self.failure = Failed(kind=kind, exit_code=code, memory_mib=memory_mib)
        if rank is None:
            if self._gang:  # no node recorded a failure: the output of srun, the prologue or Slurm may hold the cause
                self._output.stderr(end.tails.get("stderr", b"") + b"\n")
            return code, word
        if rank:  # node 0's words were followed
            self._output.tell_instead(end.tails.get(f"stderr.{rank}", b""))
        return code, f"{word}\nnode rank {rank} ({host}) ended first, exit code {code}; the others were ended with it."

    def _own_code(self, end: EndWords, told: Told) -> int:
        return shell_exit_code(told, end.scontrol, end.exit_file)

    def _notice(self, text: str) -> None:
        if (run := current()) is not None:
            run.job_notice(self.name, text)

    @property
    def _runs(self) -> Path:
        run = current()
        assert run is not None, "asked without a run"
        return run.folder.parent

    @property
    def files(self) -> JobFiles:
        """Those of the job at the site."""
        return self._files

    @property
    def _gang(self) -> bool:
        return self._allocation.num_nodes > 1

    @property
    def _followed(self) -> str:
        return self._files.followed(gang=self._gang)
