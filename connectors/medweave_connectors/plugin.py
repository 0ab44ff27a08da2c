"""The door: everything that StreamFlow learns from medweave is registered or installed here, and nothing else is done here."""

from __future__ import annotations

import gc

from streamflow.ext.plugin import StreamFlowPlugin

from medweave_connectors import quoting
from medweave_connectors.compss.connector import MedweaveCompssConnector
from medweave_connectors.helm.connector import MedweaveHelmConnector
from medweave_connectors.ingest import listings
from medweave_connectors.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.local.connector import MedweaveLocalConnector
from medweave_connectors.persistence.database import MedweaveDatabase
from medweave_connectors.placement import (
    deployments,
    document_loading,
    quick_cwl,
    structure,
    tools_once,
    translator,
    work_dir,
)
from medweave_connectors.placement.filter import MedweaveFilter
from medweave_connectors.placement.policy import MedweavePolicy
from medweave_connectors.placement.scheduler import MedweaveScheduler
from medweave_connectors.reactions import partial
from medweave_connectors.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.ssh.connector import MedweaveSSHConnector
from medweave_connectors.transfer import origin, remote_path
from medweave_connectors.transfer import step as transfer_step
from medweave_connectors.transfer.manager import MedweaveDataManager


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
        structure.install()
        translator.install()
        tools_once.install()
        quick_cwl.install()
        document_loading.install()
        work_dir.install()
        deployments.install()
        transfer_step.install()
        origin.install()
        listings.install()
        remote_path.install()
        quoting.install()
        partial.install()
        # The engine's 2,000 modules stay to the end. That each search for garbage went through them took a sixth of a run which
        # finds all its steps done.
        gc.freeze()
