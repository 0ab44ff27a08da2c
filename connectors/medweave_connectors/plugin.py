"""The door: everything that StreamFlow learns from medweave is registered or installed here, and nothing else is done here."""

from __future__ import annotations

import gc

from streamflow.ext.plugin import StreamFlowPlugin

from medweave_connectors.engine import command_lines, listings, partial_failures
from medweave_connectors.engine.data import origin, remote_path, transfer_step
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.engine.database.database import MedweaveDatabase
from medweave_connectors.engine.loading import (
    cwl_parser,
    document_loading,
    file_schema,
    tool_checks,
    translator,
    work_dir,
)
from medweave_connectors.engine.scheduling import deployments
from medweave_connectors.engine.scheduling.filter import MedweaveFilter
from medweave_connectors.engine.scheduling.policy import MedweavePolicy
from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.sites.compss.connector import MedweaveCompssConnector
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector


class MedweavePlugin(StreamFlowPlugin):  # type: ignore[misc]
    """Entry point `medweave` of the group `unito.streamflow.plugin`."""

    def register(self) -> None:
        """Adds our types, each prefixed, and installs what has no other door: see each `install`."""
        self.register_connector("medweave.local", MedweaveLocalConnector)
        self.register_connector("medweave.slurm", MedweaveSlurmConnector)
        self.register_connector("medweave.ssh", MedweaveSSHConnector)
        self.register_connector("medweave.kubernetes", MedweaveKubernetesConnector)
        self.register_connector("medweave.helm", MedweaveHelmConnector)
        self.register_connector("medweave.compss", MedweaveCompssConnector)
        self.register_binding_filter("medweave.filter", MedweaveFilter)
        self.register_policy("medweave.policy", MedweavePolicy)
        self.register_scheduler("medweave.scheduler", MedweaveScheduler)
        self.register_data_manager("medweave.transfer", MedweaveDataManager)
        self.register_database("medweave.database", MedweaveDatabase)
        file_schema.install()
        translator.install()
        tool_checks.install()
        cwl_parser.install()
        document_loading.install()
        work_dir.install()
        deployments.install()
        transfer_step.install()
        origin.install()
        listings.install()
        remote_path.install()
        command_lines.install()
        partial_failures.install()
        # The engine's 2,000 modules stay to the end. That each search for garbage went through them took a sixth of a run which
        # finds all its steps done.
        gc.freeze()
