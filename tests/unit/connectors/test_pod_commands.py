"""Scripts for containers, run by the shell of this machine; counters as cgroup v1 and v2 write them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from medweave_connectors.host.job_processes import KEY, ProcessGroup, end_line, start_time
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.sites.pods.exec.commands import Counters, build_start_command, explain_failure, parse_counters
from support.engine import wait_until

V1 = [
    "medweave-pod pid 17 19",
    "medweave-pod /sys/fs/cgroup/memory/memory.oom_control oom_kill_disable 0",
    "medweave-pod /sys/fs/cgroup/memory/memory.oom_control under_oom 0",
    "medweave-pod /sys/fs/cgroup/memory/memory.oom_control oom_kill 3",
    "medweave-pod /sys/fs/cgroup/memory/memory.limit_in_bytes 536870912",
    "medweave-pod /sys/fs/cgroup/cpuacct/cpuacct.usage 2500000000",
]
V2 = [
    "medweave-pod /sys/fs/cgroup/memory.events oom 1",
    "medweave-pod /sys/fs/cgroup/memory.events oom_kill 1",
    "medweave-pod /sys/fs/cgroup/memory.max max",
    "medweave-pod /sys/fs/cgroup/cpu.stat usage_usec 1500000",
    "medweave-pod /sys/fs/cgroup/cpu.stat user_usec 9",
    "medweave-pod something-new yes",
]


def test_counters_of_both_versions() -> None:
    assert parse_counters(V1) == Counters(
        group=ProcessGroup(17), command=19, oom_kills=3, cpu_seconds=2.5, limit_mib=512
    )
    assert parse_counters(V2) == Counters(oom_kills=1, cpu_seconds=1.5)
    assert not Counters().take("medweave-progress {}")


def test_a_limit_that_is_none() -> None:
    line = "medweave-pod /sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712"
    assert parse_counters([line]).limit_mib is None


def test_a_kill_is_judged_by_the_counter() -> None:
    before, after = Counters(oom_kills=1), Counters(oom_kills=2, limit_mib=512)
    assert explain_failure(137, before, after) == (
        "out of memory: 1 of its processes were killed at the container's memory limit of 512 MiB."
    )
    assert "out of memory" in explain_failure(1, before, after), (
        "a child was killed, and the step reported something else"
    )
    assert "counts no kill for memory" in explain_failure(137, before, Counters(oom_kills=1))
    assert "not readable" in explain_failure(137, Counters(), Counters())
    assert explain_failure(65, before, Counters(oom_kills=1)) == ""


def test_the_command_starts_in_its_folder_with_its_environment(tmp_path: Path) -> None:
    # Fault C7 of the engine: values were run by the shell.
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    value = "a\"b `touch harm` $HOME 'c'"
    line = shell_line(["printf", "%s", '"$VALUE"'], environment={"VALUE": value}, workdir=str(folder), stdout="out put")
    done = subprocess.run(build_start_command(line), capture_output=True, text=True, check=True)
    assert (folder / "out put").read_text() == value
    assert not (folder / "harm").exists()
    assert parse_counters(done.stderr.splitlines()).group == ProcessGroup(os.getpid(), started(os.getpid()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "trap '' INT TERM; while :; do sleep 0.1; done",
        "setsid sh -c 'trap \"\" TERM; sleep 60' & wait",
    ],
)
def test_the_end_reaches_all_processes_of_a_job(script: str) -> None:
    key = f"test-{time.monotonic_ns()}"
    line = shell_line(["sh", "-c", f'"{script}"'], environment={KEY: key}, workdir="/")
    job = subprocess.Popen(build_start_command(line), stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stderr is not None
    counters = Counters()
    while counters.group is None:
        counters.take(job.stderr.readline())
    time.sleep(0.3)
    subprocess.run(["sh", "-c", end_line(counters.group, key, signal="TERM", grace_s=0.5)], check=True, timeout=20)
    job.wait(timeout=5)
    wait_until(lambda: not marked(key))
    assert not marked(key)


@pytest.mark.slow
def test_a_group_whose_number_belongs_to_a_later_process_is_left_alone() -> None:
    later = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        end(ProcessGroup(later.pid, str(int(started(later.pid)) - 1)))
        assert later.poll() is None
        end(ProcessGroup(later.pid, started(later.pid)))
        assert later.wait(timeout=5) == -signal.SIGTERM
    finally:
        later.kill()
        later.wait()


@pytest.mark.slow
def test_a_group_whose_leader_is_gone_is_ended() -> None:
    leader = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    group = ProcessGroup(leader.pid, started(leader.pid))
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    leader.wait()
    end(group)
    wait_until(lambda: not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(f"/proc/{child}/status").read_text())


def end(group: ProcessGroup) -> None:
    line = end_line(group, f"test-{time.monotonic_ns()}", signal="TERM", grace_s=0.5)
    subprocess.run(["sh", "-c", line], check=True, timeout=20)


def started(pid: int) -> str:
    line = f'echo "${start_time(str(pid))}"'
    shown = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout.strip()
    assert shown == Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    return shown


def marked(key: str) -> list[str]:
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"MEDWEAVE_JOB={key}".encode() in (path / "environ").read_bytes():
                processes.append(path.name)
        except OSError:
            continue
    return processes
