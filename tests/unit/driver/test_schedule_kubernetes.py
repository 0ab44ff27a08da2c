"""The values and files that `medweave schedule create` passes to helm; tests/hybrid installs them."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from medweave.project.schedules import read_schedule
from medweave.schedule.definition import archive_of, definition_files
from medweave.schedule.kubernetes import Kubernetes, values_of
from medweave.schedule.rights import rights_of, rules_of
from medweave_core.errors import UserInputError
from support.api_server import ApiServer
from support.charts import schema
from support.cwl_files import ROOT
from support.schedules import call_schedule, write_schedule

RUNNER = ROOT / "helm" / "runner"
FAKES = ROOT / "tests" / "fakes" / "bin"
IMAGE = {"repository": "registry.example.org/medweave/driver", "tag": "0.1.0"}


def placed(folder: Path, *, values: dict[str, Any] | None = None, **keys: Any) -> Path:
    place = {"kubernetes": {"chart": str(RUNNER), "values": {"image": IMAGE} | (values or {})}}
    return write_schedule(folder, "true", place=place, **keys)


def names_in(archive: str) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as tar:
        return sorted(tar.getnames())


def test_the_definition_contains_neither_inputs_nor_keys(tmp_path: Path) -> None:
    placed(tmp_path)
    file = tmp_path / "streamflow.yml"
    document = yaml.safe_load(file.read_text())
    (tmp_path / "pods.yml").write_text("apiVersion: v1\nkind: Pod\n")
    (tmp_path / "config").write_text("token: secret\n")
    pods = {"type": "medweave.kubernetes", "config": {"files": ["pods.yml"], "kubeconfig": "config", "inCluster": True}}
    release = {"type": "medweave.helm", "config": {"chart": "chart"}}
    (tmp_path / "chart" / "templates").mkdir(parents=True)
    (tmp_path / "chart" / "templates" / "x.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    document["deployments"] |= {"pods": pods, "release": release}
    file.write_text(yaml.safe_dump(document))
    names = {str(path.relative_to(tmp_path)) for path in definition_files(file)}
    assert names == {"streamflow.yml", "tiny.cwl", "tools/copy.cwl", "job.yml", "pods.yml", "chart/templates/x.yaml"}


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    placed(tmp_path)
    files = definition_files(tmp_path / "streamflow.yml")
    first, top = archive_of(files, {tmp_path / "schedule.yml": "name: nightly\n"})
    (tmp_path / "job.yml").touch()
    assert archive_of(files, {tmp_path / "schedule.yml": "name: nightly\n"}) == (first, tmp_path)
    assert top == tmp_path
    assert names_in(first) == ["job.yml", "schedule.yml", "streamflow.yml", "tiny.cwl", "tools/copy.cwl"]


def test_an_archive_that_no_configmap_takes_is_refused(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(800_000))
    with pytest.raises(UserInputError, match="too large for a ConfigMap"):
        archive_of([big], {})


def test_the_values_are_those_that_the_chart_takes(tmp_path: Path) -> None:
    schedule = read_schedule(
        placed(
            tmp_path, when="0 2 * * *", timeZone="Europe/Rome", overlap="replace", startWithin=60, history={"failed": 9}
        )
    )
    rule = {"apiGroup": "batch", "resources": ["jobs"], "verbs": ["list"]}
    values = values_of(schedule, archive="eA==", file="schedule.yml", rights=[rule], suspended=True)
    jsonschema.Draft7Validator(schema(RUNNER)).validate(values)
    assert values == {
        "image": IMAGE,
        "rights": [rule],
        "cron": "0 2 * * *",
        "timeZone": "Europe/Rome",
        "concurrencyPolicy": "Replace",
        "startingDeadlineSeconds": 60,
        "suspend": True,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 9,
        "definition": {"archive": "eA==", "file": "schedule.yml"},
    }


def test_a_schedule_that_receives_has_a_receiver_at_its_port(tmp_path: Path) -> None:
    watch = {"receive": {"callers": ["PACS"], "port": 4242}}
    schedule = read_schedule(placed(tmp_path, watch=watch, values={"receiver": {"serviceType": "NodePort"}}))
    values = values_of(schedule, archive="eA==", file="schedule.yml", rights=[], suspended=False)
    jsonschema.Draft7Validator(schema(RUNNER)).validate(values)
    assert values["receiver"] == {"enabled": True, "port": 4242, "serviceType": "NodePort"}


def test_a_named_account_gets_no_rights_of_the_chart(tmp_path: Path) -> None:
    schedule = read_schedule(placed(tmp_path, values={"serviceAccountName": "pipelines"}))
    rule = {"apiGroup": "batch", "resources": ["jobs"], "verbs": ["list"]}
    values = values_of(schedule, archive="", file="schedule.yml", rights=[rule], suspended=False)
    assert "rights" not in values
    assert values["definition"] == {"file": "schedule.yml"}


def test_a_value_that_is_a_key_of_the_schedule_is_refused(tmp_path: Path) -> None:
    schedule = read_schedule(placed(tmp_path, values={"cron": "0 3 * * *"}))
    with pytest.raises(UserInputError, match=r"place\.kubernetes\.values\.cron"):
        values_of(schedule, archive="", file="schedule.yml", rights=[], suspended=False)


def test_the_rights_are_what_the_deployments_in_the_cluster_need(tmp_path: Path) -> None:
    placed(tmp_path)
    file = tmp_path / "streamflow.yml"
    assert rights_of(file) == []
    document = yaml.safe_load(file.read_text())
    (tmp_path / "pods.yml").write_text("apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: ConfigMap\n")
    config = {"files": ["pods.yml"], "mode": "job", "inCluster": True}
    document["deployments"]["pods"] = {"type": "medweave.kubernetes", "config": config}
    document["deployments"]["far"] = {"type": "medweave.kubernetes", "config": {"files": ["no.yml"]}}
    file.write_text(yaml.safe_dump(document))
    verbs = {f"{rule['apiGroup']}/{rule['resources'][0]}": rule["verbs"] for rule in rules_of(rights_of(file))}
    assert verbs == {
        "/pods": ["get", "list", "delete"],
        "/pods/exec": ["get", "create"],
        "/events": ["list"],
        "batch/jobs": ["list", "create", "delete", "patch"],
        "apps/deployments": ["get", "create", "patch", "delete"],
        "/configmaps": ["get", "create", "patch", "delete"],
    }


def test_the_rights_of_a_chart_are_those_of_its_kinds(tmp_path: Path) -> None:
    placed(tmp_path)
    file = tmp_path / "streamflow.yml"
    document = yaml.safe_load(file.read_text())
    config = {"chart": str(ROOT / "helm" / "segmentation-worker"), "inCluster": True}
    document["deployments"]["release"] = {"type": "medweave.helm", "config": config}
    file.write_text(yaml.safe_dump(document))
    verbs = {right.name: right.verbs for right in rights_of(file)}
    assert set(verbs) == {
        "pods", "pods/exec", "events", "secrets", "configmaps", "deployments.apps", "horizontalpodautoscalers.autoscaling",
        "networkpolicies.networking.k8s.io", "persistentvolumeclaims", "poddisruptionbudgets.policy",
    }  # fmt: skip
    assert verbs["pods"] == ("get", "list")
    config["chart"] = "oci://registry.example.org/chart"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(UserInputError, match=r"deployments\.release\.config\.chart"):
        rights_of(file)


@pytest.mark.slow
def test_an_unreachable_cluster_is_an_entry_and_the_others_are_listed(tmp_path: Path) -> None:
    file = placed(tmp_path / "x")
    (tmp_path / "state/medweave/schedules").mkdir(parents=True)
    for name in ("nightly", "gone"):
        note = tmp_path / f"state/medweave/schedules/{name}.json"
        note.write_text(f'{{"file": "{file if name == "nightly" else tmp_path / "gone.yml"}"}}')
    code, out, err = call_schedule("list", cwd=tmp_path, KUBECONFIG=str(tmp_path / "none"))
    assert (code, err) == (0, "")
    assert "there is no such schedule file" in out
    assert "schedule nightly: no answer from the cluster" in out


@pytest.mark.slow
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_release_that_no_schedule_has_created_is_not_uninstalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    file = placed(tmp_path)
    with ApiServer() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        document = yaml.safe_load(file.read_text())
        document["place"]["kubernetes"] |= {"kubeconfig": "kubeconfig", "namespace": "research"}
        file.write_text(yaml.safe_dump(document))
        schedule = read_schedule(file)
        labels = {"medweave": "schedule"} if is_ours else {"team": "radiology"}
        server.releases[schedule.name] = {"manifest": "", "labels": labels, "values": {}}
        if is_ours:
            Kubernetes(schedule).remove()
            assert server.releases == {}
            return
        with pytest.raises(UserInputError, match="`medweave schedule` did not create it"):
            Kubernetes(schedule).remove()
        assert schedule.name in server.releases
