"""StreamFlow's deployment manager, which undeploys every deployment once at the end of a run.

StreamFlow's own considers a deployment unused while it is being deployed, and undeploys it again with every other one. The second
request fails and ends the process before the other deployments are undeployed.

An error in the constructor of a lazy deployment fails every step that waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamflow.core.deployment import DeploymentConfig
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.future import FutureConnector
from streamflow.deployment.manager import DefaultDeploymentManager

from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.jobs.run_abort import abort


class MedweaveFutureConnector(FutureConnector):
    """Represents a connector until its first use; wakes all waiting steps, also after an error."""

    async def deploy(self, external: bool) -> None:
        """Build and deploy the connector. StreamFlow's own leaves waiting steps asleep after an error of the constructor."""
        try:
            await super().deploy(external)
        finally:
            self.deploy_event.set()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the connector, once it exists: our connectors have more methods than StreamFlow's."""
        if (connector := self.__dict__.get("_connector")) is None:
            raise AttributeError(f"'{name}' of a deployment that has not come up yet")
        return getattr(connector, name)


class MedweaveDeploymentManager(DefaultDeploymentManager):
    """Undeploys all deployments concurrently, but a wrapped deployment after those that wrap it."""

    async def _deploy(self, deployment_config: DeploymentConfig) -> None:
        """Build and deploy a deployment; an error of its constructor aborts the run. StreamFlow would finish other steps first."""
        try:
            await super()._deploy(deployment_config)
        except WorkflowDefinitionException as error:
            if deployment_config.name in self.events_map:
                self.events_map[deployment_config.name].set()
            abort(error)
            raise

    async def undeploy_all(self) -> None:
        """Undeploy all deployments; a deployment in progress is undeployed when it has ended.

        Raises:
            Exception: the first failure, after all deployments were tried.
        """
        failures: list[BaseException] = []
        if isinstance(scheduler := self.context.scheduler, MedweaveScheduler):
            await scheduler.folders.remove_all()
        while self.deployments_map:  # another deployment may have been added while it waited
            gone = {name: asyncio.Event() for name in self.deployments_map}
            ends = await asyncio.gather(*(self._end(name, gone) for name in gone), return_exceptions=True)
            failures += [error for error in ends if error is not None]
        if failures:
            raise failures[0]

    async def _end(self, name: str, gone: dict[str, asyncio.Event]) -> None:
        try:
            await self.events_map[name].wait()
            for user in self.dependency_graph[name] - {name}:
                if user in gone:
                    await gone[user].wait()
            connector, config = self.deployments_map.pop(name, None), self.config_map.pop(name)
            self.dependency_graph.pop(name)
            if connector is not None:  # it came up
                await connector.undeploy(config.external)
        finally:
            gone[name].set()
