"""The cluster as the campaign asks and breaks it: as its administrator, by the API itself, without a connector of ours."""

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
LABEL = "medweave-faults"  # on every pod that a campaign makes, with its id
RUN = "medweave.dev/run"  # on all that a run makes
CLAIM, MOUNT = "medweave-data", "/ledger"
WATCH_PAUSE_S = 0.5
COUNTER = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2> /dev/null; :"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A state of a pod, as the API server told it.

    Attributes:
        at: when it was told, s since 1970.
        change: ADDED, MODIFIED or DELETED.
    """

    at: float
    change: str
    pod: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What became of the pod of a job. Pure.

    Attributes:
        deleted: it is gone, or was to go.
        evicted: phase Failed, reason Evicted, with the kubelet's message.
        disruption: reason of its condition DisruptionTarget.
        reason: of the pod's end; that of its container where the pod has none (`DeadlineExceeded`, `OOMKilled`).
        changed_at: when the API server first told of one of these, s since 1970.
        restarts: of its containers.
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
    def word(self) -> str:
        """For people."""
        words = [f"pod {self.phase or 'unknown'}"]
        words += [f"Evicted: {self.evicted}"] if self.evicted else []
        words += [f"DisruptionTarget {self.disruption}"] if self.disruption else []
        words += [self.reason] if self.reason and not self.evicted else []
        words += ["deleted"] if self.deleted else []
        return " ".join(words)


def story(states: Sequence[Seen], uid: str) -> Story:
    """The pod with this uid, from its states in order."""
    own = [seen for seen in states if seen.pod["metadata"]["uid"] == uid]
    if not own:
        return Story(uid=uid)
    metadata, status = own[-1].pod["metadata"], own[-1].pod.get("status", {})
    return Story(
        name=metadata["name"],
        uid=uid,
        phase=status.get("phase", ""),
        deleted=own[-1].change == "DELETED" or "deletionTimestamp" in metadata,
        evicted=next((seen.pod["status"].get("message", "") for seen in own if _is_evicted(seen)), ""),
        disruption=next((reason for seen in own if (reason := _disruption(seen))), ""),
        reason=next((reason for seen in own if (reason := _reason(seen))), ""),
        changed_at=next((seen.at for seen in own if _is_over(seen)), None),
        restarts=max((each.get("restartCount", 0) for each in status.get("containerStatuses", [])), default=0),
    )


class Pods:
    """The testbed's cluster, one namespace of it, and a watch over the pods of a campaign."""

    def __init__(self, testbed: Sites, campaign: str) -> None:
        self.testbed, self.campaign = testbed, campaign
        self._seen: list[Seen] = []
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._making, self._has_store = threading.Lock(), False

    def open(self) -> None:
        """Starts to watch."""
        self._thread.start()

    def close(self) -> None:
        """Ends the watch, and removes what pods are left."""
        self._closing.set()
        if self._process is not None:
            self._process.kill()
        self.admin("delete", "deployments,pods", f"--selector={LABEL}={self.campaign}", "--wait=false")

    def admin(self, *words: str, text: str | None = None) -> str:
        """kubectl with all rights, in the tenant's namespace; standard output, whatever comes of it."""
        return self.testbed.admin("--namespace", TENANT, *words, text=text).stdout

    # ---- pods

    def write(self, case: Case, script: str, *, own: bool = True, memory: str = "128Mi", disk: str = "") -> None:
        """Writes the workflow of a case whose step runs in a pod of its own.

        Args:
            own: the run makes the pod and takes it away; else the campaign has made it.
            disk: size limit of the volume that the step works in.
        """
        document = self.document(case, memory=memory, disk=disk)
        (case.folder / "pods.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        config = {"files": ["pods.yaml"], "timeout": 180} if own else {"selector": f"app={case.name}"}
        write(case.folder, {case.name: script}, kind="medweave.kubernetes", config=config)

    def document(self, case: Case, *, memory: str = "128Mi", disk: str = "") -> dict[str, Any]:
        """The Deployment of a case: one pod, with the ledger of the campaign."""
        mounts = [{"name": "work", "mountPath": WORKDIR}, {"name": "ledger", "mountPath": MOUNT}]
        document = pods_of(case.name, replicas=1, memory=memory, volumeMounts=mounts)
        template = document["spec"]["template"]
        work = {"name": "work", "emptyDir": {"sizeLimit": disk} if disk else {}}
        template["spec"]["volumes"] = [work, {"name": "ledger", "persistentVolumeClaim": {"claimName": CLAIM}}]
        self._marked(document, case.name)
        return document

    def make(self, cases: Sequence[Case], **shape: str) -> None:
        """Makes the pods of some cases, and waits until they are ready."""
        documents = [self.document(case, **shape) for case in cases]
        self.admin("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        for case in cases:
            self.admin("wait", "--for=condition=Available", f"deployment/{case.name}", "--timeout=120s")

    def store(self) -> str:
        """Makes the pod that holds the files of all cases with a Job of their own, once; its label `app`.

        They lie where the ledgers of the campaign lie, and go with them.
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
        """Asks the Eviction API for the end of a pod; whether it granted it."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": TENANT}}
        path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/eviction"
        return '"Success"' in self.admin("create", "--raw", path, "-f", "-", text=json.dumps(eviction))

    def pod(self, case: Case) -> dict[str, Any]:
        """The pod of a case, as the API server has it now."""
        found = json.loads(self.admin("get", "pods", f"--selector=app={case.name}", "--output=json") or '{"items": []}')
        alive = [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]
        assert alive, f"no pod of {case.name}"
        return dict(alive[0])

    def living(self, case: Case) -> list[str]:
        """What of a case is in the cluster."""
        runs = ",".join(case.run_ids)
        return [
            *self.admin("get", "deployments,pods", f"--selector=app={case.name}", "--output=name").split(),
            *self.admin("get", "jobs,pods", f"--selector={RUN} in ({runs})", "--output=name").split(),
        ]

    def story(self, uid: str) -> Story:
        """What the API server has told of a pod so far."""
        return story(list(self._seen), uid)

    def pods_of_jobs(self, case: Case) -> list[Story]:
        """The pods of the Jobs of a case that the API server has told of, in their order."""
        own = [seen for seen in list(self._seen) if seen.pod["metadata"].get("labels", {}).get(RUN) in case.run_ids]
        uids = [seen.pod["metadata"]["uid"] for seen in own if _job_of(seen)]
        return [story(own, uid) for uid in dict.fromkeys(uids)]

    def jobs(self, case: Case) -> list[str]:
        """The names of the Jobs that these pods were made for."""
        own = [seen for seen in list(self._seen) if seen.pod["metadata"].get("labels", {}).get(RUN) in case.run_ids]
        return sorted({job for seen in own if (job := _job_of(seen))})

    def eviction(self, pod: str) -> tuple[float | None, str]:
        """When the kubelet told that it evicts a pod, s since 1970, and what it said; empty where it did not."""
        selector = f"--field-selector=involvedObject.name={pod},reason=Evicted"
        found = json.loads(self.admin("get", "events", selector, "--output=json") or '{"items": []}')["items"]
        if not found:
            return None, ""
        told = found[0]["firstTimestamp"] or found[0]["metadata"]["creationTimestamp"]
        return datetime.datetime.fromisoformat(told).timestamp(), " ".join(found[0]["message"].split())

    def oom_kills(self, pod: str) -> int:
        """Processes of a pod that the kernel has killed for lack of memory, by its own counter."""
        text = self.admin("exec", pod, "--", "sh", "-c", COUNTER)
        return sum(int(count) for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))

    # ---- the cluster

    def kubelet_starts(self) -> int:
        """How often the kubelet has told that it starts, by the events of its node."""
        told = self.testbed.admin("get", "events", "-A", "--field-selector=reason=Starting", "--output=json").stdout
        items = json.loads(told or '{"items": []}')["items"]
        return sum(item.get("count") or 1 for item in items if "kubelet" in (item.get("message") or "").lower())

    def server_started(self) -> str:
        """When the API server was started, in its own words; empty where it does not answer."""
        metrics = self.testbed.admin("get", "--raw", "/metrics").stdout
        found = re.search(r"^process_start_time_seconds (\S+)$", metrics, re.MULTILINE)
        return found[1] if found else ""

    def wait_until_ready(self) -> None:
        """Returns when the node is Ready."""
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
                told = json.loads(line)
                if told["object"].get("kind") == "Pod":
                    self._seen.append(Seen(at=time.time(), change=told["type"], pod=told["object"]))
            self._process.wait()
            self._closing.wait(WATCH_PAUSE_S)  # the API server may be down: it is watched again when it is back


def ledger_folder(testbed: Sites) -> Path:
    """Where the pods' claim lies on this machine."""
    return testbed.layout.pods / TENANT


def _is_evicted(seen: Seen) -> bool:
    status = seen.pod.get("status", {})
    return status.get("phase") == "Failed" and status.get("reason") == "Evicted"


def _job_of(seen: Seen) -> str:
    owners = seen.pod["metadata"].get("ownerReferences") or []
    return next((each["name"] for each in owners if each["kind"] == "Job"), "")


def _reason(seen: Seen) -> str:
    status = seen.pod.get("status", {})
    ends = [(each.get("state") or {}).get("terminated") or {} for each in status.get("containerStatuses") or []]
    found = status.get("reason") or next((end["reason"] for end in ends if end.get("exitCode")), "")
    return "" if found == "Error" else str(found)


def _disruption(seen: Seen) -> str:
    conditions = seen.pod.get("status", {}).get("conditions") or []
    return next((each.get("reason", "") for each in conditions if _is_disruption(each)), "")


def _is_disruption(condition: dict[str, Any]) -> bool:
    return condition["type"] == "DisruptionTarget" and condition["status"] == "True"


def _is_over(seen: Seen) -> bool:
    return bool(_is_evicted(seen) or _disruption(seen) or _reason(seen) or "deletionTimestamp" in seen.pod["metadata"])
