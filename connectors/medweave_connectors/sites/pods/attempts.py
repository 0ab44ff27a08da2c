"""The attempts at a step in standing pods: the same command in the same containers, each time in a clean folder."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.command_log import CommandLog
from medweave_connectors.host.errors import JobEndedBySite, TimeLimitExceeded
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.jobs.retries.attempt_script import (
    RESUME_FROM,
    clean_start,
    lead_s,
    look_for_checkpoint,
    read_checkpoint,
)
from medweave_connectors.jobs.retries.attempts import Attempts
from medweave_connectors.jobs.retries.policy import Checkpoint, FailedAttempt, FailureKind
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.sites.pods.errors import PodLost
from medweave_connectors.sites.pods.exec.group import NODE_S, Group, outcome_of
from medweave_connectors.sites.pods.exec.step import Step
from medweave_connectors.sites.pods.startup.volumes import kept_at

_ORDER = (Checkpoint.NONE, Checkpoint.OLD, Checkpoint.NEW)


class PodAttempts(Attempts):
    """A step's command in one container or, with the gang hint, in several.

    Args:
        connector: of the pods.
        location: the first of the step's places, where its outputs will be looked for.
        groups: what runs now is in there.
    """

    looks = 1  # who looks is who has written

    def __init__(
        self,
        connector: Any,
        step: Step,
        location: ExecutionLocation,
        *,
        groups: set[Group],
        closing: Callable[[], bool],
    ) -> None:
        super().__init__(step.name, connector.table, closing)
        self._connector, self._step, self._location, self._groups = connector, step, location, groups
        self._home = f"{step.output_directory.rstrip('/')}.attempts-{secrets.token_hex(4)}"
        self._checkpoints = f"{step.output_directory}/{self.checkpoint_folder}"
        self._places: Sequence[ExecutionLocation] = ()

    async def attempt(self) -> tuple[str, int]:
        """Runs the command in a clean folder."""
        connector, step = self._connector, self._step
        if self._failures:
            await connector.before_again(self.name, self._location, step.output_directory, self.checkpoint_folder)
        places = connector.places_of(self.name, self._location)
        named = [ExecutionLocation(name=each, deployment=connector.deployment_name) for each in places]
        self._places = await connector.distinct(named, step.output_directory)
        variables = {**step.environment, **await self._clean()}
        try:
            members = await connector.members(
                self.name, self._location, step.words, variables, step.output_directory, step.streams
            )
            with CommandLog("pods", connector.deployment_name).command("job") as logged:
                result = await self._run(Group(connector.websocket, connector.cluster, members))
                logged.exit_code = result[1]
            return result
        finally:
            await connector.after_attempt(self.name, self._location)

    async def find_checkpoint(self) -> Checkpoint:
        """What every place of the step has, or will have: a gang whose nodes see different files cannot go on together."""
        line = "; ".join(look_for_checkpoint(self._checkpoints, since=self._begun))
        looks = [self._connector.alone(place, [line]) for place in self._places]
        if not self._connector.GIVES_FILES:
            return min(
                (read_checkpoint(text.splitlines()) for text, _ in await asyncio.gather(*looks)), key=_ORDER.index
            )
        told = [
            each for each in await asyncio.gather(*looks, return_exceptions=True) if not isinstance(each, BaseException)
        ]
        return max((read_checkpoint(text.splitlines()) for text, _ in told), key=_ORDER.index, default=Checkpoint.NONE)

    async def _clean(self) -> dict[str, str]:
        """Makes the folder as the engine has made it; the variable that names the checkpoints, where all places have some.

        Raises:
            PodLost: it could not be made.
        """
        lines = clean_start(
            self._step.output_directory,
            home=self._home,
            checkpoint_folder=self.checkpoint_folder,
            temporary=self._step.environment.get("TMPDIR", ""),
        )
        begins = f"mkdir -p {shlex.quote(self._home)} && : > {shlex.quote(self._begun)}"
        script = "\n".join((begins, *lines, f'echo "resumes:${{{RESUME_FROM}:+yes}}"'))
        # One after the other: behind volumes of kinds that are not known may lie the same folder.
        told = [(place, *await self._connector.alone(place, [script])) for place in self._places]
        for place, text, code in told:
            if code:
                raise PodLost(
                    f"the output folder of {self.name} could not be made in {place.name}: {known_reason(text)}"
                )
        return {RESUME_FROM: self._checkpoints} if all("resumes:yes" in text for _, text, _ in told) else {}

    async def _run(self, group: Group) -> tuple[str, int]:
        limit_s, started = self._step.limit_s, time.monotonic()
        self._groups.add(group)
        try:
            in_time = await group.run(limit_s, self._connector.watched, signal_after_s=self._signal_after_s())
            if in_time:
                await self._hear_of_nodes(group)
        finally:
            self._groups.discard(group)
        outcome = await self._outcome(group, time.monotonic() - started, None if in_time else limit_s)
        if (run := current()) is not None:
            run.command_ended(self.name, outcome)
        if self._closing():
            raise asyncio.CancelledError  # ended by us: the job did not fail
        if not in_time:
            raise TimeLimitExceeded(f"{self.name}: {outcome.cause}")
        if group.culprit().lost:
            raise JobEndedBySite(f"{self.name}: {outcome.cause}")
        return outcome.cause, outcome.exit_code

    async def _hear_of_nodes(self, group: Group) -> None:
        """A pod that nobody reaches is lost with its node, or is not; the cluster takes its time to say so."""
        if not group.unheard:
            return
        if (run := current()) is not None:
            names = ", ".join(member.pod.name for member in group.unheard)
            run.job_notice(
                self.name, f"{names} is not reached; waits for up to {NODE_S:.0f} s for what the cluster says of it"
            )
        await group.hear_of_nodes(self._closing)

    async def _outcome(self, group: Group, seconds: float, limit_s: int | None) -> CommandOutcome:
        connector, culprit, folder = self._connector, group.culprit(), self._step.output_directory
        reports = None if culprit.failed else await fetch_reports(connector, self._location, folder, self.name)
        outcome = outcome_of(
            group.members,
            culprit,
            seconds=seconds,
            limit_s=limit_s,
            kept_at=kept_at(
                connector.deployment_name, culprit.pod, culprit.container, folder, connector.removed_claims()
            ),
            reports=reports,
            site=connector.site_facts(group.members),
        )
        if outcome.exit_code:
            request = job_requests.request_of(self.name)
            # What could not be ended may still run, whatever has happened to the step.
            over = limit_s is None or not any(member.lost for member in group.members)
            self.failure = FailedAttempt(
                kind=outcome.site["failure"] if over else FailureKind.UNKNOWN,
                exit_code=outcome.exit_code,
                memory_mib=request.memory_mib if request else 0.0,
            )
        return outcome

    def _signal_after_s(self) -> int | None:
        limit_s, wanted_s = self._step.limit_s, self._connector.signal_lead_s
        if limit_s is None or not wanted_s or not self.checkpoint_folder:
            return None
        return limit_s - lead_s(limit_s, wanted_s)

    @property
    def _begun(self) -> str:
        """A file as old as the attempt."""
        return f"{self._home}/begun"
