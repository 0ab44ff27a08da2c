"""`medweave clean` after killed runs in a real cluster: a tenant sees nothing of them, and active runs stay."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave_connectors.sites.pods import owner
from support.engine import Run
from support.helm_release import Tenant, until
from support.pod_runs import PROGRESS, begin, environment, pods_of, pods_on_claim, write
from support.testbed import Sites

NAME = "clean-test"
WORKS = {"works": PROGRESS + "exec sleep 600"}
KINDS = "deployments,statefulsets,services,configmaps,jobs,pods,secrets"


@pytest.fixture(autouse=True)
def laptop(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in environment(tenant).items():
        monkeypatch.setenv(name, value)
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", "--ignore-not-found", "--wait=false")
    tenant.ended("kubectl", "delete", "jobs", "--selector=medweave.dev/deployment=pods", "--wait=false")


def killed(folder: Path, tenant: Tenant) -> Run:
    """Start a run and kill its driver when its job works; return the run."""
    going = begin(folder, tenant)
    going.wait_for_line("case 1/2", 120)
    assert remaining_objects(tenant, going)
    going.signal(signal.SIGKILL)
    return going.wait()


def remaining_objects(tenant: Tenant, run: Run) -> list[str]:
    """Return the objects of a run in the tenant's namespace."""
    return [item["metadata"]["name"] for item in tenant.get(KINDS, f"{owner.RUN}={run.record.name}")]


def clean(ended: Run, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["clean", str(ended.record)]) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def prepare(folder: Path, tools: dict[str, Any], *, claim: bool, **config: Any) -> None:
    document = (pods_on_claim if claim else pods_of)(NAME, replicas=1)
    (folder / "pods.yaml").write_text(yaml.safe_dump(document))
    write(folder, tools, kind="medweave.kubernetes", config={"files": ["pods.yaml"], "timeout": 60, **config})


@pytest.fixture
def volume(testbed: Sites, tenant: Tenant) -> Path:
    """Return the folder of the tenant's claim on this machine."""
    return testbed.layout.pods / tenant.namespace


def test_jobs_pods_and_their_folder_on_the_claim(
    tmp_path: Path, tenant: Tenant, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, WORKS, claim=True, mode="job")
    ended = killed(tmp_path, tenant)
    (job,) = tenant.get("jobs", f"{owner.RUN}={ended.record.name}")
    assert (volume / ended.record.name).is_dir()
    output = clean(ended, capsys)
    assert f"pods: Job {job['metadata']['name']}, /work/{ended.record.name}, Deployment {NAME} removed" in output
    assert not remaining_objects(tenant, ended)
    assert not tenant.get("pods", f"app={NAME}")
    assert not (volume / ended.record.name).exists()
    assert not (ended.record / "work").exists()
    assert "pods: nothing removed" in clean(ended, capsys)


def test_a_folder_that_no_pod_sees_is_named_and_goes_when_one_does(
    tmp_path: Path, tenant: Tenant, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, {"bad": "exit 65"}, claim=True, mode="job")
    ended = begin(tmp_path, tenant).wait(120)
    until(lambda: not tenant.get("pods", f"app={NAME}"), limit_s=60, what="the end of its pods")
    folder = volume / ended.record.name
    assert folder.is_dir(), "stays for debugging"
    assert f"/work/{ended.record.name} on claim medweave-data: no ready pod" in clean(ended, capsys, 75)
    again = tmp_path / "again"
    again.mkdir()
    prepare(again, WORKS, claim=True)
    going = begin(again, tenant)
    going.wait_for_line("case 1/2", 120)
    assert f"pods: /work/{ended.record.name} removed" in clean(ended, capsys)
    assert not folder.exists()
    assert (volume / going.record.name).is_dir(), "that of the active run"
    assert main(["clean", str(going.record)]) == 65
    assert remaining_objects(tenant, going)
    going.signal(signal.SIGINT)
    going.wait(60)
    shutil.rmtree(volume / going.record.name)  # its pods have gone


def test_pods_of_a_killed_run(tmp_path: Path, tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path, WORKS, claim=False)
    ended = killed(tmp_path, tenant)
    assert f"pods: Deployment {NAME} removed" in clean(ended, capsys)
    assert not remaining_objects(tenant, ended)
    assert "pods: nothing removed" in clean(ended, capsys)
