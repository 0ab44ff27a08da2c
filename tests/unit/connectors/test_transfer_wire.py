"""Copies from, to and through this machine in the blocks of direct ones: fewer bytes, and the same in the end."""

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
from support.transfers import LAPTOP, ROUTES, Places, Route, slices, with_pods

MIB = 2**20
UNPACKING = 'case "$1" in x*) ;; *) exec "$real" "$@" ;; esac\n'


def cohort(at: Places, name: str = "cohort", num_bytes: int = MIB + 77) -> Path:
    folder = at.source / name
    folder.mkdir()
    for n in range(3):
        (folder / f"scan {n}").write_bytes(slices(num_bytes))
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: Places, route: Route, *names: str) -> None:
    """Sends these, never straight."""

    async def act(each: Places) -> None:
        for name in names:
            await each.send(route, name)

    at.at_work(act, partial(MedweaveDataManager, direct=False))


# ---- on each route


@pytest.mark.parametrize("route", ROUTES)
def test_ct_goes_in_fewer_bytes(at: Places, run: Recorded, route: Route) -> None:
    folder = cohort(at)
    sent(at, route, "cohort")
    assert same(folder, at.target / "cohort")
    assert at.left() == ["cohort"]
    (told,) = run.transfers
    assert told["route"] == route
    assert told["num_bytes"] == 3 * (MIB + 77)
    assert 0.4 < told["wire_bytes"] / told["num_bytes"] < 0.65


@pytest.mark.slow
@pytest.mark.parametrize("to_pods", [True, False])
def test_to_pods_and_from_them(at: Places, tmp_path: Path, run: Recorded, to_pods: bool) -> None:
    folder = cohort(at)
    with with_pods(at, tmp_path) as pods:

        async def act(each: Places) -> None:
            source, targets = (LAPTOP, pods) if to_pods else (pods[0], [LAPTOP])
            each.manager.register_path(source, str(folder))
            await each.manager.transfer_data(source, str(folder), targets, str(at.target / "copy"))

        at.at_work(act)
    assert same(folder, at.target / "copy")
    assert [each["route"] for each in run.transfers] == ["from-driver" if to_pods else "to-driver"] * (1 + to_pods)
    assert all(0.4 < each["wire_bytes"] / each["num_bytes"] < 0.65 for each in run.transfers)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "python",
    ["exit 127", 'case "$*" in *medweave-codecs*) echo "no such module" >&2; exit 1;; esac; exec "$real" "$@"'],
)
def test_a_site_that_cannot_gets_it_as_it_is(at: Places, run: Recorded, route: Route, python: str) -> None:
    folder = cohort(at)
    at.replace("python3", python)
    sent(at, route, "cohort")
    assert same(folder, at.target / "cohort")
    (told,) = run.transfers
    assert 0 <= told["wire_bytes"] - told["num_bytes"] < 20_000, "an archive has headers, and its padding"


@pytest.mark.slow
def test_a_site_is_asked_once_and_only_for_what_is_large(at: Places) -> None:
    asked = []
    (at.source / "small").write_bytes(slices(1000))
    for name in ("one", "two"):
        cohort(at, name)

    async def act(each: Places) -> None:
        for name in ("small", "one", "two"):
            before = each.asked["site"]
            await each.send("from-driver", name)
            asked.append(each.asked["site"] - before)

    at.at_work(act)
    small, first, second = asked
    assert (first, second) == (small + 1, small)


@pytest.mark.slow
def test_it_is_encoded_once_for_several_places_and_beside_the_event_loop(
    at: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, real = [], Encoder.block_of

    def made(self: Encoder, piece: bytearray) -> Any:
        threads.append(threading.current_thread())
        return real(self, piece)

    monkeypatch.setattr(Encoder, "block_of", made)
    folder = cohort(at)
    with with_pods(at, tmp_path) as pods:

        async def act(each: Places) -> None:
            each.manager.register_path(LAPTOP, str(folder))
            await each.manager.transfer_data(LAPTOP, str(folder), pods, str(at.target / "copy"))

        at.at_work(act)
    assert same(folder, at.target / "copy")
    assert len(threads) == 4, "3 MiB and some headers"
    assert threading.current_thread() not in threads


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_limit_counts_what_is_on_the_wire(
    at: Places, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, real = [0], BandwidthShare.spend

    async def spend(self: BandwidthShare, num_bytes: int) -> None:
        spent[0] += num_bytes
        await real(self, num_bytes)

    monkeypatch.setattr(BandwidthShare, "spend", spend)
    cohort(at)
    sent(at, route, "cohort")
    assert spent[0] == run.transfers[0]["wire_bytes"] < 3 * MIB


# ---- what breaks


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["scan", "cohort"])
def test_what_is_cut_goes_on(
    at: Places, run: Recorded, route: Route, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RETRY_PAUSES_S", (0.1, 0.2, 0.2, 0.2))
    file = at.source / name
    if name == "scan":
        file.write_bytes(slices(32 * MIB))
    else:
        cohort(at, num_bytes=10 * MIB)

    def arrived_bytes() -> int:
        return sum(each.stat().st_size for each in at.target.rglob("scan*") if each.is_file())

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send(route, name))
        while arrived_bytes() < 12 * MIB:
            assert not task.done(), task
            await asyncio.sleep(0.02)
        await asyncio.to_thread(at.server.cut)
        await task

    # On a quick link what goes on may go as it is; on this one, up to 8 blocks of each of the two streams.
    at.at_work(act, partial(MedweaveDataManager, direct=False, limitMiBps=10))
    assert same(file, at.target / name)
    (told,) = run.transfers
    assert told["again_bytes"] <= 12 * MIB
    assert told["wire_bytes"] < 0.8 * (told["num_bytes"] + told["again_bytes"])


@pytest.mark.slow
def test_a_disk_that_fills_up_is_told_by_tars_own_words(at: Places) -> None:
    at.replace(
        "tar",
        UNPACKING
        + 'head -c 9000 >/dev/null; echo "tar: Mustermann: Cannot write: No space left on device" >&2; exit 2',
    )
    cohort(at)
    with pytest.raises(NoRoom) as raised:
        sent(at, "from-driver", "cohort")
    assert "No space left on device (exit status 2)" in str(raised.value)
    assert at.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("route", ["to-driver", "through-driver"])
def test_a_stream_without_its_end_was_cut(
    at: Places, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's python3 is killed once, without a word, and a shell in between says that all is well."""
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
    assert any("a copy was cut and is resumed" in each for each in run.notices)
