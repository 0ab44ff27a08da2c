"""Engine runs with cache hits of earlier runs: which steps run again, and how that is explained."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support.engine import FILE, Run, run, start, valid_events, wait_until
from support.processes import alive
from support.reuse_runs import ON, counts, explained, write_steps


def write(folder: Path, *, file: str = FILE, **keys: Any) -> None:
    """Write a workflow: step `copy` copies a file, step `mark` adds a parameter to its result; each counts its runs.

    Args:
        keys: more keys of the tool of `mark`.
    """
    copy = 'cat "$1" > result.txt'
    mark = '[ "$2" != fail ] && { cat "$1"; echo "$2"; } > result.txt'
    write_steps(folder, kind="File", result="result.txt", copy=copy, mark=mark, **keys)
    (folder / "streamflow.yml").write_text(file)
    (folder / "data.txt").write_text("one\n")
    give(folder, "red")


def give(folder: Path, word: str) -> None:
    (folder / "job.yml").write_text(json.dumps({"data": {"class": "File", "path": "data.txt"}, "word": word}))


def again(folder: Path, **environment: str) -> Run:
    return run(folder, environment=ON | environment)


def delivered(folder: Path) -> str:
    (file,) = (folder / "results").glob("result*.txt")
    text = file.read_text()
    file.write_text(f"{text}written to, for a delivered file is its owner's\n")
    shutil.rmtree(folder / "results")
    return text


@pytest.mark.slow
def test_only_what_has_changed_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert again(tmp_path).exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 1), "one\nred\n")
    assert explained(tmp_path, "mark", capsys) == "ran: no earlier run in this folder has this job"

    ended = again(tmp_path)
    assert ended.exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 1), "one\nred\n")
    logs = sorted((tmp_path / "runs").glob("*/events.jsonl"), key=lambda log: log.stat().st_mtime)
    first, second = (valid_events(log) for log in logs)
    reused = [event["data"].get("reused_from") for event in second if event["type"] == "job.ended"]
    assert reused == [first[0]["run_id"]] * 2
    assert ended.stderr.count(f"cache hit: outputs of run {first[0]['run_id']}") == 2
    assert "nothing has changed since run" in explained(tmp_path, "mark", capsys)

    give(tmp_path, "blue")
    assert again(tmp_path).exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 2), "one\nblue\n")
    assert explained(tmp_path, "mark", capsys) == f"ran: changed since run {second[0]['run_id']}: input word"
    assert "blue" not in "".join(log.read_text() for log in (tmp_path / "runs").glob("*/events.jsonl"))

    (tmp_path / "data.txt").write_text("two\n")
    assert again(tmp_path).exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 3), "two\nblue\n")
    assert explained(tmp_path, "/copy", capsys).endswith(": input data")

    # Back to what the first run did.
    (tmp_path / "data.txt").write_text("one\n")
    give(tmp_path, "red")
    assert again(tmp_path).exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 3), "one\nred\n")


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    write(tmp_path)
    text = (
        (tmp_path / "tiny.cwl")
        .read_text()
        .replace('[ \\"$2\\" != fail ]', f"echo $$ > {tmp_path}/pid; [ -e {gate} ] || sleep 50; true")
    )
    (tmp_path / "tiny.cwl").write_text(text)
    going = start(tmp_path, environment=ON)
    wait_until(lambda: counts(tmp_path) == (1, 1), 30)
    going.signal(signal.SIGKILL)
    going.wait()
    gate.touch()
    left = int((tmp_path / "pid").read_text())
    assert alive(left), "a killed driver cannot end its commands"
    ended = again(tmp_path)
    assert ended.exit_code == 0
    assert not alive(left)
    assert "processes of runs whose drivers are gone were ended" in ended.stderr
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 2), "one\nred\n")


@pytest.mark.slow
def test_a_command_that_failed_is_run_again(tmp_path: Path) -> None:
    write(tmp_path)
    give(tmp_path, "fail")
    assert [again(tmp_path).exit_code for _ in range(2)] == [1, 1]
    assert counts(tmp_path) == (1, 2)


@pytest.mark.slow
def test_missing_outputs_are_not_cached(tmp_path: Path) -> None:
    write(tmp_path, outputs={"result": {"type": "File", "outputBinding": {"glob": "other.txt"}}})
    assert [again(tmp_path).exit_code for _ in range(2)] == [1, 1]
    assert counts(tmp_path) == (1, 2)


@pytest.mark.slow
def test_a_tool_that_turns_work_reuse_off_always_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, hints={"WorkReuse": {"enableReuse": False}})
    assert [again(tmp_path).exit_code for _ in range(2)] == [0, 0]
    assert counts(tmp_path) == (1, 2)
    assert explained(tmp_path, "mark", capsys) == "ran: its tool sets WorkReuse: {enableReuse: false}"


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["environment", "file"])
def test_the_cache_can_be_switched_off(tmp_path: Path, switch: str) -> None:
    off = "type: medweave.scheduler, config: {reuse_gib: 0}"
    write(tmp_path, file=FILE if switch == "environment" else FILE.replace("type: medweave.scheduler, config: {}", off))
    variables = {"MEDWEAVE_REUSE": "0"} if switch == "environment" else {}
    assert [again(tmp_path, **variables).exit_code for _ in range(2)] == [0, 0]
    assert counts(tmp_path) == (2, 2)
    assert not (tmp_path / "runs" / ".kept").exists()


@pytest.mark.slow
def test_workflows_with_in_place_updates_are_not_cached(tmp_path: Path) -> None:
    write(tmp_path, requirements={"InplaceUpdateRequirement": {"inplaceUpdate": True}})
    assert again(tmp_path).exit_code == 0
    assert not list((tmp_path / "runs").glob(".kept/*/result.txt"))


@pytest.mark.slow
def test_staged_files_are_part_of_the_cache_key(tmp_path: Path) -> None:
    def listing(text: str) -> dict[str, Any]:
        return {"InitialWorkDirRequirement": {"listing": [{"entryname": "config.json", "entry": text}]}}

    for text, expected in (("a", (1, 1)), ("a", (1, 1)), ("b", (1, 2))):
        write(tmp_path, requirements=listing(text))
        assert again(tmp_path).exit_code == 0
        assert counts(tmp_path) == expected


@pytest.mark.slow
def test_a_changed_cache_entry_is_computed_again(tmp_path: Path) -> None:
    write(tmp_path)
    assert again(tmp_path).exit_code == 0
    for file in (tmp_path / "runs").glob(".kept/*/result.txt"):
        file.write_text("another\n")
    assert again(tmp_path).exit_code == 0
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 2), "one\nred\n")
