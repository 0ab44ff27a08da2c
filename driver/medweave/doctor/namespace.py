"""Checks of a Kubernetes namespace by the official client: version, rights, quotas, claims, storage classes and images."""

from __future__ import annotations

import contextlib
import email.utils
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError
from websocket import WebSocketException  # comes with kubernetes

from medweave import __version__
from medweave.doctor import quota
from medweave.doctor.connection import Unreachable
from medweave.doctor.hop_result import Check, Health, HopResult, skew
from medweave.doctor.pod_program import PodProgram
from medweave.doctor.pod_speed import SpeedNotMeasured, measure_speed
from medweave.doctor.rights import FILES, HELM, JOBS, PODS, Right, of_kinds
from medweave.doctor.storage import StorageChecks
from medweave.doctor.trial_pods import new_name, pod_of, templates, trial, with_claim
from medweave_connectors.sites.pods.api.api_client import find_kubeconfig

HOOK = "helm.sh/hook"
ASK_PAUSE_S = 0.5
REFUSED_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError")


class NamespaceChecks:
    """Checks of the namespace of one deployment.

    Args:
        place: name of the deployment.
        kind: its type without `medweave.`.
        settings: its `config`, with absolute paths and without variables.
        limit_s: time limit of one answer.
        folder: folder of the site file, from which a chart's relative path starts.
    """

    def __init__(self, place: str, kind: str, settings: Mapping[str, Any], limit_s: float, folder: Path) -> None:
        self._place, self._kind, self._settings, self._limit_s, self._folder = place, kind, settings, limit_s, folder
        self._api: client.ApiClient
        self._namespace = settings.get("namespace") or ""
        self._version, self._release = "", new_name()
        self._objects: list[dict[str, Any]] = []

    def checks(self) -> Iterator[Check]:
        """Yield the checks in their order."""
        yield Check("cluster", self._open, leads_on=True)
        yield Check("objects", self._rendered)
        yield Check("rights", self._rights)
        yield Check("quota", self._quota)
        yield Check("claims", self._claims)
        yield Check("storage", self._classes)
        yield Check("image", self._images)

    @contextlib.contextmanager
    def running_pod(self, workdir: str | None) -> Iterator[tuple[client.ApiClient, Any]]:
        """Yield a running trial pod like the first one of a run, and its client; remove it after the block.

        It has the labels, the NetworkPolicies, and the volume claim of the workdir.

        Raises:
            Unreachable: the pod does not start.
        """
        for hop in (*self._open(), *self._rendered()):
            if hop.health in (Health.FAULT, Health.UNKNOWN):
                raise Unreachable(hop.seen, hop.do)
        template = next(templates(self._objects), None)
        if template is None:
            raise Unreachable(
                "the deployment creates no pods", f"deployments.{self._place}.config: add a workload with pods"
            )
        spec, labels = template["spec"], (template.get("metadata") or {}).get("labels") or {}
        container = spec["containers"][0]
        pod = pod_of(new_name(), container, spec, labels=labels)
        policies = [item for item in self._objects if item["kind"] == "NetworkPolicy"]
        try:
            if workdir:
                pod = with_claim(pod, container, spec, workdir, self._storage().bound())
            with trial(self._api, self._namespace, pod, self._limit_s, policies) as name:
                image_hop = self._wait_for_image(name, str(container.get("image")))
                if image_hop.health is not Health.OK:
                    raise Unreachable(image_hop.seen, image_hop.do)
                pods = client.CoreV1Api(self._api)
                yield self._api, pods.read_namespaced_pod(name, self._namespace, _request_timeout=self._limit_s)
        except ApiException as error:
            raise Unreachable(f"a test pod was refused: {_message(error)[:200]}", _refused(error)) from error

    # ---- checks

    def _open(self) -> Iterator[HopResult]:
        path, context = self._settings.get("kubeconfig") or None, self._settings.get("kubeContext") or None
        try:
            if self._settings.get("inCluster"):
                config.load_incluster_config()
                self._api = client.ApiClient()
            else:
                self._api = config.new_client_from_config(path, context)
                self._namespace = self._namespace or _namespace_of(path, context)
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            yield self._hop(
                "cluster", Health.FAULT, f"kubeconfig {path or 'of the environment'}: {_first_line(error)}",
                f"deployments.{self._place}.config: correct kubeconfig or kubeContext",
            )  # fmt: skip
            return
        self._namespace = self._namespace or "default"
        began = time.time()
        try:
            version, _, headers = client.VersionApi(self._api).get_code_with_http_info(_request_timeout=self._limit_s)
            client.CoreV1Api(self._api).list_namespaced_pod(self._namespace, limit=1, _request_timeout=self._limit_s)
        except ApiException as error:
            yield self._hop(
                "cluster", Health.FAULT, f"namespace {self._namespace}: {error.status} {error.reason}", _refused(error)
            )
            return
        except (HTTPError, OSError) as error:
            yield self._hop(
                "cluster", Health.FAULT, f"{self._api.configuration.host}: {_first_line(error)[:160]}",
                "check the network, the VPN and the server address in the kubeconfig",
            )  # fmt: skip
            return
        ended = time.time()
        self._version = str(version.git_version)
        yield self._hop(
            "cluster",
            Health.OK,
            f"Kubernetes {version.git_version}, namespace {self._namespace}, {ended - began:.2f} s",
        )
        if date := email.utils.parsedate_to_datetime(headers["Date"]).timestamp() if "Date" in headers else None:
            yield skew(self._place, date + 0.5 - (began + ended) / 2, (ended - began) / 2 + 0.5)

    def _rendered(self) -> Iterator[HopResult]:
        """Render the objects that a run would create, by helm or from files."""
        if self._kind == "kubernetes":
            for file in self._settings.get("files") or []:
                self._objects += _documents(Path(file).read_text(encoding="utf-8"))
            return
        if shutil.which("helm") is None:
            yield self._hop("helm", Health.FAULT, "helm is not on the PATH of this machine", "install Helm 3 or newer")
            return
        process = subprocess.run(
            self._template(), input=yaml.safe_dump(self._values()), capture_output=True, text=True,
            timeout=self._limit_s, check=False,
        )  # fmt: skip
        if process.returncode:
            lines = process.stderr.strip().splitlines() or ["no message"]
            message = next((line for line in lines if line.startswith("Error:")), lines[-1])
            yield self._hop(
                "helm",
                Health.FAULT,
                f"helm template: {message[:200]}",
                "correct the chart or its values; `medweave validate --helm` shows where",
            )
            return
        self._objects = _documents(process.stdout)
        kinds = sorted({item["kind"] for item in self._objects})
        yield self._hop("helm", Health.OK, f"chart renders: {', '.join(kinds)}")

    def _values(self) -> dict[str, Any]:
        values = dict(self._settings.get("values") or {})
        return (
            values | {"engine": self._settings["engine"]} if "engine" in self._settings else values
        )  # as medweave.compss has it

    def _template(self) -> list[str]:
        settings = self._settings
        folder = self._folder / settings["chart"]
        chart = str(folder) if not settings.get("repo") and folder.exists() else settings["chart"]
        words = ["helm", "template", self._release, chart, "--namespace", self._namespace]
        words += ["--kube-version", self._version]
        options = {
            "--version": settings.get("chartVersion"),
            "--repo": settings.get("repo"),
            "--values": settings.get("yamlValues"),
        }
        for option, value in options.items():
            for item in [value] if isinstance(value, str) else value or []:
                words += [option, item]
        return [*words, "--values", "-"]

    def _rights(self) -> Iterator[HopResult]:
        rights = list(PODS)
        if self._settings.get("mode") == "job":
            rights += JOBS
        verbs = FILES if self._kind == "kubernetes" else HELM
        rights += of_kinds(((item["apiVersion"], item["kind"]) for item in self._objects), verbs)
        if self._kind != "kubernetes":
            rights.append(Right("", "secrets", verbs))
        needs = [(right, verb) for right in rights for verb in right.verbs]
        denied = [(right, verb) for right, verb in needs if not self._is_allowed(right, verb)]
        needed = [f"{verb} {right.name}" for right, verb in denied if right.is_needed]
        if needed:
            yield self._hop(
                "rights", Health.FAULT, f"not permitted: {', '.join(needed)}",
                "ask the namespace's administrator for these permissions (docs/how-to/run-in-kubernetes.md, Rights)",
            )  # fmt: skip
        elif denied:
            less = ", ".join(f"{verb} {right.name}: {right.without}" for right, verb in denied)
            yield self._hop(
                "rights",
                Health.WARNING,
                f"not permitted: {less}",
                "optional: ask the namespace's administrator for these permissions",
            )
        else:
            yield self._hop("rights", Health.OK, f"all {len(needs)} permissions that a run needs")

    def _is_allowed(self, right: Right, verb: str) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = client.V1ResourceAttributes(
            namespace=self._namespace, group=right.group, resource=resource, subresource=subresource or None, verb=verb
        )
        review = client.V1SelfSubjectAccessReview(
            spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        answer = client.AuthorizationV1Api(self._api).create_self_subject_access_review(
            review, _request_timeout=self._limit_s
        )
        return bool(answer.status.allowed)

    def _quota(self) -> Iterator[HopResult]:
        try:
            quotas = client.CoreV1Api(self._api).list_namespaced_resource_quota(
                self._namespace, _request_timeout=self._limit_s
            )
        except ApiException as error:
            yield quota.forbidden(self._place, error.status)
            return
        if not quotas.items:
            yield self._hop("quota", Health.OK, "no ResourceQuota in the namespace")
        more = [] if self._kind == "kubernetes" else ["secrets"]  # helm's release record
        more += ["jobs.batch"] if self._settings.get("mode") == "job" else []
        needs = quota.needed(self._objects, more)
        for item in quotas.items:
            yield quota.hop_of(self._place, item, needs)

    def _claims(self) -> Iterator[HopResult]:
        yield from self._storage().claims()

    def _classes(self) -> Iterator[HopResult]:
        yield from self._storage().classes()

    def _storage(self) -> StorageChecks:
        return StorageChecks(self._place, self._api, self._namespace, self._objects, self._limit_s)

    def _images(self) -> Iterator[HopResult]:
        """Start and remove a sleeping pod for each image; measure the bandwidth to the first one that runs."""
        seen, is_measured = set(), False
        for spec in (template["spec"] for template in templates(self._objects)):
            for container in spec["containers"]:
                key = container.get("image"), container.get("imagePullPolicy")
                if key not in seen:
                    seen.add(key)
                    for hop in self._pulled(container, spec, measures=not is_measured):
                        is_measured = is_measured or hop.name == "bandwidth"
                        yield hop

    def _pulled(self, container: Mapping[str, Any], spec: Mapping[str, Any], *, measures: bool) -> Iterator[HopResult]:
        image = str(container.get("image"))
        try:
            with trial(self._api, self._namespace, pod_of(new_name(), container, spec), self._limit_s) as name:
                image_hop = self._wait_for_image(name, image)
                yield image_hop
                if image_hop.health is Health.OK:
                    yield self._worker(name, image)
                    if measures:
                        yield self._bandwidth(name)
        except ApiException as error:
            health = Health.UNKNOWN if error.status == 403 else Health.FAULT
            seen = f"{image}: test pod refused: {_message(error)[:200]}"
            yield self._hop("image", health, seen, "get the permission to create pods")

    def _worker(self, pod: str, image: str) -> HopResult:
        """Return the hop of the step package in the image."""
        words = ["sh", "-c", "medweave-step --version 2>/dev/null"]
        try:
            program = PodProgram(self._api, pod, self._namespace, words, self._limit_s)
            output = program.printed(self._limit_s / 2)
        except (ApiException, WebSocketException, OSError) as error:
            do = "check in the lines `rights` that pods/exec is permitted, then use a longer --timeout"
            return self._hop("worker", Health.UNKNOWN, f"not tested: {_first_line(error)[:160]}", do)
        version = output.removeprefix("medweave-step ").strip()
        if not version:
            seen = f"no medweave-step in {image}: a volume provides it, or the steps run other programs"
            return self._hop("worker", Health.OK, seen)
        if version == __version__:
            return self._hop("worker", Health.OK, f"medweave {version} in {image}")
        seen = f"medweave {version} in {image}; this machine has {__version__}"
        return self._hop(
            "worker", Health.WARNING, seen, "build the image of this version (docs/how-to/build-the-images.md)"
        )

    def _bandwidth(self, pod: str) -> HopResult:
        try:
            speed = measure_speed(*self._access(), self._namespace, pod, self._limit_s / 2)
        except SpeedNotMeasured as error:
            seen = f"not measured: {_first_line(error)[:160]}"
            return self._hop("bandwidth", Health.WARNING, seen, "see the lines `rights` and `image`")
        seen = (
            f"{speed.to_pod / 1e6:.0f} MB/s to a pod, {speed.from_pod / 1e6:.0f} MB/s from a pod, through the API "
            "server"
        )
        if not speed.by_spdy:
            seen += ", over WebSocket: a proxy blocks the faster SPDY"
        return self._hop("bandwidth", Health.OK, seen)

    def _access(self) -> tuple[str, str | None, bool]:
        """Return kubeconfig, context, and whether this process runs in the cluster, as the connectors do."""
        settings = self._settings
        return (
            find_kubeconfig(settings.get("kubeconfig")),
            settings.get("kubeContext") or None,
            bool(settings.get("inCluster")),
        )

    def _wait_for_image(self, name: str, image: str) -> HopResult:
        began, reason = time.monotonic(), ""
        while time.monotonic() < began + self._limit_s:
            pod = client.CoreV1Api(self._api).read_namespaced_pod(name, self._namespace, _request_timeout=self._limit_s)
            for status in pod.status.container_statuses or []:
                state = status.state
                if state.running or state.terminated:
                    return self._hop("image", Health.OK, f"{image}: pod started after {time.monotonic() - began:.1f} s")
                reason = state.waiting.reason or "" if state.waiting else ""
                if reason in REFUSED_IMAGE:
                    message = " ".join((state.waiting.message or "").split())
                    return self._hop(
                        "image",
                        Health.FAULT,
                        f"{image}: {reason}: {message[:160]}",
                        "correct `image` or `pullPolicy`, or add an imagePullSecret to the pod",
                    )
            for condition in pod.status.conditions or []:
                is_unscheduled = condition.status == "False" and condition.type == "PodScheduled"
                reason = condition.message or reason if is_unscheduled else reason
            time.sleep(ASK_PAUSE_S)
        why = self._last_event(name) or reason or pod.status.phase
        return self._hop(
            "image", Health.UNKNOWN, f"{image}: pod not started within {self._limit_s:.0f} s ({why})",
            "pulling a large image may take minutes: use a longer --timeout",
        )  # fmt: skip

    def _last_event(self, pod: str) -> str:
        """Return the last event of a pod; an empty text if events may not be listed."""
        try:
            events = client.CoreV1Api(self._api).list_namespaced_event(
                self._namespace, field_selector=f"involvedObject.name={pod}", _request_timeout=self._limit_s
            )
        except ApiException:
            return ""
        # By resource version, since the timestamps of events differ in resolution.
        ordered = sorted(events.items, key=lambda event: int(event.metadata.resource_version))
        return f"{ordered[-1].reason}: {' '.join((ordered[-1].message or '').split())[:160]}" if ordered else ""

    def _hop(self, name: str, health: Health, seen: str, do: str = "") -> HopResult:
        return HopResult(place=self._place, name=name, health=health, seen=seen, do=do)


# ---- pure


def _documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest, with lists unpacked and without the hooks of `helm test`."""
    objects: list[dict[str, Any]] = []
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and "kind" in document:
            objects += document["items"] if document["kind"] == "List" else [document]
    return [item for item in objects if HOOK not in (item["metadata"].get("annotations") or {})]


def _namespace_of(path: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(path)
    chosen = next((entry for entry in contexts if entry["name"] == context), active)
    return str(chosen["context"].get("namespace") or "")


def _refused(error: ApiException) -> str:
    return {
        401: "renew the token or certificate of the kubeconfig (log in again)",
        403: "choose a namespace in which this account may list pods, or ask its administrator for the permission",
        404: "correct the name of the namespace",
    }.get(error.status or 0, "contact the cluster's administrator; `kubectl get --raw /readyz` shows details")


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "{}").get("message") or error.reason)
    except ValueError:
        return str(error.reason)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
