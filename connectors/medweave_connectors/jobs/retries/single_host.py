"""Attempts of a step on a machine without a scheduler: the same command again, in a clean folder.

The only kind of failure with a retry is exit code 75, by which a step reports that another try may help: a training with a killed
process, for instance. The next attempt continues from the newest checkpoint.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping

from medweave_connectors.host.errors import CommandFailed
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.retries.attempt_script import (
    RESUME_FROM,
    clean_start,
    look_for_checkpoint,
    read_checkpoint,
)
from medweave_connectors.jobs.retries.attempts import Attempts
from medweave_connectors.jobs.retries.policy import Checkpoint, FailedAttempt, FailureKind, Table

CommandResult = tuple[str, int]


class SingleHostAttempts(Attempts):
    """A step's command on one machine.

    Args:
        place: the machine's name, for people.
        folder: the step's output folder.
        temporary: that of its temporary files; empty for none.
        shell: runs a line there; returns its output and exit code.
        begin: runs the command with additional variables; returns the cause of a failure and the exit code.
    """

    looks = 1  # the file system is the machine's, so files appear at once

    def __init__(
        self,
        name: str,
        table: Table,
        closing: Callable[[], bool],
        *,
        place: str,
        folder: str,
        temporary: str,
        shell: Callable[[str], Awaitable[CommandResult]],
        begin: Callable[[Mapping[str, str]], Awaitable[CommandResult]],
    ) -> None:
        super().__init__(name, table, closing)
        self._place, self._shell, self._begin = place, shell, begin
        self._home = f"{folder.rstrip('/')}.attempts-{secrets.token_hex(4)}"
        self._begun = f"{self._home}/begun"  # a file as old as the attempt
        self._checkpoints = f"{folder}/{self.checkpoint_folder}"
        self._clean_start = clean_start(
            folder, home=self._home, checkpoint_folder=self.checkpoint_folder, temporary=temporary
        )

    async def attempt(self) -> CommandResult:
        """Run the command in a clean folder."""
        result = await self._begin(await self._clean())
        if result[1]:
            request = job_requests.request_of(self.name)
            memory_mib = request.memory_mib if request else 0.0
            self.failure = FailedAttempt(kind=FailureKind.STEP_FAILED, exit_code=result[1], memory_mib=memory_mib)
        return result

    async def find_checkpoint(self) -> Checkpoint:
        """Return the state of the checkpoint folder after the attempt."""
        text, _ = await self._shell("; ".join(look_for_checkpoint(self._checkpoints, since=self._begun)))
        return read_checkpoint(text.splitlines())

    async def _clean(self) -> dict[str, str]:
        """Restore the folder as the engine made it. Return the variable with the path of the checkpoints, if there are any.

        Raises:
            CommandFailed: the folder could not be prepared.
        """
        begins = f"mkdir -p {shlex.quote(self._home)} && : > {shlex.quote(self._begun)}"
        script = "\n".join((begins, *self._clean_start, f'echo "resumes:${{{RESUME_FROM}:+yes}}"'))
        result = await self._shell(script)
        if result[1]:
            raise CommandFailed(["mkdir", "-p", self._home], self._place, result)
        return {RESUME_FROM: self._checkpoints} if "resumes:yes" in result[0] else {}
