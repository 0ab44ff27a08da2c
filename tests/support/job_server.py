"""The small API server with Jobs: their pods run processes of this machine, and a Job ends as the real controller ends it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from support.api_server import NAMESPACE, ApiServer, is_selected, pod_document
from support.engine import wait_until

BYE = "2026-11-22T10:00:00Z"
STARTS_S = 0.2


def standing_pod(name: str = "w-0", *, shared: bool = True) -> dict[str, Any]:
    """Return a ready pod that mounts a claim at `/`, as all pods of this server see the same files."""
    pod = pod_document(name)
    volume = {"persistentVolumeClaim": {"claimName": "scratch"}} if shared else {"emptyDir": {}}
    pod["spec"]["volumes"] = [{"name": "work"} | volume]
    pod["spec"]["containers"][0] |= {"image": "x", "volumeMounts": [{"name": "work", "mountPath": "/"}]}
    return pod


class JobServer(ApiServer):
    """An API server that serves Jobs too.

    Attributes:
        jobs: name to document; tests change it.
        made: all Jobs that were ever requested.
        refuse_after_making: statuses of answers that are lost, each for a Job that was made.
        pending_status: keys of the status of pods that do not start; None if pods start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        self.refuse_after_making: list[int] = []
        self.pending_status: dict[str, Any] | None = None
        self._works: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take_away(self, name: str, disruption: str = "") -> None:
        """Delete a Job's pod, as an eviction does if there is a reason; its process gets TERM, then KILL."""
        self._loop.call_soon_threadsafe(self._end_pod, name, disruption)

    def kill(self, name: str, **status: Any) -> None:
        """Kill the processes in a Job's pod, as the kernel or the kubelet does; the pod stays, with these keys of its status.

        `ended` is the reason that its container gets.
        """
        self.pods[name]["status"] |= status
        wait_until(lambda: name in self._works)  # its first output may come before it is known here
        _kill(self._works[name])

    def pods_of_jobs(self) -> list[str]:
        """Return the names of the pods of Jobs that have not ended."""
        alive = ("Pending", "Running")
        return [
            name
            for name in list(self.pods)
            if name in self._templates() and self.pods[name]["status"]["phase"] in alive
        ]

    def _templates(self) -> set[str]:
        return {name for name, pod in list(self.pods.items()) if "job-name" in pod["metadata"]["labels"]}

    def _add_routes(self, application: web.Application) -> None:
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        application.router.add_get(jobs, self._list_jobs)
        application.router.add_post(jobs, self._make_job)
        application.router.add_delete(f"{jobs}/{{name}}", self._delete_job)
        application.router.add_patch(f"{jobs}/{{name}}", self._patch_job)
        application.router.add_delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}", self._delete_pod)

    async def _list_jobs(self, request: web.Request) -> web.StreamResponse:
        selector = request.query.get("labelSelector", "")
        items = [job for job in self.jobs.values() if is_selected(job, selector)]
        return self._refused(request) or web.json_response({"items": items})

    async def _make_job(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        document = await request.json()
        name = document["metadata"]["name"]
        if name in self.jobs:
            return web.json_response({"message": f'jobs.batch "{name}" already exists'}, status=409)
        document["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "1"}
        self.jobs[name] = document | {"status": {}}
        self.made.append(copy.deepcopy(document))
        self._make_pod(self.jobs[name])
        if self.refuse_after_making:
            return web.json_response(
                {"message": "etcdserver: request timed out"}, status=self.refuse_after_making.pop()
            )
        return web.json_response(document, status=201)

    async def _delete_job(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        job = self.jobs.get(request.match_info["name"])
        if job is None:
            return web.json_response({"message": "not found"}, status=404)
        wanted = ((await request.json()) if request.can_read_body else {}).get("preconditions", {})
        if any(job["metadata"][key] != value for key, value in wanted.items()):
            return web.json_response({"message": "Precondition failed"}, status=409)
        self.jobs.pop(request.match_info["name"])
        for name in self._templates():
            if self.pods[name]["metadata"]["labels"]["job-name"] == request.match_info["name"]:
                self._end_pod(name)
        return web.json_response({})

    async def _patch_job(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        job, metadata = self.jobs.get(request.match_info["name"]), (await request.json())["metadata"]
        if job is None:
            return web.json_response({"message": "not found"}, status=404)
        own = job["metadata"]
        if metadata.get("uid", own["uid"]) != own["uid"]:
            return web.json_response({"message": "metadata.uid: field is immutable"}, status=422)
        own["labels"] = own["labels"] | metadata["labels"]
        own["resourceVersion"] = str(int(own["resourceVersion"]) + 1)
        return web.json_response(job)

    async def _delete_pod(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["name"] not in self.pods:
            return web.json_response({"message": "not found"}, status=404)
        self._end_pod(request.match_info["name"])
        return web.json_response({})

    def _make_pod(self, job: dict[str, Any]) -> None:
        number = job["status"].get("failed", 0)
        name, template = f"{job['metadata']['name']}-{number}", job["spec"]["template"]
        labels = {"job-name": job["metadata"]["name"]} | template["metadata"]["labels"]
        pod = pod_document(name, labels=labels)
        pod["metadata"]["creationTimestamp"] = f"2026-11-22T10:00:{number:02}Z"
        pod["spec"] = copy.deepcopy(template["spec"]) | {"nodeName": "node-1"}
        waits = {"waiting": {"reason": "ContainerCreating"}}
        pod["status"] |= {"phase": "Pending", "conditions": []} | {"containerStatuses": [_status_of(waits)]}
        self.pods[name] = pod
        task = self._loop.create_task(self._work(job, pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, job: dict[str, Any], pod: dict[str, Any]) -> None:
        name, spec = pod["metadata"]["name"], pod["spec"]
        await asyncio.sleep(STARTS_S)
        while self.pending_status is not None and name in self.pods:
            pod["status"] |= self.pending_status
            await asyncio.sleep(0.05)
        if name not in self.pods:
            return
        process = await asyncio.create_subprocess_exec(
            *(word.replace("$$", "$") for word in spec["containers"][0]["command"]),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "POD_NAME": name} | self.environment,
        )
        self._works[name] = process
        if name not in self.pods:  # taken away while it started
            _kill(process)
        pod["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        pod["status"]["containerStatuses"] = [_status_of({"running": {}})]
        limit_s = spec.get("activeDeadlineSeconds")
        try:
            code = await asyncio.wait_for(asyncio.shield(process.wait()), limit_s)
        except TimeoutError:
            pod["status"] |= {"reason": "DeadlineExceeded", "message": "Pod was active longer than specified deadline"}
            code = await self._stop(process)
        _kill(process)  # what the first process of a container leaves ends with it
        self._end_of(job, pod, code if code >= 0 else 128 - code)

    def _end_of(self, job: dict[str, Any], pod: dict[str, Any], code: int) -> None:
        why = {0: "Completed"}.get(code, pod["status"].pop("ended", "Error"))
        pod["status"] |= {"phase": "Failed" if code else "Succeeded"}
        pod["status"]["containerStatuses"] = [_status_of({"terminated": {"reason": why, "exitCode": code}})]
        if "deletionTimestamp" in pod["metadata"]:
            self._loop.call_later(0.3, self.pods.pop, pod["metadata"]["name"], None)
        if job["metadata"]["name"] not in self.jobs:
            return
        if code == 0:
            return _condition(job, "Complete", "CompletionsReached", "")
        job["status"]["failed"] = job["status"].get("failed", 0) + 1
        if not any(condition["type"] == "DisruptionTarget" for condition in pod["status"]["conditions"]):
            message = f"Container worker for pod {NAMESPACE}/{pod['metadata']['name']} failed with exit code {code}"
            return _condition(job, "Failed", "PodFailurePolicy", message)
        if job["status"]["failed"] > job["spec"]["backoffLimit"]:
            return _condition(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        self._make_pod(job)

    def _end_pod(self, name: str, disruption: str = "") -> None:
        pod = self.pods.get(name)
        if pod is None:
            return
        pod["metadata"]["deletionTimestamp"] = BYE
        if disruption:
            why = {"type": "DisruptionTarget", "status": "True", "reason": disruption, "message": "it must go"}
            pod["status"]["conditions"] = [*pod["status"]["conditions"], why]
        process = self._works.get(name)
        if process is None or process.returncode is not None:
            self.pods.pop(name)
        else:
            task = self._loop.create_task(self._stopped(process))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stopped(self, process: asyncio.subprocess.Process) -> None:
        await self._stop(process)

    async def _stop(self, process: asyncio.subprocess.Process) -> int:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(process.wait()), 1)
        _kill(process)
        return await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _status_of(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "worker", "restartCount": 0, "state": state}


def _condition(job: dict[str, Any], kind: str, reason: str, message: str) -> None:
    job["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason, "message": message}]


@contextlib.contextmanager
def job_cluster(folder: Path) -> Iterator[JobServer]:
    """Yield a server with one standing pod; its kubeconfig lies in the folder."""
    with JobServer() as server:
        server.add(standing_pod())
        server.write_kubeconfig(folder / "kubeconfig")
        yield server
