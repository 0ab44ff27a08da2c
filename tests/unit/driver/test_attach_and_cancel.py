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
from medweave.runs.cancel import holds
from medweave.runs.follow.printed_output import Printed
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
    own = {name: value for name, value in os.environ.items() if not name.startswith("MEDWEAVE_")}
    return subprocess.Popen(
        [PROGRAM, *words], cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def going(folder: Path, command: str) -> Iterator[tuple[Run, int]]:
    """A run of plain `streamflow run`, and the process of its one job."""
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
    (found,) = (folder / "runs").glob("*/events.jsonl")
    return found.parent


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_cancel_ends_the_run_and_tells_its_end(tmp_path: Path) -> None:
    with going(tmp_path, SLOW) as (driver, job):
        code, out, err = call("cancel", cwd=tmp_path)
        assert (code, out) == (0, ""), err
        assert driver.wait(20).exit_code == -signal.SIGTERM, "its own end, as of any TERM"
        wait_until(lambda: is_gone(job))
    assert read_run(run_of(tmp_path)).state == "cancelled"
    assert "is being cancelled and cleaned up" in err
    assert "slow         stopped after" in err
    assert "started on" not in err, "what was before is not told"
    assert f"run {run_of(tmp_path).name} cancelled after" in err


@pytest.mark.slow
def test_what_does_not_end_is_killed_and_a_second_cancel_does_no_harm(tmp_path: Path) -> None:
    with going(tmp_path, STUBBORN) as (driver, job):
        first = start(tmp_path, "cancel", run_of(tmp_path).name)
        assert first.stderr is not None
        assert "is being cancelled" in first.stderr.readline()
        code, _, err = call("cancel", run_of(tmp_path), cwd=tmp_path)
        assert code == 0 or "seen:     state cancelled" in err, "it may come too late"
        assert (first.wait(20), driver.wait(20).exit_code) == (0, -signal.SIGTERM)
        wait_until(lambda: is_gone(job))
        first.communicate()


@pytest.mark.slow
def test_attach_shows_all_of_a_run_and_leaves_it_alone(tmp_path: Path) -> None:
    with going(tmp_path, SLOW) as (driver, job):
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
    with going(tmp_path, talks):
        logs = start(tmp_path, "logs", "slow", "--follow")
        assert logs.stdout is not None
        assert logs.stdout.readline() == "one\n"
        assert logs.poll() is None
        (tmp_path / "go").touch()
        assert logs.stdout.read() == "two\n", "also where the scratch is removed before it is read"
        assert logs.wait(20) == 0


def test_what_a_job_prints_is_read_once_when_its_file_is_full_and_when_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "train"
    (tmp_path / "train.1").write_text("a\n", encoding="utf-8")
    with Printed(path) as printed:
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
    """One run that has ended, and two whose logs somebody holds: this test, which is not their driver."""
    monkeypatch.chdir(tmp_path)
    Recorder(tmp_path / "runs" / "old").end(60)
    descriptors = []
    for name in ("one", "other"):
        Recorder(tmp_path / "runs" / name, pid=2**22 + 1)  # no process has such an id
        descriptors.append(os.open(tmp_path / "runs" / name / "events.jsonl", os.O_RDONLY))
        fcntl.flock(descriptors[-1], fcntl.LOCK_EX)
    yield tmp_path / "runs"
    for each in descriptors:
        os.close(each)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "several runs go on"),
        (("old",), "run old does not go on.\n  seen:     state completed"),
        (("ohter",), "'other'"),
        (("runs/one",), "the driver of run one is no process that can be reached from here"),
    ],
)
def test_what_cannot_be_cancelled_is_told(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_command.main(["cancel", *words]) == UserInputError.exit_code
    assert told in capsys.readouterr().err


def test_where_nothing_goes_on_there_is_nothing_to_attach_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Recorder(tmp_path / "runs" / "killed")
    assert main_command.main(["attach"]) == UserInputError.exit_code
    assert "no run goes on" in capsys.readouterr().err
    assert main_command.main(["attach", "killed"]) == UserInputError.exit_code
    assert "medweave clean runs/killed" in capsys.readouterr().err


def test_a_process_is_known_by_the_files_that_it_has_open(tmp_path: Path) -> None:
    file, other = tmp_path / "events.jsonl", tmp_path / "other"
    other.touch()
    with file.open("w", encoding="utf-8"):
        assert holds(os.getpid(), file)
        assert not holds(os.getpid(), other)
        assert not holds(2**22 + 1, file)
        assert holds(1, file, processes=tmp_path / "none"), "a system that does not tell"
