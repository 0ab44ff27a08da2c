"""`down` leaves nothing of the testbed on the machine, and the next `up` reuses the parts that are slow to build."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.testbed import MAY_GO_DOWN, Sites, call, down_parts, pod_document, wait_for


@pytest.fixture
def busy(testbed: Sites) -> Iterator[Sites]:
    """Yield a testbed with a running pod, a running job and a program of the laptop's user; up again after the test."""
    if not MAY_GO_DOWN:
        pytest.skip("takes the testbed down, which others may be using: MEDWEAVE_TESTBED_MAY_GO_DOWN=1 allows it")
    job = testbed.submitted("-N2", script="srun sleep 600")
    wait_for(lambda: "RUNNING" in testbed.hpc("squeue", "-h", "-j", job, "-o", "%T").stdout or None, "the job runs")
    pod = pod_document("busy", "sleep 600")
    assert testbed.tenant("tenant-a", "apply", "-f", "-", text=json.dumps(pod)).returncode == 0
    assert testbed.tenant("tenant-a", "wait", "--for=condition=Ready", "pod/busy").returncode == 0
    user = ["setpriv", "--reuid=medweave-laptop", "--regid=medweave-laptop", "--clear-groups"]
    driver = subprocess.Popen([*user, "sleep", "600"])
    yield testbed
    driver.kill()
    driver.wait()
    assert call("up", timeout_s=600).returncode == 0


def output_of(*words: str) -> str:
    """Return the output of a program; empty if it is not installed."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def processes_with(text: str) -> list[str]:
    """Return the command lines, working folders and roots of processes that name a text; except this process."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines


def machine_facts() -> dict[str, str]:
    """Return the current state of what the testbed must not change."""
    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    facts = {name: Path("/proc/sys", name).read_text(encoding="utf-8") for name in settings}
    facts["rules"] = output_of("iptables-save") + output_of("nft", "list", "ruleset")
    facts["links"] = "\n".join(
        sorted(path.name for path in Path("/sys/class/net").iterdir() if "medweave" not in path.name)
    )
    facts["hosts"] = Path("/etc/hosts").read_text(encoding="utf-8")
    facts["mounts"] = output_of("findmnt", "--noheadings", "--list", "--output", "TARGET,FSTYPE")
    return facts


def test_a_running_testbed_changes_nothing_of_the_machine(testbed: Sites) -> None:
    facts = machine_facts()
    assert "KUBE" not in facts["rules"]
    assert str(testbed.layout.folder) not in facts["mounts"]
    assert not {"n1", "n2", "login"} & set(facts["hosts"].split())
    assert {path.name for path in Path("/sys/class/net").iterdir() if "medweave" in path.name} == {testbed.layout.link}
    log = (testbed.layout.log / "kubelet.log").read_text(encoding="utf-8", errors="replace")
    assert "Updating kernel flag" not in log  # a kubelet's message when it changes settings of the whole machine


def test_down_leaves_nothing_behind_and_up_is_quick_again(busy: Sites) -> None:
    layout = busy.layout
    before = machine_facts()
    outcome = call("down", timeout_s=120)
    assert outcome.returncode == 0, outcome.stderr
    assert machine_facts() == before
    assert not Path("/sys/class/net", layout.link).exists()
    assert not [path for path in Path("/sys/fs/cgroup").rglob("*") if layout.cgroup in path.name]
    alive = output_of("ps", "-u", "medweave-laptop,medweave-hpc", "-o", "pid=,args=").splitlines()
    assert not [line for line in alive if "<defunct>" not in line]  # those wait for the machine's first process
    assert processes_with(str(layout.folder)) == []
    assert down_parts()["sites"] == "needs users; its namespaces do not exist"
    left = {path.name for path in layout.folder.iterdir()}
    assert left <= {"bin", "cache", "environment", "log", ".lock", "bin.new"}
    began = time.monotonic()
    up = call("up", timeout_s=600)
    assert up.returncode == 0, up.stdout + up.stderr
    assert time.monotonic() - began < 120
    assert down_parts() == {}
