"""Final states are queried with one line for all waiting jobs, and one line at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import FinalReport, parse_final_report, split_by_job
from medweave_connectors.sites.slurm.commands import END, FinalStateQuery
from medweave_connectors.sites.slurm.final_state import AT_ONCE, FinalStateQueries
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from medweave_connectors.sites.slurm.watch import BURST, QueryRate

ROW = "{0}|{1}|0:0|2|2026-11-21T10:00:00|2026-11-21T10:00:03|00:01.500||n1|01:00:00|None|{2}"


def job(job_id: int, folder: str = "", *, may_requeue: bool = False) -> FinalStateQuery:
    return FinalStateQuery(str(job_id), SlurmJobFiles(folder or f"/none/out.slurm-{job_id:08x}"), may_requeue)


def test_accounting_is_queried_once_and_the_controller_about_jobs_that_did_not_complete(tmp_path: Path) -> None:
    folders = [tmp_path / f"it's {number}.slurm-{number:08x}" for number in range(5)]
    for folder in folders[:4]:
        folder.mkdir()
        (folder / "exit").write_text(f"{folder.name[-1]} 100 107 n1")
    queries = [job(100 + number, str(folder), may_requeue=number == 3) for number, folder in enumerate(folders)]
    words = ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    folders_of_rows = [folders[0], folders[1], "/elsewhere/another.slurm-ffffffff", folders[3], folders[4]]
    rows = [
        ROW.format(item.job_id, word, place) for item, word, place in zip(queries, words, folders_of_rows, strict=True)
    ]
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
        ["sh", "-c", commands.ends(queries)], env=environment, capture_output=True, text=True, check=True
    ).stdout
    sections = split_by_job(answer)
    assert list(sections) == [item.job_id for item in queries]
    ends = [parse_final_report(sections[item.job_id], item.job_id, item.files.token) for item in queries]
    assert [end.sacct and end.sacct.word for end in ends] == ["COMPLETED", "FAILED", None, "COMPLETED", "COMPLETED"]
    assert [end.exit_file and end.exit_file.exit_code for end in ends] == [0, 1, 2, 3, None]
    assert (tmp_path / "sacct").read_text().count("--jobs=100,101,102,103,104 ") == 1
    # 101 failed; the row of 102 is of another job with that id; 103 may be requeued.
    assert (tmp_path / "scontrol").read_text().split() == ["101", "102", "103"]


def test_a_folder_is_identified_by_the_end_of_its_name() -> None:
    # As slurmdbd 22.05 returns it: a double quote became a backquote. The controller was not queried about such a job.
    row = ROW.format(41, "COMPLETED", "/scratch/it's-$HOME-`x`.slurm-61fa8754")
    answer = f"sacct {row}\nof 41\n{END}\n"
    end = parse_final_report(
        split_by_job(answer)["41"], "41", SlurmJobFiles('/scratch/it\'s-$HOME-"x".slurm-61fa8754').token
    )
    assert end.sacct is not None
    assert end.sacct.word == "COMPLETED"
    assert (
        parse_final_report(
            split_by_job(answer)["41"], "41", SlurmJobFiles('/scratch/it\'s-$HOME-"x".slurm-ffffffff').token
        ).sacct
        is None
    )


class Site:
    """Fake login node that answers lines and counts them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.in_flight = self.most = 0
        self.fails = False

    async def run_line(self, line: str) -> str:
        self.lines.append(line)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.01)
        self.in_flight -= 1
        if self.fails:
            raise ConnectionError("cut")
        ids = line.partition("--jobs=")[2].partition(" ")[0].split(",")
        rows = [f"sacct {ROW.format(job_id, 'COMPLETED', f'/none/out.slurm-{int(job_id):08x}')}" for job_id in ids]
        return "\n".join([*rows, *(f"of {job_id}" for job_id in ids), END])


def query_together(site: Site, rate: QueryRate, jobs: int) -> list[FinalReport | BaseException]:
    async def go() -> list[FinalReport | BaseException]:
        ends = FinalStateQueries(site.run_line, rate)
        impatient = asyncio.create_task(ends.query(job(99)))
        others = [asyncio.create_task(ends.query(job(100 + number))) for number in range(jobs)]
        await asyncio.sleep(0)
        impatient.cancel()
        return await asyncio.gather(*others, return_exceptions=True)

    return asyncio.run(go())


def test_many_final_states_are_a_few_lines_one_at_a_time() -> None:
    site = Site()
    reports = query_together(site, QueryRate(), 3 * AT_ONCE - 1)
    assert [report.sacct is not None for report in reports if isinstance(report, FinalReport)] == [True] * (
        3 * AT_ONCE - 1
    )
    assert (len(site.lines), site.most) == (3, 1)


def test_a_failed_line_is_an_error_for_each_of_its_jobs() -> None:
    site = Site()
    site.fails = True
    errors = query_together(site, QueryRate(), 3)
    assert [str(error) for error in errors] == ["cut"] * 3


@pytest.mark.slow
def test_queries_of_final_states_count_for_the_common_rate() -> None:
    site, rate = Site(), QueryRate()
    now = time.monotonic()
    assert all(rate.take(now) for _ in range(BURST))
    query_together(site, rate, 1)
    assert time.monotonic() - now > 1, "a query is allowed after 1.5 s"
