"""Progress of copies, and the bandwidth limit that they share."""

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
from medweave_connectors.transfer.progress import TransferMeter, TransferProgress
from support.direct_ends import Recorded
from support.transfers import Route, TransferSites

# ---- progress


def test_only_long_copies_report_progress() -> None:
    now, reports = [0.0], []
    meter = TransferMeter(report=reports.append, clock=lambda: now[0])
    meter.start_attempt(100 * MIB)
    for second in range(76):
        now[0] = float(second)
        meter.add(MIB)
    assert [progress.sent_bytes // MIB for progress in reports] == [11, 41, 71]
    assert all(progress.rate == pytest.approx(MIB, rel=0.1) for progress in reports)
    assert str(reports[1]) == "41.0/100.0 MiB: 1.0 MiB/s, 59 s left"


def test_bytes_sent_again_are_not_progress() -> None:
    now, reports = [0.0], []
    meter = TransferMeter(report=reports.append, clock=lambda: now[0])
    meter.start_attempt(50 * MIB)
    meter.add(20 * MIB)
    meter.count_lost(20 * MIB, 15 * MIB)
    now[0] = 60.0
    meter.add(5 * MIB)
    assert reports[0].sent_bytes == 20 * MIB
    assert meter.again_bytes == 5 * MIB


def test_a_stalled_copy_reports_no_remaining_time() -> None:
    assert str(TransferProgress(5 * MIB, 10 * MIB, 0.0)) == "5.0/10.0 MiB: 0.0 MiB/s"


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
def test_a_long_copy_reports_progress_on_all_routes(
    at: TransferSites, run: Recorded, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(flow_module, "FIRST_S", 0.0)
    monkeypatch.setattr(flow_module, "EACH_S", 0.0)
    (at.source / "scan").write_bytes(os.urandom(8 * MIB))
    sent: Route = "through-driver" if route == "direct" else "from-driver"
    at.run_connected(lambda sites: sites.send(sent, "scan"))
    assert run.transfers[0]["route"] == route
    last = run.progress[-1]
    assert last["num_bytes"] >= 8 * MIB
    assert abs(last["total_bytes"] - last["num_bytes"]) < 1024, "archive headers are larger than those of a tree stream"


# ---- bandwidth limit


@given(st.integers(1, 9), st.floats(0.1, 1000))
def test_concurrent_streams_have_equal_shares(count: int, mib_per_s: float) -> None:
    limit, rate_changes = BandwidthLimit(mib_per_s), []
    with limit.share(lambda: rate_changes.append(None)) as first:
        rate_changes.clear()  # the initial rate of the share
        others = [limit.share() for _ in range(count - 1)]
        shares = [first, *(share.__enter__() for share in others)]
        assert [share.rate for share in shares] == pytest.approx([mib_per_s * MIB / count] * count)
        for share in others:
            share.__exit__(None, None, None)
        assert first.rate == mib_per_s * MIB
    assert len(rate_changes) == 2 * (count - 1)


def test_without_a_limit_nothing_waits() -> None:
    async def act() -> None:
        with BandwidthLimit(None).share() as share:
            assert share.rate is None
            await share.spend(10**15)

    asyncio.run(asyncio.wait_for(act(), 1))


@pytest.mark.slow
@pytest.mark.parametrize("route", ["from-driver", "to-driver", "through-driver", "direct"])
def test_the_limit_applies_to_all_routes(at: TransferSites, run: Recorded, route: str) -> None:
    (at.source / "scan").write_bytes(os.urandom(4 * MIB))
    kind = partial(MedweaveDataManager, limitMiBps=2, direct=route == "direct")
    sent: Route = {"direct": "through-driver"}.get(route, route)  # type: ignore[assignment]
    began = time.monotonic()
    at.run_connected(lambda sites: sites.send(sent, "scan"), kind)  # type: ignore[arg-type]
    assert time.monotonic() - began > 1.9
    assert run.transfers[0]["route"] == route


@pytest.mark.slow
def test_concurrent_copies_share_the_limit(at: TransferSites, run: Recorded) -> None:
    # One copy is direct, the other from the driver: 2 MiB per copy, 2 MiB/s for both together.
    for name in ("one", "two"):
        (at.source / name).write_bytes(os.urandom(2 * MIB))

    async def act(sites: TransferSites) -> None:
        await asyncio.gather(sites.send("through-driver", "one"), sites.send("from-driver", "two"))

    began = time.monotonic()
    at.run_connected(act, partial(MedweaveDataManager, limitMiBps=2))  # type: ignore[arg-type]
    assert time.monotonic() - began > 1.9
    assert {transfer["route"] for transfer in run.transfers} == {"direct", "from-driver"}


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(SiteConfigError, match="limitMiBps"):
        MedweaveDataManager(None, limitMiBps=0.0)  # type: ignore[arg-type]
