"""Schedules of a login node: the units as systemd's own checker reads them, and lines of a crontab."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from medweave.project.cron_times import on_calendar
from medweave.schedule import cron, systemd
from support.cwl_files import ROOT
from support.engine import wait_until
from support.schedules import call_schedule, memory, results, write_schedule
from support.user_systemd import user_systemd

FAKES = ROOT / "tests" / "fakes" / "bin"
GOOD = 'cat "$0"/* > result.txt'


def analyzed(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze: apt-get install systemd")
    return subprocess.run(
        ["systemd-analyze", *words], env=os.environ | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("text", "zone", "lines"),
    [
        ("0 2 * * *", None, ["*-*-* 02:00:00"]),
        ("30 2,14 1 * *", "Europe/Rome", ["*-*-01 02,14:30:00 Europe/Rome"]),
        ("*/20 * * * mon-fri", None, ["Mon,Tue,Wed,Thu,Fri *-*-* *:00,20,40:00"]),
        ("0 0 1 * 7", None, ["Sun *-*-* 00:00:00", "*-*-01 00:00:00"]),
        ("0 0 */2 6 1", None, [f"Mon *-06-{','.join(f'{day:02}' for day in range(1, 32, 2))} 00:00:00"]),
    ],
)
def test_the_times_of_cron_are_translated_for_systemd(text: str, zone: str | None, lines: list[str]) -> None:
    assert on_calendar(text, zone) == lines
    for line in lines:
        result = analyzed("calendar", line)
        assert result.returncode == 0, result.stderr
        assert "Next elapse: " in result.stdout


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    folder = tmp_path / 'a "folder" with 100 %'
    folder.mkdir()
    program = folder / "medweave $X"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    words = [program, "schedule", "run", folder / "schedule.yml"]
    (tmp_path / "medweave-x.service").write_text(systemd.service("x", words, folder, f"/usr/bin:{folder}"))
    (tmp_path / "medweave-x.timer").write_text(systemd.timer("x", ["*-*-* 02:00:00"], catches_up=True))
    (tmp_path / "medweave-x-receive.service").write_text(systemd.receiver("x", words, folder, "/usr/bin"))
    made = [tmp_path / f"medweave-x{end}" for end in (".timer", ".service", "-receive.service")]
    result = analyzed("--user", "verify", *made, XDG_RUNTIME_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")


def test_a_crontab_keeps_the_others_lines() -> None:
    others = "MAILTO=me@example.org\n# mine\n5 4 * * * true\n"
    made = cron.with_line(others, "a", "0 2 * * * one")
    both = cron.with_line(made, "b", "0 3 * * * two")
    assert cron.line_of(both, "a") == "0 2 * * * one"
    assert cron.line_of(both, "c") is None
    changed = cron.with_line(both, "a", "0 4 * * * one")
    assert changed.splitlines()[3:] == [
        "# medweave schedule a", "0 4 * * * one", "# medweave schedule b", "0 3 * * * two",
    ]  # fmt: skip
    assert cron.with_line(cron.with_line(changed, "a", None), "b", None) == others


def test_the_line_is_one_that_a_shell_reads_back(tmp_path: Path) -> None:
    folder = tmp_path / "it's 100 %"
    line = cron.line("0  2 * * *", ["/bin/x y", "run"], folder, "/a b:/c", folder / "log")
    assert line.startswith("0 2 * * * cd ")
    words = shlex.split(line.replace("\\%", "%"))[5:]
    assert words == [
        "cd", str(folder), "&&", "PATH=/a b:/c", "/bin/x y", "run", ">>", str(folder / "log"), "2>&1",
    ]  # fmt: skip
    assert "\\%" in line


def placed(folder: Path, place: str, **keys: Any) -> tuple[Path, dict[str, str]]:
    """Write a schedule for a machine with fakes of systemd and cron."""
    made = folder / "made"
    made.mkdir()
    file = write_schedule(folder / "x", GOOD, when="0 2 * * *", place={place: {}}, **keys)
    path = f"{FAKES}:/usr/bin:/bin"
    return file, {
        "PATH": path, "FAKE_SYSTEMD": str(made), "FAKE_CRONTABS": str(made), "XDG_CONFIG_HOME": str(folder / "config"),
    }  # fmt: skip


def do(word: str, file: Path | str, folder: Path, variables: dict[str, str]) -> str:
    code, out, err = call_schedule(word, file, cwd=folder, **variables)
    assert code == 0, err
    return out


def listed(folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    code, out, err = call_schedule("list", "--json", cwd=folder, **variables)
    assert code == 0, err
    (row,) = json.loads(out)
    return dict(row)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["systemd", "cron"])
def test_a_schedule_is_made_paused_resumed_listed_and_removed(tmp_path: Path, place: str) -> None:
    file, variables = placed(tmp_path, place)
    assert "schedule nightly: is " in do("create", file, tmp_path, variables)
    assert listed(tmp_path, variables)["state"] == "waits"
    do("pause", "nightly", tmp_path, variables)
    do("create", file, tmp_path, variables)
    assert listed(tmp_path, variables)["state"] == "paused", "a changed schedule stays paused"
    do("resume", "nightly", tmp_path, variables)
    before = listed(tmp_path, variables)
    assert (before["state"], before["last"]) == ("waits", None)
    started_by(place, tmp_path, variables)
    assert [result.read_text() for result in results(file.parent)] == ["1"]
    assert listed(tmp_path, variables)["last"]["outcome"] == "completed"
    do("remove", "nightly", tmp_path, variables)
    code, out, _ = call_schedule("list", cwd=tmp_path, **variables)
    assert (code, "no schedules were created from this account" in out) == (0, True)
    assert not list((tmp_path / "config").rglob("medweave*"))
    assert len(results(file.parent)) == 1, "results stay"


def started_by(place: str, folder: Path, variables: dict[str, str]) -> None:
    """Run the command that the machine would start at the time, word for word."""
    if place == "systemd":
        text = (folder / "config/systemd/user/medweave-nightly.service").read_text()
        (command,) = [line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart=")]
        subprocess.run(shlex.split(command), check=True, capture_output=True)
        return
    table = subprocess.run([FAKES / "crontab", "-l"], check=True, capture_output=True, text=True, env=variables).stdout
    line = cron.line_of(table, "nightly")
    assert line is not None
    subprocess.run(["sh", "-c", line.split(maxsplit=5)[5].replace("\\%", "%")], check=True)
    assert "completed after" in (folder / "x/schedules/nightly/log").read_text()


@pytest.mark.slow
def test_a_timer_of_systemd_itself_fires_the_schedule(tmp_path: Path) -> None:
    """The real manager. Its stamp says that the machine was down at two o'clock, so the timer fires at once."""
    file = write_schedule(tmp_path / "x", GOOD, when="0 2 * * *", place={"systemd": {}})
    with user_systemd(tmp_path) as variables:
        stamp = Path(variables["XDG_DATA_HOME"]) / "systemd" / "timers" / "stamp-medweave-nightly.timer"
        stamp.parent.mkdir(parents=True)
        stamp.touch()
        os.utime(stamp, (1e9, 1e9))  # the time of the last start, as systemd stores it
        do("create", file, tmp_path, variables)
        wait_until(lambda: memory(file.parent).last is not None, 60)
        assert [result.read_text() for result in results(file.parent)] == ["1"]
        wait_until(lambda: listed(tmp_path, variables)["state"] == "waits", 10)
        assert listed(tmp_path, variables)["last"]["outcome"] == "completed"
        do("pause", "nightly", tmp_path, variables)
        assert listed(tmp_path, variables)["state"] == "paused"
        do("remove", "nightly", tmp_path, variables)
        timers = ["systemctl", "--user", "list-timers", "--all", "--no-legend"]
        assert (
            subprocess.run(timers, env=os.environ | variables, capture_output=True, text=True, check=True).stdout == ""
        )


@pytest.mark.slow
def test_the_receiver_of_a_dicom_node_is_a_service_in_addition_to_the_timer(tmp_path: Path) -> None:
    file, variables = placed(tmp_path, "systemd", watch={"receive": {"callers": ["PACS"]}})
    do("create", file, tmp_path, variables)
    unit = tmp_path / "config/systemd/user/medweave-nightly-receive.service"
    assert f"medweave schedule receive {file}" in unit.read_text()
    do("pause", "nightly", tmp_path, variables)
    assert (tmp_path / "made/medweave-nightly-receive.service").exists(), "it listens while the schedule is paused"
    do("remove", "nightly", tmp_path, variables)
    assert not unit.exists()
    assert not (tmp_path / "made/medweave-nightly-receive.service").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "keys", "message"),
    [
        ("systemd", {"overlap": "replace"}, "systemd cannot run a schedule twice"),
        ("cron", {"timeZone": "Europe/Rome"}, "cron supports only the time zone of the machine"),
    ],
)
def test_an_unsupported_setting_is_refused(tmp_path: Path, place: str, keys: dict[str, str], message: str) -> None:
    file, variables = placed(tmp_path, place, **keys)
    code, _, err = call_schedule("create", file, cwd=tmp_path, **variables)
    assert (code, message in err) == (65, True)


def units_in(folder: Path) -> dict[str, str]:
    return {unit.name: unit.read_text() for unit in sorted((folder / "config").rglob("medweave*")) if unit.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("word", ["daemon-reload", "enable", "restart"])
def test_after_a_refusal_of_systemd_no_units_are_left(tmp_path: Path, word: str) -> None:
    file, variables = placed(tmp_path, "systemd", watch={"receive": {"callers": ["PACS"]}})
    (tmp_path / "made/refuses").write_text(word)
    code, _, err = call_schedule("create", file, cwd=tmp_path, **variables)
    assert (code, "systemd refused" in err, "Failed to connect to bus" in err) == (65, True, True)
    assert units_in(tmp_path) == {}
    assert not list((tmp_path / "made").glob("medweave*")), "nothing is enabled"
    assert "no schedules were created from this account" in call_schedule("list", cwd=tmp_path, **variables)[1]


@pytest.mark.slow
def test_after_a_refusal_of_systemd_the_previous_units_are_left(tmp_path: Path) -> None:
    file, variables = placed(tmp_path, "systemd")
    do("create", file, tmp_path, variables)
    before = units_in(tmp_path)
    assert "02:00:00" in before["medweave-nightly.timer"]
    file.write_text(file.read_text().replace("0 2 * * *", "0 4 * * *"))
    (tmp_path / "made/refuses").write_text("restart")
    assert call_schedule("create", file, cwd=tmp_path, **variables)[0] == 65
    assert units_in(tmp_path) == before


@pytest.mark.slow
def test_a_machine_without_systemd_is_an_error(tmp_path: Path) -> None:
    file, variables = placed(tmp_path, "systemd")
    code, _, err = call_schedule("create", file, cwd=tmp_path, **variables | {"PATH": str(tmp_path)})
    assert (code, "systemctl is not installed" in err) == (69, True)
    assert units_in(tmp_path) == {}
