"""A testbed that is half up says which part is down and why, and `up` mends that part and leaves the rest alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.testbed import COMMAND, Sites, call, down_parts, pod_document, unique, wait_for


@pytest.fixture(autouse=True)
def mended(testbed: Sites) -> Iterator[None]:
    """Repair the testbed after a test that breaks it."""
    yield
    call("up", timeout_s=300)


def started_parts(output: str) -> list[str]:
    """Return the parts that `up` had to start, read from its lines."""
    rows = [line.split() for line in output.splitlines() if line.startswith("  ")]
    return [row[0] for row in rows if row[1] == "up"]


def process_of(testbed: Sites, daemon: str) -> int:
    """Return a daemon's process id inside the testbed's namespaces."""
    return int((testbed.layout.run / f"{daemon}.pid").read_text(encoding="utf-8").split()[0])


def test_a_second_up_changes_nothing_and_takes_less_than_a_minute(testbed: Sites) -> None:
    call("up", timeout_s=300)
    before = {file.name: file.read_text(encoding="utf-8") for file in testbed.layout.run.glob("*.pid")}
    began = time.monotonic()
    outcome = call("up", timeout_s=300)
    seconds = time.monotonic() - began
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert seconds < 60
    assert {file.name: file.read_text(encoding="utf-8") for file in testbed.layout.run.glob("*.pid")} == before


@pytest.mark.parametrize("daemon", ["kubelet", "slurmctld", "coredns"])
def test_a_daemon_that_died_is_named_and_started_again(testbed: Sites, daemon: str) -> None:
    testbed.inside("base", "kill", "-KILL", str(process_of(testbed, daemon)))
    assert "is gone (stale pid file)" in down_parts()[daemon]
    shown = call("status")
    assert shown.returncode == 1
    assert f"  {daemon:<14} DOWN" in shown.stdout
    outcome = call("up", timeout_s=300)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert daemon in started_parts(outcome.stdout)
    assert not {"etcd", "apiserver", "login", "munge"} & set(started_parts(outcome.stdout))
    assert down_parts() == {}


def test_pods_live_on_while_the_kubelet_is_started_again(testbed: Sites) -> None:
    with testbed.pod("tenant-a", pod_document(unique("stays"), "sleep 600")) as name:
        testbed.inside("base", "kill", "-KILL", str(process_of(testbed, "kubelet")))
        assert call("up", timeout_s=300).returncode == 0

        def answered() -> bool | None:
            return testbed.tenant("tenant-a", "exec", name, "--", "true").returncode == 0 or None

        wait_for(answered, "exec in the pod")
        restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
        assert testbed.tenant("tenant-a", "get", "pod", name, "-o", restarts).stdout == "0"


def test_a_node_that_slurm_took_down_is_named_with_slurms_reason(testbed: Sites) -> None:
    testbed.inside("hpc", "scontrol", "update", "nodename=n2", "state=down", "reason=a test")
    try:
        reason = down_parts()["slurmd-n2"]
        assert "node n2 is DOWN" in reason
        assert "a test" in reason
    finally:
        testbed.inside("hpc", "scontrol", "update", "nodename=n2", "state=resume")


def test_a_taken_port_is_named_with_its_taker(testbed: Sites) -> None:
    testbed.inside("base", "kill", "-KILL", str(process_of(testbed, "coredns")))
    listen = "import socket, time; s = socket.create_server(('', 53)); print('listening', flush=True); time.sleep(300)"
    words = [*testbed.words_inside("base"), "/usr/bin/python3", "-c", listen]
    taker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert taker.stdout is not None
    try:
        assert taker.stdout.readline() == "listening\n"
        assert 'users:(("python3"' in down_parts()["coredns"]
        outcome = call("up", timeout_s=300)
        assert outcome.returncode == 1
        assert "testbed: coredns: its port 53 is taken." in outcome.stdout
        assert 'users:(("python3"' in outcome.stdout
        assert "not tried" not in outcome.stdout  # nothing else needs it
    finally:
        subprocess.run(["pkill", "-P", str(taker.pid)], check=False)
        taker.wait(timeout=10)
        taker.stdout.close()


def test_an_interrupt_ends_what_was_being_started_and_nothing_else(testbed: Sites) -> None:
    old = process_of(testbed, "slurmctld")
    testbed.inside("base", "kill", "-KILL", str(old))
    process = subprocess.Popen(
        [sys.executable, str(COMMAND), "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def started() -> int | None:
        try:
            new = process_of(testbed, "slurmctld")
        except (OSError, IndexError):
            return None
        return new if new != old else None

    new = wait_for(started, "slurmctld is being started", deadline_s=30)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; ending the parts that were starting: slurmctld" in errors
    assert testbed.inside("base", "kill", "-0", str(new)).returncode != 0
    down = down_parts()
    assert down["slurmctld"] == "it was never started"
    assert {"etcd", "apiserver", "kubelet", "login", "slurmdbd"}.isdisjoint(down)


def test_only_one_up_works_at_a_time(testbed: Sites) -> None:
    with subprocess.Popen(["flock", str(testbed.layout.folder / ".lock"), "sleep", "30"]) as holder:
        wait_for(lambda: call("up").returncode or None, "the lock is taken", deadline_s=20)
        outcome = call("up")
        holder.terminate()
    assert "another command works on this testbed" in outcome.stderr


def without(
    folders: list[str], *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the testbed's command on a machine that lacks some folders."""
    hide = "\n".join(f"mount -t tmpfs tmpfs {folder}" for folder in folders if Path(folder).is_dir())
    line = ["unshare", "--mount", "sh", "-c", f'{hide}\nexec "$@"', "sh", sys.executable, str(COMMAND), *words]
    variables = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env=variables, check=False)


def test_a_machine_without_go_is_told_what_to_do_before_anything_is_started() -> None:
    elsewhere = {"MEDWEAVE_TESTBED": "/opt/medweave-testbed-without-go"}
    outcome = without(["/usr/local/go"], "up", environment=elsewhere)
    assert outcome.returncode == 1
    assert "seen:     no Go compiler" in outcome.stderr
    assert "MEDWEAVE_TESTBED_BINARIES=DIR" in outcome.stderr
    assert "`make demo` and `make test` need no testbed" in outcome.stderr
    assert not Path(elsewhere["MEDWEAVE_TESTBED"]).exists()


def test_a_half_named_cluster_is_refused(testbed: Sites) -> None:
    outcome = call("up", environment={"MEDWEAVE_TESTBED_KUBERNETES": "existing", "KUBECONFIG": "/no/such/file"})
    assert outcome.returncode == 1
    assert "it is not clear which cluster is meant" in outcome.stderr
