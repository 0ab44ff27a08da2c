"""The attempts at a step in standing pods: the same command in the same containers, every time in a clean folder."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.command_log import CommandLog
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.jobs.retries.attempt_script import (
    RESUME_FROM,
    begin_attempt,
    begun,
    clean_start,
    has_checkpoints,
    lead_s,
    look_for_checkpoint,
    newest,
    oldest,
    read_checkpoint,
)
from medweave_connectors.jobs.retries.attempts import Attempts, end_attempt, failed_attempt
from medweave_connectors.jobs.retries.policy import Checkpoint, FailureKind
from medweave_connectors.runlog import job_notice
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.exec.commands import PodStep
from medweave_connectors.sites.pods.exec.member import build_outcome
from medweave_connectors.sites.pods.exec.pod_group import NODE_S, PodGroup
from medweave_connectors.sites.pods.objects.volumes import describe_location


class PodAttempts(Attempts):
    """A step's command in one container or, with the gang hint, in several.

    Args:
        connector: of the pods.
        location: the first of the step's places, where the engine searches for its outputs.
        groups: the running pod groups, which this class updates.
    """

    looks = 1  # the pod that reads the checkpoints also wrote them

    def __init__(
        self,
        connector: Any,
        step: PodStep,
        location: ExecutionLocation,
        *,
        groups: set[PodGroup],
        closing: Callable[[], bool],
    ) -> None:
        super().__init__(step.name, connector.table, closing)
        self._connector, self._step, self._location, self._groups = connector, step, location, groups
        self._home = f"{step.output_directory.rstrip('/')}.attempts-{secrets.token_hex(4)}"
        self._checkpoints = f"{step.output_directory}/{self.checkpoint_folder}"
        self._places: Sequence[ExecutionLocation] = ()

    async def attempt(self) -> tuple[str, int]:
        """Run the command in a clean folder."""
        connector, step = self._connector, self._step
        if self._failures:
            await connector.before_retry(self.name, self._location, step.output_directory, self.checkpoint_folder)
        places = connector.places_of(self.name, self._location)
        named = [ExecutionLocation(name=place, deployment=connector.deployment_name) for place in places]
        self._places = await connector.distinct(named, step.output_directory)
        variables = {**step.environment, **await self._clean()}
        try:
            members = await connector.members(
                self.name, self._location, step.words, variables, step.output_directory, step.streams
            )
            with CommandLog("pods", connector.deployment_name).command("job") as logged:
                result = await self._run(PodGroup(connector.websocket, connector.cluster, members))
                logged.exit_code = result[1]
            return result
        finally:
            await connector.after_attempt(self.name, self._location)

    async def find_checkpoint(self) -> Checkpoint:
        """Return the checkpoints that all places of the step have, or will have: a group must resume from the same files."""
        line = "; ".join(look_for_checkpoint(self._checkpoints, since=begun(self._home)))
        readings = [self._connector.alone(place, [line]) for place in self._places]
        if not self._connector.COPIES_FILES:
            return oldest(read_checkpoint(text.splitlines()) for text, _ in await asyncio.gather(*readings))
        answers = [
            answer
            for answer in await asyncio.gather(*readings, return_exceptions=True)
            if not isinstance(answer, BaseException)
        ]
        return newest(read_checkpoint(text.splitlines()) for text, _ in answers)

    async def _clean(self) -> dict[str, str]:
        """Reset the output folder; return the variable that names the checkpoints, if all places have some.

        Raises:
            PodLost: the folder could not be created.
        """
        lines = clean_start(
            self._step.output_directory,
            home=self._home,
            checkpoint_folder=self.checkpoint_folder,
            temporary=self._step.environment.get("TMPDIR", ""),
        )
        script = begin_attempt(self._home, lines)
        # One after the other: volumes of unknown kinds may be the same folder.
        answers = [(place, *await self._connector.alone(place, [script])) for place in self._places]
        for place, text, code in answers:
            if code:
                raise PodLost(
                    f"the output folder of {self.name} could not be made in {place.name}: {known_reason(text)}"
                )
        return {RESUME_FROM: self._checkpoints} if all(has_checkpoints(text) for _, text, _ in answers) else {}

    async def _run(self, group: PodGroup) -> tuple[str, int]:
        limit_s, started = self._step.limit_s, time.monotonic()
        self._groups.add(group)
        try:
            in_time = await group.run(limit_s, self._connector.watched, signal_after_s=self._signal_after_s())
            if in_time:
                await self._wait_for_node_status(group)
        finally:
            self._groups.discard(group)
        outcome = await self._outcome(group, time.monotonic() - started, None if in_time else limit_s)
        return end_attempt(
            self.name,
            outcome,
            timed_out=not in_time,
            ended_by_site=bool(group.culprit().lost),
            closing=self._closing(),
        )

    async def _wait_for_node_status(self, group: PodGroup) -> None:
        """Wait for the cluster's report on the nodes of unreachable pods, which may take up to `NODE_S`."""
        if not group.unreachable:
            return
        names = ", ".join(member.pod.name for member in group.unreachable)
        job_notice(self.name, f"{names} is unreachable; waits for up to {NODE_S:.0f} s for the cluster's report")
        await group.wait_for_node_status(self._closing)

    async def _outcome(self, group: PodGroup, seconds: float, limit_s: int | None) -> CommandOutcome:
        connector, culprit, folder = self._connector, group.culprit(), self._step.output_directory
        reports = None if culprit.failed else await fetch_reports(connector, self._location, folder, self.name)
        outcome = build_outcome(
            group.members,
            culprit,
            seconds=seconds,
            limit_s=limit_s,
            kept_at=describe_location(
                connector.deployment_name, culprit.pod, culprit.container, folder, connector.removed_claims()
            ),
            reports=reports,
            site=connector.site_facts(group.members),
        )
        if outcome.exit_code:
            # A command that could not be ended may still run, so the failure is unknown.
            over = limit_s is None or not any(member.lost for member in group.members)
            kind = outcome.site["failure"] if over else FailureKind.UNKNOWN
            self.failure = failed_attempt(self.name, kind, outcome.exit_code)
        return outcome

    def _signal_after_s(self) -> int | None:
        limit_s, wanted_s = self._step.limit_s, self._connector.signal_lead_s
        if limit_s is None or not wanted_s or not self.checkpoint_folder:
            return None
        return limit_s - lead_s(limit_s, wanted_s)
