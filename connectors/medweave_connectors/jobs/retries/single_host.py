"""The attempts at a step on a machine without a scheduler: the same command once more, in a clean folder.

Of all that can befall a step there, only its own word is known well enough: exit code 75, that another try may help. A process
of a training that was killed is such a case; the next attempt goes on from the newest checkpoint.
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
from medweave_connectors.jobs.retries.policy import Checkpoint, Failed, FailureKind, Table

Told = tuple[str, int]


class MachineAttempts(Attempts):
    """A step's command on one machine.

    Args:
        place: the machine's name, for people.
        folder: the step's output folder.
        temporary: that of its temporary files; empty for none.
        shell: runs a line there that the engine asks for: its output, and the exit code.
        begin: runs the command with these variables besides its own: the cause of a failure, and the exit code.
    """

    looks = 1  # who looks is who has written

    def __init__(
        self,
        name: str,
        table: Table,
        closing: Callable[[], bool],
        *,
        place: str,
        folder: str,
        temporary: str,
        shell: Callable[[str], Awaitable[Told]],
        begin: Callable[[Mapping[str, str]], Awaitable[Told]],
    ) -> None:
        super().__init__(name, table, closing)
        self._place, self._shell, self._begin = place, shell, begin
        self._home = f"{folder.rstrip('/')}.attempts-{secrets.token_hex(4)}"
        self._begun = f"{self._home}/begun"  # a file as old as the attempt
        self._checkpoints = f"{folder}/{self.checkpoint_folder}"
        self._clean_start = clean_start(
            folder, home=self._home, checkpoint_folder=self.checkpoint_folder, temporary=temporary
        )

    async def attempt(self) -> Told:
        """Runs the command in a clean folder."""
        told = await self._begin(await self._clean())
        if told[1]:
            request = job_requests.request_of(self.name)
            memory_mib = request.memory_mib if request else 0.0
            self.failure = Failed(kind=FailureKind.STEP_FAILED, exit_code=told[1], memory_mib=memory_mib)
        return told

    async def left(self) -> Checkpoint:
        """What the attempt has written."""
        text, _ = await self._shell("; ".join(look_for_checkpoint(self._checkpoints, since=self._begun)))
        return read_checkpoint(text.splitlines())

    async def _clean(self) -> dict[str, str]:
        """Makes the folder as the engine has made it; the variable that names the checkpoints, where there are some.

        Raises:
            CommandFailed: it could not be made.
        """
        begins = f"mkdir -p {shlex.quote(self._home)} && : > {shlex.quote(self._begun)}"
        script = "\n".join((begins, *self._clean_start, f'echo "resumes:${{{RESUME_FROM}:+yes}}"'))
        told = await self._shell(script)
        if told[1]:
            raise CommandFailed(["mkdir", "-p", self._home], self._place, told)
        return {RESUME_FROM: self._checkpoints} if "resumes:yes" in told[0] else {}
