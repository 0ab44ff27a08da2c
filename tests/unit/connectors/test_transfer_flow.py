"""How far a copy is, and what it may take of a line that it shares."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import SiteConfigError
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.transfer import progress as flow_module
from medweave_connectors.transfer.bandwidth import MIB, BandwidthLimit
from medweave_connectors.transfer.progress import Progress, TransferMeter
from support.direct_ends import Recorded
from support.transfers import Places, Route

# ---- how far it is


def test_only_a_copy_that_takes_long_says_how_far_it_is() -> None:
    now, told = [0.0], []
    meter = TransferMeter(report=told.append, clock=lambda: now[0])
    meter.start_attempt(100 * MIB)
    for second in range(76):
        now[0] = float(second)
        meter.add(MIB)
    assert [each.sent_bytes // MIB for each in told] == [11, 41, 71]
    assert all(each.rate == pytest.approx(MIB, rel=0.1) for each in told)
    assert str(told[1]) == "41.0/100.0 MiB: 1.0 MiB/s, 59 s left"


def test_what_is_sent_twice_is_not_further_on() -> None:
    now, told = [0.0], []
    meter = TransferMeter(report=told.append, clock=lambda: now[0])
    meter.start_attempt(50 * MIB)
    meter.add(20 * MIB)
    meter.count_lost(20 * MIB, 15 * MIB)
    now[0] = 60.0
    meter.add(5 * MIB)
    assert told[0].sent_bytes == 20 * MIB
    assert meter.again_bytes == 5 * MIB


def test_a_copy_that_stands_still_says_no_time() -> None:
    assert str(Progress(5 * MIB, 10 * MIB, 0.0)) == "5.0/10.0 MiB: 0.0 MiB/s"


def test_progress_is_a_line_and_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = RunRecord(tmp_path, "lung")
    record.begin()
    record.transfer_progress(
        source="hospital", destination="hpc", num_bytes=5, total_bytes=9, rate=1.4, text="5.0/9.0 MiB"
    )
    assert "  hpc          copy from hospital: 5.0/9.0 MiB" in capsys.readouterr().err
    event = json.loads((record.folder / "events.jsonl").read_text().splitlines()[-1])
    assert (event["type"], event["deployment"]) == ("transfer.progress", "hpc")
    assert event["data"] == {"from": "hospital", "bytes": 5, "total_bytes": 9, "rate": 1, "text": "5.0/9.0 MiB"}


@pytest.mark.slow
@pytest.mark.parametrize("route", ["from-driver", "direct"])
def test_a_long_copy_is_told_on_each_route(
    at: Places, run: Recorded, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(flow_module, "FIRST_S", 0.0)
    monkeypatch.setattr(flow_module, "EACH_S", 0.0)
    (at.source / "scan").write_bytes(os.urandom(8 * MIB))
    sent: Route = "through-driver" if route == "direct" else "from-driver"
    at.at_work(lambda each: each.send(sent, "scan"))
    assert run.transfers[0]["route"] == route
    last = run.progress[-1]
    assert last["num_bytes"] >= 8 * MIB
    assert abs(last["total_bytes"] - last["num_bytes"]) < 1024, "an archive has larger heads than our own stream"


# ---- what it may take


@given(st.integers(1, 9), st.floats(0.1, 1000))
def test_streams_that_go_at_once_have_equal_shares(count: int, mib_per_s: float) -> None:
    limit, heard = BandwidthLimit(mib_per_s), []
    with limit.share(lambda: heard.append(None)) as first:
        heard.clear()  # its own rate
        others = [limit.share() for _ in range(count - 1)]
        shares = [first, *(each.__enter__() for each in others)]
        assert [each.rate for each in shares] == pytest.approx([mib_per_s * MIB / count] * count)
        for each in others:
            each.__exit__(None, None, None)
        assert first.rate == mib_per_s * MIB
    assert len(heard) == 2 * (count - 1)


def test_without_a_limit_nothing_waits() -> None:
    async def act() -> None:
        with BandwidthLimit(None).share() as share:
            assert share.rate is None
            await share.spend(10**15)

    asyncio.run(asyncio.wait_for(act(), 1))


@pytest.mark.slow
@pytest.mark.parametrize("route", ["from-driver", "to-driver", "through-driver", "direct"])
def test_a_limit_is_kept_on_each_route(at: Places, run: Recorded, route: str) -> None:
    (at.source / "scan").write_bytes(os.urandom(4 * MIB))
    kind = partial(MedweaveDataManager, limitMiBps=2, direct=route == "direct")
    sent: Route = {"direct": "through-driver"}.get(route, route)  # type: ignore[assignment]
    began = time.monotonic()
    at.at_work(lambda each: each.send(sent, "scan"), kind)  # type: ignore[arg-type]
    assert time.monotonic() - began > 1.9
    assert run.transfers[0]["route"] == route


@pytest.mark.slow
def test_two_copies_at_once_share_the_limit(at: Places, run: Recorded) -> None:
    # One goes straight, the other from this machine: 2 MiB each, 2 MiB/s for both of them.
    for name in ("one", "two"):
        (at.source / name).write_bytes(os.urandom(2 * MIB))

    async def act(each: Places) -> None:
        await asyncio.gather(each.send("through-driver", "one"), each.send("from-driver", "two"))

    began = time.monotonic()
    at.at_work(act, partial(MedweaveDataManager, limitMiBps=2))  # type: ignore[arg-type]
    assert time.monotonic() - began > 1.9
    assert {each["route"] for each in run.transfers} == {"direct", "from-driver"}


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(SiteConfigError, match="limitMiBps"):
        MedweaveDataManager(None, limitMiBps=0.0)  # type: ignore[arg-type]
