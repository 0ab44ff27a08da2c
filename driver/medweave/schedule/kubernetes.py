"""A schedule in Kubernetes: a release of the chart helm/runner, installed by helm and read by the official client."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from urllib3.exceptions import HTTPError

from medweave.project.schedules import WHAT, Schedule
from medweave.schedule.definition import archive_of, definition_files
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
POLICIES = {"forbid": "Forbid", "replace": "Replace", "allow": "Allow"}
LEAST_DEADLINE_S = 10  # the CronJob controller checks every 10 s
ASK_S = 1.0
# Variables of the runner's pod, which the shell in the pod expands.
COMMAND = ("bash", "-c", 'exec "$(dirname "$POD_PYTHON")/medweave" attach --json --runs "$RUN_FOLDER/runs"')


class Kubernetes:
    """Backend of one schedule in Kubernetes."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._settings = schedule, schedule.settings
        self._file_folder = schedule.path.parent
        self._kubeconfig = (
            str(self._file_folder / Path(named).expanduser()) if (named := self._get("kubeconfig")) else None
        )
        self._namespace = self._get("namespace") or _namespace_of(self._kubeconfig, self._get("kubeContext"))
        self._access = Access(
            namespace=self._namespace, kubeconfig=self._kubeconfig, context=self._get("kubeContext") or None
        )

    def create(self) -> str:
        """Install the release, or upgrade it; a paused one stays paused."""
        self._upgrade(suspended=self.state()["state"] == "paused")
        when = f"runs at {self._schedule.when}" if self._schedule.when else "runs once, now"
        return f"is a release in namespace {self._namespace}, and {when}"

    def pause(self, *, paused: bool) -> None:
        """Upgrade the release, suspended or not."""
        self._upgrade(suspended=paused)

    def remove(self) -> str:
        """Uninstall the release; its volume claim stays."""
        self._check_own()
        self._helm([*build_uninstall_command(self._schedule.name, self._access), "--wait"])
        return f"is removed from namespace {self._namespace}; runs and results stay on its volume"

    def state(self) -> dict[str, Any]:
        """Return the state of the CronJob and of its latest Job.

        Raises:
            UserInputError: the cluster does not answer, or refuses.
        """
        with self._api_errors():
            return self._look(config.new_client_from_config(self._kubeconfig, self._access.context))

    @contextlib.contextmanager
    def _api_errors(self) -> Iterator[None]:
        try:
            yield
        except (config.ConfigException, ApiException, HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error).partition("\n")[0]
            raise UserInputError(
                f"schedule {self._schedule.name}: no answer from the cluster.", seen=str(reason)[:200],
                expected="a cluster that lets this account list CronJobs, Jobs and pods", do="check with `kubectl get cronjobs`",
            ) from error  # fmt: skip

    def following(self) -> Iterator[str | None]:
        """Yield the lines of the current run, see `lines_of`.

        Raises:
            UserInputError: no run is running, or the cluster refuses.
        """
        with self._api_errors():
            core = client.CoreV1Api(config.new_client_from_config(self._kubeconfig, self._access.context))
            pods = core.list_namespaced_pod(
                self._namespace, label_selector=LABEL.format(self._schedule.name),
                field_selector="status.phase=Running", _request_timeout=ANSWER_S,
            ).items  # fmt: skip
            if not pods:
                raise UserInputError(
                    f"schedule {self._schedule.name}: no run is running.", seen="no running pod of this schedule",
                    expected="a running pod in the cluster", do="see the last run with `medweave schedule list`",
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
        """Refuse a release of this name that is no schedule's, since it would be changed or uninstalled.

        Raises:
            UserInputError: there is such a release.
        """
        name = self._schedule.name
        if (
            self._helm(build_list_command(name, self._access, {})).split()
            != self._helm(build_list_command(name, self._access, OWN)).split()
        ):
            raise UserInputError(
                f"schedule {name}: a release of this name exists, but `medweave schedule` did not create it.",
                seen=f"release {name} in namespace {self._namespace}, without the label medweave=schedule",
                expected="no release of this name, or a release of this schedule",
                do="give the schedule another name, or another namespace",
            )

    def _packed(self) -> tuple[str, str]:
        """Return the archive and the path of the schedule's file in it; no archive if a volume claim contains the files."""
        definition = self._settings["values"].get("definition") or {}
        if definition.get("existingClaim"):
            return "", str(definition.get("file", self._schedule.path.name))
        document = read_mapping(self._schedule.path, WHAT)
        document.pop("place", None)  # valid only on the machine that creates the schedule
        path = self._schedule.path.resolve()
        archive, top = archive_of(
            definition_files(self._schedule.file), {path: yaml.safe_dump(document, sort_keys=False)}
        )
        return archive, path.relative_to(top).as_posix()

    def _chart(self) -> str:
        named = self._get("chart")
        if named:
            return named if "://" in named else str(self._file_folder / Path(named).expanduser())
        for above in (self._file_folder, *self._file_folder.parents):
            if (above / CHART / "Chart.yaml").is_file():
                return str(above / CHART)
        raise fault_at(
            self._schedule.path, ("place", "kubernetes"), "chart not found.",
            seen=f"no {CHART} in {shown(self._file_folder)} or its parent folders",
            expected="chart: a folder, an archive or oci://…", do="set `chart`",
        )  # fmt: skip

    def _helm(self, words: list[str], text: str = "") -> str:
        """Run helm; return its standard output."""
        if shutil.which(words[0]) is None:
            raise BackendMissingError(
                "Helm is not installed.", seen=f"no program {words[0]} on the PATH", expected="Helm 3.13 or newer",
                do="https://helm.sh/docs/intro/install/",
            )  # fmt: skip
        process = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        if process.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: helm failed.", seen=parse_failure(process.stderr)[:600],
                expected="values that the chart accepts, and permissions in the namespace",
                do=f"correct {shown(self._schedule.path)}",
            )  # fmt: skip
        return process.stdout

    def _look(self, api: Any) -> dict[str, Any]:
        batch, name = client.BatchV1Api(api), self._schedule.name
        options = {"label_selector": LABEL.format(name), "_request_timeout": ANSWER_S}
        cron_jobs = batch.list_namespaced_cron_job(self._namespace, **options).items
        jobs = batch.list_namespaced_job(self._namespace, **options).items
        jobs.sort(key=lambda job: job.metadata.creation_timestamp)
        if not cron_jobs and not jobs:
            state = "not found"
        elif any(job.status.active for job in jobs):
            state = "running"
        else:
            state = "paused" if cron_jobs and cron_jobs[0].spec.suspend else "waits" if cron_jobs else "ended"
        return {"state": state, "last": _last(api, self._namespace, jobs[-1]) if jobs else None}

    def _get(self, key: str) -> str:
        return str(self._settings.get(key) or "")


def _last(api: Any, namespace: str, job: Any) -> dict[str, Any]:
    """Return the firing of a Job, with the last line of its pod's log."""
    conditions = {condition.type for condition in job.status.conditions or [] if condition.status == "True"}
    outcome = "running" if job.status.active else "done" if "Complete" in conditions else "failed"
    last_line = ""
    core = client.CoreV1Api(api)
    try:
        pods = core.list_namespaced_pod(
            namespace, label_selector=f"job-name={job.metadata.name}", _request_timeout=ANSWER_S
        )
        if pods.items:
            name = pods.items[-1].metadata.name
            last_line = core.read_namespaced_pod_log(
                name, namespace, tail_lines=1, _request_timeout=ANSWER_S, _preload_content=False
            ).data.decode(errors="replace")  # without this, the client returns the repr of bytes
    except ApiException:  # the pod has no log yet, or no longer
        pass
    return {
        "moment": job.metadata.creation_timestamp.isoformat(timespec="seconds"),
        "outcome": outcome,
        "why": last_line.strip().removeprefix("medweave: ").partition(": ")[2],
        "job": job.metadata.name,
    }


def _namespace_of(kubeconfig: str | None, context: str) -> str:
    """Return the namespace that kubectl and helm would use."""
    path = (
        kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or str(Path("~/.kube/config").expanduser())
    )
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        name = context or document.get("current-context")
        entry: Any = next((entry for entry in document.get("contexts") or [] if entry.get("name") == name), {})
        return str((entry.get("context") or {}).get("namespace") or "default")
    except (OSError, yaml.YAMLError, AttributeError):
        return "default"


def values_of(
    schedule: Schedule, *, archive: str, file: str, rights: list[dict[str, Any]], suspended: bool
) -> dict[str, Any]:
    """Return the values of the chart helm/runner for a schedule.

    Args:
        archive: archive of the pipeline's files; empty if a volume claim contains them.
        file: path of the schedule's file in the archive.
        rights: rights of the run's account; unused if the values name an account.

    Raises:
        UserInputError: the values contain a setting that the schedule's file has a key for.
    """
    user_values: Mapping[str, Any] = schedule.settings["values"]
    definition = {"file": file} | dict(user_values.get("definition") or {}) | ({"archive": archive} if archive else {})
    own = {
        "cron": schedule.when or "",
        "timeZone": schedule.time_zone or "",
        "concurrencyPolicy": POLICIES[schedule.overlap],
        "startingDeadlineSeconds": max(schedule.start_within_s, LEAST_DEADLINE_S),
        "suspend": suspended,
        "successfulJobsHistoryLimit": schedule.history["succeeded"],
        "failedJobsHistoryLimit": schedule.history["failed"],
    }
    for key in own:
        if key in user_values:
            raise fault_at(
                schedule.path, ("place", "kubernetes", "values", key), "this value is set by keys of the schedule file.",
                seen=f"values.{key}", expected="the keys when, timeZone, overlap, startWithin or history", do="remove the value",
            )  # fmt: skip
    granted = {} if user_values.get("serviceAccountName") or "rights" in user_values else {"rights": rights}
    receives = (schedule.watch or {}).get("receive")
    receiver = (
        dict(user_values.get("receiver") or {}) | {"enabled": True, "port": receives["port"]} if receives else None
    )
    return {**user_values, **granted, **own, "definition": definition} | ({"receiver": receiver} if receiver else {})


def lines_of(core: Any, namespace: str, pod: str) -> Iterator[str | None]:
    """Yield the event log's lines of the current run in a pod, from beginning to end; None about once a second.

    Args:
        core: a CoreV1Api.

    Raises:
        ApiException: the account lacks the right, or the pod is gone.
    """
    connection = stream(
        core.connect_get_namespaced_pod_exec, pod, namespace, command=list(COMMAND), container="run",
        stdout=True, stderr=False, stdin=False, tty=False, _preload_content=False,
    )  # fmt: skip
    rest, is_open = "", True
    try:
        while is_open:
            is_open = connection.is_open()  # checked first, so that its last lines are read below
            connection.update(timeout=ASK_S)
            *whole, rest = (rest + str(connection.read_stdout(timeout=0))).split("\n")
            yield from filter(None, whole)
            yield None
    finally:
        connection.close()
