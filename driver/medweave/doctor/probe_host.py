"""Where a program of a copy is started for a trial: a machine that is reached by ssh, or a pod of a trial."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubernetes import client

from medweave.doctor.cluster import Cluster
from medweave.doctor.connection import Closed, Login, address_of, connected
from medweave.doctor.pod_program import Program
from medweave_connectors.transfer.capabilities import Endpoint


@dataclass(frozen=True, slots=True)
class Opened:
    """A place that is reached.

    Attributes:
        end: as a copy has it.
        ask: what a line of shell prints there; nothing where it fails.
    """

    end: Endpoint
    ask: Callable[[str], str]


class Ground(Protocol):
    """A place, opened when it is needed."""

    @property
    def name(self) -> str:
        """Of the deployment, with the node where it has several."""

    @property
    def workdir(self) -> str | None:
        """Of the deployment; None where it says none."""

    @property
    def limit_s(self) -> float:
        """For one answer."""

    def opened(self) -> contextlib.AbstractContextManager[Opened]:
        """The place, for a block.

        Raises:
            Closed: nobody can go there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine.

    Attributes:
        name: the deployment's, with the node where it has several.
        workdir: of the deployment; None where it says none.
    """

    name: str
    login: Login
    workdir: str | None

    @property
    def limit_s(self) -> float:
        """For one answer."""
        return self.login.limit_s

    @contextlib.contextmanager
    def opened(self) -> Iterator[Opened]:
        """Connects.

        Raises:
            Closed: see there.
        """
        host = address_of(self.login)
        with connected(self.login) as there:
            yield Opened(Endpoint(self.name, [host], "", there.program), lambda line: there.ask(line)[0])


class Pods:
    """The pods of a deployment: one of a trial stands for them, from its first use to the end of `held`.

    Args:
        name: the deployment's.
        cluster: not opened yet.
    """

    def __init__(
        self, name: str, workdir: str | None, limit_s: float, cluster: Cluster, held: contextlib.ExitStack
    ) -> None:
        self.name, self.workdir, self.limit_s = name, workdir, limit_s
        self._cluster, self._held = cluster, held
        self._pod: tuple[client.ApiClient, Any] | None = None
        self._closed: Closed | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Opened]:
        """Starts the pod, the first time.

        Raises:
            Closed: it does not start.
        """
        if self._closed is not None:
            raise self._closed
        if self._pod is None:
            try:
                self._pod = self._held.enter_context(self._cluster.standing(self.workdir))
            except Closed as error:
                self._closed = error
                raise
        api, pod = self._pod
        where = pod.metadata.name, pod.metadata.namespace

        async def begin(words: Sequence[str]) -> Program:
            return await asyncio.to_thread(Program, api, *where, words, self.limit_s)

        def ask(line: str) -> str:
            return Program(api, *where, ["sh", "-c", f"{{ {line}; }} 2>/dev/null"], self.limit_s).printed()

        address = pod.status.pod_ip
        yield Opened(Endpoint(self.name, [address], address, begin), ask)
