"""StreamFlow's deployment manager, which at the end of a run takes every deployment down, once.

The stock one takes a deployment that is still coming up for one that nobody needs, and asks for its end again with the end of every
other one. The second request fails, and with it the engine leaves, whatever the other deployments had still to undo.

A deployment that comes up at its first use, and cannot even be built, fails for every step that waits for it.
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
    """Stands in for a connector until its first use; tells all who wait, however that ends."""

    async def deploy(self, external: bool) -> None:
        """Builds and deploys it. The stock one tells nobody about an error of the connector's constructor."""
        try:
            await super().deploy(external)
        finally:
            self.deploy_event.set()

    def __getattr__(self, name: str) -> Any:
        """What only our connectors have (which pods share a volume, how large a place is), as soon as there is one."""
        if (connector := self.__dict__.get("_connector")) is None:
            raise AttributeError(f"'{name}' of a deployment that has not come up yet")
        return getattr(connector, name)


class MedweaveDeploymentManager(DefaultDeploymentManager):
    """Takes all deployments down at once; one that others reach their site through, after them."""

    async def _deploy(self, deployment_config: DeploymentConfig) -> None:
        """Builds and deploys one. After an error of a constructor the stock one lets the other steps do their work first."""
        try:
            await super()._deploy(deployment_config)
        except WorkflowDefinitionException as error:
            if deployment_config.name in self.events_map:
                self.events_map[deployment_config.name].set()
            abort(error)
            raise

    async def undeploy_all(self) -> None:
        """Takes all deployments down; those that are still coming up, when they have come or failed.

        Raises:
            Exception: the first failure, after all the others have ended.
        """
        failures: list[BaseException] = []
        if isinstance(scheduler := self.context.scheduler, MedweaveScheduler):
            await scheduler.folders.remove_all()
        while self.deployments_map:  # one that waited for the login node may join meanwhile
            gone = {name: asyncio.Event() for name in self.deployments_map}
            ends = await asyncio.gather(*(self._end(name, gone) for name in gone), return_exceptions=True)
            failures += [each for each in ends if each is not None]
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
