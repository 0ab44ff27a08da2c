"""What a driver has written down before Slurm knew of it, and what a later driver makes of that."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.jobs.reattach import journal
from medweave_connectors.jobs.reattach.journal import SLURM, Journal, Submission, adopted, read, unattended_jobs
from medweave_connectors.runlog.event_log import EventLog
from medweave_connectors.sites.slurm import reattach_commands
from medweave_connectors.sites.slurm.reattach import fingerprint, inputs_of
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand
from medweave_connectors.sites.slurm.service import Allocation
from medweave_core.errors import StorageError

ONE, OTHER = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"
ALLOCATION = Allocation(num_nodes=1, cores=2, memory_mib=512, gpus=0, minutes=5)


def submission(key: str = "medweave:one:/train/0:aa", run_id: str = "one", **keys: str) -> Submission:
    return Submission(
        key=key, run_id=run_id, job="/train/0", deployment="hpc", service="", fingerprint="f", folder="/s/f",
        outputs=("/s/out",), inputs=("/s/in",), **keys,
    )  # fmt: skip


@contextmanager
def driver(runs: Path, name: str, *submissions: Submission) -> Iterator[None]:
    """A driver that lives, and has written this down; afterwards it is gone without a word."""
    log = EventLog(runs / name / "events.jsonl", name)
    (runs / name / "work").mkdir()
    log.append("run.started")
    journal = Journal(runs / name / SLURM)
    for submission in submissions:
        journal.write(submission)
    yield
    log.close()


def test_the_newest_record_counts(tmp_path: Path) -> None:
    known = submission(job_id="7")
    with driver(tmp_path, "one", submission(), known):
        assert unattended_jobs(tmp_path, SLURM) == [], "its driver lives"
    assert unattended_jobs(tmp_path, SLURM) == [known]
    assert (tmp_path / "one" / "work" / "slurm-jobs.jsonl").stat().st_mode & 0o077 == 0


def test_a_journal_is_read_once_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, stock = [], journal._submission
    monkeypatch.setattr(journal, "_submission", lambda values: parsed.append(values["key"]) or stock(values))
    writer, file = Journal(tmp_path / "jobs.jsonl"), tmp_path / "jobs.jsonl"
    for number in range(50):
        writer.write(submission(f"key {number}"))
        assert len(read(file)) == number + 1
    assert len(parsed) == 50
    with file.open("ab") as stream:
        stream.write(b'{"key": "cut')
    assert len(read(file)) == 50
    file.unlink()
    assert read(file) == {}
    Journal(file).write(submission("another"))
    assert list(read(file)) == ["another"]


def test_the_last_attempt_of_the_newest_run_comes_first(tmp_path: Path) -> None:
    first, again, other = (submission(f"medweave:one:/train/0:{token}") for token in ("aa", "bb", "cc"))
    with driver(tmp_path, "one", first, again):
        pass
    os.utime(tmp_path / "one" / "work" / "slurm-jobs.jsonl", (1, 1))
    with driver(tmp_path, "two", other):
        pass
    assert unattended_jobs(tmp_path, SLURM) == [other, again, first]


def test_a_run_that_ended_has_no_jobs_to_reattach(tmp_path: Path) -> None:
    with driver(tmp_path, "one", submission()):
        pass
    with (tmp_path / "one" / "events.jsonl").open("a") as events:
        events.write('{"sequence":2,"type":"run.ended"}\n')
    assert unattended_jobs(tmp_path, SLURM) == []


def test_unchanged_journals_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each submission reads the journals of all runs: with many runs it read up to 64 KB of the events of each.
    with driver(tmp_path, "one", submission()):
        pass
    opened = []
    really = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *words, **keys: opened.append(path) or really(path, *words, **keys))
    events = tmp_path / "one" / "events.jsonl"
    for _ in range(3):
        assert unattended_jobs(tmp_path, SLURM) == [submission()]
    assert opened.count(events) == 1
    with events.open("a") as file:
        file.write('{"sequence":2,"type":"run.ended"}\n')
    assert unattended_jobs(tmp_path, SLURM) == []


def test_a_job_of_a_running_driver_is_not_reattached(tmp_path: Path) -> None:
    with driver(tmp_path, "one", submission(job_id="7")):
        pass
    with driver(
        tmp_path,
        "two",
        adopted(submission(job_id="7"), dataclasses.replace(submission(), run_id="two", outputs=("/s/new",))),
    ):
        assert unattended_jobs(tmp_path, SLURM) == []
    (earlier,) = unattended_jobs(tmp_path, SLURM)
    assert (earlier.run_id, earlier.outputs) == ("two", ("/s/out", "/s/new")), "the newer run counts"


def test_a_killed_driver_releases_its_lock_and_leaves_complete_lines(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from medweave_connectors.runlog.event_log import EventLog
from medweave_connectors.jobs.reattach import journal
from medweave_connectors.jobs.reattach.journal import SLURM, Journal, Submission
runs = Path({str(tmp_path)!r})
log = EventLog(runs / "one" / "events.jsonl", "one")
(runs / "one" / "work").mkdir()
Journal(runs / "one" / SLURM).write(Submission(**{dataclasses.asdict(submission())!r}))
print("written", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert unattended_jobs(tmp_path, SLURM) == []
        process.kill()
    with (tmp_path / "one" / "work" / "slurm-jobs.jsonl").open("a") as file:
        file.write('{"key":"half')
    assert unattended_jobs(tmp_path, SLURM) == [submission()]


def test_a_full_disk_is_reported_before_anything_is_submitted(tmp_path: Path) -> None:
    file = tmp_path / "work" / "slurm-jobs.jsonl"
    file.parent.mkdir()
    journal = Journal(tmp_path / SLURM)
    journal.write(submission())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 9, before[1]))
        with pytest.raises(StorageError, match="nothing was submitted"):
            journal.write(submission("medweave:one:/other/0:bb"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert read(file) == {submission().key: submission()}


def command(folder: str, *, cores: str = "2", extra: str = "") -> StepCommand:
    return StepCommand(
        words=[
            "medweave-step",
            "train",
            f"'/s/{folder}/training set'",
            f"--cores={cores}",
            f"--out=/s/{folder}-o/x",
            extra,
        ],
        environment={"HOME": f"/s/{folder}-o", "TMPDIR": f"/s/{folder}-t", "A": "b"},
        output_directory=f"/s/{folder}-o",
    )


def printed(
    step: StepCommand, allocation: Allocation = ALLOCATION, place: str = "hpc", prologue: str = "", run: str = "r1"
) -> str:
    return fingerprint(step, allocation, place=place, prologue=prologue, run_id=run)


def test_the_fingerprint_covers_the_command_and_not_the_paths() -> None:
    usual = printed(command(ONE))
    assert usual == printed(command(OTHER))
    assert usual == printed(command(OTHER), dataclasses.replace(ALLOCATION, memory_mib=768, minutes=None))
    assert printed(command(f"r1/{ONE}")) == printed(command(f"r2/{OTHER}"), run="r2")
    others = [
        printed(command(ONE, cores="3")),
        printed(command(ONE, extra="--seed=1")),
        printed(command(ONE), dataclasses.replace(ALLOCATION, num_nodes=2)),
        printed(command(ONE), place="hpc/other"),
        printed(command(ONE), prologue="module load cuda"),
    ]
    assert len({usual, *others}) == 6


def test_inputs_are_paths_in_the_engines_folders() -> None:
    assert inputs_of(command(ONE)) == (f"/s/{ONE}/training set",)
    assert inputs_of(command(ONE, extra="/scratch/me/fixed")) == inputs_of(command(ONE))


def shell(line: str) -> str:
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def site(tmp_path: Path) -> tuple[Submission, Submission]:
    """Create an earlier submission with all its folders, and a planned one with the same command."""
    for name in ("in one/a", "in two/a", "out", "new", "job"):
        (tmp_path / name).mkdir(parents=True)
    for folder in ("in one", "in two"):
        (tmp_path / folder / "a" / "x").write_text("same")
    earlier = dataclasses.replace(
        submission(), folder=str(tmp_path / "job"), outputs=(str(tmp_path / "out"),), inputs=(str(tmp_path / "in one"),)
    )
    return earlier, dataclasses.replace(earlier, outputs=(str(tmp_path / "new"),), inputs=(str(tmp_path / "in two"),))


def test_a_job_over_the_same_inputs_is_found_with_its_id(site: tuple[Submission, Submission], tmp_path: Path) -> None:
    seen = reattach_commands.parse_status(shell(reattach_commands.inspect(*site)))
    assert (seen.is_same, seen.is_claimed, seen.code, seen.job_id) == (True, False, "", "")
    (tmp_path / "job" / "claimed").mkdir()
    (tmp_path / "job" / "answer").write_text("77;cluster\n")
    (tmp_path / "job" / "code").write_text("0\n")
    seen = reattach_commands.parse_status(shell(reattach_commands.inspect(*site)))
    assert (seen.is_same, seen.is_claimed, seen.code, seen.job_id) == (True, True, "0", "77")
    (tmp_path / "job" / "code").write_text("1\n")
    assert reattach_commands.parse_status(shell(reattach_commands.inspect(*site))).job_id == ""


@pytest.mark.parametrize("change", ["content", "more", "less", "staged", "gone"])
def test_a_job_over_other_inputs_is_not_the_same(
    site: tuple[Submission, Submission], tmp_path: Path, change: str
) -> None:
    file = tmp_path / "in two" / "a" / "x"
    {
        "content": lambda: file.write_text("samE"),
        "more": lambda: (tmp_path / "in two" / "y").touch(),
        "less": file.unlink,
        "staged": lambda: (tmp_path / "new" / "input").touch(),
        "gone": lambda: (tmp_path / "out").rmdir(),
    }[change]()
    assert not reattach_commands.parse_status(shell(reattach_commands.inspect(*site))).is_same


def test_a_claim_stops_a_late_submission(tmp_path: Path) -> None:
    from medweave_connectors.sites.slurm import commands

    files = SlurmJobFiles(str(tmp_path / "job"))
    shell(reattach_commands.claim(files))
    shell(commands.submit(["touch", str(tmp_path / "submitted")], files, {files.script: "x"}))
    assert not (tmp_path / "submitted").exists()


@settings(deadline=None)  # a shell may wait for its turn
@given(st.integers(0, 3))
def test_the_output_folder_is_moved_once_however_often_it_is_tried(
    tmp_path_factory: pytest.TempPathFactory, at: int
) -> None:
    folder = tmp_path_factory.mktemp("move")
    paths = [folder / f"o {n}" for n in range(4)]
    for path in paths[at:]:
        path.mkdir()
    (paths[at] / "result").write_text("done")
    for _ in range(2):
        assert reattach_commands.read_move(shell(reattach_commands.move(tuple(map(str, paths)))))
        assert (paths[-1] / "result").read_text() == "done"
