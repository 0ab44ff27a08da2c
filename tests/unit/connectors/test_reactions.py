"""Retry policy: the table, the decision, and the parts of a job script for steps with retries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from medweave_connectors.jobs.retries.attempt_script import clean_start, with_process_id, with_signal
from medweave_connectors.jobs.retries.policy import (
    DEFAULTS,
    LONGEST_WAIT_S,
    MOST_ATTEMPTS,
    Checkpoint,
    FailedAttempt,
    FailureKind,
    Retry,
    Stop,
    decide,
    read_table,
    sentence,
)
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.slurm.states import SchedulerState, failure_kind
from support.engine import wait_until

SCHEMA = json.loads(MedweaveSlurmConnector.get_schema())["properties"]["reactions"]
Kind = FailureKind


def failed(kind: FailureKind, **facts: Any) -> FailedAttempt:
    return FailedAttempt(kind=kind, **{"memory_mib": 1000} | facts)


@pytest.mark.parametrize(
    ("word", "out_of_memory", "kind"),
    [
        ("OUT_OF_MEMORY", True, Kind.OUT_OF_MEMORY),
        ("FAILED", True, Kind.OUT_OF_MEMORY),  # a site that kills by 9
        ("FAILED", False, Kind.STEP_FAILED),
        ("DEADLINE", False, Kind.TIMEOUT),
        ("PREEMPTED", False, Kind.PREEMPTED),
        ("BOOT_FAIL", False, Kind.NODE_FAIL),
        ("CANCELLED by 1000", False, Kind.CANCELLED),
        ("UNKNOWN", False, Kind.UNKNOWN),
        ("RUNNING", False, Kind.UNKNOWN),
    ],
)
def test_kinds_of_failures(word: str, out_of_memory: bool, kind: FailureKind) -> None:
    assert failure_kind(SchedulerState(source="sacct", word=word), out_of_memory=out_of_memory) is kind


@pytest.mark.parametrize("code", [1, 2, 65, 69, 70, 74, 127, 137, 143])
def test_a_failed_step_is_not_retried(code: int) -> None:
    assert isinstance(decide([failed(Kind.STEP_FAILED, exit_code=code)], DEFAULTS), Stop)


def test_a_step_with_exit_code_75_is_retried() -> None:
    asks = failed(Kind.STEP_FAILED, exit_code=75)
    assert decide([asks], DEFAULTS) == Retry(after_s=30, memory_mib=1000, from_checkpoint=False)
    assert decide([asks] * 2, DEFAULTS) == Retry(after_s=60, memory_mib=1000, from_checkpoint=False)
    assert decide([asks] * 3, DEFAULTS) == Stop(
        why="StepFailed occurred 3 times, and the limit is 2 retries", by_limit=True
    )


@given(st.builds(FailedAttempt, kind=st.sampled_from([Kind.CANCELLED, Kind.UNKNOWN]), exit_code=st.integers(0, 255)))
def test_canceled_and_unknown_jobs_are_never_submitted_again(last: FailedAttempt) -> None:
    again = read_table({kind: {"do": "again", "retries": 19} for kind in Kind})
    assert isinstance(decide([last], again), Stop)


def test_memory_grows_up_to_the_largest_node() -> None:
    history = [failed(Kind.OUT_OF_MEMORY)]
    memory_sizes = []
    while isinstance(decision := decide(history, DEFAULTS, largest_mib=2000), Retry):
        memory_sizes.append(decision.memory_mib)
        history.append(failed(Kind.OUT_OF_MEMORY, memory_mib=decision.memory_mib))
    assert memory_sizes == [1500, 2000]
    assert decision == Stop(why="it had 2000 MiB, and 2000 MiB is the limit", by_limit=True)
    capped = read_table({"OutOfMemory": {"cap": 1200, "factor": 3.0}})
    assert decide(history[:1], capped, largest_mib=2000) == Retry(after_s=0, memory_mib=1200, from_checkpoint=False)
    assert decide(history[:1], DEFAULTS) == Retry(after_s=0, memory_mib=1500, from_checkpoint=False)


@pytest.mark.parametrize("left", list(Checkpoint))
def test_a_time_limit_is_continued_only_from_a_checkpoint_of_this_attempt(left: Checkpoint) -> None:
    decision = decide([failed(Kind.TIMEOUT, checkpoint=left)], DEFAULTS)
    assert isinstance(decision, Retry) is (left is Checkpoint.NEW)
    # What the site did to the job is no sign that the step gets nowhere.
    assert decide([failed(Kind.NODE_FAIL, checkpoint=left)], DEFAULTS) == Retry(
        after_s=30, memory_mib=1000, from_checkpoint=left is not Checkpoint.NONE
    )


ROWS = st.fixed_dictionaries(
    {},
    optional={
        "do": st.sampled_from(["again", "moreMemory", "continue", "stop"]),
        "retries": st.integers(1, 19),
        "wait": st.integers(0, 3600),
    },
)
FAILURES = st.lists(
    st.builds(
        FailedAttempt,
        kind=st.sampled_from(list(Kind)),
        exit_code=st.sampled_from([1, 65, 75, 137]),
        memory_mib=st.just(1000.0),
        checkpoint=st.sampled_from(list(Checkpoint)),
    ),
    min_size=MOST_ATTEMPTS + 1,
    max_size=MOST_ATTEMPTS + 10,
)


@given(FAILURES, st.dictionaries(st.sampled_from(sorted(Kind)), ROWS), st.none() | st.floats(1, 1e6))
def test_attempts_memory_and_waiting_are_bounded(
    script: list[FailedAttempt], given_rows: dict[str, dict[str, Any]], largest_mib: float | None
) -> None:
    table = read_table(given_rows)
    history, memory_mib, waited_s = [], 1000.0, 0.0
    for failure in script:
        history.append(
            FailedAttempt(
                kind=failure.kind, exit_code=failure.exit_code, memory_mib=memory_mib, checkpoint=failure.checkpoint
            )
        )
        decision = decide(history, table, largest_mib=largest_mib)
        if isinstance(decision, Stop):
            break
        assert 0 <= decision.after_s <= LONGEST_WAIT_S
        assert memory_mib <= decision.memory_mib <= max(largest_mib or float("inf"), memory_mib)
        memory_mib, waited_s = decision.memory_mib, waited_s + decision.after_s
        last = history[-1]
        assert last.kind not in (Kind.CANCELLED, Kind.UNKNOWN)
        assert last.kind is not Kind.STEP_FAILED or last.exit_code == 75
        assert sum(one.kind is last.kind for one in history) <= table[last.kind].retries
        assert sentence(decision, last, next_attempt=len(history) + 1)
    assert isinstance(decision, Stop), "it would retry forever"
    assert len(history) <= MOST_ATTEMPTS
    assert waited_s <= MOST_ATTEMPTS * LONGEST_WAIT_S


def test_the_schema_is_closed_and_has_the_defaults() -> None:
    kinds = SCHEMA["properties"]
    assert set(kinds) == set(DEFAULTS)
    for kind, row in DEFAULTS.items():
        keys = kinds[kind]["properties"]
        assert {name: key["default"] for name, key in keys.items()} == {name: getattr(row, name) for name in keys}
    good = {"OutOfMemory": {"do": "moreMemory", "factor": 2, "cap": 64000}, "Timeout": {"do": "stop"}}
    Draft202012Validator(SCHEMA).validate(good)
    assert read_table(good)[Kind.OUT_OF_MEMORY].retries == 3
    for bad in (
        {"Unknown": {"do": "again"}},
        {"Cancelled": {"do": "again"}},
        {"Timeout": {"do": "again"}},
        {"OutOfMemory": {"factor": 1}},
        {"NodeFail": {"retries": 100}},
        {"NodeFail": {"cap": 1}},
        {"Preempted": {"pause": 1}},
    ):
        assert list(Draft202012Validator(SCHEMA).iter_errors(bad)), bad


# -- the job script ---------------------------------------------------------------------------------------------------


def start(
    folder: Path, *lines: str, checkpoint: str = "saved", was_empty: bool = False
) -> subprocess.CompletedProcess[str]:
    """One start of a job whose output folder is `o ut`."""
    (folder / "home").mkdir(exist_ok=True)
    head = clean_start(
        str(folder / "o ut"),
        home=str(folder / "home"),
        checkpoint_folder=checkpoint,
        temporary=str(folder / "t mp"),
        was_empty=was_empty,
    )
    text = "\n".join((*head, f"cd '{folder}/o ut'", *lines))
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "o ut"
    folder.mkdir(mode=0o700)
    (folder / "staged").write_text("as the workflow made it")
    return folder


def test_each_start_gets_the_original_folder_and_the_checkpoints(tmp_path: Path, output: Path) -> None:
    (tmp_path / "t mp").mkdir()
    first = "echo half > result.txt; echo spoilt > staged; mkdir saved; echo 1 > saved/a; echo -$MEDWEAVE_RESUME_FROM-"
    assert start(tmp_path, f"{first}; echo x > '{tmp_path}/t mp/x'").stdout == "--\n"
    assert names(tmp_path / "t mp") == ["x"]
    started = start(tmp_path, 'echo "$MEDWEAVE_RESUME_FROM"; cat staged; ls -A; echo 2 > saved/a')
    assert started.stdout == f"{output}/saved\nas the workflow made itsaved\nstaged\n"
    assert names(tmp_path / "t mp") == []
    assert start(tmp_path, "cat saved/a").stdout == "2\n"
    assert output.stat().st_mode & 0o077 == 0
    assert names(tmp_path / "home") == ["fresh", "fresh/staged"], "files of an earlier attempt are removed"


def test_files_of_an_earlier_drivers_job_are_removed_before_the_next_attempt(tmp_path: Path) -> None:
    # Its output folder was moved here, and its own script may never have run.
    (tmp_path / "o ut" / "saved").mkdir(parents=True)
    (tmp_path / "o ut" / "half.txt").touch()
    (tmp_path / "o ut" / "saved" / "a").write_text("1\n")
    started = start(tmp_path, "ls; cat saved/a", was_empty=True)
    assert started.stdout == "saved\n1\n"


def test_a_step_without_checkpoints_starts_clean(tmp_path: Path, output: Path) -> None:
    start(tmp_path, "mkdir saved; echo 1 > saved/a", checkpoint="")
    assert start(tmp_path, "ls; echo -$MEDWEAVE_RESUME_FROM-", checkpoint="").stdout == "staged\n--\n"


def test_a_process_of_a_lost_node_does_not_write_into_the_next_attempt(tmp_path: Path, output: Path) -> None:
    start(tmp_path, "true")
    lost = subprocess.Popen(["sh", "-c", "read word; echo late > result.txt"], cwd=output, stdin=subprocess.PIPE)
    start(tmp_path, "true")
    lost.communicate(b"go\n")
    assert names(output) == ["staged"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_interrupted_start_loses_no_checkpoint(tmp_path: Path, output: Path, cut: int) -> None:
    start(tmp_path, "echo half > result.txt; mkdir saved; echo precious > saved/a")
    # The file programs count their calls, and the whole script dies at one of them.
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("mv", "cp", "rm"):
        (programs / name).write_text(
            f'#!/bin/sh\necho x >> "{tmp_path}/calls"\n'
            f'[ "$(wc -l < "{tmp_path}/calls")" -ge {cut} ] && kill -KILL $PPID && exit 1\nexec /bin/{name} "$@"\n'
        )
        (programs / name).chmod(0o755)
    head = clean_start(str(output), home=str(tmp_path / "home"), checkpoint_folder="saved")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", "\n".join(head)], env=environment, check=False)
    started = start(tmp_path, 'cat "$MEDWEAVE_RESUME_FROM/a"; ls')
    assert started.stdout == "precious\nsaved\nstaged\n", started.stderr
    assert names(tmp_path / "home") == ["fresh", "fresh/staged"]


def test_a_folder_that_cannot_be_prepared_ends_the_job_before_its_command(tmp_path: Path, output: Path) -> None:
    start(tmp_path, "echo half > result.txt")
    (tmp_path / "home" / "fresh" / "staged").unlink()
    (tmp_path / "home" / "fresh").rmdir()
    (tmp_path / "home" / "fresh").symlink_to("nowhere")  # `cp` fails: the target of the link does not exist
    started = start(tmp_path, "echo harm > harm")
    assert started.returncode == 75
    assert "could not be prepared" in started.stderr
    assert names(output) == ["result.txt", "staged"]


WAITS = (
    "trap 'echo saved >> {folder}/signals' USR1; echo ready > {folder}/ready; "
    "n=0; while [ $n -lt {n} ]; do sleep 0.05; n=$((n+1)); done"
)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["dash", "bash"])  # /bin/sh is one of them nearly everywhere
@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("code", [0, 3])
def test_the_signal_reaches_the_command_and_its_exit_code_is_returned(
    tmp_path: Path, code: int, gang: bool, shell: str
) -> None:
    command = f"( exec sh -c '{WAITS.format(folder=tmp_path, n=60).replace(chr(39), chr(34))}; exit {code}' )"
    line = with_process_id(command, file=str(tmp_path / "p id"))
    if gang:  # what srun starts writes its process id
        (tmp_path / "node.sh").write_text(line)
        line = f"{shell} {tmp_path}/node.sh"
    lines = with_signal(line, process_id=str(tmp_path / "p id"), status=str(tmp_path / "sta tus"))
    process = subprocess.Popen([shell, "-c", "\n".join((*lines, 'exit "$?"'))])
    wait_until(lambda: (tmp_path / "ready").exists())
    for times in (1, 2):
        process.send_signal(signal.SIGUSR1)
        # Two signals that come before the first is seen are one.
        wait_until(
            lambda times=times: (
                (tmp_path / "signals").exists() and (tmp_path / "signals").read_text().count("\n") == times
            )
        )
    assert process.wait(10) == code
    assert (tmp_path / "signals").read_text() == "saved\nsaved\n"


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.053, 0.056, 0.06, 0.065])
def test_a_signal_at_any_moment_changes_nothing(tmp_path: Path, shell: str, seconds: float) -> None:
    line = with_process_id("( exec sh -c 'trap : USR1; sleep 0.05; exit 4' )", file=str(tmp_path / "pid"))
    for number in range(5):  # around the moments at which the command begins and ends
        lines = with_signal(line, process_id=str(tmp_path / "pid"), status=str(tmp_path / str(number)))
        process = subprocess.Popen(
            [shell, "-c", "\n".join(("trap : USR1; echo", *lines, 'exit "$?"'))], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGUSR1)
        # Too early: the command does not expect it yet.
        assert process.wait(10) in ((4, 138) if seconds < 0.05 else (4,))
        process.stdout.close()
        (tmp_path / "pid").unlink()
