"""Encoded copies from, to and through the driver: fewer bytes on the wire, and the same files."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host import deadlines
from medweave_connectors.host.errors import NoRoom
from medweave_connectors.transfer.agent.encoding import Encoder
from medweave_connectors.transfer.bandwidth import BandwidthShare
from support.direct_ends import Recorded
from support.transfers import LAPTOP, ROUTES, Route, TransferSites, slices, with_pods

MIB = 2**20
UNPACKING = 'case "$1" in x*) ;; *) exec "$real" "$@" ;; esac\n'


def cohort(at: TransferSites, name: str = "cohort", num_bytes: int = MIB + 77) -> Path:
    folder = at.source / name
    folder.mkdir()
    for n in range(3):
        (folder / f"scan {n}").write_bytes(slices(num_bytes))
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: TransferSites, route: Route, *names: str) -> None:
    """Copy these folders, without direct routes."""

    async def act(sites: TransferSites) -> None:
        for name in names:
            await sites.send(route, name)

    at.run_connected(act, partial(MedweaveDataManager, direct=False))


# ---- routes


@pytest.mark.parametrize("route", ROUTES)
def test_ct_is_sent_in_fewer_bytes(at: TransferSites, run: Recorded, route: Route) -> None:
    folder = cohort(at)
    sent(at, route, "cohort")
    assert same(folder, at.target / "cohort")
    assert at.target_names() == ["cohort"]
    (transfer,) = run.transfers
    assert transfer["route"] == route
    assert transfer["num_bytes"] == 3 * (MIB + 77)
    assert 0.4 < transfer["wire_bytes"] / transfer["num_bytes"] < 0.65


@pytest.mark.slow
@pytest.mark.parametrize("to_pods", [True, False])
def test_copies_to_and_from_pods_are_encoded(at: TransferSites, tmp_path: Path, run: Recorded, to_pods: bool) -> None:
    folder = cohort(at)
    with with_pods(at, tmp_path) as pods:

        async def act(sites: TransferSites) -> None:
            source, targets = (LAPTOP, pods) if to_pods else (pods[0], [LAPTOP])
            sites.manager.register_path(source, str(folder))
            await sites.manager.transfer_data(source, str(folder), targets, str(at.target / "copy"))

        at.run_connected(act)
    assert same(folder, at.target / "copy")
    assert [transfer["route"] for transfer in run.transfers] == ["from-driver" if to_pods else "to-driver"] * (
        1 + to_pods
    )
    assert all(0.4 < transfer["wire_bytes"] / transfer["num_bytes"] < 0.65 for transfer in run.transfers)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "python",
    ["exit 127", 'case "$*" in *medweave-codecs*) echo "no such module" >&2; exit 1;; esac; exec "$real" "$@"'],
)
def test_a_site_without_codecs_receives_unencoded_data(
    at: TransferSites, run: Recorded, route: Route, python: str
) -> None:
    folder = cohort(at)
    at.replace("python3", python)
    sent(at, route, "cohort")
    assert same(folder, at.target / "cohort")
    (transfer,) = run.transfers
    assert 0 <= transfer["wire_bytes"] - transfer["num_bytes"] < 20_000, "an archive has headers and padding"


@pytest.mark.slow
def test_codecs_of_a_site_are_queried_once_and_only_for_large_copies(at: TransferSites) -> None:
    calls = []
    (at.source / "small").write_bytes(slices(1000))
    for name in ("one", "two"):
        cohort(at, name)

    async def act(sites: TransferSites) -> None:
        for name in ("small", "one", "two"):
            before = sites.calls["site"]
            await sites.send("from-driver", name)
            calls.append(sites.calls["site"] - before)

    at.run_connected(act)
    small, first, second = calls
    assert (first, second) == (small + 1, small)


@pytest.mark.slow
def test_data_is_encoded_once_for_several_pods_and_outside_the_event_loop(
    at: TransferSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, real = [], Encoder.block_of

    def block_of(self: Encoder, piece: bytearray) -> Any:
        threads.append(threading.current_thread())
        return real(self, piece)

    monkeypatch.setattr(Encoder, "block_of", block_of)
    folder = cohort(at)
    with with_pods(at, tmp_path) as pods:

        async def act(sites: TransferSites) -> None:
            sites.manager.register_path(LAPTOP, str(folder))
            await sites.manager.transfer_data(LAPTOP, str(folder), pods, str(at.target / "copy"))

        at.run_connected(act)
    assert same(folder, at.target / "copy")
    assert len(threads) == 4, "4 blocks: 3 MiB and some headers"
    assert threading.current_thread() not in threads


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_limit_counts_bytes_on_the_wire(
    at: TransferSites, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, real = [0], BandwidthShare.spend

    async def spend(self: BandwidthShare, num_bytes: int) -> None:
        spent[0] += num_bytes
        await real(self, num_bytes)

    monkeypatch.setattr(BandwidthShare, "spend", spend)
    cohort(at)
    sent(at, route, "cohort")
    assert spent[0] == run.transfers[0]["wire_bytes"] < 3 * MIB


# ---- failures


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["scan", "cohort"])
def test_an_interrupted_copy_is_resumed(
    at: TransferSites, run: Recorded, route: Route, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RETRY_PAUSES_S", (0.1, 0.2, 0.2, 0.2))
    file = at.source / name
    if name == "scan":
        file.write_bytes(slices(32 * MIB))
    else:
        cohort(at, num_bytes=10 * MIB)

    def arrived_bytes() -> int:
        return sum(file.stat().st_size for file in at.target.rglob("scan*") if file.is_file())

    async def act(sites: TransferSites) -> None:
        task = asyncio.create_task(sites.send(route, name))
        while arrived_bytes() < 12 * MIB:
            assert not task.done(), task
            await asyncio.sleep(0.02)
        await asyncio.to_thread(at.server.cut)
        await task

    # A resumed copy may be unencoded on a fast link; a cut loses up to 8 blocks of both streams.
    at.run_connected(act, partial(MedweaveDataManager, direct=False, limitMiBps=10))
    assert same(file, at.target / name)
    (transfer,) = run.transfers
    assert transfer["again_bytes"] <= 12 * MIB
    assert transfer["wire_bytes"] < 0.8 * (transfer["num_bytes"] + transfer["again_bytes"])


@pytest.mark.slow
def test_a_full_disk_is_reported_with_tars_message(at: TransferSites) -> None:
    at.replace(
        "tar",
        UNPACKING
        + 'head -c 9000 >/dev/null; echo "tar: Mustermann: Cannot write: No space left on device" >&2; exit 2',
    )
    cohort(at)
    with pytest.raises(NoRoom) as raised:
        sent(at, "from-driver", "cohort")
    assert "No space left on device (exit status 2)" in str(raised.value)
    assert at.target_names() == []


@pytest.mark.slow
@pytest.mark.parametrize("route", ["to-driver", "through-driver"])
def test_a_truncated_stream_is_resumed(
    at: TransferSites, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's python3 is killed once without a message, and the shell around it exits with status 0."""
    monkeypatch.setattr(deadlines, "RETRY_PAUSES_S", (0.1, 0.2, 0.2, 0.2))
    folder = cohort(at)
    at.replace(
        "python3",
        f'case "$*" in *" send "*) if mkdir {at.programs}/once 2>/dev/null; then\n'
        '"$real" "$@" | head -c 1500000; exit 0; fi;; esac; exec "$real" "$@"',
    )
    sent(at, route, "cohort")
    assert same(folder, at.target / "cohort")
    assert (at.programs / "once").exists()
    assert any("a copy was cut and is resumed" in notice for notice in run.notices)
