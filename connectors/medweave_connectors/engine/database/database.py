"""`medweave.database`: one file per run, committed row by row, and listened to."""

from __future__ import annotations

import sqlite3
from collections.abc import MutableMapping
from importlib.resources import files
from typing import Any, NoReturn

from streamflow.core.context import StreamFlowContext
from streamflow.core.workflow import Status, Workflow
from streamflow.persistence.sqlite import IN_MEMORY_SQLITE_CONNECTION, SqliteDatabase

from medweave_connectors.engine import shutdown
from medweave_connectors.engine.database.connection import CommittingConnection, database_failed
from medweave_connectors.host.errors import SiteConfigError
from medweave_connectors.runlog import plan
from medweave_core.errors import PARTIAL


class MedweaveDatabase(SqliteDatabase):
    """SQLite in the work folder of the run, which is removed after a success: the history of a run is its event log.

    StreamFlow calls `close` last, when all jobs have ended: it writes the end of the run.
    """

    def __init__(self, context: StreamFlowContext) -> None:
        super().__init__(context, connection=IN_MEMORY_SQLITE_CONNECTION)
        self._run = plan(context.config)
        self.connection = CommittingConnection(self._run)
        self._workflow_id: int | None = None
        # Not in the file: paths of the user, and references to secrets in the settings of a deployment.
        self._workflow_settings: dict[int, Any] = {}
        self._deployment_settings: dict[int, Any] = {}

    async def add_workflow(self, name: str, params: MutableMapping[str, Any], status: int, type: type[Workflow]) -> int:
        """Add a workflow before it runs. The first one is the run's; recovery adds more."""
        shutdown.begin(self._run, self.context.config)
        workflow_id = await super().add_workflow(name=name, params={**params, "config": {}}, status=status, type=type)
        self._workflow_settings[workflow_id] = params.get("config", {})
        if self._workflow_id is None:
            self._workflow_id = workflow_id
        return workflow_id

    async def get_workflow(self, workflow_id: int) -> MutableMapping[str, Any]:
        """Return a workflow of this run, as it was added."""
        row = await super().get_workflow(workflow_id)
        return {**row, "params": {**row["params"], "config": self._workflow_settings.get(workflow_id, {})}}

    async def add_deployment(
        self, name: str, type: str, config: MutableMapping[str, Any], external: bool, lazy: bool,
        scheduling_policy: MutableMapping[str, Any], workdir: str | None, wraps: MutableMapping[str, Any] | None,
    ) -> int:  # fmt: skip
        """Add a deployment of this run; its settings stay in this process."""
        deployment_id = await super().add_deployment(
            name=name, type=type, config={}, external=external, lazy=lazy,
            scheduling_policy=scheduling_policy, workdir=workdir, wraps=wraps,
        )  # fmt: skip
        self._deployment_settings[deployment_id] = config
        return deployment_id

    async def get_deployment(self, deployment_id: int) -> MutableMapping[str, Any]:
        """Return a deployment of this run, as it was added."""
        row = await super().get_deployment(deployment_id)
        return {**row, "config": self._deployment_settings.get(deployment_id, {})}

    async def update_workflow(self, workflow_id: int, updates: MutableMapping[str, Any]) -> int:
        """Update a workflow, and store the executor's verdict, which is only passed here."""
        if workflow_id == self._workflow_id:
            if updates.get("status") == Status.COMPLETED.value:
                self._run.engine_verdict = "completed"
            elif updates.get("status") == Status.FAILED.value:
                self._run.engine_verdict = "failed"
        return await super().update_workflow(workflow_id, updates)

    async def get_workflows_by_name(self, workflow_name: str, last_only: bool = False) -> NoReturn:
        """Refuse `streamflow prov` and `streamflow list` of earlier runs.

        Raises:
            SiteConfigError: always; StreamFlow would end with an empty error.
        """
        raise SiteConfigError(
            f"the database has no run '{workflow_name}': medweave.database keeps one database per run, in the run's folder.",
            seen="another command than `streamflow run`",
            expected="the event log of the run, runs/<run-id>/events.jsonl",
            do="medweave report runs/<run-id>",
        )

    async def close(self) -> None:
        """Write the end of the run; after a signal the process is then killed by that signal.

        Raises:
            SystemExit: the run was aborted, a file of it could not be written, or its outputs are partial.
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
        if self._run.left_out and state in ("partial", "failed"):  # StreamFlow has recorded a success
            raise SystemExit(PARTIAL if state == "partial" else 1)

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of `database.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")
