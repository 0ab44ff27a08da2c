"""Run the data manager in a test: the driver's machine, and sites over real ssh whose programs a test can replace."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from streamflow.core.deployment import ExecutionLocation
from streamflow.data.manager import DefaultDataManager

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from support.api_server import ApiServer, pod_document
from support.ssh_server import SSHServer, ssh_server

Route = Literal["from-driver", "to-driver", "through-driver"]
ROUTES: tuple[Route, ...] = ("from-driver", "to-driver", "through-driver")
LAPTOP = ExecutionLocation(name="__LOCAL__", deployment="laptop", local=True)
ENDS: Mapping[Route, tuple[str, str]] = {
    "from-driver": ("laptop", "site"),
    "to-driver": ("site", "laptop"),
    "through-driver": ("other", "site"),
}


def replaced(folder: Path, program: str, script: str) -> None:
    """Write a script to a folder of a PATH that replaces a program; the script can run the program as `$real`."""
    file = folder / program
    file.unlink(missing_ok=True)  # it may be a link to the machine's own busybox, which is not to be written to
    file.write_text(f"#!/bin/sh\nreal={shlex.quote(str(shutil.which(program)))}\n{script}\n")
    file.chmod(0o755)


def slices(num_bytes: int) -> bytes:
    """Return bytes like CT pixels: two bytes each, noise in the lower byte and one of few values in the upper byte."""
    some = os.urandom(num_bytes)
    pixels = bytearray(some)
    pixels[1::2] = some[1::2].translate(bytes([4] * 8 + [3] * 248))
    return bytes(pixels)


class TransferSites:
    """A laptop and two sites, whose files are all on this machine.

    Attributes:
        programs: the first folder on the sites' PATH.
        source, target: the folders that copies are read from and written to.
        more: returns further connectors by the name of their deployment.
        pods: the API server of the pods of `with_pods`.
        settings: of the data manager. All sites share this machine's file system; the check for that is off by default.
        calls: the number of commands run and streams opened per deployment.
    """

    def __init__(self, folder: Path, server: SSHServer) -> None:
        self.programs, self.source, self.target = folder / "programs", folder / "source", folder / "target"
        for created in (self.programs, self.source, self.target):
            created.mkdir()
        self.server = server
        server.environment["PATH"] = f"{self.programs}:{os.environ['PATH']}"
        self.calls: Counter[str] = Counter()
        self.manager: Any = None
        self.more: Callable[[], dict[str, Any]] = dict
        self.pods: Any = None
        self.settings: dict[str, Any] = {"sameFileSystem": False}

    def replace(self, program: str, script: str) -> None:
        """Replace a program of the sites by a script, which can run the program as `$real`."""
        replaced(self.programs, program, script)

    def locations(self) -> dict[str, ExecutionLocation]:
        """Return the location of each deployment."""
        name = f"127.0.0.1:{self.server.port}"
        sites = {deployment: ExecutionLocation(name=name, deployment=deployment) for deployment in ("site", "other")}
        return {"laptop": LAPTOP, **sites}

    def run_connected(self, act: Callable[[TransferSites], Awaitable[Any]], kind: Any = MedweaveDataManager) -> Any:
        """Return the result of `act`, which is called while the sites are connected."""
        return asyncio.run(asyncio.wait_for(self._act_connected(act, kind), 60))

    def cancel_once_begun(self, name: str, begun: Path) -> None:
        """Send a file or folder through the driver, and cancel the copy as soon as the file `begun` exists."""

        async def act(sites: TransferSites) -> None:
            task = asyncio.create_task(sites.send("through-driver", name))
            while not begun.exists():
                assert not task.done(), task
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.run_connected(act)

    async def _act_connected(self, act: Callable[[TransferSites], Awaitable[Any]], kind: Any) -> Any:
        login = {
            "nodes": [f"127.0.0.1:{self.server.port}"],
            "username": "me",
            "sshKey": str(self.server.key),
            "knownHosts": str(self.server.known_hosts),
        }
        connectors: dict[str, Any] = {name: MedweaveSSHConnector(name, "/", **login) for name in ("site", "other")}
        connectors |= {"laptop": MedweaveLocalConnector("laptop", "/"), **self.more()}
        context = SimpleNamespace(
            config={},
            deployment_manager=SimpleNamespace(get_connector=connectors.__getitem__),
            checkpoint_manager=SimpleNamespace(register=lambda _: None),
        )
        settings = self.settings if kind is not DefaultDataManager else {}
        self.manager = context.data_manager = kind(context, **settings)
        for name, connector in connectors.items():
            await connector.deploy(False)
            self._count(name, connector)
        try:
            return await act(self)
        finally:
            for connector in connectors.values():
                await connector.undeploy(False)

    def _count(self, name: str, connector: Any) -> None:
        for method in ("run", "get_stream_reader", "get_stream_writer"):
            setattr(connector, method, self._counting(name, getattr(connector, method)))

    def _counting(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **keywords: Any) -> Any:
            self.calls[name] += 1
            return await method(*arguments, **keywords)

        return counted

    async def send(self, route: Route, name: str, to: str = "", *, writable: bool = False) -> None:
        """Copy the entry `name` of `source` to `target`, under the name `to` if that is set."""
        source, destination = (self.locations()[deployment] for deployment in ENDS[route])
        path = str(self.source / name)
        self.manager.register_path(source, path)
        await self.manager.transfer_data(source, path, [destination], str(self.target / (to or name)), writable)

    def target_names(self) -> list[str]:
        """Return the sorted names in `target`, hidden names included."""
        return sorted(entry.name for entry in self.target.iterdir())


@contextmanager
def transfer_sites(folder: Path) -> Iterator[TransferSites]:
    """Yield the sites, whose files are in a folder of the test."""
    with ssh_server(folder / "server") as server:
        yield TransferSites(folder, server)


@contextmanager
def with_pods(at: TransferSites, folder: Path) -> Iterator[list[ExecutionLocation]]:
    """Add a deployment `pods`: two pods that share a file system without declaring it. Yield their locations."""
    with ApiServer() as server:
        for name in ("w-0", "w-1"):
            server.add(pod_document(name))
        at.pods = server
        server.write_kubeconfig(folder / "kubeconfig")
        server.environment = {"PATH": at.server.environment["PATH"]}
        config = {"kubeconfig": str(folder / "kubeconfig"), "selector": "app=w"}
        at.more = lambda: {"pods": MedweaveKubernetesConnector("pods", "/", **config)}
        yield [ExecutionLocation(name=f"{name}:worker", deployment="pods") for name in ("w-0", "w-1")]
