"""What a job or a site prints never decides about a job, and a dead background task never leaves its waiters waiting."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.sites.slurm import watch as slurm_watch
from medweave_connectors.sites.slurm.commands import FinalStateQuery
from medweave_connectors.sites.slurm.final_state import FinalStateQueries
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from medweave_connectors.sites.slurm.watch import JobWatcher, QueryRate, WatchedJob
from medweave_core.contracts.progress import JSON_PREFIX
from medweave_core.errors import StorageError
from support.job_record import events_of, run_with_job

HUGE, DEEP = "9" * 5000, "[" * 20000
ODD_VALUES = ("Infinity", "-Infinity", "NaN", "1e999", "-1", HUGE, "null", "true", '"x"', "{}", "[]", DEEP)
END_KNOWN_S = 20.0  # far above the time that three looks take

Seen = Callable[[object], None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    return run_with_job(tmp_path, monkeypatch, job="/a/0")


def watched(on_text: Callable[[bytes], None], line: str) -> list[Any]:
    """Watch two Slurm jobs to their ends; return None or the error for each.

    Job 0 prints `line`, which `on_text` gets, at the first look; both have ended at the third.
    """

    async def both() -> list[Any]:
        looks = 0

        async def ask(_line: str) -> str:
            nonlocal looks
            looks += 1
            text = base64.b64encode(f"{line}\n".encode()).decode() if looks == 1 else ""
            word = "RUNNING" if looks < 3 else "COMPLETED"
            return f"text 0 {text}\njob 0|{word}|None|N/A|k0\njob 1|{word}|None|N/A|k1\nsqueue 0\nmedweave-end"

        def job(number: int) -> WatchedJob:
            return WatchedJob(
                job_id=str(number), files=SlurmJobFiles("/j"), followed="/j/stderr", on_notice=lambda _: None, word="RUNNING",
                on_text=on_text, seems_ended=asyncio.get_running_loop().create_future(),
            )  # fmt: skip

        watch = JobWatcher(ask, QueryRate())
        ends = asyncio.gather(*(watch.until_end(job(number)) for number in range(2)), return_exceptions=True)
        return list(await asyncio.wait_for(ends, END_KNOWN_S))

    return asyncio.run(both())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_watch, "interval_s", lambda *_: 0.01)


@pytest.mark.case("progress-infinity", expected="every job of the deployment ends as Slurm says")
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("odd", ["Infinity", DEEP, HUGE], ids=["infinity", "deep", "huge"])
def test_one_line_of_a_job_does_not_end_the_watcher_of_all(run: RunRecord, seen: Seen, odd: str) -> None:
    line = f'medweave-progress {{"unit":"epoch","done":1,"total":3,"seconds_left":{odd}}}'
    ends = watched(JobOutput("/a/0").stderr, line)
    seen(ends)
    assert ends == [None, None]


@pytest.mark.case(
    "progress-infinity", expected="an error of the driver while it takes one job's text is that job's alone"
)
@pytest.mark.usefixtures("fast")
def test_a_driver_fault_fails_its_waiter_and_no_other(seen: Seen) -> None:
    def full(_data: bytes) -> None:
        raise StorageError("the event log could not be written.", seen="no space left")

    first, second = watched(full, "x")
    seen((type(first).__name__, second))
    assert isinstance(first, StorageError)
    assert second is None


@pytest.mark.case("progress-infinity", expected="a watcher that dies fails its waiters with its error")
@pytest.mark.parametrize("dies", ["watch", "ends"])
def test_a_dead_watcher_fails_its_waiters(seen: Seen, monkeypatch: pytest.MonkeyPatch, dies: str) -> None:
    async def waits() -> None:
        async def ask(_line: str) -> str:
            raise AssertionError("no question was expected")

        class BrokenPace(QueryRate):
            def take(self, now: float) -> bool:
                raise RuntimeError("internal error")

        monkeypatch.setattr(slurm_watch, "interval_s", lambda *_: 0.0)
        files = SlurmJobFiles("/j")
        if dies == "ends":
            await FinalStateQueries(ask, BrokenPace()).query(FinalStateQuery("1", files, False))
        nothing: Any = None
        ended = asyncio.get_running_loop().create_future()
        await JobWatcher(ask, BrokenPace()).until_end(
            WatchedJob("1", files, "", nothing, nothing, ended, word="PENDING")
        )

    with pytest.raises(RuntimeError, match="internal error") as error:
        asyncio.run(asyncio.wait_for(waits(), END_KNOWN_S))
    seen(error.value)


@pytest.mark.case("progress-infinity", expected="one job's unreadable end is no error of the others")
def test_garbage_of_one_job_is_not_the_end_of_another(seen: Seen) -> None:
    async def ends() -> list[Any]:
        row = "sacct {}|COMPLETED|0:0|1|2026-01-01T00:00:00|2026-01-01T00:00:00|00:01|4K|n1|1|None|/j"

        async def ask(_line: str) -> str:
            rows = "\n".join(row.format(job) for job in (1, 2))
            return f"{rows}\nof 1\nfile exit banana \x00\ntail stderr %%%\nof 2\nfile exit 0 1 2 n1\nmedweave-end"

        asker = FinalStateQueries(ask, QueryRate())
        jobs = [FinalStateQuery(job, SlurmJobFiles("/j"), False) for job in ("1", "2")]
        return list(await asyncio.gather(*(asker.query(job) for job in jobs), return_exceptions=True))

    first, second = asyncio.run(ends())
    seen((type(first).__name__, second.sacct.word))
    assert isinstance(first, ValueError)
    assert (second.sacct.word, second.exit_file.exit_code) == ("COMPLETED", 0)


@pytest.mark.case(
    "progress-infinity", expected="a progress line with any value is recorded in bounds, or is an ordinary line"
)
@pytest.mark.parametrize("key", ["seconds_left", "done", "total", "loss", "detail"])
def test_a_progress_line_with_odd_values_is_in_bounds_or_ordinary(run: RunRecord, seen: Seen, key: str) -> None:
    output = JobOutput("/a/0")
    for odd in ODD_VALUES:
        figures = {"unit": '"epoch"', "done": "1", "total": "3", "seconds_left": "2.0"} | {key: odd}
        output.stderr(
            (JSON_PREFIX + "{" + ",".join(f'"{name}":{value}' for name, value in figures.items()) + "}\n").encode()
        )
    output.stderr(b"after them\n")
    progress = [event["data"] for event in events_of(run) if event["type"] == "job.progress"]
    seen(f"{len(progress)} of {len(ODD_VALUES)} recorded")
    assert output.stderr_tail[-1] == "after them"
    assert all(math.isfinite(data["seconds_left"]) and data["done"] >= 0 and data["total"] >= 0 for data in progress)
