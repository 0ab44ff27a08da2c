"""`medweave.helm` and `medweave.compss` in real runs of the real engine; helm and the API server are small fakes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave_connectors.sites.pods import owner
from support.api_server import ApiServer, pod_of
from support.engine import start
from support.engine_file import LOCAL, OURS
from support.helm_runs import GANG, GOOD, PROGRESS, VERIFIED, WORKLOAD, go, two_workers, with_helm, write


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with two_workers(tmp_path) as serving:
        yield serving


@pytest.mark.slow
def test_a_release_lives_as_long_as_the_run(tmp_path: Path, server: ApiServer) -> None:
    releases: dict[str, Any] = {}
    server.make_pod = lambda workload, number: releases.update(server.releases) or pod_of(workload, number)  # type: ignore[func-returns-value]
    (tmp_path / "more.yml").write_text("worker: {replicas: 2}\nseen: file\n")
    values = "yamlValues: [more.yml], values: {seen: 'inline ${WHO}'}"
    write(tmp_path, {"first": GOOD}, config=values)
    ended = go(tmp_path, WHO="me", MEDWEAVE_RUN_ID="my.run")
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() in ("r-worker-0\n", "r-worker-1\n")
    ((name, release),) = releases.items()
    assert name.startswith("cluster-"), "its own release for every run"
    assert release["values"] == {"worker": {"replicas": 2}, "seen": "inline me"}
    assert release["labels"][owner.RUN] == "my.run"
    assert not server.releases
    assert not server.pods
    assert f"release {name}, 2 pods ready after" in ended.stderr


@pytest.mark.slow
def test_a_failing_step_takes_the_release_down(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"bad": "exit 3"})
    assert go(tmp_path).exit_code == 1
    assert not server.releases


@pytest.mark.slow
def test_ctrl_c_takes_the_release_down(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"sleeper": PROGRESS + f"echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"})
    going = start(tmp_path, environment=with_helm())
    going.wait_for_line("case 1/2")
    before = time.monotonic()
    going.signal(signal.SIGINT)
    going.wait()
    assert time.monotonic() - before < 20
    assert not server.releases
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def never_ready(pod: dict[str, Any]) -> dict[str, Any]:
    pod["status"] |= {"phase": "Pending", "conditions": [], "containerStatuses": []}
    return pod


@pytest.mark.slow
def test_ctrl_c_while_the_pods_start_takes_the_release_down(tmp_path: Path, server: ApiServer) -> None:
    server.make_pod = lambda workload, number: never_ready(pod_of(workload, number))
    write(tmp_path, {"first": GOOD}, config="timeout: 60")
    going = start(tmp_path, environment=with_helm())
    deadline = time.monotonic() + 30
    while not server.pods and time.monotonic() < deadline:
        time.sleep(0.05)
    going.signal(signal.SIGINT)
    going.wait()
    assert not server.releases


@pytest.mark.slow
def test_one_that_fails_takes_down_the_others_that_still_come_up(tmp_path: Path, server: ApiServer) -> None:
    # Fault of the engine: it undeployed a starting deployment twice, failed in that, and did not undeploy the others.
    server.make_pod = lambda workload, number: never_ready(pod_of(workload, number))
    tools = {"here": "sleep 100", "first": GOOD, "second": GOOD}
    write(tmp_path, tools, config="timeout: 60")
    file = yaml.safe_load((tmp_path / "streamflow.yml").read_text())
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "refuse.txt").write_text("no such thing")
    good = file["deployments"]["cluster"]
    file["deployments"] = {
        "here": LOCAL,
        "first": {**good, "config": {**good["config"], "chart": "refused"}},
        "second": good,
    }
    bindings = [{"step": f"/{step}", "target": {"deployment": step}} for step in tools]
    file["workflows"]["tiny"]["bindings"] = bindings
    (tmp_path / "streamflow.yml").write_text(yaml.safe_dump(file))
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.first.config.chart: the release cannot be installed." in ended.stderr
    assert ended.stderr.count("ERROR") == 1, ended.stderr
    assert not server.releases


@pytest.mark.slow
def test_a_refused_value_is_told_with_its_key(tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "chart" / "refuse.txt").write_text(
        "values don't meet the specifications of the schema(s):\n- at '/worker/replicas': got string, want integer"
    )
    write(tmp_path, {"first": GOOD}, config="values: {worker: {replicas: two}}")
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.cluster.config.values.worker.replicas: the release cannot be installed." in ended.stderr
    assert "- at '/worker/replicas': got string, want integer" in ended.stderr


@pytest.mark.slow
def test_a_missing_image_is_told_and_undone(tmp_path: Path, server: ApiServer) -> None:
    def no_image(workload: dict[str, Any], number: int) -> dict[str, Any]:
        pod = pod_of(workload, number)
        state = {"waiting": {"reason": "ErrImageNeverPull", "message": 'Container image "x" is not present'}}
        pod["status"] |= {"phase": "Pending", "conditions": []}
        container = {"name": "worker", "restartCount": 0, "state": state, "image": "host/x:9"}
        pod["status"]["containerStatuses"] = [container]
        return pod

    server.make_pod = no_image
    write(tmp_path, {"first": GOOD}, config="values: {image: {repository: host/x, tag: '9'}}")
    before = time.monotonic()
    ended = go(tmp_path)
    assert time.monotonic() - before < 20
    assert "deployments.cluster.config.values.image: its pods cannot start." in ended.stderr
    assert 'Container image "x" is not present' in ended.stderr
    assert not server.releases


def left_over(driver: str) -> dict[str, Any]:
    manifest = WORKLOAD.format(part="worker", replicas=2)
    labels = {owner.RUN: "an-old-run", owner.DRIVER: driver, "medweave.dev/deployment": "cluster"} if driver else {}
    return {"manifest": manifest, "labels": labels, "values": {"old": True}}


def killed_driver() -> str:
    return re.sub(r"_\d+-", "_999999999-", owner.labels()[owner.DRIVER])


@pytest.mark.slow
@pytest.mark.parametrize("config", ["releaseName: mine", "timeout: 20"])
def test_what_a_killed_run_left_is_removed(tmp_path: Path, server: ApiServer, config: str) -> None:
    # Fault K2 of the engine: "cannot re-use a name that is still in use".
    server.releases["mine"] = left_over(killed_driver())
    write(tmp_path, {"first": GOOD}, config=config)
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert "removing release mine, left by run an-old-run" in ended.stderr
    assert not server.releases


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("", "that medweave did not create"),
        ("another-machine_1-1", "of run an-old-run, created from another machine"),
        (owner.labels()[owner.DRIVER], "used by run an-old-run, which is running"),
    ],
    ids=["stranger", "another machine", "this driver"],
)
def test_releases_of_others_are_left_alone(tmp_path: Path, server: ApiServer, driver: str, words: str) -> None:
    server.releases["mine"] = left_over(driver)
    write(tmp_path, {"first": GOOD}, config="releaseName: mine")
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert words in ended.stderr
    assert "deployments.cluster.config.releaseName" in ended.stderr
    assert server.releases["mine"]["values"] == {"old": True}


@pytest.mark.slow
def test_a_name_that_was_taken_meanwhile_is_not_changed(tmp_path: Path, server: ApiServer) -> None:
    # Between the look at the records and the installation.
    server.releases["mine"] = left_over("another-machine_1-1") | {"unseen": True}
    write(tmp_path, {"first": GOOD}, config="releaseName: mine")
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert "cannot re-use a name that is still in use" in ended.stderr
    assert server.releases["mine"]["values"] == {"old": True}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["success", "failure"])
def test_a_release_that_others_have_made_meanwhile_is_left_alone(tmp_path: Path, server: ApiServer, end: str) -> None:
    write(
        tmp_path,
        {"first": PROGRESS + f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; " + GOOD},
        config="releaseName: mine",
    )
    going = start(tmp_path, environment=with_helm())
    going.wait_for_line("case 1/2")
    server.releases["mine"] = server.releases["mine"] | {"labels": left_over("another-machine_1-1")["labels"]}
    if end == "success":
        (tmp_path / "go").touch()
    else:
        going.signal(signal.SIGINT)
    ended = going.wait()
    assert "release mine does not belong to this run; it is not removed" in ended.stderr
    assert "mine" in server.releases


@pytest.mark.slow
def test_an_external_release_is_used_and_left(tmp_path: Path, server: ApiServer) -> None:
    server.releases["theirs"] = left_over("")
    manifest = WORKLOAD.format(part="worker", replicas=1)
    server.releases["theirs"]["manifest"] = manifest
    pod = pod_of(yaml.safe_load(manifest), 0)
    pod["metadata"]["labels"] = {"app.kubernetes.io/instance": "theirs"}
    server.add(pod)
    write(tmp_path, {"first": GOOD}, config="releaseName: theirs", external=True)
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "r-worker-0\n"
    assert "theirs" in server.releases


# ---- medweave.compss


def nodes(tmp_path: Path) -> list[str]:
    return sorted((tmp_path / "nodes").read_text().splitlines())


@pytest.mark.slow
def test_ddp_starts_the_command_in_every_worker(tmp_path: Path, server: ApiServer) -> None:
    script = (
        f"echo $MEDWEAVE_NODE_RANK/$MEDWEAVE_NUM_NODES $MEDWEAVE_ENGINE $POD_NAME $MEDWEAVE_RENDEZVOUS >> {tmp_path}/nodes; "
        '[ "$MEDWEAVE_NODE_RANK" = 0 ] || exit 0; ' + GOOD
    )
    write(tmp_path, {"train": (script, GANG)}, kind="medweave.compss", config="engine: ddp")
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert nodes(tmp_path) == [
        "0/2 ddp r-worker-0 r-worker-0.r-pods:29500",
        "1/2 ddp r-worker-1 r-worker-0.r-pods:29500",
    ]
    assert (tmp_path / "results" / "result.txt").read_text() == "r-worker-0\n", "outputs are node 0's"
    site = ended.of_type("job.ended")[0]["data"]["site"]
    assert [(pod["pod"], pod["uid"], pod["node"]) for pod in site["pods"]] == [
        ("r-worker-0", "uid-r-worker-0", "node-1"),
        ("r-worker-1", "uid-r-worker-1", "node-1"),
    ]
    assert site["engine"] == "ddp"


@pytest.mark.slow
@pytest.mark.parametrize("managers", [OURS, OURS | VERIFIED], ids=["stock-data", "our-data"])
def test_folders_are_made_and_inputs_copied_on_every_pod(
    tmp_path: Path, server: ApiServer, managers: dict[str, Any]
) -> None:
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: ddp", managers=managers)
    keys = json.loads((tmp_path / "tiny.cwl").read_text())
    keys["inputs"] = {"data": "File"}
    keys["steps"]["train"]["in"] = {"data": "data"}
    keys["steps"]["train"]["run"]["inputs"] = {"data": {"type": "File", "inputBinding": {"position": 1}}}
    (tmp_path / "tiny.cwl").write_text(json.dumps(keys))
    (tmp_path / "my data.txt").write_text("x")
    (tmp_path / "job.yml").write_text(json.dumps({"data": {"class": "File", "path": "my data.txt"}}))
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    for pod in ("r-worker-0", "r-worker-1"):
        lines = [" ".join(words) for words in server.commands[pod]]
        assert any(" tar xpf " in line for line in lines), f"{pod} did not get the input"
    places = [event["location"] for event in ended.of_type("transfer.ended") if event["deployment"] == "cluster"]
    assert sorted(places) == ([] if managers == OURS else ["r-worker-0:worker", "r-worker-1:worker"])
    assert not [*(tmp_path / "in-pods").rglob(".medweave-*.part"), *(tmp_path / "results").rglob(".*")]


@pytest.mark.slow
def test_without_the_hint_a_step_runs_on_one_pod(tmp_path: Path, server: ApiServer) -> None:
    script = f"echo $POD_NAME:$MEDWEAVE_NODE_RANK >> {tmp_path}/nodes; {GOOD}"
    write(tmp_path, {"plain": script}, kind="medweave.compss", config="engine: ddp")
    assert go(tmp_path).exit_code == 0
    assert nodes(tmp_path) == ["r-worker-0:"]


@pytest.mark.slow
def test_more_workers_than_there_are_is_refused(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: ddp", target=", locations: 3")
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert "locations: 3, and cluster has 2" in ended.stderr


@pytest.mark.slow
def test_a_service_of_the_cluster_is_refused(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: ddp", target=", service: master")
    assert "the cluster is one location" in go(tmp_path).stderr


def test_the_engine_is_never_a_silent_choice(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="timeout: 20")
    ended = go(tmp_path)
    assert ended.exit_code == 1
    assert "engine" in ended.stderr
