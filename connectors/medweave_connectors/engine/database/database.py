"""`medweave.database`: one file per run, committed row by row, and listened to."""

from __future__ import annotations

import sqlite3
from collections.abc import MutableMapping
from importlib.resources import files
from typing import Any, NoReturn

from streamflow.core.context import StreamFlowContext
from streamflow.core.workflow import Status
from streamflow.persistence.sqlite import IN_MEMORY_SQLITE_CONNECTION, SqliteDatabase

from medweave_connectors.engine import shutdown
from medweave_connectors.engine.database.connection import CommittingConnection, database_failed
from medweave_connectors.host.errors import SiteConfigError
from medweave_connectors.runlog import plan
from medweave_core.errors import PARTIAL


class MedweaveDatabase(SqliteDatabase):  # type: ignore[misc]
    """SQLite in the run's own work folder, which goes after a success: the history that is kept is the event log.

    `close` is the last thing that StreamFlow does: the run's end is written there, when all jobs have ended.
    """

    def __init__(self, context: StreamFlowContext) -> None:
        super().__init__(context, connection=IN_MEMORY_SQLITE_CONNECTION)
        self._run = plan(context.config)
        self.connection = CommittingConnection(self._run)
        self._workflow_id: int | None = None
        # Not in the file: the paths of the user, and what stands for secrets in the settings of a deployment.
        self._workflow_settings: dict[int, Any] = {}
        self._deployment_settings: dict[int, Any] = {}

    async def add_workflow(self, name: str, params: MutableMapping[str, Any], status: int, type: str) -> int:
        """A workflow is about to run (recovery adds more later: the first is the run's)."""
        shutdown.begin(self._run, self.context.config)
        workflow_id: int = await super().add_workflow(
            name=name, params={**params, "config": {}}, status=status, type=type
        )
        self._workflow_settings[workflow_id] = params.get("config", {})
        if self._workflow_id is None:
            self._workflow_id = workflow_id
        return workflow_id

    async def get_workflow(self, workflow_id: int) -> MutableMapping[str, Any]:
        """A workflow of this run, as it was added."""
        row: MutableMapping[str, Any] = await super().get_workflow(workflow_id)
        return {**row, "params": {**row["params"], "config": self._workflow_settings.get(workflow_id, {})}}

    async def add_deployment(self, *, config: MutableMapping[str, Any], **keywords: Any) -> int:
        """A deployment of this run; what its settings hold is known to this process only."""
        deployment_id: int = await super().add_deployment(config={}, **keywords)
        self._deployment_settings[deployment_id] = config
        return deployment_id

    async def get_deployment(self, deployment_id: int) -> MutableMapping[str, Any]:
        """The same, as it was added."""
        row: MutableMapping[str, Any] = await super().get_deployment(deployment_id)
        return {**row, "config": self._deployment_settings.get(deployment_id, {})}

    async def update_workflow(self, workflow_id: int, updates: MutableMapping[str, Any]) -> int:
        """Listens for the executor's verdict, which it gives here only."""
        if workflow_id == self._workflow_id:
            if updates.get("status") == Status.COMPLETED.value:
                self._run.engine_verdict = "completed"
            elif updates.get("status") == Status.FAILED.value:
                self._run.engine_verdict = "failed"
        updated: int = await super().update_workflow(workflow_id, updates)
        return updated

    async def get_workflows_by_name(self, workflow_name: str, last_only: bool = False) -> NoReturn:
        """`streamflow prov` and `streamflow list` ask for earlier runs.

        Raises:
            SiteConfigError: there are none; StreamFlow would end with an error without words.
        """
        raise SiteConfigError(
            f"StreamFlow's history has no run '{workflow_name}': medweave.database has one for each run, inside it.",
            seen="another command than `streamflow run`",
            expected="the run's own record, runs/<run-id>/events.jsonl",
            do="medweave report runs/<run-id>",
        )

    async def close(self) -> None:
        """Writes the run's end; after a signal the process then ends by that signal.

        Raises:
            SystemExit: the run was aborted, a file of it could not be written, or it has delivered a part.
        """
        if self._run.running and self._run.engine_verdict != "completed":
            await shutdown.cancel_leftovers()
        try:
            await super().close()
        except sqlite3.Error as error:
            self._run.storage_failed(database_failed(error))
        signal_number = self._run.signal_number
        state = self._run.finish()
        if signal_number is not None:
            shutdown.die_by(signal_number)
        if self._run.storage_error is not None:
            raise SystemExit(self._run.storage_error.exit_code)
        if self._run.aborted:
            raise SystemExit(1)  # the main task was cancelled, which would end in a traceback
        if self._run.left_out and state in ("partial", "failed"):  # the engine has seen a success
            raise SystemExit(PARTIAL if state == "partial" else 1)

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of `database.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")
