"""A schedule in Kubernetes: a release of the chart helm/runner. Made by helm, looked at by the official client."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from medweave.schedule.archive import archive_of
from medweave.schedule.chart_values import values_of
from medweave.schedule.definition import definition_files
from medweave.schedule.document import WHAT, Schedule
from medweave.schedule.in_pod import lines_of
from medweave.schedule.rights import rights_of, rules_of
from medweave_connectors.sites.helm.commands import (
    Access,
    HelmChart,
    build_install_command,
    build_list_command,
    build_uninstall_command,
    parse_failure,
)
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import BackendMissingError, UserInputError

CHART = Path("helm/runner")
TIMEOUT_S = 120
OWN = {"medweave": "schedule"}  # labels of the releases of schedules
ANSWER_S = 15.0
LABEL = "app.kubernetes.io/instance={},app.kubernetes.io/component=run"


class Kubernetes:
    """The place of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._settings = schedule, schedule.settings
        self._beside = schedule.path.parent
        self._kubeconfig = str(self._beside / Path(named).expanduser()) if (named := self._get("kubeconfig")) else None
        self._namespace = self._get("namespace") or _namespace_of(self._kubeconfig, self._get("kubeContext"))
        self._access = Access(
            namespace=self._namespace, kubeconfig=self._kubeconfig, context=self._get("kubeContext") or None
        )

    def create(self) -> str:
        """Installs the release, or upgrades it; one that is paused stays paused."""
        self._upgrade(suspended=self.state()["state"] == "paused")
        when = f"runs at {self._schedule.when}" if self._schedule.when else "runs once, now"
        return f"is a release in namespace {self._namespace}, and {when}"

    def pause(self, *, paused: bool) -> None:
        """The same release, suspended or not."""
        self._upgrade(suspended=paused)

    def remove(self) -> str:
        """Uninstalls it; its claim stays."""
        self._check_own()
        self._helm([*build_uninstall_command(self._schedule.name, self._access), "--wait"])
        return f"is removed from namespace {self._namespace}; runs and results stay on its volume"

    def state(self) -> dict[str, Any]:
        """Of the CronJob and the Job that began last.

        Raises:
            UserInputError: the cluster does not answer, or refuses.
        """
        with self._asking():
            return self._look(config.new_client_from_config(self._kubeconfig, self._access.context))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (config.ConfigException, ApiException, HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error).partition("\n")[0]
            raise UserInputError(
                f"schedule {self._schedule.name}: the cluster cannot be asked.", seen=str(reason)[:200],
                expected="a cluster that lets this account list CronJobs, Jobs and pods", do="look with kubectl get cronjobs",
            ) from error  # fmt: skip

    def following(self) -> Iterator[str | None]:
        """The lines of the run that goes on, see `in_pod.lines_of`.

        Raises:
            UserInputError: none goes on, or the cluster refuses.
        """
        with self._asking():
            core = client.CoreV1Api(config.new_client_from_config(self._kubeconfig, self._access.context))
            pods = core.list_namespaced_pod(
                self._namespace, label_selector=LABEL.format(self._schedule.name),
                field_selector="status.phase=Running", _request_timeout=ANSWER_S,
            ).items  # fmt: skip
            if not pods:
                raise UserInputError(
                    f"schedule {self._schedule.name}: no run goes on.", seen="no running pod of it",
                    expected="a run that goes on in the cluster", do="medweave schedule list tells how the last one went",
                )  # fmt: skip
            latest = max(pods, key=lambda pod: pod.metadata.creation_timestamp)
            yield from lines_of(core, self._namespace, latest.metadata.name)

    # ---- the edge

    def _upgrade(self, *, suspended: bool) -> None:
        archive, file = self._packed()
        rights = rules_of(rights_of(self._schedule.file))
        values = values_of(self._schedule, archive=archive, file=file, rights=rights, suspended=suspended)
        chart = HelmChart(reference=self._chart())
        words = build_install_command(
            self._schedule.name, chart, self._access, values=["-"], labels=OWN, timeout_s=TIMEOUT_S, replaces=True
        )
        self._check_own()
        self._helm(words, json.dumps(values))

    def _check_own(self) -> None:
        """Refuse a release of this name that no schedule is: it would be changed or uninstalled.

        Raises:
            UserInputError: there is such a release.
        """
        name = self._schedule.name
        if (
            self._helm(build_list_command(name, self._access, {})).split()
            != self._helm(build_list_command(name, self._access, OWN)).split()
        ):
            raise UserInputError(
                f"schedule {name}: a release of that name exists, and medweave schedule did not create it.",
                seen=f"release {name} in namespace {self._namespace}, without the label medweave=schedule",
                expected="no release of that name, or one of this schedule",
                do="give the schedule another name, or another namespace",
            )

    def _packed(self) -> tuple[str, str]:
        """The archive, and the path of the schedule's file in it; no archive where a claim holds the files."""
        definition = self._settings["values"].get("definition") or {}
        if definition.get("existingClaim"):
            return "", str(definition.get("file", self._schedule.path.name))
        document = read_mapping(self._schedule.path, WHAT)
        document.pop("place", None)  # of the machine that makes it
        path = self._schedule.path.resolve()
        archive, top = archive_of(
            definition_files(self._schedule.file), {path: yaml.safe_dump(document, sort_keys=False)}
        )
        return archive, path.relative_to(top).as_posix()

    def _chart(self) -> str:
        named = self._get("chart")
        if named:
            return named if "://" in named else str(self._beside / Path(named).expanduser())
        for above in (self._beside, *self._beside.parents):
            if (above / CHART / "Chart.yaml").is_file():
                return str(above / CHART)
        raise fault_at(
            self._schedule.path, ("place", "kubernetes"), "the chart is not there.",
            seen=f"no {CHART} at or above {shown(self._beside)}",
            expected="chart: a folder, an archive or oci://…", do="name it",
        )  # fmt: skip

    def _helm(self, words: list[str], text: str = "") -> str:
        """Run helm; return what it printed."""
        if shutil.which(words[0]) is None:
            raise BackendMissingError(
                "Helm is not installed.", seen=f"no program {words[0]} on the PATH", expected="Helm 3.13 or newer",
                do="https://helm.sh/docs/intro/install/",
            )  # fmt: skip
        ended = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: helm refuses.", seen=parse_failure(ended.stderr)[:600],
                expected="values that the chart knows, and rights in the namespace", do=f"correct {shown(self._schedule.path)}",
            )  # fmt: skip
        return ended.stdout

    def _look(self, api: Any) -> dict[str, Any]:
        batch, name = client.BatchV1Api(api), self._schedule.name
        asked = {"label_selector": LABEL.format(name), "_request_timeout": ANSWER_S}
        made = batch.list_namespaced_cron_job(self._namespace, **asked).items
        jobs = batch.list_namespaced_job(self._namespace, **asked).items
        jobs.sort(key=lambda job: job.metadata.creation_timestamp)
        if not made and not jobs:
            state = "not there"
        elif any(job.status.active for job in jobs):
            state = "running"
        else:
            state = "paused" if made and made[0].spec.suspend else "waits" if made else "ended"
        return {"state": state, "last": _last(api, self._namespace, jobs[-1]) if jobs else None}

    def _get(self, key: str) -> str:
        return str(self._settings.get(key) or "")


def _last(api: Any, namespace: str, job: Any) -> dict[str, Any]:
    """The firing of a Job, in the last words of its pod."""
    conditions = {each.type for each in job.status.conditions or [] if each.status == "True"}
    outcome = "running" if job.status.active else "done" if "Complete" in conditions else "failed"
    said = ""
    core = client.CoreV1Api(api)
    try:
        pods = core.list_namespaced_pod(
            namespace, label_selector=f"job-name={job.metadata.name}", _request_timeout=ANSWER_S
        )
        if pods.items:
            name = pods.items[-1].metadata.name
            said = core.read_namespaced_pod_log(
                name, namespace, tail_lines=1, _request_timeout=ANSWER_S, _preload_content=False
            ).data.decode(errors="replace")  # else this client gives the text as Python writes bytes
    except ApiException:  # it has no log yet, or none any more
        pass
    return {
        "moment": job.metadata.creation_timestamp.isoformat(timespec="seconds"),
        "outcome": outcome,
        "why": said.strip().removeprefix("medweave: ").partition(": ")[2],
        "job": job.metadata.name,
    }


def _namespace_of(kubeconfig: str | None, context: str) -> str:
    """As kubectl and helm choose it."""
    path = (
        kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or str(Path("~/.kube/config").expanduser())
    )
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        wanted = context or document.get("current-context")
        found: Any = next((each for each in document.get("contexts") or [] if each.get("name") == wanted), {})
        return str((found.get("context") or {}).get("namespace") or "default")
    except (OSError, yaml.YAMLError, AttributeError):
        return "default"
