"""Attempts of a step on machines without a scheduler: the same command again, in a clean folder.

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
    oldest,
    read_checkpoint,
)
from medweave_connectors.jobs.retries.attempts import Attempts, failed_attempt
from medweave_connectors.jobs.retries.policy import Checkpoint, FailureKind, Table

CommandResult = tuple[str, int]
HostShell = Callable[[str], Awaitable[CommandResult]]


class HostAttempts(Attempts):
    """A step's command on one machine, or on the hosts of a node group.

    Args:
        folder: the step's output folder, at the same path on all hosts.
        temporary: that of its temporary files; empty for none.
        shells: name of a host, for people, to a function that runs a line there and returns its output and exit code; one host of
            those that share the folder.
        begin: runs the command with additional variables; returns the cause of a failure and the exit code.
        is_empty: the driver sees that the folder is empty; the first attempt then needs no line of a shell.
    """

    looks = 1  # the host that reads the checkpoints also wrote them, or sees them at once

    def __init__(
        self,
        name: str,
        table: Table,
        closing: Callable[[], bool],
        *,
        folder: str,
        temporary: str,
        shells: Mapping[str, HostShell],
        begin: Callable[[Mapping[str, str]], Awaitable[CommandResult]],
        is_empty: bool = False,
    ) -> None:
        super().__init__(name, table, closing)
        self._shells, self._begin = shells, begin
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
        """Return the state of the checkpoint folder after the attempt, on the host with the oldest: all resume from the same."""
        line = "; ".join(look_for_checkpoint(self._checkpoints, since=begun(self._home)))
        return oldest([read_checkpoint((await shell(line))[0].splitlines()) for shell in self._shells.values()])

    async def _clean(self) -> dict[str, str]:
        """Restore the folder as the engine made it. Return the variable with the path of the checkpoints, if all hosts have some.

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
        printed = []
        for place, shell in self._shells.items():
            result = await shell(begin_attempt(self._home, lines))
            if result[1]:
                raise CommandFailed(["mkdir", "-p", self._home], place, result)
            printed.append(result[0])
        return {RESUME_FROM: self._checkpoints} if all(map(has_checkpoints, printed)) else {}
