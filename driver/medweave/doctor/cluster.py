"""A namespace of Kubernetes by the official client: what this account may do there, what is left of its quotas, and the images."""

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
from medweave.doctor.connection import Closed
from medweave.doctor.hop import Check, Health, Hop, skew
from medweave.doctor.pod_program import Program
from medweave.doctor.pod_speed import NotMeasured, measured
from medweave.doctor.rights import FILES, HELM, JOBS, PODS, Right, of_kinds
from medweave.doctor.storage import Storage
from medweave.doctor.trial_pods import new_name, pod_of, templates, trial, with_claim
from medweave_connectors.sites.pods.api.api_client import find_kubeconfig

HOOK = "helm.sh/hook"
ASK_PAUSE_S = 0.5
REFUSED_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError")


class Cluster:
    """The namespace of one deployment.

    Args:
        place: the deployment's name.
        kind: its type without `medweave.`.
        given: its `config`, with absolute paths and without variables.
        limit_s: for one answer.
        folder: of the site file, from which a chart's relative path starts.
    """

    def __init__(self, place: str, kind: str, given: Mapping[str, Any], limit_s: float, folder: Path) -> None:
        self._place, self._kind, self._given, self._limit_s, self._folder = place, kind, given, limit_s, folder
        self._api: client.ApiClient
        self._namespace = given.get("namespace") or ""
        self._version, self._release = "", new_name()
        self._objects: list[dict[str, Any]] = []

    def checks(self) -> Iterator[Check]:
        """What is tried, in this order."""
        yield Check("cluster", self._open, leads_on=True)
        yield Check("objects", self._rendered)
        yield Check("rights", self._rights)
        yield Check("quota", self._quota)
        yield Check("claims", self._claims)
        yield Check("storage", self._classes)
        yield Check("image", self._images)

    @contextlib.contextmanager
    def standing(self, workdir: str | None) -> Iterator[tuple[client.ApiClient, Any]]:
        """A pod that runs, for the block, as the first of those that a run starts; with the client that reaches it.

        It has their labels, their NetworkPolicies, and the claim on which the workdir lies.

        Raises:
            Closed: why there is none.
        """
        for hop in (*self._open(), *self._rendered()):
            if hop.health in (Health.FAULT, Health.UNKNOWN):
                raise Closed(hop.seen, hop.do)
        template = next(templates(self._objects), None)
        if template is None:
            raise Closed("a run starts no pods there", f"name what a run starts: deployments.{self._place}.config")
        spec, labels = template["spec"], (template.get("metadata") or {}).get("labels") or {}
        container = spec["containers"][0]
        pod = pod_of(new_name(), container, spec, labels=labels)
        policies = [each for each in self._objects if each["kind"] == "NetworkPolicy"]
        try:
            if workdir:
                pod = with_claim(pod, container, spec, workdir, self._storage().bound())
            with trial(self._api, self._namespace, pod, self._limit_s, policies) as name:
                came = self._came(name, str(container.get("image")))
                if came.health is not Health.OK:
                    raise Closed(came.seen, came.do)
                pods = client.CoreV1Api(self._api)
                yield self._api, pods.read_namespaced_pod(name, self._namespace, _request_timeout=self._limit_s)
        except ApiException as error:
            raise Closed(f"a trial is refused: {_message(error)[:200]}", _refused(error)) from error

    # ---- what is tried

    def _open(self) -> Iterator[Hop]:
        path, context = self._given.get("kubeconfig") or None, self._given.get("kubeContext") or None
        try:
            if self._given.get("inCluster"):
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
                "check the network and the VPN, and the server in the kubeconfig",
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

    def _rendered(self) -> Iterator[Hop]:
        """What a run would make there, by helm or from files."""
        if self._kind == "kubernetes":
            for file in self._given.get("files") or []:
                self._objects += _documents(Path(file).read_text(encoding="utf-8"))
            return
        if shutil.which("helm") is None:
            yield self._hop("helm", Health.FAULT, "no program helm on this machine's PATH", "install Helm 3 or newer")
            return
        ended = subprocess.run(
            self._template(), input=yaml.safe_dump(self._values()), capture_output=True, text=True,
            timeout=self._limit_s, check=False,
        )  # fmt: skip
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or ["it ended without a word"]
            said = next((each for each in lines if each.startswith("Error:")), lines[-1])
            yield self._hop(
                "helm",
                Health.FAULT,
                f"helm template: {said[:200]}",
                "correct chart or values: medweave validate says where",
            )
            return
        self._objects = _documents(ended.stdout)
        kinds = sorted({each["kind"] for each in self._objects})
        yield self._hop("helm", Health.OK, f"the chart renders: {', '.join(kinds)}")

    def _values(self) -> dict[str, Any]:
        values = dict(self._given.get("values") or {})
        return (
            values | {"engine": self._given["engine"]} if "engine" in self._given else values
        )  # as medweave.compss has it

    def _template(self) -> list[str]:
        given = self._given
        folder = self._folder / given["chart"]
        chart = str(folder) if not given.get("repo") and folder.exists() else given["chart"]
        words = ["helm", "template", self._release, chart, "--namespace", self._namespace]
        words += ["--kube-version", self._version]
        options = {
            "--version": given.get("chartVersion"),
            "--repo": given.get("repo"),
            "--values": given.get("yamlValues"),
        }
        for option, value in options.items():
            for each in [value] if isinstance(value, str) else value or []:
                words += [option, each]
        return [*words, "--values", "-"]

    def _rights(self) -> Iterator[Hop]:
        wanted = list(PODS)
        if self._given.get("mode") == "job":
            wanted += JOBS
        verbs = FILES if self._kind == "kubernetes" else HELM
        wanted += of_kinds(((each["apiVersion"], each["kind"]) for each in self._objects), verbs)
        if self._kind != "kubernetes":
            wanted.append(Right("", "secrets", verbs))
        asked = [(right, verb) for right in wanted for verb in right.verbs]
        denied = [(right, verb) for right, verb in asked if not self._may(right, verb)]
        needed = [f"{verb} {right.name}" for right, verb in denied if right.is_needed]
        if needed:
            yield self._hop(
                "rights", Health.FAULT, f"may not: {', '.join(needed)}",
                "ask the namespace's administrator for these (docs/how-to/run-in-kubernetes.md, Rights)",
            )  # fmt: skip
        elif denied:
            less = ", ".join(f"{verb} {right.name}: {right.without}" for right, verb in denied)
            yield self._hop("rights", Health.WARNING, f"may not {less}", "a run works; ask for them all the same")
        else:
            yield self._hop("rights", Health.OK, f"all {len(asked)} that a run needs")

    def _may(self, right: Right, verb: str) -> bool:
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

    def _quota(self) -> Iterator[Hop]:
        try:
            found = client.CoreV1Api(self._api).list_namespaced_resource_quota(
                self._namespace, _request_timeout=self._limit_s
            )
        except ApiException as error:
            yield quota.closed(self._place, error.status)
            return
        if not found.items:
            yield self._hop("quota", Health.OK, "the namespace has none")
        more = [] if self._kind == "kubernetes" else ["secrets"]  # the record of a release
        more += ["jobs.batch"] if self._given.get("mode") == "job" else []
        needs = quota.needed(self._objects, more)
        for each in found.items:
            yield quota.hop_of(self._place, each, needs)

    def _claims(self) -> Iterator[Hop]:
        yield from self._storage().claims()

    def _classes(self) -> Iterator[Hop]:
        yield from self._storage().classes()

    def _storage(self) -> Storage:
        return Storage(self._place, self._api, self._namespace, self._objects, self._limit_s)

    def _images(self) -> Iterator[Hop]:
        """Starts one pod for each image, which does nothing, and removes it; the way to the first that comes is measured."""
        seen, is_measured = set(), False
        for spec in (each["spec"] for each in templates(self._objects)):
            for container in spec["containers"]:
                key = container.get("image"), container.get("imagePullPolicy")
                if key not in seen:
                    seen.add(key)
                    for hop in self._pulled(container, spec, measures=not is_measured):
                        is_measured = is_measured or hop.name == "bandwidth"
                        yield hop

    def _pulled(self, container: Mapping[str, Any], spec: Mapping[str, Any], *, measures: bool) -> Iterator[Hop]:
        image = str(container.get("image"))
        try:
            with trial(self._api, self._namespace, pod_of(new_name(), container, spec), self._limit_s) as name:
                came = self._came(name, image)
                yield came
                if came.health is Health.OK:
                    yield self._worker(name, image)
                    if measures:
                        yield self._bandwidth(name)
        except ApiException as error:
            health = Health.UNKNOWN if error.status == 403 else Health.FAULT
            seen = f"{image}: a pod is refused: {_message(error)[:200]}"
            yield self._hop("image", health, seen, "a right to create pods lets it be tried")

    def _worker(self, pod: str, image: str) -> Hop:
        """The step package in the image."""
        words = ["sh", "-c", "medweave-step --version 2>/dev/null"]
        try:
            program = Program(self._api, pod, self._namespace, words, self._limit_s)
            told = program.printed(self._limit_s / 2)
        except (ApiException, WebSocketException, OSError) as error:
            do = "see that the lines of rights allow pods/exec, then try again with a longer --timeout"
            return self._hop("worker", Health.UNKNOWN, f"not asked: {_first_line(error)[:160]}", do)
        version = told.removeprefix("medweave-step ").strip()
        if not version:
            seen = f"no medweave-step in {image}: a volume brings it, or the steps run another program"
            return self._hop("worker", Health.OK, seen)
        if version == __version__:
            return self._hop("worker", Health.OK, f"medweave {version} in {image}")
        seen = f"medweave {version} in {image}; here it is {__version__}"
        return self._hop(
            "worker", Health.WARNING, seen, "build the image of this version (docs/how-to/build-the-images.md)"
        )

    def _bandwidth(self, pod: str) -> Hop:
        try:
            speed = measured(*self._way(), self._namespace, pod, self._limit_s / 2)
        except NotMeasured as error:
            seen = f"not measured, to a pod: {_first_line(error)[:160]}"
            return self._hop("bandwidth", Health.WARNING, seen, "the lines of rights and image say what may be missing")
        seen = f"{speed.there / 1e6:.0f} MB/s to a pod, {speed.back / 1e6:.0f} MB/s back, through the API server"
        if not speed.by_spdy:
            seen += ", by websocket: something on the way lets no SPDY through, which is quicker"
        return self._hop("bandwidth", Health.OK, seen)

    def _way(self) -> tuple[str, str | None, bool]:
        """As the connectors take it: kubeconfig, context, and whether it is the cluster in which this runs."""
        given = self._given
        return find_kubeconfig(given.get("kubeconfig")), given.get("kubeContext") or None, bool(given.get("inCluster"))

    def _came(self, name: str, image: str) -> Hop:
        began, reason = time.monotonic(), ""
        while time.monotonic() < began + self._limit_s:
            pod = client.CoreV1Api(self._api).read_namespaced_pod(name, self._namespace, _request_timeout=self._limit_s)
            for status in pod.status.container_statuses or []:
                state = status.state
                if state.running or state.terminated:
                    return self._hop("image", Health.OK, f"{image}: there after {time.monotonic() - began:.1f} s")
                reason = state.waiting.reason or "" if state.waiting else ""
                if reason in REFUSED_IMAGE:
                    said = " ".join((state.waiting.message or "").split())
                    return self._hop(
                        "image",
                        Health.FAULT,
                        f"{image}: {reason}: {said[:160]}",
                        "correct image or pullPolicy, or give the pod an imagePullSecret",
                    )
            for each in pod.status.conditions or []:
                reason = each.message or reason if each.status == "False" and each.type == "PodScheduled" else reason
            time.sleep(ASK_PAUSE_S)
        why = self._last_event(name) or reason or pod.status.phase
        return self._hop(
            "image", Health.UNKNOWN, f"{image}: not there within {self._limit_s:.0f} s ({why})",
            "a large image may take minutes: try a longer --timeout",
        )  # fmt: skip

    def _last_event(self, pod: str) -> str:
        """What the cluster said last of a pod; nothing where it may not be asked."""
        try:
            found = client.CoreV1Api(self._api).list_namespaced_event(
                self._namespace, field_selector=f"involvedObject.name={pod}", _request_timeout=self._limit_s
            )
        except ApiException:
            return ""
        # Times of events are of different grain; the order in which the cluster has written them is not.
        ordered = sorted(found.items, key=lambda each: int(each.metadata.resource_version))
        return f"{ordered[-1].reason}: {' '.join((ordered[-1].message or '').split())[:160]}" if ordered else ""

    def _hop(self, name: str, health: Health, seen: str, do: str = "") -> Hop:
        return Hop(place=self._place, name=name, health=health, seen=seen, do=do)


# ---- pure


def _documents(text: str) -> list[dict[str, Any]]:
    """The objects of a manifest; lists are taken apart, and what only `helm test` makes is left out."""
    found: list[dict[str, Any]] = []
    for each in yaml.safe_load_all(text):
        if isinstance(each, dict) and "kind" in each:
            found += each["items"] if each["kind"] == "List" else [each]
    return [each for each in found if HOOK not in (each["metadata"].get("annotations") or {})]


def _namespace_of(path: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(path)
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace") or "")


def _refused(error: ApiException) -> str:
    return {
        401: "renew the token or certificate of the kubeconfig (log in again)",
        403: "name a namespace in which this account may list pods, or ask its administrator for the right",
        404: "correct the name of the namespace",
    }.get(error.status or 0, "ask the cluster's administrator; kubectl get --raw /readyz says more")


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "{}").get("message") or error.reason)
    except ValueError:
        return str(error.reason)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
