"""A command on this machine: output, environment, time limit, groups, cost."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.runlog.job_output import LINE_BYTES
from medweave_connectors.sites.local import process
from medweave_connectors.sites.local.process import EndedCommand, LocalCommand
from support.engine import wait_until
from support.processes import alive


def run(
    script: str, folder: Path, *, time_limit_s: float | None = None, environment: Any = None, **keywords: Any
) -> tuple[LocalCommand, EndedCommand]:
    async def go() -> tuple[LocalCommand, EndedCommand]:
        command = LocalCommand(
            ["sh", "-c", shlex.quote(script)],
            environment={"PATH": os.environ["PATH"], **(environment or {})},
            workdir=folder,
            **keywords,
        )
        return command, await command.wait(time_limit_s=time_limit_s)

    return asyncio.run(go())


def alive_until(condition: Callable[[], bool]) -> None:
    wait_until(condition, 5)
    assert condition()


def test_lines_of_stderr_come_one_by_one_and_the_rest_is_kept(tmp_path: Path) -> None:
    taken = []

    def takes_line(line: str) -> bool:
        taken.append(line)
        return line.startswith("take")

    command, ended = run(
        "echo take 1 >&2; echo keep >&2; printf 'bar 1\\rbar 2' >&2; exit 3", tmp_path, takes_line=takes_line
    )
    assert ended.exit_code == 3
    assert taken == ["take 1", "keep", "bar 1", "bar 2"]
    assert list(command.stderr_tail) == ["keep", "bar 1", "bar 2"]


def test_much_output_neither_blocks_nor_fills_the_memory(tmp_path: Path) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x >&2; seq 200000; seq 100000 >&2"
    command, ended = run(script, tmp_path)
    assert ended.exit_code == 0
    assert len(command.stderr_tail) == len(command.stdout_tail) == process.TAIL_LINES
    assert command.stderr_tail[-1] == "100000"
    assert max(map(len, command.stderr_tail)) <= LINE_BYTES


def test_output_that_is_no_text_does_not_break_the_reader(tmp_path: Path) -> None:
    command, _ = run("printf '\\377\\376 end\\n' >&2", tmp_path)
    assert command.stderr_tail[-1].endswith("end")


def test_environment_reaches_the_command_unchanged(tmp_path: Path) -> None:
    # Fault C7 of the engine: it writes NAME="value" into a shell line, where these are executed or break it.
    value = "a $HOME `id` \"quoted\" 'single' \\ end\nsecond line"
    run('printf %s "$VALUE" > value.txt', tmp_path, environment={"VALUE": value})
    assert (tmp_path / "value.txt").read_text() == value


def test_files_for_the_streams_and_folders_with_blanks_and_quotes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with 'quotes'"
    folder.mkdir()
    (folder / "in.txt").write_text("hello")
    command, _ = run("cat; echo oops >&2", folder, stdin="in.txt", stdout="out.txt", stderr="err.txt")
    assert (folder / "out.txt").read_text() == "hello"
    assert (folder / "err.txt").read_text() == "oops\n"
    assert not command.stderr_tail


@pytest.mark.parametrize(
    ("script", "exit_code"), [("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exec nothing-there", 127)]
)
def test_exit_codes_are_those_of_a_shell(tmp_path: Path, script: str, exit_code: int) -> None:
    assert run(script, tmp_path)[1].exit_code == exit_code


@pytest.mark.slow
def test_time_limit_ends_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fault C8 of the engine: after its time limit the process lives on.
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child.txt; while :; do sleep 0.1; done' & wait; sleep 60"
    started = time.monotonic()
    _, ended = run(script, tmp_path, time_limit_s=0.5)
    assert ended.timed_out
    assert ended.exit_code == 137
    assert time.monotonic() - started < 30
    child = int((tmp_path / "child.txt").read_text())
    alive_until(lambda: not alive(child))


def test_time_limit_lets_a_command_clean_up(tmp_path: Path) -> None:
    script = "trap 'touch cleaned.txt; exit 143' TERM; touch ready.txt; while :; do sleep 0.05; done"
    _, ended = run(script, tmp_path, time_limit_s=0.5)
    assert ended.timed_out
    assert (tmp_path / "cleaned.txt").exists()
    assert ended.exit_code == 143


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    _, ended = run("sleep 60 & echo $! > child.txt", tmp_path)
    assert ended.exit_code == 0
    child = int((tmp_path / "child.txt").read_text())
    alive_until(lambda: not alive(child))


def test_a_cancelled_wait_ends_the_command(tmp_path: Path) -> None:
    async def go() -> int:
        command = LocalCommand(
            ["sh", "-c", shlex.quote("echo $$ > pid.txt; sleep 60")], environment=dict(os.environ), workdir=tmp_path
        )
        waiting = asyncio.create_task(command.wait())
        await asyncio.sleep(0)
        while not (tmp_path / "pid.txt").exists() or not (tmp_path / "pid.txt").read_text():
            await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return int((tmp_path / "pid.txt").read_text())

    pid = asyncio.run(go())
    assert not alive(pid)
    assert not process.running


def test_a_signal_after_the_end_reaches_nobody(tmp_path: Path) -> None:
    command, _ = run("true", tmp_path)
    command.signal_group(signal.SIGKILL)  # the id may be another's by now: nothing is sent, nothing is raised


@pytest.mark.slow
def test_cost_is_the_commands_own(tmp_path: Path) -> None:
    program = """
import time
block = bytearray(200 << 20)
start = time.process_time()
while time.process_time() - start < 0.3:
    pass
time.sleep(1.2)
"""
    script = f"exec python3 -c {shlex.quote(program)}"
    _, ended = run(script, tmp_path)
    assert ended.exit_code == 0
    assert ended.cpu_seconds > 0.25
    assert ended.seconds > 1.2
    assert ended.peak_memory_mib is not None
    # 200 MiB of zeros and the interpreter, whatever the size of the process that runs these tests.
    assert 200 < ended.peak_memory_mib < 200 + max(60, own_peak_mib())


@pytest.mark.slow
def test_memory_of_a_child_counts(tmp_path: Path) -> None:
    # A shell that waits: the block is its child's.
    script = "python3 -c 'import time; block = bytearray(120 << 20); time.sleep(1.5)'; true"
    peak_mib = run(script, tmp_path)[1].peak_memory_mib
    assert peak_mib is not None
    assert peak_mib > 120


def own_peak_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_short_command_claims_no_memory(tmp_path: Path) -> None:
    # The kernel's figure would be the size of this test process.
    assert run("true", tmp_path)[1].peak_memory_mib is None
