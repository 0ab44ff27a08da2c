"""The plug-in of StreamFlow: registers medweave's types, and installs medweave's replacements."""

from __future__ import annotations

import gc

from streamflow.ext.plugin import StreamFlowPlugin

from medweave_connectors.engine import replacements


class MedweavePlugin(StreamFlowPlugin):
    """Entry point `medweave` of the group `unito.streamflow.plugin`."""

    def register(self) -> None:
        """Check StreamFlow, register our types, each prefixed, and replace names of StreamFlow: see `engine.replacements`.

        Raises:
            BackendMissingError: StreamFlow is not the one that medweave was written for.
        """
        replacements.install()
        # Imported after the check: with another StreamFlow these imports may fail.
        from medweave_connectors.engine.data.manager import MedweaveDataManager
        from medweave_connectors.engine.database.database import MedweaveDatabase
        from medweave_connectors.engine.scheduling.filter import MedweaveFilter
        from medweave_connectors.engine.scheduling.policy import MedweavePolicy
        from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
        from medweave_connectors.sites.compss.connector import MedweaveCompssConnector
        from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
        from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
        from medweave_connectors.sites.local.connector import MedweaveLocalConnector
        from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
        from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector

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
        # The 2,000 modules of StreamFlow and its libraries live until the process exits. Garbage collections that visited them
        # took a sixth of a run whose steps were all cache hits.
        gc.freeze()
