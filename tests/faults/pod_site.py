"""The cluster as the campaign reads and breaks it: as its administrator, by the API, without our connectors."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from faults.case import Case
from support.pod_runs import WORKDIR, pods_of, pods_on_claim, write
from support.testbed import Sites, wait_for

TENANT = "tenant-a"
LABEL = "medweave-faults"  # on every pod that a campaign creates, with its id
RUN = "medweave.dev/run"  # on all objects that a run creates
CLAIM, MOUNT = "medweave-data", "/ledger"
WATCH_PAUSE_S = 0.5
COUNTER = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2> /dev/null; :"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A state of a pod from the API server.

    Attributes:
        at: time of its arrival, s since 1970.
        change: ADDED, MODIFIED or DELETED.
    """

    at: float
    change: str
    pod: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHistory:
    """The history of the pod of a job.

    Attributes:
        deleted: whether it is deleted or being deleted.
        evicted: phase Failed, reason Evicted, with the kubelet's message.
        disruption: reason of its condition DisruptionTarget.
        reason: reason of the pod's end, else of its container's (`DeadlineExceeded`, `OOMKilled`).
        changed_at: time of the first of these reports, s since 1970.
        restarts: restarts of its containers.
    """

    name: str = ""
    uid: str = ""
    phase: str = ""
    deleted: bool = False
    evicted: str = ""
    disruption: str = ""
    reason: str = ""
    changed_at: float | None = None
    restarts: int = 0

    @property
    def summary(self) -> str:
        """Return the history in words."""
        words = [f"pod {self.phase or 'unknown'}"]
        words += [f"Evicted: {self.evicted}"] if self.evicted else []
        words += [f"DisruptionTarget {self.disruption}"] if self.disruption else []
        words += [self.reason] if self.reason and not self.evicted else []
        words += ["deleted"] if self.deleted else []
        return " ".join(words)


def history(states: Sequence[PodState], uid: str) -> PodHistory:
    """Return the history of the pod with this uid, from its states in order."""
    own = [seen for seen in states if seen.pod["metadata"]["uid"] == uid]
    if not own:
        return PodHistory(uid=uid)
    metadata, status = own[-1].pod["metadata"], own[-1].pod.get("status", {})
    return PodHistory(
        name=metadata["name"],
        uid=uid,
        phase=status.get("phase", ""),
        deleted=own[-1].change == "DELETED" or "deletionTimestamp" in metadata,
        evicted=next((seen.pod["status"].get("message", "") for seen in own if _is_evicted(seen)), ""),
        disruption=next((reason for seen in own if (reason := _disruption(seen))), ""),
        reason=next((reason for seen in own if (reason := _reason(seen))), ""),
        changed_at=next((seen.at for seen in own if _is_over(seen)), None),
        restarts=max(
            (container.get("restartCount", 0) for container in status.get("containerStatuses", [])), default=0
        ),
    )


class Pods:
    """The testbed's cluster, one namespace of it, and a watch over the pods of a campaign."""

    def __init__(self, testbed: Sites, campaign: str) -> None:
        self.testbed, self.campaign = testbed, campaign
        self._seen: list[PodState] = []
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._making, self._has_store = threading.Lock(), False

    def open(self) -> None:
        """Start the watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop the watch and remove remaining pods."""
        self._closing.set()
        if self._process is not None:
            self._process.kill()
        self.admin("delete", "deployments,pods", f"--selector={LABEL}={self.campaign}", "--wait=false")

    def admin(self, *words: str, text: str | None = None) -> str:
        """Run kubectl with all rights in the tenant's namespace; return its standard output, even after a failure."""
        return self.testbed.admin("--namespace", TENANT, *words, text=text).stdout

    # ---- pods

    def write(
        self, case: Case, script: str, *, creates_pod: bool = True, memory: str = "128Mi", disk: str = ""
    ) -> None:
        """Write the workflow of a case whose step runs in a separate pod.

        Args:
            creates_pod: whether the run creates and deletes the pod; else the campaign has created it.
            disk: size limit of the volume that the step works in.
        """
        document = self.document(case, memory=memory, disk=disk)
        (case.folder / "pods.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        config = {"files": ["pods.yaml"], "timeout": 180} if creates_pod else {"selector": f"app={case.name}"}
        write(case.folder, {case.name: script}, kind="medweave.kubernetes", config=config)

    def document(self, case: Case, *, memory: str = "128Mi", disk: str = "") -> dict[str, Any]:
        """Return the Deployment of a case: one pod, with the ledger of the campaign."""
        mounts = [{"name": "work", "mountPath": WORKDIR}, {"name": "ledger", "mountPath": MOUNT}]
        document = pods_of(case.name, replicas=1, memory=memory, volumeMounts=mounts)
        template = document["spec"]["template"]
        work = {"name": "work", "emptyDir": {"sizeLimit": disk} if disk else {}}
        template["spec"]["volumes"] = [work, {"name": "ledger", "persistentVolumeClaim": {"claimName": CLAIM}}]
        self._marked(document, case.name)
        return document

    def make(self, cases: Sequence[Case], **shape: str) -> None:
        """Create the pods of some cases and wait until they are ready."""
        documents = [self.document(case, **shape) for case in cases]
        self.admin("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        for case in cases:
            self.admin("wait", "--for=condition=Available", f"deployment/{case.name}", "--timeout=120s")

    def store(self) -> str:
        """Create the pod with the files of all cases that run as Jobs, once; return its label `app`.

        The files are in the folder of the ledgers and are removed with it.
        """
        name = f"faults-store-{self.campaign}"
        with self._making:
            if not self._has_store:
                mounts = [
                    {"name": "work", "mountPath": WORKDIR, "subPath": f"faults-{self.campaign}"},
                    {"name": "work", "mountPath": MOUNT},
                ]
                document = pods_on_claim(name, replicas=1, volumeMounts=mounts)
                self._marked(document, name)
                self.admin("apply", "-f", "-", text=json.dumps(document))
                self.admin("wait", "--for=condition=Available", f"deployment/{name}", "--timeout=120s")
                self._has_store = True
        return name

    def evict(self, pod: str) -> bool:
        """Request an eviction of a pod; return whether it was granted."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": TENANT}}
        path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/eviction"
        return '"Success"' in self.admin("create", "--raw", path, "-f", "-", text=json.dumps(eviction))

    def pod(self, case: Case) -> dict[str, Any]:
        """Return the current pod of a case from the API server."""
        listed = json.loads(
            self.admin("get", "pods", f"--selector=app={case.name}", "--output=json") or '{"items": []}'
        )
        alive = [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]
        assert alive, f"no pod of {case.name}"
        return dict(alive[0])

    def living(self, case: Case) -> list[str]:
        """Return the objects of a case that are in the cluster."""
        runs = ",".join(case.run_ids)
        return [
            *self.admin("get", "deployments,pods", f"--selector=app={case.name}", "--output=name").split(),
            *self.admin("get", "jobs,pods", f"--selector={RUN} in ({runs})", "--output=name").split(),
        ]

    def history(self, uid: str) -> PodHistory:
        """Return the history of a pod so far."""
        return history(list(self._seen), uid)

    def pods_of_jobs(self, case: Case) -> list[PodHistory]:
        """Return the histories of the pods of a case's Jobs, in their order."""
        own = [seen for seen in list(self._seen) if seen.pod["metadata"].get("labels", {}).get(RUN) in case.run_ids]
        uids = [seen.pod["metadata"]["uid"] for seen in own if _job_of(seen)]
        return [history(own, uid) for uid in dict.fromkeys(uids)]

    def jobs(self, case: Case) -> list[str]:
        """Return the names of the Jobs of these pods."""
        own = [seen for seen in list(self._seen) if seen.pod["metadata"].get("labels", {}).get(RUN) in case.run_ids]
        return sorted({job for seen in own if (job := _job_of(seen))})

    def eviction(self, pod: str) -> tuple[float | None, str]:
        """Return time (s since 1970) and message of the kubelet's eviction event of a pod; empty without one."""
        selector = f"--field-selector=involvedObject.name={pod},reason=Evicted"
        events = json.loads(self.admin("get", "events", selector, "--output=json") or '{"items": []}')["items"]
        if not events:
            return None, ""
        time_text = events[0]["firstTimestamp"] or events[0]["metadata"]["creationTimestamp"]
        return datetime.datetime.fromisoformat(time_text).timestamp(), " ".join(events[0]["message"].split())

    def oom_kills(self, pod: str) -> int:
        """Return the number of processes of a pod that the kernel has killed for lack of memory."""
        text = self.admin("exec", pod, "--", "sh", "-c", COUNTER)
        return sum(int(count) for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))

    # ---- the cluster

    def kubelet_starts(self) -> int:
        """Return the number of start events of the kubelet."""
        output = self.testbed.admin("get", "events", "-A", "--field-selector=reason=Starting", "--output=json").stdout
        items = json.loads(output or '{"items": []}')["items"]
        return sum(item.get("count") or 1 for item in items if "kubelet" in (item.get("message") or "").lower())

    def server_started(self) -> str:
        """Return the start time of the API server by its metrics; empty if it does not answer."""
        metrics = self.testbed.admin("get", "--raw", "/metrics").stdout
        match = re.search(r"^process_start_time_seconds (\S+)$", metrics, re.MULTILINE)
        return match[1] if match else ""

    def wait_until_ready(self) -> None:
        """Wait until the node is Ready."""
        words = ("get", "nodes", "--output=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}")
        wait_for(
            lambda: True if self.testbed.admin(*words).stdout.strip() == "True" else None,
            "the node is Ready",
            deadline_s=120,
        )

    # ---- inside

    def _marked(self, document: dict[str, Any], app: str) -> None:
        for metadata in (document["metadata"], document["spec"]["template"]["metadata"]):
            metadata.setdefault("labels", {}).update({LABEL: self.campaign, "app": app})

    def _watch(self) -> None:
        path = f"/api/v1/namespaces/{TENANT}/pods?watch=1"
        layout = self.testbed.layout
        words = [str(layout.bin / "kubectl"), f"--kubeconfig={layout.admin_kubeconfig}", "get", "--raw", path]
        while not self._closing.is_set():
            self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert self._process.stdout is not None
            for line in self._process.stdout:
                event = json.loads(line)
                if event["object"].get("kind") == "Pod":
                    self._seen.append(PodState(at=time.time(), change=event["type"], pod=event["object"]))
            self._process.wait()
            self._closing.wait(WATCH_PAUSE_S)  # the API server may be down; the watch restarts when it is back


def ledger_folder(testbed: Sites) -> Path:
    """Return the folder of the pods' claim on this machine."""
    return testbed.layout.pods / TENANT


def _is_evicted(seen: PodState) -> bool:
    status = seen.pod.get("status", {})
    return status.get("phase") == "Failed" and status.get("reason") == "Evicted"


def _job_of(seen: PodState) -> str:
    owners = seen.pod["metadata"].get("ownerReferences") or []
    return next((owner["name"] for owner in owners if owner["kind"] == "Job"), "")


def _reason(seen: PodState) -> str:
    status = seen.pod.get("status", {})
    ends = [(item.get("state") or {}).get("terminated") or {} for item in status.get("containerStatuses") or []]
    reason = status.get("reason") or next((end["reason"] for end in ends if end.get("exitCode")), "")
    return "" if reason == "Error" else str(reason)


def _disruption(seen: PodState) -> str:
    conditions = seen.pod.get("status", {}).get("conditions") or []
    return next((condition.get("reason", "") for condition in conditions if _is_disruption(condition)), "")


def _is_disruption(condition: dict[str, Any]) -> bool:
    return condition["type"] == "DisruptionTarget" and condition["status"] == "True"


def _is_over(seen: PodState) -> bool:
    return bool(_is_evicted(seen) or _disruption(seen) or _reason(seen) or "deletionTimestamp" in seen.pod["metadata"])
