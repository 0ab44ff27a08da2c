"""`medweave.kubernetes` in real runs of the real engine; the API server is a small one whose `exec` starts real processes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api_server import NAMESPACE, ApiServer
from support.engine import run, start, wait_until
from support.processes import processes_with
from support.small_cluster import DEPLOYMENT, PROGRESS, applied, failure, small_cluster, write

GOOD = "echo {} > run_report.json; echo $POD_NAME > result.txt"
GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with small_cluster(tmp_path) as serving:
        yield serving


def gone(file: Path) -> bool:
    """Whether the process whose number is in a file has ended; the machine's first process may take its time to bury it."""
    process = Path(f"/proc/{file.read_text().strip()}")
    wait_until(lambda: not process.exists())
    return not process.exists()


@pytest.mark.slow
def test_a_good_run(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"first": PROGRESS + GOOD})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() in ("w-0\n", "w-1\n")
    assert (ended.record / "reports" / "first" / "run_report.json").read_text() == "{}\n"
    assert re.search(r"^  first +case 1/2: x", ended.stderr, re.MULTILINE)
    (scheduled,) = ended.of_type("job.scheduled")
    assert scheduled["location"] in ("w-0:worker", "w-1:worker"), "without a service, the only container"
    outcome = ended.of_type("job.ended")[0]["data"]
    assert (outcome["state"], outcome["exit_code"]) == ("completed", 0)
    assert "stranger" not in server.commands


@pytest.mark.slow
def test_the_first_cause_is_what_the_user_reads(tmp_path: Path, server: ApiServer) -> None:
    message = "medweave-step v: no such case.\\n  seen:     $HOME `id`\\n"
    write(tmp_path, {"bad": f"echo noise >&2; printf '{message}' >&2; exit 65"})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "first cause: bad on pods, exit code 65, bad data" in ended.stderr
    assert "medweave-step v: no such case.\n  seen:     $HOME `id`\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert failure(ended)["exit_code"] == 65


@pytest.mark.slow
def test_environment_values_are_not_run_by_a_shell(tmp_path: Path, server: ApiServer) -> None:
    # Fault C7 of the engine.
    value = "a\"b `touch harm` $HOME 'c'"
    keys = {"requirements": {"EnvVarRequirement": {"envDef": {"VALUE": value}}}}
    write(tmp_path, {"shows": ('printf %s "$VALUE" > result.txt', keys)})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == value


@pytest.mark.slow
def test_a_time_limit_ends_the_command(tmp_path: Path, server: ApiServer) -> None:
    # Fault K11 of the engine: the limit covered only the opening of the connection.
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 1}}}
    write(tmp_path, {"sleeper": (f"echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done", limit)})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "the time limit of 1 s was reached" in ended.stderr
    assert gone(tmp_path / "pid")


CUT = """#!/bin/sh
if mkdir {folder}/cut-$1 2>/dev/null; then {real} "$@" | head -c 5000; exit 2; fi
exec {real} "$@"
"""


@pytest.mark.slow
def test_a_copy_that_is_cut_is_repeated(tmp_path: Path, server: ApiServer) -> None:
    # Faults D1 and D2 of the engine: it dropped tar's exit status, and a cut copy passed as complete.
    (tmp_path / "bin").mkdir()
    tar = tmp_path / "bin" / "tar"
    tar.write_text(CUT.format(folder=tmp_path, real=shutil.which("tar")))
    tar.chmod(0o755)
    server.environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    write(tmp_path, {"first": 'cat "$1" > result.txt; wc -c < result.txt > run_report.json'})
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    document["inputs"] = {"data": "File"}
    document["steps"]["first"]["in"] = {"data": "data"}
    document["steps"]["first"]["run"]["inputs"] = {"data": {"type": "File", "inputBinding": {"position": 1}}}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    (tmp_path / "data.txt").write_text("x" * 100_000)
    (tmp_path / "job.yml").write_text(json.dumps({"data": {"class": "File", "path": "data.txt"}}))
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "x" * 100_000
    assert ended.stderr.count("a copy was cut and is repeated") == 2, "one there and one back"


@pytest.mark.slow
def test_ctrl_c_ends_what_runs_in_the_pod(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"sleeper": PROGRESS + f"echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    wait_until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait()
    assert time.monotonic() - before < 20
    assert gone(tmp_path / "pid")
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    assert ended.of_type("job.ended")[0]["data"]["state"] == "cancelled"


@pytest.mark.slow
def test_ctrl_c_ends_what_is_just_being_started(tmp_path: Path, server: ApiServer) -> None:
    # A kubelet starts it even if its client has disconnected since.
    write(tmp_path, {"sleeper": "while :; do sleep 0.1; done"})
    server.start_s = 1

    def is_step(words: list[str]) -> bool:
        return "medweave-pod pid" in words[-1]

    def processes() -> list[str]:
        return processes_with(str(tmp_path / "sleeper.sh"), "NONE")

    going = start(tmp_path)
    wait_until(lambda: any(is_step(words) for sent in server.commands.values() for words in sent), 60)
    going.signal(signal.SIGINT)
    ended = going.wait()
    wait_until(lambda: any(map(is_step, server.started)))
    assert any(map(is_step, server.started))
    wait_until(lambda: not processes())
    assert processes() == []
    assert ended.of_type("job.ended")[0]["data"]["state"] == "cancelled"


@pytest.mark.slow
def test_a_gang_runs_once_per_pod(tmp_path: Path, server: ApiServer) -> None:
    script = (
        f"echo $MEDWEAVE_NODE_RANK of $MEDWEAVE_NUM_NODES at $MEDWEAVE_RENDEZVOUS in $POD_NAME >> {tmp_path}/nodes; "
        '[ "$MEDWEAVE_NODE_RANK" = 0 ] || exit 0; ' + GOOD
    )
    write(tmp_path, {"train": (script, GANG)}, target=", locations: 2")
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    nodes = sorted((tmp_path / "nodes").read_text().splitlines())
    assert [line.split(" at ")[0] for line in nodes] == ["0 of 2", "1 of 2"]
    assert {line.split(" in ")[1] for line in nodes} == {"w-0", "w-1"}
    assert {line.split(" at ")[1].split(" in ")[0] for line in nodes} == {"127.0.0.1:29500"}


@pytest.mark.slow
def test_without_the_hint_the_command_runs_once(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"train": f"echo $MEDWEAVE_NODE_RANK >> {tmp_path}/nodes; {GOOD}"}, target=", locations: 2")
    assert run(tmp_path).exit_code == 0
    assert (tmp_path / "nodes").read_text() == "\n"


@pytest.mark.slow
def test_one_node_lost_ends_all_with_its_error(tmp_path: Path, server: ApiServer) -> None:
    script = f"""
    if [ "$MEDWEAVE_NODE_RANK" = 1 ]; then sleep 0.5; echo 'medweave-step train: case 7 is broken.' >&2; exit 65; fi
    echo $$ > {tmp_path}/pid; trap '' TERM; while :; do sleep 0.1; done
    """
    write(tmp_path, {"train": (script, GANG)}, target=", locations: 2")
    before = time.monotonic()
    ended = run(tmp_path)
    assert time.monotonic() - before < 60
    assert ended.exit_code == 1
    assert re.search(
        r"node 1 of 2 \(w-[01]:worker\) failed first\.\nmedweave-step train: case 7 is broken\.", ended.stderr
    )
    assert failure(ended)["exit_code"] == 65
    assert gone(tmp_path / "pid")


@pytest.mark.slow
def test_the_lost_pod_is_the_cause_and_not_who_complains_of_it(tmp_path: Path, server: ApiServer) -> None:
    script = (
        f'touch {tmp_path}/$MEDWEAVE_NODE_RANK; [ "$MEDWEAVE_NODE_RANK" = 1 ] && sleep 60; '
        f"while [ ! -e {tmp_path}/gone ]; do sleep 0.1; done; echo 'medweave-step train: peer lost.' >&2; exit 70"
    )
    write(tmp_path, {"train": (script, GANG)}, target=", locations: 2")
    going = start(tmp_path)
    wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), 60)
    lost = next(
        name for name, sent in server.commands.items() if any("MEDWEAVE_NODE_RANK=1" in words[-1] for words in sent)
    )
    server.remove(lost)
    (tmp_path / "gone").touch()
    ended = going.wait()
    assert f"node 1 of 2 ({lost}:worker) failed first. pod {lost} is gone" in ended.stderr


@pytest.mark.slow
def test_without_pods_the_error_comes_at_once(tmp_path: Path, server: ApiServer) -> None:
    # Fault K1 of the engine: it waited for ever, in silence.
    write(tmp_path, {"first": GOOD}, config="selector: app=missing")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.pods.config.selector: its pods cannot be used." in ended.stderr
    assert f"no pods with app=missing in namespace '{NAMESPACE}'" in ended.stderr


@pytest.mark.slow
def test_a_wrong_kubeconfig_is_told_with_its_key(tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "kubeconfig").unlink()
    write(tmp_path, {"first": GOOD})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.pods.config.kubeconfig" in ended.stderr


@pytest.mark.slow
def test_a_cluster_that_never_answers_is_told_with_how_long_it_was_waited_for(
    tmp_path: Path, server: ApiServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        document["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        write(tmp_path, {"first": GOOD})
        (tmp_path / "soon.py").write_text(
            "from medweave_connectors.sites.pods.api import access\naccess.FIRST_ANSWER_S = 2.0\n"
        )
        ended = run(tmp_path, preload=tmp_path / "soon.py")
    assert "deployments.pods.config.kubeconfig" in ended.stderr
    assert "no answer within 2 s" in ended.stderr


@pytest.mark.slow
def test_missing_rights_are_told_with_their_key(tmp_path: Path, server: ApiServer) -> None:
    server.refuse[("GET", "/pods")] = 403, 'pods is forbidden: User "u" cannot list resource "pods"'
    write(tmp_path, {"first": GOOD})
    ended = run(tmp_path)
    assert "deployments.pods.config.namespace" in ended.stderr
    assert 'User "u" cannot list resource "pods"' in ended.stderr


@pytest.mark.slow
def test_an_unknown_service_is_told_with_the_known_ones(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"first": GOOD}, target=", service: wroker")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "service: wroker" in ended.stderr
    assert re.search(r"expected: .*: worker\n", ended.stderr)


@pytest.mark.slow
def test_manifests_live_as_long_as_the_run(tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    applied(server)
    make, labels = server.on_apply, []

    def noted(document: dict[str, Any]) -> None:
        labels.append(document["spec"]["template"]["metadata"]["labels"]["medweave.dev/run"])
        make(document)

    server.on_apply = noted
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    ended = run(tmp_path, environment={"MEDWEAVE_RUN_ID": "my.run"})
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "segment-1\n"
    assert labels == ["my.run"]
    assert not server.objects, "the applied objects are deleted"


@pytest.mark.slow
def test_an_object_that_others_have_made_meanwhile_is_not_deleted(tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/segment"
    applied(server)
    write(
        tmp_path,
        {"first": PROGRESS + f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; " + GOOD},
        config="files: [segment.yaml]",
    )
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    server.objects[path] = {"metadata": {"labels": {"app": "segment"}, "uid": "another"}, "of": "another owner"}
    (tmp_path / "go").touch()
    ended = going.wait()
    assert "Deployment segment does not belong to this run; it is not removed" in ended.stderr
    assert server.objects[path]["of"] == "another owner"


@pytest.mark.slow
def test_a_missing_image_is_told_within_seconds_and_undone(tmp_path: Path, server: ApiServer) -> None:
    # Fault K10 of the engine: hours of silence.
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    message = 'Back-off pulling image "nowhere/x:1": ErrImagePull: docker.io/nowhere/x:1: not found'
    state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
    applied(
        server,
        phase="Pending",
        conditions=[],
        containerStatuses=[{"name": "worker", "restartCount": 0, "state": state}],
    )
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    before = time.monotonic()
    ended = run(tmp_path)
    assert time.monotonic() - before < 20
    assert "deployments.pods.config.files: its pods cannot start." in ended.stderr
    assert 'Back-off pulling image "nowhere/x:1"' in ended.stderr
    assert "correct the image" in ended.stderr
    assert not server.objects


@pytest.mark.slow
def test_pods_that_the_cluster_refuses_are_told_with_the_events_text(tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    server.events.append(
        {
            "metadata": {},
            "involvedObject": {"kind": "ReplicaSet", "name": "segment-5d9"},
            "reason": "FailedCreate",
            "message": 'pods "segment-5d9-x" is forbidden: exceeded quota: small',
            "lastTimestamp": "2999-01-01T00:00:00Z",
        }
    )
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    ended = run(tmp_path)
    assert "the cluster refuses to create its pods" in ended.stderr
    assert "exceeded quota: small" in ended.stderr


@pytest.mark.slow
def test_more_locations_than_there_are_is_refused(tmp_path: Path, server: ApiServer) -> None:
    # Fault C2 of the engine: it waited for ever, in silence.
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    applied(server)
    write(tmp_path, {"first": GOOD}, target=", locations: 2", config="files: [segment.yaml]")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "locations: 2, and pods has 1" in ended.stderr
    assert not server.objects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({}, "has another owner (stranger)"),
        ({"medweave.dev/driver": "another-machine_1-1"}, "has another owner (elsewhere)"),
    ],
)
def test_objects_of_others_are_left_alone(
    tmp_path: Path, server: ApiServer, labels: dict[str, str], words: str
) -> None:
    # Fault K7 of the engine: any pod of the name was used.
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/segment"
    server.objects[path] = {"metadata": {"labels": labels}, "of": "another owner"}
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    ended = run(tmp_path)
    assert words in ended.stderr
    assert server.objects[path]["of"] == "another owner"


@pytest.mark.slow
def test_what_a_killed_run_left_is_replaced(tmp_path: Path, server: ApiServer) -> None:
    from medweave_connectors.sites.pods import owner

    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/segment"
    mine = owner.labels()
    ended_driver = re.sub(r"_\d+-", "_999999999-", mine[owner.DRIVER])
    server.objects[path] = {"metadata": {"labels": mine | {owner.DRIVER: ended_driver}}, "of": "a killed run"}
    applied(server)
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert not server.objects
