"""The charts in a cluster, installed by a tenant's own account in a namespace that enforces pod security "restricted"."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave.project.new import files_of
from support import images
from support.charts import CHARTS, chart_name, ci_values, pod_of
from support.cwl_files import ROOT
from support.helm_release import TESTBED, Tenant, Values, granter, release, until
from support.testbed import unique

COMPSS, SEGMENT, RUNNER = (ROOT / "helm" / name for name in ("compss-cluster", "segmentation-worker", "runner"))
KINDS = (
    "pods,services,configmaps,secrets,persistentvolumeclaims,deployments,statefulsets,"
    "networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,cronjobs,jobs"
)
INSTALLATION = "fake-installation"
# A Helm that was built without a version stamp takes an unknown cluster for a very old one.
OFFLINE = ("--kube-version", "1.34.4")


def image(name: str) -> Values:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}


def small(memory: str) -> Values:
    """Return resource requests small enough for several releases on a node of two cores."""
    return {
        "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
        "limits": {"cpu": "1", "memory": memory, "ephemeral-storage": "2Gi"},
    }


@pytest.fixture(scope="module")
def segment_image(tenant: Tenant) -> str:
    return images.build("segment")


@pytest.fixture(scope="module")
def python() -> Values:
    """Return values that give pods the worker environment, at its own path."""
    folder = str(TESTBED / "environment")
    mount = {"name": "environment", "mountPath": folder, "readOnly": True}
    claim = {"claimName": "medweave-environment", "readOnly": True}
    return {
        "image": image("localhost/medweave-base:1"),
        "python": f"{folder}/bin/python",
        "extraVolumes": [{"name": "environment", "persistentVolumeClaim": claim}],
        "extraVolumeMounts": [mount],
        "terminationGracePeriodSeconds": 20,
    }


def ddp(python: Values, workers: int, **more: Any) -> Values:
    cluster = {"engine": "ddp", "worker": {"replicas": workers, "resources": small("2Gi")}}
    return {**python, **cluster, "master": {"resources": small("2Gi")}, **more}


@pytest.fixture(scope="module")
def installation(tenant: Tenant) -> Iterator[Values]:
    """Yield values for a folder that passes the chart's checks of a COMPSs installation; other tests use a real one."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INSTALLATION},
        "data": {"runcompss": "#!/bin/sh\necho runs\n"},
    }
    tenant.call("kubectl", "apply", "--filename", "-", stdin=json.dumps(config))
    items = [{"key": "runcompss", "path": "Runtime/scripts/user/runcompss"}]
    yield {
        "extraVolumes": [{"name": "compss", "configMap": {"name": INSTALLATION, "defaultMode": 0o555, "items": items}}],
        "extraVolumeMounts": [{"name": "compss", "mountPath": "/opt/COMPSs", "readOnly": True}],
    }
    tenant.call("kubectl", "delete", "configmap", INSTALLATION)


def compss(installation: Values, workers: int) -> Values:
    return {
        "engine": "compss",
        "image": image("localhost/medweave-base:1"),
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "worker": {"replicas": workers, "resources": small("512Mi")},
        "master": {"resources": small("512Mi")},
        "terminationGracePeriodSeconds": 20,
        **installation,
    }


def objects(tenant: Tenant, name: str) -> list[str]:
    """Return kind and name of all objects with a release's label, and of Helm's own records of it."""
    objects_found = tenant.get(KINDS, f"app.kubernetes.io/instance={name}") + tenant.get(
        "secrets", f"owner=helm,name={name}"
    )
    return [f"{document['kind']} {document['metadata']['name']}" for document in objects_found]


def scale(
    tenant: Tenant, name: str, chart: Path, key: str, number: int, *, others: int = 0
) -> dict[str, dict[str, Any]]:
    """Upgrade a release to a number of pods; return its pods once exactly that many exist."""
    pods = number + others
    words = ["--reuse-values", "--set", f"{key}={number}", "--wait", "--timeout", "5m"]
    tenant.call("helm", "upgrade", name, chart, *words, limit_s=400)
    return until(
        lambda: ready if len(ready := tenant.pods(name)) == pods else None,
        limit_s=60,
        what=f"{pods} pods of {name}",
    )


@pytest.mark.parametrize("chart", CHARTS, ids=chart_name)
def test_helm_and_the_api_server_accept_every_ci_file(tenant: Tenant, chart: Path) -> None:
    with granter(tenant, "ci") if chart == RUNNER else nullcontext(tenant) as installer:
        for values in ci_values(chart):
            assert "0 chart(s) failed" in tenant.call("helm", "lint", "--strict", *OFFLINE, chart, "--values", values)
            rendered = tenant.call("helm", "template", "ci", *OFFLINE, chart, "--values", values)
            applied = installer.ended("kubectl", "apply", "--dry-run=server", "--filename", "-", stdin=rendered)
            assert (applied.returncode, "would violate PodSecurity" in applied.stderr) == (0, False), applied.stderr
            assert applied.stdout.count("server dry run") == len(re.findall(r"^kind: ", rendered, flags=re.MULTILINE))


@pytest.fixture
def helm(tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the real Helm on the PATH, with the cluster's version, which a Helm with a version stamp has built in."""
    program = tmp_path / "bin" / "helm"
    program.parent.mkdir()
    words = shlex.join([str(tenant.binaries / "helm")])
    program.write_text(f'#!/bin/sh\nexec {words} "$@" {shlex.join(OFFLINE)}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("helm")
def test_validate_runs_helm_and_has_no_findings_in_this_repository(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", "--helm", str(ROOT)])
    stdout = capsys.readouterr().out
    assert (code, stdout.splitlines()[-1].partition(": ")[2]) == (0, "0 errors, 0 warnings"), stdout


@pytest.mark.usefixtures("helm")
def test_validate_reports_errors_of_helm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "own" / "runner"
    shutil.copytree(RUNNER, chart)
    (chart / "templates" / "wrong.yaml").write_text("{{ .Values.cron | noSuchFunction }}\n")
    assert main(["validate", "--helm", str(chart.parent)]) == 65
    assert "`helm lint` rejects the chart with ci/everything-on.yaml" in capsys.readouterr().out


def test_the_api_server_accepts_what_medweave_new_writes_for_it(tenant: Tenant) -> None:
    texts = files_of("site", "pods", kind="kubernetes", here=ROOT)
    (manifest,) = (text for path, text in texts.items() if path.name == "pods-pods.yml")
    applied = tenant.ended("kubectl", "apply", "--dry-run=server", "--filename", "-", stdin=manifest)
    assert applied.returncode == 0, applied.stderr
    assert "would violate PodSecurity" not in applied.stderr
    assert applied.stdout.count("server dry run") == 2


@pytest.mark.parametrize("chart", CHARTS, ids=chart_name)
def test_every_pod_has_the_registrys_login_and_the_priority(tenant: Tenant, chart: Path) -> None:
    values = chart / "ci" / "everything-on.yaml"
    rendered = tenant.call("helm", "template", "ci", *OFFLINE, chart, "--values", values)
    objects_found = [document for document in yaml.safe_load_all(rendered) if document]
    specs = [pod for document in objects_found if (pod := pod_of(document)) is not None]
    assert len(specs) >= 2
    for spec in specs:
        assert spec["imagePullSecrets"] == [{"name": "registry-login"}]
        assert spec["priorityClassName"] == "system-cluster-critical"


GPU, PLAIN_NODE = "nvidia.com/gpu", {"example.org/kind": "cpu"}
BATCH = [{"key": "example.org/batch", "operator": "Exists"}]
GPU_NODE, GPU_TAINT = {"example.org/gpu": "a100"}, [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("chart", "parts"),
    [
        (
            COMPSS,
            {
                "StatefulSet ci-worker": ("1", GPU_NODE, GPU_TAINT),
                "StatefulSet ci-master": ("0", PLAIN_NODE, BATCH),
                "Pod ci-test": ("0", PLAIN_NODE, BATCH),
            },
        ),
        (SEGMENT, {"Deployment ci": ("1", PLAIN_NODE, BATCH), "Pod ci-test": ("0", PLAIN_NODE, BATCH)}),
        (RUNNER, dict.fromkeys(("CronJob ci", "Deployment ci-receive", "Pod ci-test"), ("0", PLAIN_NODE, BATCH))),
    ],
    ids=["compss-cluster", "segmentation-worker", "runner"],
)
def test_gpus_nodes_and_tolerations_are_those_of_each_part(tenant: Tenant, chart: Path, parts: Values) -> None:
    rendered = tenant.call("helm", "template", "ci", *OFFLINE, chart, "--values", chart / "ci" / "everything-on.yaml")
    objects_found = {}
    for document in filter(None, yaml.safe_load_all(rendered)):
        if (pod := pod_of(document)) is not None:
            (container,) = pod["containers"]
            gpus = str(container["resources"]["limits"].get(GPU, 0))
            objects_found[f"{document['kind']} {document['metadata']['name']}"] = (
                gpus,
                pod["nodeSelector"],
                pod["tolerations"],
            )
    assert objects_found == parts


@pytest.mark.parametrize("chart", CHARTS, ids=chart_name)
def test_kube_score_finds_nothing_critical_but_what_the_readme_justifies(tenant: Tenant, chart: Path) -> None:
    values = chart / "ci" / "everything-on.yaml"
    rendered = tenant.call("helm", "template", "ci", *OFFLINE, chart, "--values", values)
    scored = tenant.scored(rendered)
    critical = {
        check["check"]["id"]
        for report in scored
        for check in report["checks"]
        if check["grade"] == 1 and not check["skipped"]
    }
    justified = set(re.findall(r"^\| `([a-z-]+)`", (chart / "README.md").read_text(), flags=re.MULTILINE))
    assert len(scored) >= 3
    assert critical == justified


@pytest.mark.parametrize(
    ("chart", "setting", "message"),
    [
        (COMPSS, "worker.replicas=two", "/worker/replicas"),
        (COMPSS, "compss.sshPort=22", "/compss/sshPort"),
        (COMPSS, "workers.replicas=2", "workers"),
        (COMPSS, "engine=mpi", "/engine"),
        (COMPSS, "engine=", "engine: it was not said what runs the training"),
        (SEGMENT, "modelCache.size=ten", "/modelCache/size"),
        (SEGMENT, "image.tag=", "neither image.digest nor image.tag"),
        (RUNNER, "concurrencyPolicy=forbid", "/concurrencyPolicy"),
        (RUNNER, "definition.file=schedule.yml", "neither definition.archive nor definition.existingClaim"),
        (
            RUNNER,
            "definition.existingClaim=x,rights[0].apiGroup=batch,rights[0].resources={*},rights[0].verbs={get}",
            "/rights/0",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_before_anything_is_sent(
    tenant: Tenant, chart: Path, setting: str, message: str
) -> None:
    started = time.monotonic()
    image = ["--set", "image.repository=localhost/x,image.tag=v1"]
    engine = ["--set", "engine=ddp"] if chart == COMPSS else []
    try:
        ended = tenant.ended("helm", "install", "refused", chart, *image, *engine, "--set", setting)
    finally:
        tenant.ended("helm", "uninstall", "refused", "--ignore-not-found")
    assert ended.returncode != 0
    assert message in ended.stderr
    assert time.monotonic() - started < 10
    assert objects(tenant, "refused") == []


@pytest.mark.long  # that they compute, `make hybrid` says, too
def test_inference_pods_compute_scale_and_go(tenant: Tenant, segment_image: str, capsys: Any) -> None:
    values = {
        "image": image(segment_image),
        "replicas": 1,
        "resources": small("1Gi"),
        "terminationGracePeriodSeconds": 20,
    }
    with release(tenant, "charts-segment", SEGMENT, values) as seconds:
        (first,) = tenant.pods("charts-segment").values()
        assert [container["name"] for container in first["spec"]["containers"]] == ["segment"]
        tested = tenant.call("helm", "test", "charts-segment", "--logs", "--timeout", "3m")
        assert "27 of 27" in tested
        pod = first["metadata"]["name"]
        assert tenant.within(pod, "medweave-step segment --help").returncode == 0
        assert tenant.within(pod, "touch /models/x /work/x /tmp/x").returncode == 0
        refused = tenant.within(pod, "touch /opt/medweave/x; id -u; grep CapEff /proc/self/status")
        assert "Read-only file system" in refused.stderr
        assert refused.stdout.split() == ["10001", "CapEff:", "0000000000000000"]
        four = scale(tenant, "charts-segment", SEGMENT, "replicas", 4)
        assert four[pod]["metadata"]["uid"] == first["metadata"]["uid"], "scaling restarts nothing"
        assert len(scale(tenant, "charts-segment", SEGMENT, "replicas", 2)) == 2
        with capsys.disabled():
            print(f"segmentation-worker: first pod ready after {seconds:.1f} s")
    until(lambda: not objects(tenant, "charts-segment"), limit_s=30, what="nothing left of charts-segment")


@pytest.mark.long
def test_ddp_workers_find_each_other_scale_and_go(tenant: Tenant, python: Values, capsys: Any) -> None:
    with release(tenant, "charts-ddp", COMPSS, ddp(python, 1)) as seconds:
        (first,) = tenant.pods("charts-ddp").values()
        assert first["metadata"]["name"] == "charts-ddp-worker-0"
        assert not [title for title in objects(tenant, "charts-ddp") if "keys" in title or "master" in title]
        four = scale(tenant, "charts-ddp", COMPSS, "worker.replicas", 4)
        assert set(four) == {f"charts-ddp-worker-{index}" for index in range(4)}
        assert four["charts-ddp-worker-0"]["metadata"]["uid"] == first["metadata"]["uid"], "scaling restarts nothing"
        objects_found = tenant.within("charts-ddp-worker-3", "getent hosts charts-ddp-worker-0.charts-ddp-pods")
        assert objects_found.stdout.split()[0] == first["status"]["podIP"]
        assert "4 of 4 workers reached, engine ddp" in tenant.call(
            "helm", "test", "charts-ddp", "--logs", "--timeout", "3m"
        )
        two = scale(tenant, "charts-ddp", COMPSS, "worker.replicas", 2)
        assert set(two) == {"charts-ddp-worker-0", "charts-ddp-worker-1"}
        with capsys.disabled():
            print(f"compss-cluster, ddp: first worker ready after {seconds:.1f} s")
    until(lambda: not objects(tenant, "charts-ddp"), limit_s=30, what="nothing left of charts-ddp")


def test_the_master_reaches_its_workers_by_the_releases_keys_alone(
    tenant: Tenant, installation: Values, capsys: Any
) -> None:
    name, worker = "charts-compss", "charts-compss-worker-1.charts-compss-pods"
    with release(tenant, name, COMPSS, compss(installation, 2)) as seconds:
        assert set(tenant.pods(name)) == {f"{name}-master-0", f"{name}-worker-0", f"{name}-worker-1"}
        assert "2 of 2 workers reached, engine compss" in tenant.call("helm", "test", name, "--logs", "--timeout", "3m")

        reached = tenant.within(f"{name}-master-0", f"ssh {worker} 'hostname; echo $COMPSS_HOME; command -v java'")
        assert reached.stdout.split()[:2] == [f"{name}-worker-1", "/opt/COMPSs"], reached.stderr
        # The options are those with which COMPSs calls ssh.
        stranger = "ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o HostKeyAlias=stranger"
        refused = tenant.within(f"{name}-master-0", f"{stranger} {worker} true")
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
        no_key = f"/usr/bin/ssh -p 2222 -o BatchMode=yes -o StrictHostKeyChecking=no {worker} true"
        assert "Permission denied" in tenant.within(f"{name}-worker-0", no_key).stderr
        files = tenant.within(f"{name}-worker-0", "ls /run/medweave-keys").stdout.split()
        assert files == ["authorized-keys", "host-key"]

        before = tenant.get("secrets", f"app.kubernetes.io/instance={name}")[0]["data"]
        uids = {pod["metadata"]["uid"] for pod in tenant.pods(name).values()}
        tenant.call("helm", "upgrade", name, COMPSS, "--reuse-values", "--wait", "--timeout", "3m")
        assert tenant.get("secrets", f"app.kubernetes.io/instance={name}")[0]["data"] == before
        assert {pod["metadata"]["uid"] for pod in tenant.pods(name).values()} == uids, "an upgrade that changes nothing"
        with capsys.disabled():
            print(f"compss-cluster, compss: master and 2 workers ready after {seconds:.1f} s")
        started = time.monotonic()
        tenant.call("helm", "uninstall", name, "--wait", "--timeout", "2m")
        until(lambda: not tenant.pods(name) and not objects(tenant, name), limit_s=30, what=f"nothing left of {name}")
        assert time.monotonic() - started < 20, "nothing waits for the end of the grace period"


def test_the_master_stays_while_its_workers_scale(tenant: Tenant, installation: Values) -> None:
    name = "charts-scaled"
    with release(tenant, name, COMPSS, compss(installation, 1)):
        master = tenant.pods(name)[f"{name}-master-0"]["metadata"]["uid"]
        for workers in (4, 2):
            pods = scale(tenant, name, COMPSS, "worker.replicas", workers, others=1)
            assert set(pods) == {f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(workers))}
            assert pods[f"{name}-master-0"]["metadata"]["uid"] == master
            tested = tenant.call("helm", "test", name, "--logs", "--timeout", "3m")
            assert f"{workers} of {workers} workers reached, engine compss" in tested


def plain() -> Values:
    """Return values of pods that start at once: they compute nothing here."""
    base = image("localhost/medweave-base:1")
    return {
        "image": base,
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "terminationGracePeriodSeconds": 5,
    }


def test_workers_see_the_volume_that_they_share(tenant: Tenant) -> None:
    values = ddp(plain(), 2, sharedVolume={"existingClaim": "medweave-data"})
    with release(tenant, "charts-shared", COMPSS, values):
        file = f"/work/{unique('shared')}"
        written = tenant.within("charts-shared-worker-0", f"echo round 1 > {file}")
        assert written.returncode == 0, written.stderr
        assert tenant.within("charts-shared-worker-1", f"cat {file}; rm {file}").stdout == "round 1\n"


def test_inference_pods_see_the_models_of_a_claim(tenant: Tenant) -> None:
    values = {**plain(), "replicas": 2, "resources": small("256Mi"), "modelCache": {"existingClaim": "medweave-data"}}
    with release(tenant, "charts-models", SEGMENT, values):
        first, second = tenant.pods("charts-models")
        file = f"/models/{unique('model')}"
        written = tenant.within(first, f"echo weights > {file}")
        assert written.returncode == 0, written.stderr
        assert tenant.within(second, f"cat {file}; rm {file}").stdout == "weights\n"


def test_an_upgrade_leaves_the_number_of_pods_to_the_autoscaler(tenant: Tenant) -> None:
    """Its own part is a number by hand here: without a metrics server it sees no load."""
    name = "charts-scaling"
    values = {**plain(), "replicas": 1, "resources": small("256Mi"), "autoscaling": {"enabled": True, "maxReplicas": 3}}
    with release(tenant, name, SEGMENT, values):

        def conditions() -> dict[str, str]:
            (scaler,) = tenant.get("horizontalpodautoscalers", f"app.kubernetes.io/instance={name}")
            return {
                condition["type"]: condition["reason"] for condition in scaler.get("status", {}).get("conditions", [])
            }

        # The controller found what the object names, and read its number of pods.
        until(lambda: conditions().get("AbleToScale") == "SucceededGetScale", limit_s=60, what="the autoscaler's look")
        tenant.call("kubectl", "scale", f"deployment/{name}", "--replicas=2")
        words = ["--reuse-values", "--set", "labels.round=second", "--wait", "--timeout", "3m"]
        tenant.call("helm", "upgrade", name, SEGMENT, *words)
        (deployment,) = tenant.get("deployments", f"app.kubernetes.io/instance={name}")
        assert deployment["metadata"]["labels"]["round"] == "second"
        assert deployment["spec"]["replicas"] == 2


def test_step_gets_sigterm_when_its_pod_is_deleted(tenant: Tenant, installation: Values) -> None:
    with release(tenant, "charts-end", COMPSS, compss(installation, 1)):
        step = "trap 'echo ended > /proc/1/fd/1; exit' TERM; echo started; while :; do sleep 0.1; done"
        started = tenant.within(
            "charts-end-worker-0", f"nohup bash -c {step!r} > /tmp/output 2>&1 & sleep 1; cat /tmp/output"
        )
        assert "started" in started.stdout
        logs = tenant.following("charts-end-worker-0")
        tenant.call("kubectl", "delete", "pod", "charts-end-worker-0", "--wait=false")
        assert "ended" in logs.communicate(timeout=30)[0]


def test_pod_without_required_modules_reports_it(tenant: Tenant, python: Values) -> None:
    values = ddp(python, 1, requiredModules=["no_such_module"])
    with release(tenant, "charts-refuses", COMPSS, values, wait=False):

        def message() -> str:
            states = [pod["status"].get("containerStatuses", [{}])[0] for pod in tenant.pods("charts-refuses").values()]
            ends = [state.get(when, {}).get("terminated", {}) for state in states for when in ("state", "lastState")]
            return next((end["message"] for end in ends if "message" in end), "")

        text = until(message, limit_s=90, what="a termination message")
    assert "pod charts-refuses-worker-0: Python cannot import what the step needs." in text
    assert "No module named 'no_such_module'" in text
    assert "do:" in text
