"""Foreground programs end with the whole; processes are known again by id and start time; views are scripts that a shell takes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from medweave_testbed import control_groups, walls
from medweave_testbed.commands import Cancelled, Commands
from medweave_testbed.errors import TestbedError
from medweave_testbed.layout import Layout
from medweave_testbed.walls import NetworkView, laptop_command, living, remember, view_script


def test_a_program_gives_its_output_and_takes_standard_input() -> None:
    assert Commands().run(["tr", "a-z", "A-Z"], text="words") == "WORDS"


def test_a_failed_program_is_quoted_with_its_exit_code() -> None:
    with pytest.raises(TestbedError) as refusal:
        Commands().run(["sh", "-c", "echo cause one >&2; echo cause two >&2; exit 3"])
    assert refusal.value.seen == "exit code 3; cause one\ncause two"


def test_a_failed_program_with_a_log_is_quoted_from_there(tmp_path: Path) -> None:
    log = tmp_path / "build" / "log"
    with pytest.raises(TestbedError) as refusal:
        Commands().run(["sh", "-c", "echo text; exit 1"], log=log)
    assert refusal.value.seen == "exit code 1; text"
    assert str(log) in refusal.value.do


def test_an_absent_program_is_an_error_for_people() -> None:
    with pytest.raises(TestbedError, match="no-such-program") as refusal:
        Commands().run(["no-such-program"])
    assert "there is no program 'no-such-program'" in refusal.value.seen


def test_a_program_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TestbedError) as refusal:
        Commands().run(["sleep", "60"], timeout_s=0.2)
    assert "still running after" in refusal.value.seen
    assert time.monotonic() - began < 10


def test_cancelling_ends_a_program_with_its_children_and_refuses_new_ones(tmp_path: Path) -> None:
    commands, pid_file = Commands(), tmp_path / "pid"
    raised: list[BaseException] = []

    def work() -> None:
        try:
            commands.run(["sh", "-c", f"sleep 60 & echo $! >{pid_file}; wait"])
        except Cancelled as stop:
            raised.append(stop)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.01)
    commands.cancel()
    thread.join(timeout=10)
    assert raised
    child = int(pid_file.read_text())
    while walls.start_time(child, Path("/proc")) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert walls.start_time(child, Path("/proc")) is None
    with pytest.raises(Cancelled):
        commands.run(["true"])


def test_a_process_is_known_again_only_while_it_is_the_same(tmp_path: Path) -> None:
    file, proc = tmp_path / "run" / "a.pid", Path("/proc")
    assert living(file, proc) is None
    process = subprocess.Popen(["sleep", "60"])
    remember(file, process.pid, proc)
    assert living(file, proc) == process.pid
    process.kill()
    process.wait()
    assert living(file, proc) is None
    file.write_text(f"{os.getpid()} 1\n", encoding="utf-8")  # the id was reused for another process
    assert living(file, proc) is None


def test_a_zombie_lives_no_more(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    remember(tmp_path / "a.pid", process.pid, Path("/proc"))
    deadline = time.monotonic() + 10
    while living(tmp_path / "a.pid", Path("/proc")) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert living(tmp_path / "a.pid", Path("/proc")) is None
    process.wait()


def test_a_view_closes_the_other_roots_and_quotes_its_paths() -> None:
    odd = Path("/srv/it's a bed")
    view = NetworkView(
        hostname="login", state=odd / "site", closed=(odd / "laptop",), bound=((odd / "hosts", "/etc/hosts"),),
        folders=(("/run/sshd", "root", 0o755),),
    )  # fmt: skip
    script = view_script(view)
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    lines = script.splitlines()
    assert """mount -t tmpfs -o mode=0000,size=4k tmpfs '/srv/it'"'"'s a bed/laptop'""" in lines
    assert lines.index("mount -t tmpfs -o mode=0755 tmpfs /run") < lines.index("mkdir -p /run/sshd")
    assert lines[-1] == "exec sleep infinity"


def test_the_laptop_is_behind_walls_too() -> None:
    layout = Layout(folder=Path("/opt/bed"), instance=0)
    words = laptop_command(layout, ["program", "one argument"])
    assert words[:4] == ["unshare", "--mount", "--propagation", "private"]
    assert words[-2:] == ["program", "one argument"]
    closed = [line.split()[-1] for line in words[words.index("-c") + 1].splitlines() if "mode=0000" in line]
    assert closed == ["/opt/bed/hpc", "/opt/bed/pods", "/opt/bed/kubernetes", "/opt/bed/slurm"]


OLD = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
NEW = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"


def test_control_group_hierarchies_of_both_versions_are_found() -> None:
    assert control_groups.hierarchies(OLD) == [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")]
    assert control_groups.hierarchies(NEW) == [Path("/sys/fs/cgroup")]
    # `down` looks in all of them: containers leave groups in the second version's mount, too.
    assert [path.name for path in control_groups.all_mounted(OLD)] == ["cpu", "memory", "unified"]
    assert control_groups.all_mounted(NEW) == [Path("/sys/fs/cgroup")]


def test_control_groups_are_removed_from_the_deepest_on(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "bed" / "pods" / "one").mkdir(parents=True)
    (tmp_path / "memory" / "other").mkdir(parents=True)
    assert control_groups.remove([tmp_path / "cpu", tmp_path / "memory"], "bed") == []
    assert not (tmp_path / "cpu" / "bed").exists()
    assert (tmp_path / "memory" / "other").exists()


def test_a_control_group_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "bed" / "busy").mkdir(parents=True)
    (tmp_path / "bed" / "busy" / "process").touch()  # rmdir fails, as it does for a group with processes
    assert control_groups.remove([tmp_path], "bed", patience_s=0.2) == [tmp_path / "bed" / "busy", tmp_path / "bed"]
