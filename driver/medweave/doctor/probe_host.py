"""Hosts on which the routes are tested: a machine that is reached by ssh, or a trial pod."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubernetes import client

from medweave.doctor.connection import SshLogin, Unreachable, address_of, connected
from medweave.doctor.namespace import NamespaceChecks
from medweave.doctor.pod_program import PodProgram
from medweave_connectors.transfer.capabilities import Endpoint


@dataclass(frozen=True, slots=True)
class ReachedHost:
    """A host with an open connection.

    Attributes:
        end: endpoint of a copy.
        ask: runs a line of shell and returns its output; empty after a failure.
    """

    end: Endpoint
    ask: Callable[[str], str]


class ProbeHost(Protocol):
    """The interface of a host to which a connection is opened on demand."""

    @property
    def name(self) -> str:
        """Return the name of the deployment, with the node if it has several."""

    @property
    def workdir(self) -> str | None:
        """Return the workdir of the deployment, or None."""

    @property
    def limit_s(self) -> float:
        """Return the time limit of one answer."""

    def opened(self) -> contextlib.AbstractContextManager[ReachedHost]:
        """Open a connection for a block.

        Raises:
            Unreachable: the host cannot be reached.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SshProbeHost:
    """A machine that is reached by ssh.

    Attributes:
        name: name of the deployment, with the node if it has several.
        workdir: workdir of the deployment, or None.
    """

    name: str
    login: SshLogin
    workdir: str | None

    @property
    def limit_s(self) -> float:
        """Return the time limit of one answer."""
        return self.login.limit_s

    @contextlib.contextmanager
    def opened(self) -> Iterator[ReachedHost]:
        """Open a connection by ssh.

        Raises:
            Unreachable: the machine cannot be reached.
        """
        host = address_of(self.login)
        with connected(self.login) as connection:
            yield ReachedHost(Endpoint(self.name, [host], "", connection.program), lambda line: connection.ask(line)[0])


class PodProbeHost:
    """The pods of a deployment, represented by one trial pod that lives until `exits` is closed.

    Args:
        name: name of the deployment.
        cluster: checks of its namespace, not opened yet.
    """

    def __init__(
        self, name: str, workdir: str | None, limit_s: float, cluster: NamespaceChecks, exits: contextlib.ExitStack
    ) -> None:
        self.name, self.workdir, self.limit_s = name, workdir, limit_s
        self._cluster, self._exits = cluster, exits
        self._pod: tuple[client.ApiClient, Any] | None = None
        self._closed: Unreachable | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[ReachedHost]:
        """Start the pod at the first call.

        Raises:
            Unreachable: the pod does not start.
        """
        if self._closed is not None:
            raise self._closed
        if self._pod is None:
            try:
                self._pod = self._exits.enter_context(self._cluster.running_pod(self.workdir))
            except Unreachable as error:
                self._closed = error
                raise
        api, pod = self._pod
        where = pod.metadata.name, pod.metadata.namespace

        async def begin(words: Sequence[str]) -> PodProgram:
            return await asyncio.to_thread(PodProgram, api, *where, words, self.limit_s)

        def ask(line: str) -> str:
            return PodProgram(api, *where, ["sh", "-c", f"{{ {line}; }} 2>/dev/null"], self.limit_s).printed()

        address = pod.status.pod_ip
        yield ReachedHost(Endpoint(self.name, [address], address, begin), ask)
