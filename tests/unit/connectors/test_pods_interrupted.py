"""What takes pods, commands and the API server away in the middle of a run over `medweave.kubernetes`."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.jobs.remote_environment import is_read_only
from medweave_connectors.transfer.manifest import remote_scan
from support.api_server import ApiServer
from support.engine import start, wait_until
from support.small_cluster import DEPLOYMENT, PROGRESS, applied, failure, small_cluster, write

GOOD = "echo {} > run_report.json; echo $POD_NAME > result.txt"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with small_cluster(tmp_path) as serving:
        yield serving


def test_a_pod_that_vanishes_is_told_as_such(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"sleeper": PROGRESS + "sleep 60"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    pod = next(
        name
        for name in ("w-0", "w-1")
        if any("medweave-pod pid" in words[-1] for words in server.commands.get(name, []))
    )
    server.remove(pod)
    ended = going.wait()
    assert f"pod {pod} is gone" in ended.stderr
    assert failure(ended)["exit_code"] == 75, "another try may succeed"


@pytest.mark.slow
def test_a_connection_that_breaks_is_no_end(tmp_path: Path, server: ApiServer) -> None:
    # Fault K11 of the engine: TypeError, and a cut stream reads as its end.
    write(tmp_path, {"sleeper": f"echo $$ > {tmp_path}/pid; " + PROGRESS + "while :; do sleep 0.1; done"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    for name in ("w-0", "w-1"):
        server.drop(name)
    ended = going.wait()
    assert ended.exit_code == 1
    assert "broke before the command had ended" in ended.stderr
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "nor does the command keep running"


@pytest.mark.slow
def test_a_success_that_the_command_has_not_told_is_none(tmp_path: Path, server: ApiServer) -> None:
    # Found by the fault campaign: when a kubelet is killed, the API server calls its commands well.
    script = f"echo half > result.txt; echo $$ > {tmp_path}/pid; {PROGRESS}while :; do sleep 0.1; done"
    write(tmp_path, {"sleeper": script})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    for name in ("w-0", "w-1"):
        server.cut(name)
    ended = going.wait()
    assert ended.exit_code == 1, "half an output is no output"
    assert "broke before the command had ended" in ended.stderr
    assert failure(ended)["site"]["failure"] == "Unknown"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.slow
def test_a_container_that_is_killed_tells_why_a_moment_later(tmp_path: Path, server: ApiServer) -> None:
    # Found by the fault campaign: a pod over the limit of its volume still looks well when its command is dead already.
    write(tmp_path, {"sleeper": f"echo $$ > {tmp_path}/pid; " + PROGRESS + "exec sleep 60"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    server.refuse[("GET", "/exec")] = (500, "container not found")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    time.sleep(1)
    for pod in server.pods.values():
        pod["status"] |= {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "Usage of EmptyDir volume exceeds the limit",
        }
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Preempted"
    assert "Evicted: Usage of EmptyDir volume exceeds the limit" in ended.stderr


@pytest.mark.slow
def test_an_evicted_pod_whose_container_ended_well_is_told_by_its_event(tmp_path: Path, server: ApiServer) -> None:
    # The real phase of such a pod is Succeeded: only the kubelet's event says that it was evicted.
    write(tmp_path, {"sleeper": f"echo $$ > {tmp_path}/pid; " + PROGRESS + "exec sleep 60"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, pod in server.pods.items():
        pod["status"]["phase"] = "Succeeded"
        event = {"involvedObject": {"name": name}, "reason": "Evicted", "lastTimestamp": now, "metadata": {}}
        server.events.append(event | {"message": 'Usage of EmptyDir volume "work" exceeds the limit "10Mi".'})
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Preempted"
    assert 'Evicted: Usage of EmptyDir volume "work" exceeds the limit "10Mi".' in ended.stderr


def away(server: ApiServer, *requests: tuple[str, str], status: int = 503) -> None:
    """The server answers some such requests with 503 or 403, as one that is started again does."""
    server.refuse |= dict.fromkeys(requests, (status, "the server is not ready"))

    def come_back() -> None:
        wait_until(lambda: sum(server.refusals.values()) >= 4, 30)
        server.refuse.clear()

    threading.Thread(target=come_back, daemon=True).start()


@pytest.mark.slow
def test_a_command_is_ended_when_the_api_server_is_back(tmp_path: Path, server: ApiServer) -> None:
    # It was ended with one attempt: a command in a remaining pod ran for ever.
    write(tmp_path, {"sleeper": f"echo $$ > {tmp_path}/pid; " + PROGRESS + "while :; do sleep 0.1; done"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    away(server, ("GET", "/pods"))
    for name in ("w-0", "w-1"):
        server.drop(name)
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Unknown"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, 403])
def test_outputs_come_home_when_the_api_server_is_back(tmp_path: Path, server: ApiServer, status: int) -> None:
    # Found by the fault campaign: the copy was repeated at once, when the server was still down, or refused every account.
    write(tmp_path, {"first": PROGRESS + "sleep 0.5; " + GOOD})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    away(server, ("GET", "/exec"), ("GET", "/pods"), status=status)
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() in ("w-0\n", "w-1\n")
    assert "a copy was cut and is repeated" in ended.stderr


@pytest.mark.parametrize(
    ("command", "looks"),
    [
        (["test", "-e", "'a b'", "&&", "readlink", "-f", "'a b'"], True),
        (["set", "--", "/x/*.txt", ";", "test", "-e", '"$1"', "&&", "printf", "'%s\\n'", '"$@"', ";", ":"], True),
        (remote_scan.glob("/x", "*.txt"), True),
        (["find -L \"/x\" -type f -exec ls -ln {} \\+ | awk '{sum+=$5}'; "], True),
        (["test -e /x"], True),
        (["test", "-d", "/x", "||", "mkdir", "/x"], False),
        (["[", "-e", "'a > b rm c'", "]"], True),
        (["test", "-e", "'unclosed"], False),
        (["cat", "/x", ">", "/y"], False),
        (["find", "/x", "-delete"], False),
        (["rm", "-rf", "/x"], False),
        (["tee", "/x", ">", "/dev/null"], False),
    ],
)
def test_only_what_looks_is_sent_again(command: list[str], looks: bool) -> None:
    assert is_read_only(command) is looks


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, 403])
def test_manifests_are_deleted_when_the_api_server_is_back(tmp_path: Path, server: ApiServer, status: int) -> None:
    (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
    applied(server)
    write(tmp_path, {"first": PROGRESS + "sleep 0.5; " + GOOD}, config="files: [segment.yaml]")
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    away(server, ("DELETE", "deployments"), status=status)
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert not server.objects
    assert "could not be deleted" not in ended.stderr
