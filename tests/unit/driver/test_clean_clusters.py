"""`medweave clean` in Kubernetes, with the fake API server; tests/hybrid has the real one."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave_connectors.sites.pods import owner
from medweave_core.runlog.run_ownership import RECORD_MARK
from support.api_server import ApiServer, pod_document, pod_of
from support.engine import Run, start, wait_until, write_workflow
from support.engine_file import engine_file
from support.job_server import JobServer, standing_pod
from support.small_cluster import DEPLOYMENT, PROGRESS, applied, write

FAKES = Path(__file__).parents[2] / "fakes" / "bin"
STRANGER = {owner.RUN: "another", owner.DRIVER: "laptop_1-1", owner.TOKEN: "0123456789abcdef"}
CLAIM = "\n      volumes: [{name: work, persistentVolumeClaim: {claimName: scratch}}]\n"
CHART = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: r-worker}
spec:
  replicas: 1
  selector: {matchLabels: {part: worker}}
  template: {spec: {containers: [{name: worker}]}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with JobServer() as serving:
        serving.write_kubeconfig(tmp_path / "kubeconfig")
        yield serving


def killed(folder: Path, **environment: str) -> Run:
    """Start a run and kill its driver once its job is running."""
    run = start(folder, environment=environment)
    run.wait_for_line("case 1/2")
    assert (folder / "in-pods" / run.record.name).is_dir()
    run.signal(signal.SIGKILL)
    return run.wait()


def clean(ended: Run, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["clean", str(ended.record)]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.mark.slow
def test_jobs_and_their_folders_are_removed(
    tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(standing_pod())
    write(tmp_path, {"works": PROGRESS + "exec sleep 60"}, config="selector: app=w, mode: job")
    ended = killed(tmp_path)
    ((name, job),) = server.jobs.items()
    other = copy.deepcopy(job)
    other["metadata"]["name"] = "other"
    for metadata in (other["metadata"], other["spec"]["template"]["metadata"]):
        metadata["labels"] |= STRANGER
    server.jobs["other"] = other
    output = clean(ended, capsys)
    assert f"pods: Job {name}, {tmp_path}/in-pods/{ended.record.name} removed" in output
    assert list(server.jobs) == ["other"]
    assert not server.pods_of_jobs()
    assert list(server.pods) == ["w-0"], "the pod of others stays"
    assert not list((tmp_path / "in-pods").iterdir())
    assert [path.name for path in ended.record.iterdir()] == [RECORD_MARK, "events.jsonl"]
    assert "pods: " in clean(ended, capsys), "a second call finds nothing"


@pytest.mark.slow
def test_commands_in_pods_of_others_end_and_the_pods_stay(
    tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(pod_document("w-0"), pod_document("w-1"))
    write(tmp_path, {"works": f"echo $$ > {tmp_path}/pid; cd /; " + PROGRESS + "exec sleep 60"})
    ended = killed(tmp_path)
    process = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    assert process.exists(), "it runs on without its driver"
    assert f"pods: {tmp_path}/in-pods/{ended.record.name} removed" in clean(ended, capsys)
    wait_until(lambda: not process.exists())
    assert not process.exists()
    assert sorted(server.pods) == ["w-0", "w-1"]
    assert not list((tmp_path / "in-pods").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("shares", [True, False])
def test_the_objects_of_a_killed_run_are_removed_with_their_pods(
    tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str], shares: bool
) -> None:
    def make(document: dict[str, Any]) -> None:
        labels = document["spec"]["template"]["metadata"]["labels"]
        pod = standing_pod("segment-1", shared=shares)
        pod["metadata"]["labels"] = labels
        server.add(pod)

    applied(server)
    server.on_apply = make
    (tmp_path / "pods.yaml").write_text(DEPLOYMENT)
    write(tmp_path, {"works": PROGRESS + "exec sleep 60"}, config="files: [pods.yaml], timeout: 20")
    ended = killed(tmp_path)
    folder = f"{tmp_path}/in-pods/{ended.record.name}"
    output = clean(ended, capsys)
    gone = f"{folder}, Deployment segment" if shares else "Deployment segment"
    assert f"pods: {gone} removed" in output, output
    assert not server.objects
    assert not server.pods
    assert Path(folder).exists() is not shares, "a folder that only one pod sees is removed with the pod"


@pytest.mark.slow
def test_objects_of_another_run_stay(tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str]) -> None:
    applied(server)
    (tmp_path / "pods.yaml").write_text(DEPLOYMENT)
    write(tmp_path, {"works": PROGRESS + "exec sleep 60"}, config="files: [pods.yaml], timeout: 20")
    ended = killed(tmp_path)
    (document,) = server.objects.values()
    document["metadata"]["labels"][owner.TOKEN] = "0123456789abcdef"  # the same name of a run, on another machine
    for pod in server.pods.values():
        pod["metadata"]["labels"] = document["spec"]["template"]["metadata"]["labels"] | STRANGER
    clean(ended, capsys)
    assert len(server.objects) == 1
    assert list(server.pods) == ["segment-1"]


@pytest.mark.slow
def test_a_folder_on_a_claim_that_no_pod_mounts_is_an_error(
    tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str]
) -> None:
    applied(server)
    mounted = DEPLOYMENT.replace("image: x}]}", f"image: x, volumeMounts: [{{name: work, mountPath: {tmp_path}}}]}}]")
    (tmp_path / "pods.yaml").write_text(mounted.replace("spec: {containers", "spec:\n      containers") + CLAIM)
    write(tmp_path, {"bad": "exit 3"}, config="files: [pods.yaml], timeout: 20")
    run = start(tmp_path).wait()
    assert not server.objects, "an ended run has deleted its pods"
    output = clean(run, capsys, 75)
    folder = f"{tmp_path}/in-pods/{run.record.name}"
    assert f"pods: {folder} on claim scratch: no ready pod of {tmp_path}/pods.yaml mounts it" in output
    assert (run.record / "work").is_dir(), "clean it again"
    other = standing_pod("segment-2")
    other["metadata"]["labels"] = {"app": "segment"}
    server.add(other)
    assert f"pods: {folder} removed" in clean(run, capsys)
    assert not Path(folder).exists()
    server.pods.clear()
    assert "pods: nothing removed" in clean(run, capsys), "a second call finds nothing"


@pytest.mark.slow
def test_a_release_of_a_killed_run_is_removed(
    tmp_path: Path, server: JobServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "manifest.yaml").write_text(CHART)
    server.make_pod = pod_of
    config = {"kubeconfig": "kubeconfig", "chart": "chart", "timeout": 20}
    cluster = {"type": "medweave.helm", "workdir": f"{tmp_path}/in-pods", "config": config}
    write_workflow(tmp_path, {"works": PROGRESS + "exec sleep 60"}, file=engine_file({"cluster": cluster}))
    path = f"{FAKES}:{os.environ['PATH']}"
    ended = killed(tmp_path, PATH=path)
    (name,) = server.releases
    server.releases["other"] = {"labels": {**server.releases[name]["labels"], owner.RUN: "another"}, "manifest": ""}
    monkeypatch.setenv("PATH", path)
    assert f"cluster: release {name} removed" in clean(ended, capsys)
    assert list(server.releases) == ["other"]
    assert not server.pods


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_not_called_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        server.add(pod_document("w-0"))
        write(tmp_path, {"works": PROGRESS + "exec sleep 60"})
        ended = killed(tmp_path)
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    output = clean(ended, capsys, 75)
    assert "some files or jobs could not be removed" in output
    assert "the cluster refuses the connection or the account" in output
    assert (ended.record / "work").is_dir()
