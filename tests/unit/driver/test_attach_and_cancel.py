"""`medweave attach` and `medweave cancel`: a run that another process drives, by real processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli import main_command
from medweave.runs.cancel import has_open
from medweave.runs.logs import OutputReader
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import read_run
from support import engine
from support.driver_calls import call
from support.engine import Run, wait_until, write_workflow
from support.recorded import Recorder

PROGRAM = Path(sys.executable).parent / "medweave"
SLOW = "echo $$ > {folder}/pid; while :; do sleep 0.1; done"
STUBBORN = f"trap '' INT TERM; {SLOW}"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEDWEAVE_")}
    return subprocess.Popen(
        [PROGRAM, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def running_workflow(folder: Path, command: str) -> Iterator[tuple[Run, int]]:
    """Start a run by plain `streamflow run`; yield it and the process id of its one job."""
    write_workflow(folder, {"slow": command.format(folder=folder)})
    driver, pid = engine.start(folder), folder / "pid"
    try:
        wait_until(lambda: pid.exists() and pid.read_text(encoding="utf-8").strip() != "", 60)
        yield driver, int(pid.read_text(encoding="utf-8"))
    finally:
        driver.process.kill()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)
        driver.wait()


def run_of(folder: Path) -> Path:
    (log,) = (folder / "runs").glob("*/events.jsonl")
    return log.parent


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_cancel_ends_the_run_and_prints_its_summary(tmp_path: Path) -> None:
    with running_workflow(tmp_path, SLOW) as (driver, job):
        code, out, err = call("cancel", cwd=tmp_path)
        assert (code, out) == (0, ""), err
        assert driver.wait(20).exit_code == -signal.SIGTERM, "it ends as after any TERM"
        wait_until(lambda: is_gone(job))
    assert read_run(run_of(tmp_path)).state == "cancelled"
    assert f"canceling run {run_of(tmp_path).name} and cleaning up (Ctrl-C stops waiting)" in err
    assert "slow         stopped after" in err
    assert "started on" not in err, "earlier events are not shown"
    assert f"run {run_of(tmp_path).name} cancelled after" in err


@pytest.mark.slow
def test_a_stubborn_job_is_killed_and_a_second_cancel_does_no_harm(tmp_path: Path) -> None:
    with running_workflow(tmp_path, STUBBORN) as (driver, job):
        first = start(tmp_path, "cancel", run_of(tmp_path).name)
        assert first.stderr is not None
        assert "canceling run" in first.stderr.readline()
        code, _, err = call("cancel", run_of(tmp_path), cwd=tmp_path)
        assert code == 0 or "seen:     state cancelled" in err, "it may come too late"
        assert (first.wait(20), driver.wait(20).exit_code) == (0, -signal.SIGTERM)
        wait_until(lambda: is_gone(job))
        first.communicate()


@pytest.mark.slow
def test_attach_shows_all_of_a_run_and_leaves_it_alone(tmp_path: Path) -> None:
    with running_workflow(tmp_path, SLOW) as (driver, job):
        lines = start(tmp_path, "attach")
        assert lines.stderr is not None
        assert lines.stderr.readline().startswith("medweave: run "), "from the beginning"
        assert "started on" in lines.stderr.readline()
        lines.send_signal(signal.SIGINT)
        _, err = lines.communicate(timeout=20)
        assert lines.returncode == 130
        assert f"medweave attach {run_of(tmp_path).name}" in err
        assert driver.process.exitcode is None
        assert not is_gone(job)

        events = start(tmp_path, "attach", "--json")
        assert events.stdout is not None
        assert events.stderr is not None
        first = events.stdout.readline()
        assert call("cancel", cwd=tmp_path)[0] == 0
        out, err = events.stdout.read(), events.stderr.read()
        assert first + out == (run_of(tmp_path) / "events.jsonl").read_text(encoding="utf-8")
        assert events.wait(20) == 1, err
        assert "cancelled after" in err


@pytest.mark.slow
def test_logs_follows_a_job_until_its_end(tmp_path: Path) -> None:
    talks = "echo $$ > {folder}/pid; echo one >&2; while [ ! -e {folder}/go ]; do sleep 0.1; done; echo two >&2; echo > result.txt"
    with running_workflow(tmp_path, talks):
        logs = start(tmp_path, "logs", "slow", "--follow")
        assert logs.stdout is not None
        assert logs.stdout.readline() == "one\n"
        assert logs.poll() is None
        (tmp_path / "go").touch()
        assert logs.stdout.read() == "two\n", "also where the scratch is removed before it is read"
        assert logs.wait(20) == 0


def test_output_is_read_once_across_a_rotation_and_a_removal_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "train"
    (tmp_path / "train.1").write_text("a\n", encoding="utf-8")
    with OutputReader(path) as printed:
        path.write_text("b\n", encoding="utf-8")
        assert printed.new() == "a\nb\n"
        with path.open("a", encoding="utf-8") as file:
            file.write("c\n")
            path.replace(tmp_path / "train.1")
            path.write_text("d\n", encoding="utf-8")
        assert printed.new() == "c\nd\n"
        with path.open("a", encoding="utf-8") as file:
            file.write("e\n")
        path.unlink()
        assert [printed.new(), printed.new()] == ["e\n", ""]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One run that has ended, and two whose logs are locked by this test, which is not their driver."""
    monkeypatch.chdir(tmp_path)
    Recorder(tmp_path / "runs" / "old").end(60)
    descriptors = []
    for name in ("one", "other"):
        Recorder(tmp_path / "runs" / name, pid=2**22 + 1)  # no process has such an id
        descriptors.append(os.open(tmp_path / "runs" / name / "events.jsonl", os.O_RDONLY))
        fcntl.flock(descriptors[-1], fcntl.LOCK_EX)
    yield tmp_path / "runs"
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "several runs are running"),
        (("old",), "run old is not running.\n  seen:     state completed"),
        (("ohter",), "'other'"),
        (("runs/one",), "cannot reach the driver of run one from this machine"),
    ],
)
def test_a_run_that_cannot_be_cancelled_is_an_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_command.main(["cancel", *words]) == UserInputError.exit_code
    assert message in capsys.readouterr().err


def test_attach_fails_without_a_running_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Recorder(tmp_path / "runs" / "killed")
    assert main_command.main(["attach"]) == UserInputError.exit_code
    assert "no run is running" in capsys.readouterr().err
    assert main_command.main(["attach", "killed"]) == UserInputError.exit_code
    assert "medweave clean runs/killed" in capsys.readouterr().err


def test_a_process_is_known_by_the_files_that_it_has_open(tmp_path: Path) -> None:
    file, other = tmp_path / "events.jsonl", tmp_path / "other"
    other.touch()
    with file.open("w", encoding="utf-8"):
        assert has_open(os.getpid(), file)
        assert not has_open(os.getpid(), other)
        assert not has_open(2**22 + 1, file)
        assert has_open(1, file, processes=tmp_path / "none"), "a system without /proc"
