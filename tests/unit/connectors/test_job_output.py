"""What a job on another machine prints, and how its command line is written there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from medweave_connectors.jobs.remote_environment import shell_line, step_variables
from medweave_connectors.runlog import job_output_files
from medweave_connectors.runlog.job_output import LINE_BYTES, JobOutput
from medweave_connectors.runlog.run import RunRecord
from support.job_record import run_with_job

FIGURES = 'medweave-progress {"unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x"}\n'


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    return run_with_job(tmp_path, monkeypatch)


def test_chunks_of_bytes_become_progress_notices_and_a_tail(
    record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    output = JobOutput("/train/0")
    text = FIGURES + "train: note: one case has no mask\nä warning\nmedweave-step train: NaN.\n  do:       less"
    for number in range(0, len(text.encode()), 7):
        output.stderr(text.encode()[number : number + 7])
    output.stdout(b"out")
    output.close()
    stderr = capsys.readouterr().err
    assert "train        case 1/2: x, 4 s left" in stderr
    assert "note: one case has no mask" in stderr
    assert list(output.stderr_tail) == ["ä warning", "medweave-step train: NaN.", "  do:       less"]
    assert list(output.stdout_tail) == ["out"]


def test_the_output_of_a_running_job_can_be_followed(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_output_files, "FULL_BYTES", 64)
    output, file = JobOutput("/train/0"), record.work / "stderr" / "train"
    output.stderr((FIGURES + "train: note: one case has no mask\nepoch 1\nhalf").encode())
    assert file.read_text() == "epoch 1\n"
    assert file.stat().st_mode & 0o077 == file.parent.parent.stat().st_mode & 0o077 == 0
    for number in range(20):
        output.stderr(f" of line {number}\n".encode())
    assert file.read_text().endswith(" of line 19\n")
    assert len(file.read_bytes()) < 100, "a full file is moved away"
    assert file.with_name("train.1").is_file()
    record.command_ended("/train/0", output.outcome(exit_code=0, seconds=1.0))
    assert file.is_file()


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    output = JobOutput("/train/0")
    for _ in range(40):
        output.stderr(b"x" * 4096)
    output.close()
    assert max(map(len, output.stderr_tail)) <= LINE_BYTES


def test_an_incomplete_line_of_the_first_stream_is_dropped() -> None:
    output = JobOutput("/train/0")
    output.stderr(b"1\n2\n89")
    output.use_stderr_of(b"199999\n200000\n")
    output.close()
    assert list(output.stderr_tail) == ["199999", "200000"]


def test_the_sites_message_comes_first_and_the_log_gets_no_job_output() -> None:
    output = JobOutput("/train/0")
    output.stderr(b"PATIENT MUELLER\nmedweave-step train: NaN.\n")
    output.close()
    outcome = output.outcome(exit_code=70, seconds=1.0, site_word="Slurm job 7: FAILED 70:0", kept_at="hpc:/s")
    assert outcome.cause == "Slurm job 7: FAILED 70:0\nmedweave-step train: NaN."
    assert outcome.message == outcome.cause
    output = JobOutput("/train/0")
    output.stderr(b"PATIENT MUELLER\n")
    output.close()
    outcome = output.outcome(exit_code=1, seconds=1.0, site_word="Slurm job 7: FAILED 1:0")
    assert outcome.cause.endswith("PATIENT MUELLER")
    assert outcome.message == "Slurm job 7: FAILED 1:0"


def test_a_job_without_output() -> None:
    assert JobOutput("/a/0").outcome(exit_code=1, seconds=1.0, site_word="Slurm message").cause == "Slurm message"
    assert "exit code 1" in JobOutput("/a/0").outcome(exit_code=1, seconds=1.0).cause
    good = JobOutput("/a/0").outcome(exit_code=0, seconds=1.0, site_word="not used")
    assert (good.cause, good.message) == ("", "")


def test_values_are_quoted_for_the_remote_shell(tmp_path: Path) -> None:
    # Fault C7 of the engine: it puts values in unescaped double quotes, and the folder as it is.
    folder = tmp_path / "it's a $folder"
    folder.mkdir()
    value = "a\"b `touch harm` $HOME 'c'\nd"
    (folder / "in put").write_text("from stdin")
    line = shell_line(
        ["sh", "-c", "'printf %s \"$VALUE\"; cat; echo failed >&2'"],
        environment=step_variables({"VALUE": "x"}, {"VALUE": value}),
        workdir=str(folder),
        stdin="in put",
        stdout="out put",
        stderr="$err",
    )
    subprocess.run(["sh", "-c", line], check=True)
    assert (folder / "out put").read_text() == value + "from stdin"
    assert (folder / "$err").read_text() == "failed\n"
    assert sorted(path.name for path in folder.iterdir()) == ["$err", "in put", "out put"]


def test_remote_steps_report_progress_as_json() -> None:
    assert step_variables({"A": "1"}) == {"A": "1", "MEDWEAVE_PROGRESS": "json"}
