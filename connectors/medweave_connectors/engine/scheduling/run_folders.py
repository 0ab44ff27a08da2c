"""The folder of a run at each location of its jobs: for its owner only, and removed by a stated rule.

StreamFlow makes three folders per job, mode 0777, below the `workdir`, and removes none. Ours lie in `<workdir>/<run-id>`, mode
0700. A completed run removes that folder; after a failure it stays for diagnosis, until a later run sees that nothing in it
changed for some days.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import ExecutionLocation, Target

from medweave_connectors.engine.scheduling.shortfall import no_room
from medweave_connectors.host.errors import ImpossibleRequest
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.runlog import console
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.transfer.store.folder_commands import NOT_OURS, folder_of, make, read_free, remove
from medweave_core.documents.streamflow_bindings import our_deployments, targets


class RunFolders:
    """The folders of one run at its locations."""

    def __init__(self, run: RunRecord, context: StreamFlowContext, *, keep_days: int) -> None:
        self._run, self._context, self._keep_days = run, context, keep_days
        self._made: dict[tuple[str, str, str], tuple[ExecutionLocation, str]] = {}
        self._free_mib: dict[tuple[str, str, str], float] = {}
        self._workdirs: dict[str, str] = {}

    def move_into(self, config: MutableMapping[str, Any]) -> None:
        """Put the workdirs of our deployments into the run's folder, in the parsed streamflow.yml.

        A workdir inside the run's folder on the driver's machine stays. Bindings of ports say where data lies, and stay too.
        """
        ours = our_deployments(config)
        for deployment in ours.values():
            self._move(deployment)
        for workflow in (config.get("workflows") or {}).values():
            for _, binding, target in targets(workflow):
                if "step" in binding and target.get("deployment") in ours:
                    self._move(target)

    def _move(self, settings: MutableMapping[str, Any]) -> None:
        workdir = settings.get("workdir")
        if workdir and workdir not in self._workdirs and not workdir.startswith(f"{self._run.folder}/"):
            settings["workdir"] = folder_of(workdir, self._run.run_id)
            self._workdirs[settings["workdir"]] = workdir

    async def prepare(
        self, target: Target, locations: Sequence[ExecutionLocation], *, job_name: str, storage_mib: float
    ) -> None:
        """Make the folder before the first job at a location.

        Args:
            storage_mib: requested by the tool (tmpdirMin and outdirMin).

        Raises:
            ImpossibleRequest: the disk had less space when the folder was made, or a file or folder that this run did not create
                has the folder's name.
        """
        workdir = self._workdirs.get(target.workdir or "")
        if workdir is None:
            return
        for location in locations:
            key = await self._make(location, workdir)
            if (free := self._free_mib.get(key)) is not None and free < storage_mib:
                raise no_room(
                    job_name, storage_mib, [f"{location.name} of {location.deployment} has {free:.0f} MiB in {workdir}"]
                )

    async def make_at(self, location: ExecutionLocation, folders: Iterable[str]) -> None:
        """Make those of the folders that belong to the run, at a location where no job has run yet."""
        for folder in folders:
            if (workdir := self._workdirs.get(folder)) is not None:
                await self._make(location, workdir)

    async def remove_all(self) -> None:
        """Remove the folders of a completed run; report those that cannot be removed."""
        if self._run.keeps_work:
            return
        for location, workdir in self._made.values():
            try:
                printed, code = await self._run_line(location, remove(workdir, self._run.owner))
                if code:
                    raise _failed(printed, code)
            except Exception as error:
                console.say(
                    f"medweave: {location.deployment}: the folder of this run could not be removed.\n"
                    f"  seen:     {error}\n"
                    f"  do:       remove {folder_of(workdir, self._run.run_id)} there, or let a later run remove it after some days"
                )

    async def _make(self, location: ExecutionLocation, workdir: str) -> tuple[str, str, str]:
        key = (location.deployment, location.name, workdir)
        if key not in self._made:
            line = make(workdir, self._run.owner, keep_days=self._keep_days)
            printed, code = await self._run_line(location, line)
            if code == NOT_OURS:
                raise _taken(location, workdir, self._run.run_id)
            if code:
                raise _failed(printed, code)
            free = read_free(printed)
            self._made[key] = location, workdir
            if free is not None:
                self._free_mib[key] = free
        return key

    async def _run_line(self, location: ExecutionLocation, line: str) -> tuple[str, int]:
        """Run a line at a location; return its output and exit code."""
        connector: Any = self._context.deployment_manager.get_connector(location.deployment)
        answer: tuple[str, int] | None = await connector.run(
            location, ["sh", "-c", shlex.quote(line)], capture_output=True
        )
        return answer or ("", 0)


def _failed(printed: str, code: int) -> OSError:
    return OSError(f"exit code {code}: {known_reason(printed)}")


def _taken(location: ExecutionLocation, workdir: str, run_id: str) -> ImpossibleRequest:
    return ImpossibleRequest(
        f"{location.deployment}: the folder of run {run_id} exists already, and this run did not create it.\n"
        f"  seen:     {folder_of(workdir, run_id)}, without the mark of this run\n"
        "  expected: no such file or folder: a run uses and removes only its own folder\n"
        "  do:       start the run with another MEDWEAVE_RUN_ID or without one, or use another workdir"
    )
