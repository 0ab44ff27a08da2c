"""Attempts of a step on a machine without a scheduler: the same command again, in a clean folder.

The only kind of failure with a retry is exit code 75, by which a step reports that another try may help: a training with a killed
process, for instance. The next attempt continues from the newest checkpoint.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

from medweave_connectors.host.errors import CommandFailed
from medweave_connectors.jobs.retries.attempt_script import (
    RESUME_FROM,
    begin_attempt,
    begun,
    clean_start,
    has_checkpoints,
    look_for_checkpoint,
    read_checkpoint,
)
from medweave_connectors.jobs.retries.attempts import Attempts, failed_attempt
from medweave_connectors.jobs.retries.policy import Checkpoint, FailureKind, Table

CommandResult = tuple[str, int]


class SingleHostAttempts(Attempts):
    """A step's command on one machine.

    Args:
        place: the machine's name, for people.
        folder: the step's output folder.
        temporary: that of its temporary files; empty for none.
        shell: runs a line there; returns its output and exit code.
        begin: runs the command with additional variables; returns the cause of a failure and the exit code.
        is_empty: the driver sees that the folder is empty; the first attempt then needs no line of `shell`.
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
        is_empty: bool = False,
    ) -> None:
        super().__init__(name, table, closing)
        self._place, self._shell, self._begin = place, shell, begin
        self._home = f"{folder.rstrip('/')}.attempts-{secrets.token_hex(4)}"
        self._checkpoints = f"{folder}/{self.checkpoint_folder}"
        self._is_clean = is_empty and not self.checkpoint_folder
        self._folder, self._temporary, self._was_empty = folder, temporary, self._is_clean

    async def attempt(self) -> CommandResult:
        """Run the command in a clean folder."""
        result = await self._begin(await self._clean())
        if result[1]:
            self.failure = failed_attempt(self.name, FailureKind.STEP_FAILED, result[1])
        return result

    async def find_checkpoint(self) -> Checkpoint:
        """Return the state of the checkpoint folder after the attempt."""
        text, _ = await self._shell("; ".join(look_for_checkpoint(self._checkpoints, since=begun(self._home))))
        return read_checkpoint(text.splitlines())

    async def _clean(self) -> dict[str, str]:
        """Restore the folder as the engine made it. Return the variable with the path of the checkpoints, if there are any.

        Raises:
            CommandFailed: the folder could not be prepared.
        """
        if self._is_clean:
            self._is_clean = False
            return {}
        lines = clean_start(
            self._folder,
            home=self._home,
            checkpoint_folder=self.checkpoint_folder,
            temporary=self._temporary,
            was_empty=self._was_empty,
        )
        result = await self._shell(begin_attempt(self._home, lines))
        if result[1]:
            raise CommandFailed(["mkdir", "-p", self._home], self._place, result)
        return {RESUME_FROM: self._checkpoints} if has_checkpoints(result[0]) else {}
