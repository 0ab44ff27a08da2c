"""An API server of a few lines: the requests that our connectors make, answered from a table, and `exec` as real processes.

Its pods have no separate file system: a command runs on this machine. The real API server is tested in tests/hybrid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from aiohttp import WSMsgType, web

NAMESPACE = "tenant-a"


def pod_document(name: str, *, container: str = "worker", labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod that is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": dict(labels or {"app": "w"}),
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": container}]},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")],
            "containerStatuses": [{"name": container, "restartCount": 0, "state": {"running": {}}}],
        },
    }


# What a cluster makes of the pods of a node that it has not heard of for a while: it gives no reason (seen with 1.34).
NODE_MISSED: list[dict[str, Any]] = [
    {"type": "PodScheduled", "status": "True"},
    {"type": "ContainersReady", "status": "True"},
    {"type": "Ready", "status": "False"},
]


def pod_of(workload: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a ready pod of a StatefulSet."""
    spec = workload["spec"]
    name = f"{workload['metadata']['name']}-{number}"
    pod = pod_document(
        name, container=spec["template"]["spec"]["containers"][0]["name"], labels=spec["selector"]["matchLabels"]
    )
    pod["spec"] |= {"hostname": name, "subdomain": spec.get("serviceName", "")}
    return pod


class ApiServer:
    """A Kubernetes API server that runs in a separate thread between `__enter__` and `__exit__`.

    Attributes:
        pods: name to document; tests change it.
        events: documents of events.
        lists_of_events, lists_of_pods: number of requests.
        refusals: how often each entry of `refuse` was an answer.
        objects: path to document, for everything else that is applied.
        on_apply, on_delete: called with each document that is applied, or deleted.
        refuse: (method, part of the path) to (status, message).
        releases: what the fake helm installed, by name.
        make_pod: makes the pod of a release, from its workload and its number; tests replace it to make one that is not ready.
        environment: variables of every pod.
        commands: executed commands, by pod.
        started: the commands that were started.
        start_s: so long it takes to start a step's command, s.
    """

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.lists_of_events = self.lists_of_pods = 0
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.objects: dict[str, dict[str, Any]] = {}
        self.on_apply: Callable[[dict[str, Any]], None] = lambda document: None
        self.on_delete: Callable[[dict[str, Any]], None] = lambda document: None
        self.refuse: dict[tuple[str, str], tuple[int, str]] = {}
        self.releases: dict[str, dict[str, Any]] = {}
        self.make_pod: Callable[[dict[str, Any], int], dict[str, Any]] = pod_of
        self.environment: dict[str, str] = {}
        self.commands: dict[str, list[list[str]]] = {}
        self.started: list[list[str]] = []
        self.start_s = 0.0
        self._processes: dict[str, list[asyncio.subprocess.Process]] = {}
        self._sockets: dict[str, list[web.WebSocketResponse]] = {}
        self._loop = asyncio.new_event_loop()
        self._port: asyncio.Future[int] = self._loop.create_future()

    def __enter__(self) -> ApiServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def port(self) -> int:
        """Return the server's port on 127.0.0.1."""
        return self._port.result()

    def write_kubeconfig(self, path: Path, *, namespace: str = NAMESPACE) -> None:
        """Write a kubeconfig whose current context is this server."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": namespace}}],
        }
        path.write_text(json.dumps(document), encoding="utf-8")

    def add(self, *documents: dict[str, Any]) -> None:
        """Add pods."""
        for document in documents:
            self.pods[document["metadata"]["name"]] = document

    def remove(self, name: str) -> None:
        """Delete a pod and kill its processes."""
        self.pods.pop(name, None)
        for process in self._processes.get(name, []):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def drop(self, name: str) -> None:
        """Break the connections of a pod without a close frame; its processes keep running."""
        for socket in self._sockets.get(name, []):
            asyncio.run_coroutine_threadsafe(socket.close(), self._loop).result(5)

    def cut(self, name: str) -> None:
        """End the connections of a pod like the real server without its kubelet: as a success. Its processes keep running."""

        async def end(socket: web.WebSocketResponse) -> None:
            await socket.send_bytes(b"\x03" + json.dumps(_status(0)).encode())
            await socket.close()

        for socket in self._sockets.get(name, []):
            if not socket.closed:
                asyncio.run_coroutine_threadsafe(end(socket), self._loop).result(5)

    # ---- inside

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close(runner))
        self._loop.close()

    async def _close(self, runner: web.AppRunner) -> None:
        """Close all sockets: a test process starts hundreds of servers, and some programs cannot use a number above 1023."""
        for process in (process for of_pod in self._processes.values() for process in of_pod):
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process._transport.close()  # type: ignore[attr-defined]  # what has left the group may hold a pipe
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        await asyncio.sleep(0.02)  # transports close in the next rounds

    async def _start(self) -> web.AppRunner:
        application = web.Application()
        core = f"/api/v1/namespaces/{NAMESPACE}"
        application.router.add_get(f"{core}/pods", self._list_pods)
        application.router.add_get(f"{core}/pods/{{name}}/exec", self._exec)
        application.router.add_get(f"{core}/pods/{{name}}", self._get_pod)
        application.router.add_get(f"{core}/events", self._list_events)
        application.router.add_get(f"{core}/secrets", self._list_records)
        application.router.add_route("*", "/fake/releases/{name}", self._release)
        application.router.add_get("/api/v1", self._kinds)
        application.router.add_get("/apis/apps/v1", self._kinds)
        self._add_routes(application)
        application.router.add_route("*", "/{path:.*}", self._object)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port.set_result(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        return runner

    def _add_routes(self, application: web.Application) -> None:
        """Add routes; for subclasses."""

    def _refused(self, request: web.Request) -> web.Response | None:
        for (method, part), (status, message) in self.refuse.items():
            if method == request.method and part in request.path:
                self.refusals[method, part] += 1
                return web.json_response({"kind": "Status", "message": message}, status=status)
        return None

    async def _list_pods(self, request: web.Request) -> web.StreamResponse:
        self.lists_of_pods += 1
        if refused := self._refused(request):
            return refused
        items = [pod for pod in self.pods.values() if is_selected(pod, request.query.get("labelSelector", ""))]
        return web.json_response({"items": items})

    async def _get_pod(self, request: web.Request) -> web.StreamResponse:
        pod = self.pods.get(request.match_info["name"])
        return web.json_response(pod) if pod else web.json_response({"message": "not found"}, status=404)

    async def _list_events(self, request: web.Request) -> web.StreamResponse:
        self.lists_of_events += 1
        return self._refused(request) or web.json_response({"items": self.events})

    async def _kinds(self, request: web.Request) -> web.StreamResponse:
        kinds = {"ConfigMap": "configmaps", "Pod": "pods", "Deployment": "deployments", "StatefulSet": "statefulsets"}
        kinds |= {"PersistentVolumeClaim": "persistentvolumeclaims"}
        return web.json_response({"resources": [{"name": n, "kind": k, "namespaced": True} for k, n in kinds.items()]})

    async def _list_records(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        wanted = [
            requirement.split("=") for requirement in request.query.get("labelSelector", "").split(",") if requirement
        ]
        records = [
            {"owner": "helm", "name": name, "version": "1", "status": "deployed", **release["labels"]}
            for name, release in self.releases.items()
            if "unseen" not in release
        ]
        items = [{"metadata": {"labels": labels}} for labels in records if all(labels.get(k) == v for k, v in wanted)]
        return web.json_response({"items": items})

    async def _release(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.method == "PUT":
            self.releases[name] = await request.json()
            for document in self._workloads(name):
                self.add(*(self.make_pod(document, number) for number in range(document["spec"]["replicas"])))
        elif request.method == "DELETE" and name in self.releases:
            for document in self._workloads(name):
                for number in range(document["spec"]["replicas"]):
                    self.remove(f"{document['metadata']['name']}-{number}")
            del self.releases[name]
        return web.json_response(self.releases.get(name, {}))

    def _workloads(self, release: str) -> list[dict[str, Any]]:
        return [document for document in yaml.safe_load_all(self.releases[release]["manifest"]) if document]

    def _workload_paths(self) -> set[str]:
        candidates = [document for release in self.releases for document in self._workloads(release)]
        base = f"/apis/apps/v1/namespaces/{NAMESPACE}"
        return {f"{base}/{workload['kind'].lower()}s/{workload['metadata']['name']}" for workload in candidates}

    async def _object(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        path = request.path
        if request.method == "PATCH":
            self.objects[path] = await request.json()
            self.on_apply(self.objects[path])
        elif request.method == "GET" and path in self._workload_paths():
            return web.json_response({})
        elif path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        elif request.method == "DELETE":
            self.on_delete(self.objects[path])
            return web.json_response(self.objects.pop(path))
        return web.json_response(self.objects[path])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        name, command = request.match_info["name"], request.query.getall("command")
        if refused := self._refused(request):
            return refused
        if name not in self.pods:
            return web.json_response({"message": "not found"}, status=404)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        self._sockets.setdefault(name, []).append(socket)
        self.commands.setdefault(name, []).append(command)
        if "medweave-pod pid" in command[-1]:
            await asyncio.sleep(self.start_s)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "POD_NAME": name} | self.environment,
        )
        self._processes.setdefault(name, []).append(process)
        self.started.append(command)
        assert process.stdout is not None
        assert process.stderr is not None
        listener = asyncio.create_task(self._feed(socket, process, request.query.get("stdin") == "True"))
        await asyncio.gather(_pump(socket, 1, process.stdout), _pump(socket, 2, process.stderr))
        code = await process.wait()
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\x03" + json.dumps(_status(code if code >= 0 else 128 - code)).encode())
            await socket.close()
        listener.cancel()
        return socket

    async def _feed(self, socket: web.WebSocketResponse, process: asyncio.subprocess.Process, takes: bool) -> None:
        assert process.stdin is not None
        if not takes:
            process.stdin.close()
        async for message in socket:
            if message.type != WSMsgType.BINARY:
                continue
            if message.data[0] == 0:
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(message.data[1:])
                    await process.stdin.drain()
            elif message.data[0] == 255:
                process.stdin.close()


def is_selected(document: dict[str, Any], selector: str) -> bool:
    """Return whether an object has the labels, as kubectl takes them: `app=w,!medweave.dev/submission,key in (a,b)`."""
    candidates = document["metadata"]["labels"]
    return all(_has(candidates, requirement) for requirement in re.split(r",(?![^(]*\))", selector) if requirement)


def _has(candidates: Mapping[str, str], wanted: str) -> bool:
    if wanted.startswith("!"):
        return wanted[1:] not in candidates
    if " in (" in wanted:
        key, _, values = wanted.partition(" in ")
        return candidates.get(key) in values.strip("()").split(",")
    key, _, value = wanted.partition("=")
    return candidates.get(key) == value


def _status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"status": "Success"}
    return {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _pump(socket: web.WebSocketResponse, channel: int, pipe: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await pipe.read(2**15):
            await socket.send_bytes(bytes((channel,)) + data)
    await pipe.read()  # a client that disconnects does not stop the process
