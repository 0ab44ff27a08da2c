"""Containers as locations: short commands of the engine, streams, and copies between containers."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.base import BaseConnector

from medweave_connectors.host.command_log import CommandLog, kind_of
from medweave_connectors.host.deadlines import NoProgress
from medweave_connectors.host.errors import StreamBroke
from medweave_connectors.host.shells import ShellLost, Shells
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.jobs.remote_environment import SHELL_SIGNS, is_read_only, stream_line, utility_line
from medweave_connectors.runlog import console
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient
from medweave_connectors.sites.pods.exec.execution import ExecReader, Execution, ExecWriter, StreamContext, execute
from medweave_connectors.sites.pods.exec.shell import COMMAND as SHELL
from medweave_connectors.sites.pods.exec.shell import PodShell
from medweave_connectors.sites.pods.objects import volumes
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, judge, unresponsive_node
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.routes.via_driver import StreamOptions, TarCopies
from medweave_connectors.transfer.shell_commands import is_staging_path, link_or_copy

BUFFER_BYTES = 2**20
LIST_AGAIN_S = 2.0
LOOK_S = 10.0
AGAIN_S = (
    0.0,
    1.0,
    3.0,
    8.0,
    15.0,
)  # pauses between attempts: a kubelet or an API server needs some seconds to restart
Value = TypeVar("Value")
# A copy that fails with these messages was not cut, and would fail again.
_FINAL = (
    "No space left",
    "Disk quota",
    "No such file",
    "Not a directory",
    "Permission denied",
    "file changed as we read it",
)


class ContainerConnector(TarCopies, BaseConnector):
    """Connector base for the containers of some pods; the name of a place is `pod:container`."""

    def __init__(self, deployment_name: str, config_dir: str, transferBufferSize: int) -> None:
        # A lazy deployment passes StreamFlow's 64 KiB instead of the schema's default.
        super().__init__(deployment_name, config_dir, max(transferBufferSize, BUFFER_BYTES))
        self.cluster: NamespaceClient
        self.websocket: Any = None
        self._listed: tuple[float, list[Pod]] = (-LIST_AGAIN_S, [])
        self._listing = asyncio.Lock()
        self._open_shells: dict[str, Shells] = {}

    @abstractmethod
    def selectors(self) -> list[str]:
        """Return the label selectors of the deployment's pods."""

    async def pods(self) -> list[Pod]:
        """Return all pods of the deployment, at most `LIST_AGAIN_S` old."""
        async with self._listing:
            moment, pods = self._listed
            if time.monotonic() - moment >= LIST_AGAIN_S:
                groups = await asyncio.gather(*(self.cluster.pods(selector) for selector in self.selectors()))
                pods = list({pod.uid: pod for group in groups for pod in group}.values())
                self._listed = time.monotonic(), pods
            return pods

    async def pod_at(self, place: str) -> Pod:
        """Return the current state of the pod of a place.

        Raises:
            PodLost: it is gone.
        """
        name = place.partition(":")[0]
        try:
            pod = await self.cluster.pod(name)
        except ApiServerError as error:
            raise PodLost(f"pod {name}: {error}") from error
        if pod is None:
            raise PodLost(f"pod {name} is gone")
        return pod

    async def utility(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """Run a short command of the engine; return its output (stdout and stderr) and exit code."""
        return await self.alone(location, command, environment, workdir, timeout)

    async def alone(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """Run a short command in one container; return its output (stdout and stderr) and exit code.

        A command that may change something is sent once: after a broken connection its progress is unknown. A read-only
        command is sent again while the pod exists.

        Raises:
            PodLost: its exit code is unknown, it did not end within the timeout, or it made no progress for too long.
        """
        line = utility_line(command, environment=environment or {}, workdir=workdir)
        for pause_s in (*(AGAIN_S if is_read_only(command) else ()), None):
            try:
                with CommandLog("pods", self.deployment_name).command(kind_of(command)) as logged:
                    shells = self._shells_at(location.name)
                    result: tuple[str, int] = await self.while_reachable([location.name], shells.execute(line, timeout))
                    logged.exit_code = result[1]
                return result
            except NoProgress as error:
                raise PodLost(str(error)) from None
            except TimeoutError:
                raise PodLost(f"{location.name}: a command did not end within {timeout} s") from None
            except (ShellLost, aiohttp.ClientError, OSError) as error:
                if pause_s is None or await self._is_gone(location.name):
                    raise PodLost(f"{location.name}: {error}; the exit code of a command there is unknown") from error
            await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def undeploy(self, external: bool) -> None:
        """Close the shells."""
        for shells in self._open_shells.values():
            await shells.close()

    # ---- copies

    async def get_stream_reader(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return a context manager for the standard output of a command; a failed command raises."""
        execution = self._execute(location.name, command, takes_input=bool(stdin_of(command)), much=True)
        return StreamContext(execution, ExecReader, command, self.deployment_name)

    async def get_stream_writer(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return a context manager for the standard input of a command; a failed command raises."""
        words = list(command)
        if SHELL_SIGNS.intersection(words):
            words = ["sh", "-c", stream_line(words)]
        return StreamContext(
            self._execute(location.name, words, takes_input=True, much=True), ExecWriter, command, self.deployment_name
        )

    async def agent_endpoint(self, location: ExecutionLocation) -> Endpoint:
        """Return a container as the peer of a direct transfer, at the pod's address.

        Raises:
            PodLost: the pod is gone.
        """
        address = (await self.pod_at(location.name)).ip

        async def begin(words: Sequence[str]) -> PodShell:
            return PodShell(await self._execute(location.name, words, takes_input=True))

        return Endpoint(f"{self.deployment_name}/{location.name}", [address], address, begin)

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to all locations, once for those that share a volume."""
        chosen = await self.distinct(locations, dst)
        copy = super().copy_local_to_remote
        await self._repeated(lambda: copy(src, dst, chosen, read_only, options), dst, chosen, ends=chosen)

    async def copy_remote_to_local(
        self,
        src: str,
        dst: str,
        location: ExecutionLocation,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to the driver."""
        copy = super().copy_remote_to_local
        await self._repeated(lambda: copy(src, dst, location, read_only, options), dst, [], ends=[location])

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy from another location to all locations, once for those that share a volume; link within the same location."""
        others = []
        for target in await self.distinct(locations, dst, source_location):
            if (target.deployment, target.name) != (source_location.deployment, source_location.name):
                others.append(target)
            elif src != dst:
                text, code = await self.alone(target, link_or_copy(src, dst, read_only=read_only))
                if code:
                    why = reason_in(text) or f"exit code {code}"
                    raise PodLost(f"{target.name}: files of the run could not be linked or copied: {why}")
        if others:
            copy = super().copy_remote_to_remote
            await self._repeated(
                lambda: copy(src, dst, others, source_location, source_connector, read_only, options),
                dst,
                others,
                ends=[*others, source_location],
            )

    async def close_shells(self, place: str) -> None:
        """Close the shells of a place whose pod was replaced."""
        if (shells := self._open_shells.pop(place, None)) is not None:
            await shells.close()

    def _shells_at(self, place: str) -> Shells:
        if place not in self._open_shells:
            self._open_shells[place] = Shells(lambda: self._open_shell(place), place)
        return self._open_shells[place]

    async def _open_shell(self, place: str) -> PodShell:
        for pause_s in AGAIN_S:  # nothing was sent yet
            try:
                return PodShell(await self._execute(place, SHELL, takes_input=True))
            except PodLost:
                if await self._is_gone(place):
                    raise
            await asyncio.sleep(pause_s)
        return PodShell(await self._execute(place, SHELL, takes_input=True))

    async def _is_gone(self, place: str) -> bool:
        """Return whether the pod of a place has ended, or its node is lost."""
        with contextlib.suppress(ApiServerError):  # a server that has just started refuses requests for a moment
            pod = await self.cluster.pod(place.partition(":")[0])
            return pod is None or judge(pod)[0] == PodState.GONE or bool(unresponsive_node(pod))
        return False

    async def while_reachable(self, places: Sequence[str], work: Coroutine[Any, Any, Value]) -> Value:
        """Return the result of the work; check the pods while it runs, since a lost node does not break its connections.

        Raises:
            PodLost: a pod of the places is gone, or its node lost.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
                for place in places:
                    if await self._is_gone(place):
                        raise PodLost(f"{place}: its pod is gone, or its node does not answer")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=LOOK_S)

    async def _execute(
        self, place: str, command: Sequence[str], *, takes_input: bool = False, much: bool = False
    ) -> Execution:
        return await execute(self.websocket, self.cluster.namespace, place, command, takes_input=takes_input, much=much)

    async def _repeated(
        self,
        copy: Callable[[], Coroutine[Any, Any, None]],
        target: str,
        places: Sequence[ExecutionLocation],
        *,
        ends: Sequence[ExecutionLocation],
    ) -> None:
        """Copy, and repeat when a stream was cut: on a busy cluster long streams sometimes end without an error.

        Args:
            target: path of the copy, on the driver if there are no places.
            ends: places whose pods it needs.
        """
        mine = [location.name for location in ends if location.deployment == self.deployment_name]
        if is_staging_path(target):  # a folder of the data manager, which resumes from the files that have arrived
            return await self.while_reachable(mine, copy())
        is_new: bool | None = None
        for pause_s in (*AGAIN_S, None):
            try:
                if is_new is None:
                    is_new = not any(await self._exists(target, places))
                else:
                    await self._remove(target, places)
                return await self.while_reachable(mine, copy())
            except (WorkflowExecutionException, ConnectionError) as error:
                if pause_s is None or is_new is False or any(words in str(error) for words in _FINAL):
                    raise
                if any([await self._is_gone(place) for place in mine]):
                    raise
                # The command's message contains file names.
                why = reason_in(error.error_output) or "no reason is known" if isinstance(error, StreamBroke) else error
                console.say(f"medweave: {self.deployment_name}: a copy was cut and is repeated: {why}")
            await asyncio.sleep(pause_s)

    async def _exists(self, path: str, places: Sequence[ExecutionLocation]) -> list[bool]:
        if not places:
            return [Path(path).exists()]
        results = await asyncio.gather(*(self.alone(location, [f"test -e {shlex.quote(path)}"]) for location in places))
        return [code == 0 for _, code in results]

    async def _remove(self, path: str, places: Sequence[ExecutionLocation]) -> None:
        await asyncio.gather(*(self.alone(location, [f"rm -rf {shlex.quote(path)}"]) for location in places))
        if not places and Path(path).is_dir():
            shutil.rmtree(path)
        elif not places:
            Path(path).unlink(missing_ok=True)

    def removed_claims(self) -> frozenset[str] | None:
        """Return the volume claims that go with the pods at the end of the run; None where the pods stay."""
        return None

    async def distinct(
        self, locations: Sequence[ExecutionLocation], path: str, source: ExecutionLocation | None = None
    ) -> list[ExecutionLocation]:
        """Return one location for every volume at a path, preferring the source's.

        Raises:
            PodLost: the pod of a place is gone.
        """
        if len(locations) < 2:
            return list(locations)
        known = {pod.name: pod for pod in await self.pods()}
        by_place = {location.name: location for location in locations}
        if lost := [name for name in by_place if name.partition(":")[0] not in known]:
            raise PodLost(f"nothing can be copied to {', '.join(lost)}: the pod is gone")
        places = [(known[name.partition(":")[0]], name.partition(":")[2]) for name in by_place]
        first = source.name.partition(":")[0] if source is not None and source.name in by_place else ""
        return [
            by_place[f"{pod.name}:{container}"] for pod, container in volumes.one_per_storage(places, path, first=first)
        ]
