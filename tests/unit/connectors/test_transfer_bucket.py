"""Copies between two sites over a bucket, with real ssh and a real S3 server: complete, encrypted, and removed afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import SiteConfigError
from medweave_connectors.transfer.agent import bucket_peer as bucket_end
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.routes.bucket import bucket_copy
from support.bucket import ACCOUNT, Gateway, gateway
from support.bucket_copies import (
    FIRST,
    OFF,
    PATIENT,
    PIECE,
    SECOND,
    SIZE,
    bucket_sites,
    cohort,
    same,
    sent,
    signing,
    usual_program,
)
from support.direct_ends import Recorded
from support.transfers import TransferSites


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as bucket_server:
        yield bucket_server


@pytest.fixture
def at(tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransferSites]:
    with bucket_sites(tmp_path, server, monkeypatch) as sites:
        yield sites


@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, 3 * PIECE, 2**20, PIECE - 4096])
def test_a_copy_uses_the_bucket(at: TransferSites, run: Recorded, server: Gateway, size: int) -> None:
    folder = cohort(at, size=size)
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    (transfer,) = run.transfers
    assert (transfer["route"], transfer["reason"]) == ("bucket", f"{OFF}; both reach the bucket")
    assert run.notices == []
    assert server.objects() == [], "fetched objects are removed"
    # Scan the source, digests | prepare, manifest, rename: no stream through the driver.
    assert dict(at.calls) == {"other": 2, "site": 3}


@pytest.mark.slow
def test_the_bucket_is_used_if_no_direct_route_works(
    at: TransferSites, run: Recorded, monkeypatch: pytest.MonkeyPatch, server: Gateway
) -> None:
    from medweave_connectors.transfer.routes.direct import commands as direct

    real = direct.task_line
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def line(settings: Any, *, sends: bool) -> bytes:
        refused = settings.get("listen") is False
        return real({**settings, "port": port} if refused else settings, sends=sends)

    monkeypatch.setattr(direct, "task_line", line)
    at.settings["direct"] = True
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    assert [transfer["route"] for transfer in run.transfers] == ["bucket"] * 2
    assert "connection refused" in run.transfers[0]["reason"]
    assert run.notices == [], "no copy went through the driver"


@pytest.mark.slow
def test_objects_and_their_keys_are_encrypted_or_random(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, bytes] = {}

    def look(_: str) -> None:
        seen.update((str(file.relative_to(server.folder)), file.read_bytes()) for file in server.objects())

    for ending in (FIRST, SECOND):
        signing(monkeypatch, "GET", ending, look)
    folder = at.source / PATIENT
    folder.mkdir()
    (folder / PATIENT).write_bytes(PATIENT.encode() * 10**6)
    sent(at, PATIENT)
    assert run.transfers[0]["route"] == "bucket"
    assert [len(key.split("/")) for key in seen][:2] == [3, 3], "prefix, random name, number"
    assert all(PATIENT not in name and PATIENT.encode() not in data for name, data in seen.items())
    assert len({data[:64] for data in seen.values()}) == len(seen), "each object has other bytes"


@pytest.mark.slow
def test_files_missing_from_a_store_use_the_bucket(at: TransferSites, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(sites: TransferSites) -> None:
        await sites.send("through-driver", "cohort")
        sites.manager.path_mapper = type(sites.manager.path_mapper)(sites.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(2**20 + 7))
        await sites.send("through-driver", "cohort", "again")

    at.run_connected(act)
    assert same(folder, at.target / "again")
    assert [(transfer["route"], transfer["num_files"]) for transfer in run.transfers] == [("bucket", 2), ("bucket", 1)]


def test_small_copies_go_through_the_driver(at: TransferSites, run: Recorded, server: Gateway) -> None:
    cohort(at, size=1000)
    sent(at, "cohort")
    assert [transfer["route"] for transfer in run.transfers] == ["through-driver"]
    assert run.notices == []


@pytest.mark.slow
def test_concurrent_copies_use_the_bucket(at: TransferSites, run: Recorded, server: Gateway) -> None:
    for n in range(6):
        cohort(at, f"case {n}", PIECE + n)

    async def act(sites: TransferSites) -> None:
        await asyncio.gather(*(sites.send("through-driver", f"case {n}") for n in range(6)))

    at.run_connected(act)
    assert [transfer["route"] for transfer in run.transfers] == ["bucket"] * 6
    assert server.objects() == []


@pytest.mark.slow
def test_the_number_of_pieces_in_the_bucket_is_limited(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces would be fetched faster than the driver removes them.
    monkeypatch.setattr(bucket_copy, "ROOM", 2)
    monkeypatch.setattr(program_text, "framed", usual_program)
    most, num_pieces = 0, 5

    def look(_: str) -> None:
        nonlocal most
        most = max(most, len(server.objects()))

    for n in range(num_pieces):
        signing(monkeypatch, "GET", f"/{n}", look)
    cohort(at, size=num_pieces * bucket_end.PIECE)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "bucket", run.transfers[0]["reason"]
    assert 1 <= most <= 3, "two pieces, and one that is being removed"


@pytest.mark.slow
def test_no_command_line_and_no_file_contains_a_secret(
    at: TransferSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Recorded
) -> None:
    real, keys = bucket_copy.secrets.token_hex, []

    def token_hex(count: int) -> str:
        keys.append(real(count))
        return keys[-1]

    monkeypatch.setattr(bucket_copy, "secrets", SimpleNamespace(token_hex=token_hex))
    at.replace("tar", f'cat /proc/[0-9]*/cmdline > {tmp_path}/seen.$$ 2>/dev/null; exec "$real" "$@"')
    cohort(at)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "bucket"
    texts = [file.read_bytes() for file in tmp_path.glob("seen.*")]
    assert any(b"python3\0-I\0-S\0-c\0" in text for text in texts), "the agent's command line was recorded"
    secrets = [key for key in keys if len(key) == 64] + [ACCOUNT["AWS_SECRET_ACCESS_KEY"]]
    assert len(secrets) == 2
    assert not any(secret.encode() in text for secret in secrets for text in texts)
    sent_program = program_text.framed("bucket_peer")
    assert ACCOUNT["AWS_SECRET_ACCESS_KEY"].encode() not in sent_program


def test_a_site_file_without_bucket_credentials_is_refused_at_the_start(
    server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    context: Any = SimpleNamespace(config={"path": "/nowhere/streamflow.yml"}, deployment_manager=None)
    with pytest.raises(SiteConfigError, match=r"dataManager.config.bucket.credentials"):
        MedweaveDataManager(context, bucket=server.settings())
