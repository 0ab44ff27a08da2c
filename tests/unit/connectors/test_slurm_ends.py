"""How jobs have ended is asked by one line for all that wait to know it, and one line at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import EndWords, read_end, sections
from medweave_connectors.sites.slurm.commands import END, EndOf
from medweave_connectors.sites.slurm.final_state import AT_ONCE, Ends
from medweave_connectors.sites.slurm.script import JobFiles
from medweave_connectors.sites.slurm.watch import BURST, Pace

ROW = "{0}|{1}|0:0|2|2026-11-21T10:00:00|2026-11-21T10:00:03|00:01.500||n1|01:00:00|None|{2}"


def job(job_id: int, folder: str = "", *, starts_again: bool = False) -> EndOf:
    return EndOf(str(job_id), JobFiles(folder or f"/none/out.slurm-{job_id:08x}"), starts_again)


def test_a_line_asks_accounting_once_and_the_controller_about_what_did_not_do_well(tmp_path: Path) -> None:
    folders = [tmp_path / f"it's {number}.slurm-{number:08x}" for number in range(5)]
    for folder in folders[:4]:
        folder.mkdir()
        (folder / "exit").write_text(f"{folder.name[-1]} 100 107 n1")
    asked = [job(100 + number, str(folder), starts_again=number == 3) for number, folder in enumerate(folders)]
    words = ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    places = [folders[0], folders[1], "/elsewhere/another.slurm-ffffffff", folders[3], folders[4]]
    rows = [ROW.format(each.job_id, word, place) for each, word, place in zip(asked, words, places, strict=True)]
    (tmp_path / "rows").write_text("\n".join(rows) + "\n")
    programs = {
        "sacct": f'echo "$*" >> "{tmp_path}/sacct"; cat "{tmp_path}/rows"',
        "scontrol": f'echo $4 >> "{tmp_path}/scontrol"; echo "JobId=$4 JobState=RUNNING WorkDir={tmp_path}/x"',
    }
    for name, script in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    answer = subprocess.run(
        ["sh", "-c", commands.ends(asked)], env=environment, capture_output=True, text=True, check=True
    ).stdout
    found = sections(answer)
    assert list(found) == [each.job_id for each in asked]
    ends = [read_end(found[each.job_id], each.job_id, each.files.token) for each in asked]
    assert [end.sacct and end.sacct.word for end in ends] == ["COMPLETED", "FAILED", None, "COMPLETED", "COMPLETED"]
    assert [end.exit_file and end.exit_file.exit_code for end in ends] == [0, 1, 2, 3, None]
    assert (tmp_path / "sacct").read_text().count("--jobs=100,101,102,103,104 ") == 1
    # It failed; the row is of another job that had the id; Slurm may start it again.
    assert (tmp_path / "scontrol").read_text().split() == ["101", "102", "103"]


def test_a_folder_is_known_by_the_end_of_its_name() -> None:
    # As slurmdbd 22.05 gives it back: a double quote has become another one. The controller was not asked about such a job.
    row = ROW.format(41, "COMPLETED", "/scratch/it's-$HOME-`x`.slurm-61fa8754")
    answer = f"sacct {row}\nof 41\n{END}\n"
    end = read_end(sections(answer)["41"], "41", JobFiles('/scratch/it\'s-$HOME-"x".slurm-61fa8754').token)
    assert end.sacct is not None
    assert end.sacct.word == "COMPLETED"
    assert (
        read_end(sections(answer)["41"], "41", JobFiles('/scratch/it\'s-$HOME-"x".slurm-ffffffff').token).sacct is None
    )


class Site:
    """Answers lines, and counts them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.in_flight = self.most = 0
        self.fails = False

    async def ask(self, line: str) -> str:
        self.lines.append(line)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.01)
        self.in_flight -= 1
        if self.fails:
            raise ConnectionError("cut")
        ids = line.partition("--jobs=")[2].partition(" ")[0].split(",")
        rows = [f"sacct {ROW.format(each, 'COMPLETED', f'/none/out.slurm-{int(each):08x}')}" for each in ids]
        return "\n".join([*rows, *(f"of {each}" for each in ids), END])


def asked_together(site: Site, pace: Pace, jobs: int) -> list[EndWords | BaseException]:
    async def go() -> list[EndWords | BaseException]:
        ends = Ends(site.ask, pace)
        impatient = asyncio.create_task(ends.of(job(99)))
        others = [asyncio.create_task(ends.of(job(100 + number))) for number in range(jobs)]
        await asyncio.sleep(0)
        impatient.cancel()
        return await asyncio.gather(*others, return_exceptions=True)

    return asyncio.run(go())


def test_many_ends_are_a_few_lines_one_at_a_time() -> None:
    site = Site()
    words = asked_together(site, Pace(), 3 * AT_ONCE - 1)
    assert [each.sacct is not None for each in words if isinstance(each, EndWords)] == [True] * (3 * AT_ONCE - 1)
    assert (len(site.lines), site.most) == (3, 1)


def test_a_line_that_fails_says_nothing_about_any_of_its_jobs() -> None:
    site = Site()
    site.fails = True
    words = asked_together(site, Pace(), 3)
    assert [str(each) for each in words] == ["cut"] * 3


@pytest.mark.slow
def test_the_questions_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    site, pace = Site(), Pace()
    monkeypatch.setattr("medweave_connectors.sites.slurm.final_state.SHORTEST_S", 0.01)
    now = time.monotonic()
    assert all(pace.take(now) for _ in range(BURST))
    asked_together(site, pace, 1)
    assert time.monotonic() - now > 1, "a question is left after 1.5 s"
