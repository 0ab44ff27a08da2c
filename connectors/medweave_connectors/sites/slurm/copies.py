"""Copies to and from a Slurm cluster: the connector of its login node makes them."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.deployment.wrapper import get_inner_location, get_inner_locations

from medweave_connectors.transfer.capabilities import underlying
from medweave_connectors.transfer.routes.via_driver import StreamOptions, options_for, takes_options
from medweave_connectors.transfer.shell_commands import link_or_copy


class LoginNodeCopies:
    """The three copies of a connector that wraps the connector of a login node. StreamFlow's own pass no options of streams."""

    connector: Connector

    @property
    def takes_stream_options(self) -> bool:
        """Return True if the connector of the login node takes options of streams."""
        return takes_options(underlying(self.connector))

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy from this machine."""
        login = underlying(self.connector)
        inner = get_inner_locations(locations)
        await login.copy_local_to_remote(src, dst, inner, read_only, **options_for(login, options))

    async def copy_remote_to_local(
        self,
        src: str,
        dst: str,
        location: ExecutionLocation,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to this machine."""
        login = underlying(self.connector)
        inner = get_inner_location(location)
        await login.copy_remote_to_local(src, dst, inner, read_only, **options_for(login, options))

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Any = None,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy from another location; on the cluster itself link read-only files, and make copies writable."""
        source = (source_location.deployment, source_location.name)
        others = [location for location in locations if (location.deployment, location.name) != source]
        if len(others) < len(locations) and src != dst:
            await self.run(source_location, link_or_copy(src, dst, read_only=read_only))  # type: ignore[attr-defined]
        if others:
            login = underlying(self.connector)
            await login.copy_remote_to_remote(
                src,
                dst,
                get_inner_locations(others),
                source_location,
                source_connector or self,
                read_only,
                **options_for(login, options),
            )
