"""`medweave schedule run`: real firings of the real command; test_schedule_machine.py starts it as a program."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from medweave.project.cron_times import numbers_of
from medweave.project.schedules import read_schedule, schema
from medweave.schedule.state import lock_schedule
from medweave_core.errors import StepError, UserInputError
from medweave_core.runlog.history import read_run
from support.engine import wait_until
from support.schedules import call_schedule, memory, results, start, write_schedule

GOOD = 'cat "$0"/* > result.txt'
SLOW = "echo $$ > {folder}/pid; sleep 30 & wait; echo late > result.txt"


def fire(file: Path) -> tuple[int, str]:
    code, _, err = call_schedule("run", file.name, cwd=file.parent)
    assert "Traceback" not in err
    return code, err


@pytest.mark.slow
def test_the_first_firing_runs_the_second_is_skipped_and_a_changed_input_runs(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD)
    code, err = fire(file)
    assert code == 0, err
    assert "starting a run: no earlier run has completed" in err
    first = memory(tmp_path).done
    assert first is not None
    assert [result.read_text() for result in results(tmp_path)] == ["1"]

    code, err = fire(file)
    assert code == 0
    assert f"skipped: nothing has changed since run {first.run} completed" in err
    last = memory(tmp_path).last
    assert last is not None
    assert (last.outcome, len(results(tmp_path))) == ("skipped", 1)

    (tmp_path / "scans" / "two").write_text("2")
    code, err = fire(file)
    assert (code, len(results(tmp_path))) == (0, 2)
    assert f"starting a run: input scans changed since run {first.run}" in err


@pytest.mark.slow
def test_a_changed_tool_runs_and_the_same_under_another_date_does_not(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD)
    assert fire(file)[0] == 0
    os.utime(tmp_path / "scans" / "one", (1, 1))
    assert "skipped" in fire(file)[1]
    tool = tmp_path / "tools" / "copy.cwl"
    tool.write_text(tool.read_text().replace("cat", "cat -u"))
    assert "starting a run: definition changed since" in fire(file)[1]


@pytest.mark.slow
def test_a_failed_run_is_repeated_and_its_exit_code_returned(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, "exit 65")
    assert [fire(file)[0], fire(file)[0]] == [1, 1]
    state = memory(tmp_path)
    assert state.done is None
    assert state.last is not None
    assert state.last.outcome == "failed"


@pytest.mark.slow
def test_unchanged_inputs_run_where_that_is_wanted(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD, unchanged="run")
    fire(file)
    assert "starting a run: this schedule also runs without changes" in fire(file)[1]
    assert len(results(tmp_path)) == 2


@pytest.mark.slow
def test_an_unreadable_input_is_never_taken_for_unchanged(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD, scans=tmp_path / "elsewhere")
    assert "input scans cannot be compared with earlier runs" in fire(file)[1]


@pytest.mark.slow
def test_the_stored_state_contains_no_name_and_no_content(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD)
    (tmp_path / "scans" / "DOE^JANE.dcm").write_text("born 1970-01-01")
    _, err = fire(file)
    for path in (tmp_path / "schedules" / "nightly").iterdir():
        if path.is_file():
            assert b"DOE" not in path.read_bytes(), path.name
            assert b"1970" not in path.read_bytes(), path.name
    assert "DOE" not in err


@pytest.mark.slow
def test_an_overlapping_firing_is_skipped(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, SLOW.format(folder=tmp_path))
    first = start("run", file.name, cwd=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "pid").exists(), 60)
        code, err = fire(file)
        assert code == 0
        assert "skipped: the previous run is still running" in err
        assert len(list((tmp_path / "schedules/nightly/runs").glob("tiny-*"))) == 1
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 143


@pytest.mark.slow
def test_an_overlapping_firing_replaces_the_previous_run(tmp_path: Path) -> None:
    script = f"if mkdir {tmp_path}/first; then {SLOW.format(folder=tmp_path)}; else echo second > result.txt; fi"
    file = write_schedule(tmp_path, script, overlap="replace")
    first = start("run", file.name, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "pid").exists(), 60)
    code, err = fire(file)
    assert code == 0, err
    assert first.wait(30) == 143
    first.communicate()
    states = sorted(read_run(log.parent).state for log in (tmp_path / "schedules/nightly/runs").glob("*/events.jsonl"))
    assert states == ["cancelled", "completed"]
    assert [result.read_text() for result in results(tmp_path)] == ["second\n"]


@pytest.mark.slow
def test_both_run_where_that_is_allowed(tmp_path: Path) -> None:
    file = write_schedule(tmp_path, GOOD, overlap="allow")
    (tmp_path / "schedules/nightly").mkdir(parents=True)
    with lock_schedule(tmp_path / "schedules/nightly") as is_alone:
        assert is_alone
        assert fire(file)[0] == 0
    assert len(results(tmp_path)) == 1


@pytest.mark.parametrize(
    ("keys", "place", "message"),
    [
        ({"file": "no.yml"}, "file", "no such StreamFlow file"),
        ({"when": "0 25 * * *"}, "when", "hour '25' is not between 0 and 23"),
        ({"when": "0 2 * *"}, "when", "4 fields"),
        ({"timeZone": "Europe/Roma"}, "timeZone", "write 'Europe/Rome' (closest match)"),
        ({"timeZone": "Europe"}, "timeZone", "unknown time zone"),
        ({"timeZone": "Mars/Olympus_Mons"}, "timeZone", "unknown time zone"),
        ({"overlap": "never"}, "overlap", "forbid, replace, allow"),
        ({"nmae": "x"}, "nmae", "there is no such key"),
        ({"name": "Nightly"}, "name", "invalid value"),
    ],
)
def test_an_error_in_the_file_is_reported_with_its_place(
    tmp_path: Path, keys: dict[str, str], place: str, message: str
) -> None:
    file = write_schedule(tmp_path, GOOD, **keys)
    with pytest.raises(UserInputError) as refused:
        read_schedule(file)
    assert re.search(rf"schedule\.yml:\d+: {place}: ", str(refused.value))
    assert message in str(refused.value)


@pytest.mark.parametrize("zone", ["Europe/Rome", "UTC", "America/Argentina/Ushuaia"])
def test_a_time_zone_that_is_there(tmp_path: Path, zone: str) -> None:
    assert read_schedule(write_schedule(tmp_path, GOOD, timeZone=zone)).time_zone == zone


def test_a_machine_without_a_time_zone_database_refuses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_schedule(tmp_path, GOOD, timeZone="Europe/Roma")
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    assert read_schedule(file).time_zone == "Europe/Roma"


def test_every_key_is_described() -> None:
    def keys(node: dict[str, object]) -> None:
        for name, inner in node.get("properties", {}).items():  # type: ignore[attr-defined]
            assert len(inner.get("description", "")) > 10, name
            keys(inner)

    keys(schema())


@pytest.mark.parametrize(
    ("text", "field", "numbers"),
    [
        ("*/20 * * * *", 0, [0, 20, 40]),
        ("5-9/2,50 * * * *", 0, [5, 7, 9, 50]),
        ("0 22/1 * * *", 1, [22, 23]),
        ("0 0 * jan-MAR *", 3, [1, 2, 3]),
        ("0 0 * * fri-7", 4, [0, 5, 6]),
        ("0 0 * * *", 2, None),
    ],
)
def test_times_are_read_as_cron_does(text: str, field: int, numbers: list[int] | None) -> None:
    assert numbers_of(text)[field] == numbers


@pytest.mark.parametrize("text", ["60 * * * *", "*/0 * * * *", "9-5 * * * *", "x * * * *", "-1 * * * *", "* * 0 * *"])
def test_times_that_cron_refuses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        numbers_of(text)


@pytest.mark.slow
def test_a_missing_schedule_and_an_incomplete_file_are_errors(tmp_path: Path) -> None:
    code, _, err = call_schedule("pause", cwd=tmp_path)
    assert (code, "no schedule given" in err) == (2, True)
    code, _, err = call_schedule("pause", "nightly", cwd=tmp_path)
    assert (code, "there is no schedule 'nightly'" in err) == (2, True)
    file = write_schedule(tmp_path / "x", GOOD)
    code, _, err = call_schedule("create", file, cwd=tmp_path)
    assert (code, "the key 'place' is missing" in err) == (65, True)
    assert issubclass(UserInputError, StepError)
    assert yaml.safe_load(file.read_text())["name"] == "nightly"
