"""Copies between two sites over a bucket, with real ssh and a real S3 server: complete, encrypted, and removed afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import NoRoom, SiteConfigError
from medweave_connectors.transfer.agent import bucket_peer as bucket_end
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.routes.bucket import bucket_copy
from medweave_connectors.transfer.routes.direct import direct_copy
from support.bucket import ACCOUNT, Gateway, gateway
from support.direct_ends import PATH, Recorded, recorded
from support.transfers import TransferSites, transfer_sites

PATIENT = "Mustermann_Erika_1970"
PIECE = 2 * 2**20
SIZE = 3 * PIECE + 17
MIDDLE = 2 * PIECE + PIECE // 3
# The peers' program gets smaller pieces and shorter pauses between retries.
PROGRAM = {
    b"\nPIECE = 8 * 2**20\n": b"\nPIECE = %d\n" % PIECE,
    b"\nPAUSES_S = (0.5, 2.0, 8.0)": b"\nPAUSES_S = (0.1, 0.3, 0.6)",
}
FIRST, SECOND = "/0", "/1"  # suffixes of object keys
OFF = "direct copies are switched off in dataManager.config"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as bucket_server:
        yield bucket_server


@pytest.fixture
def at(tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransferSites]:
    for file in server.objects():
        file.unlink()
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket_copy, "REACH_S", 20.0)
    monkeypatch.setattr(bucket_copy, "LATE_S", (0.3, 0.7))
    monkeypatch.setattr(direct_copy, "OTHER_S", 2.0)
    program = small_program()
    monkeypatch.setattr(program_text, "framed", lambda name: program if name == "bucket_peer" else usual_program(name))
    with transfer_sites(tmp_path) as sites:
        sites.server.environment["PATH"] = f"{sites.programs}:{PATH}"
        sites.settings |= {"direct": False, "bucket": server.settings()}
        yield sites


usual_program = program_text.framed


def small_program() -> bytes:
    """Return the program of both peers, with a small piece size."""
    text = usual_program("bucket_peer").partition(b"\n")[2]
    for usual, small in PROGRAM.items():
        assert text.count(usual) == 1
        text = text.replace(usual, small)
    return b"%d\n" % len(text) + text


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


def cohort(at: TransferSites, name: str = "cohort", size: int = SIZE) -> Path:
    """Write a folder of several pieces, with a patient's name."""
    folder = at.source / name
    (folder / "empty").mkdir(parents=True)
    (folder / PATIENT).write_bytes(os.urandom(size))
    (folder / "new\nline").write_bytes(b"x")
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: TransferSites, *names: str) -> None:
    async def act(sites: TransferSites) -> None:
        for name in names:
            await sites.send("through-driver", name)

    at.run_connected(act)


def assert_fell_back(at: TransferSites, run: Recorded, server: Gateway, folder: Path, why: str) -> None:
    """Assert a complete copy through the driver, a recorded reason, and an empty bucket."""
    assert same(folder, at.target / folder.name)
    assert at.target_names() == [folder.name]
    (transfer,) = run.transfers
    assert transfer["route"] == "through-driver"
    assert why in transfer["reason"]
    (notice,) = run.notices
    assert why in notice
    assert PATIENT not in f"{transfer} {notice}"
    assert server.objects() == []


def signing(monkeypatch: pytest.MonkeyPatch, method: str, ending: str, hook: Callable[[str], str | None]) -> None:
    """Call a hook for each signed URL of a method and key suffix; the hook may return another URL."""
    real = bucket_copy.presigned

    def presigned(url_method: str, url: str, *arguments: Any, **more: Any) -> str:
        if url_method == method and url.endswith(ending):
            return hook(real(url_method, url, *arguments, **more)) or real(url_method, url, *arguments, **more)
        return real(url_method, url, *arguments, **more)

    monkeypatch.setattr(bucket_copy, "presigned", presigned)


# ---- copies over the bucket


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


# ---- fallback through the driver


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["secret", "account", "bucket"])
def test_a_wrong_account_or_bucket_falls_back_to_the_driver(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "bucket":
        at.settings["bucket"] = server.settings(bucket="another")
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY" if wrong == "secret" else "AWS_ACCESS_KEY_ID", "wrong")
    folder = cohort(at)
    sent(at, "cohort")
    why = {"secret": "403 SignatureDoesNotMatch", "account": "404 XAdminUserNotFound", "bucket": "404 NoSuchBucket"}
    assert_fell_back(at, run, server, folder, f"at the source: the bucket answers {why[wrong]}")


@pytest.mark.slow
def test_a_refused_bucket_is_probed_once_in_a_run(at: TransferSites, run: Recorded, server: Gateway) -> None:
    at.settings["bucket"] = server.settings(bucket="another")
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    assert [transfer["route"] for transfer in run.transfers] == ["through-driver"] * 2
    assert all("NoSuchBucket" in transfer["reason"] for transfer in run.transfers)
    assert len(run.notices) == 1
    assert sum("command -v python3" in command for command in at.server.commands) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_peer_that_cannot_reach_the_bucket_falls_back_to_the_driver(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"https://127.0.0.1:{free.getsockname()[1]}"
    signing(monkeypatch, method, "/probe", lambda url: url.replace(server.endpoint, nowhere))
    folder = cohort(at)
    sent(at, "cohort")
    where = "source" if method == "PUT" else "destination"
    assert_fell_back(at, run, server, folder, f"at the {where}: the bucket is not reached: connection refused")


@pytest.mark.slow
def test_an_unresponsive_endpoint_falls_back_to_the_driver(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_copy, "REMOVE_S", 1.0)
    monkeypatch.setattr(bucket_copy, "REACH_S", 2.0)  # the agent's own limit is longer
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at.settings["bucket"] = server.settings(endpoint=f"https://127.0.0.1:{silent.getsockname()[1]}")
        folder = cohort(at)
        sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "at the source: the bucket does not answer")


@pytest.mark.slow
def test_an_endpoint_with_another_certificate_is_refused(
    at: TransferSites, run: Recorded, server: Gateway, tmp_path: Path
) -> None:
    from medweave_connectors.transfer.routes.direct.certificates import make_identity

    other = tmp_path / "other.pem"
    other.write_text(make_identity().certificate)
    at.settings["bucket"] = server.settings(ca=str(other))
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "peer certificate does not match")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["flipped", "truncated", "exchanged", "emptied"])
def test_a_changed_object_is_refused(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first: list[bytes] = []
    signing(monkeypatch, "GET", FIRST, lambda _: first.extend(file.read_bytes() for file in server.objects()[:1]))

    def spoil(_: str) -> None:
        (file,) = (file for file in server.objects() if file.name == "1")
        data = file.read_bytes()
        spoiled = {
            "flipped": bytes([data[0] ^ 1]) + data[1:],
            "truncated": data[:-100],
            "exchanged": first[0],  # another piece of this copy
            "emptied": b"",
        }
        # A new file: the server may be reading the old one.
        aside = file.with_name("aside")
        shutil.copy2(file, aside)
        aside.write_bytes(spoiled[change])
        for name in os.listxattr(file):
            os.setxattr(aside, name, os.getxattr(file, name))
        aside.rename(file)

    signing(monkeypatch, "GET", SECOND, spoil)
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(
        at, run, server, folder, "a copy by the bucket broke off: what the bucket gave is not what was stored"
    )


@pytest.mark.slow
def test_an_expired_url_falls_back_to_the_driver(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bucket_copy.presigned

    def presigned(method: str, url: str, *arguments: Any, **more: Any) -> str:
        if method == "GET" and url.endswith(SECOND):
            more["now"] = more["now"].replace(year=2020)
        return real(method, url, *arguments, **more)

    monkeypatch.setattr(bucket_copy, "presigned", presigned)
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "a copy by the bucket broke off: the bucket answers 403 AccessDenied")


@pytest.mark.slow
def test_a_killed_source_program_leaves_no_objects(
    at: TransferSites, run: Recorded, server: Gateway, tmp_path: Path
) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace(
        "tar",
        f'case "$1" in c*) {once} "$real" "$@" | head -c {MIDDLE}; kill -9 $PPID; sleep 1; exit 1; fi;; esac; exec "$real" "$@"',
    )
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "a copy by the bucket broke off: its program ended without a word")


@pytest.mark.slow
def test_a_failed_tar_is_reported(at: TransferSites, run: Recorded, server: Gateway, tmp_path: Path) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace("tar", f'case "$1" in c*) {once} "$real" "$@" | head -c {MIDDLE}; exit 3; fi;; esac; exec "$real" "$@"')
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "a copy by the bucket broke off: tar failed where the files are")


@pytest.mark.slow
def test_the_bucket_is_not_used_after_two_copies_broke_off(at: TransferSites, run: Recorded, server: Gateway) -> None:
    for name in ("one", "two", "three"):
        cohort(at, name, PIECE)
    by_agent = 'tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"'
    at.replace("tar", f'case "$1" in c*) if {by_agent}; then exit 1; fi;; esac; exec "$real" "$@"')
    sent(at, "one", "two", "three")
    assert at.target_names() == ["one", "three", "two"]
    assert ["2 copies by the bucket broke off" in transfer["reason"] for transfer in run.transfers] == [
        False,
        True,
        True,
    ]
    assert len(run.notices) == 2


@pytest.mark.slow
def test_an_archive_with_another_root_is_refused(
    at: TransferSites, run: Recorded, server: Gateway, tmp_path: Path
) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace(
        "tar", f'case "$1" in c*) {once} exec "$real" "$@" --transform s,^cohort,other,; fi;; esac; exec "$real" "$@"'
    )
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "an archive was refused: an entry lies outside of the requested path")
    assert at.target_names() == ["cohort"]


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_copy_is_reported_at_once(
    at: TransferSites, run: Recorded, server: Gateway
) -> None:
    full = 'head -c 100000 >/dev/null; echo "tar: x: No space left on device" >&2; exit 2'
    at.replace("tar", f'case "$1" in x*) {full};; esac; exec "$real" "$@"')
    cohort(at)
    with pytest.raises(NoRoom):
        sent(at, "cohort")
    assert at.target_names() == []
    assert server.objects() == []


def cancel_during_copy(at: TransferSites, tmp_path: Path) -> None:
    """Cancel a copy while the source's tar still writes."""
    at.replace(
        "tar",
        f'case "$1" in c*) head -c {MIDDLE} /dev/zero; touch {tmp_path}/begun; exec sleep 60;; esac; exec "$real" "$@"',
    )
    cohort(at)

    async def act(sites: TransferSites) -> None:
        task = asyncio.create_task(sites.send("through-driver", "cohort"))
        while not (tmp_path / "begun").exists():
            assert not task.done(), task
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at.run_connected(act)


@pytest.mark.slow
def test_a_canceled_copy_leaves_no_files(at: TransferSites, tmp_path: Path, server: Gateway) -> None:
    cancel_during_copy(at, tmp_path)
    assert at.target_names() == []
    assert server.objects() == []


@pytest.mark.slow
def test_a_piece_that_is_stored_after_its_removal_is_removed_again(
    at: TransferSites, tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server may store a complete piece shortly after the sender was killed.
    stored: list[Path] = []

    def late(url: str) -> None:
        object_ = server.folder / unquote(urlsplit(url).path).removeprefix(f"/{server.folder.name}/")

        def store() -> None:
            object_.parent.mkdir(parents=True, exist_ok=True)
            object_.write_bytes(b"encrypted")
            stored.append(object_)

        if not stored:
            threading.Timer(0.3, store).start()

    signing(monkeypatch, "DELETE", "/3", late)
    cancel_during_copy(at, tmp_path)
    assert stored, "the late piece was stored"
    assert server.objects() == []


@pytest.mark.slow
def test_a_full_bucket_falls_back_to_the_driver(at: TransferSites, run: Recorded, tmp_path: Path) -> None:
    root = tmp_path / "full"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * PIECE}", "tmpfs", str(root)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (tmp_path / "small").mkdir()
        with gateway(tmp_path / "small", root=root) as server:
            filler = root / "filler"
            filler.write_bytes(bytes(PIECE + PIECE // 2))
            at.settings["bucket"] = server.settings()
            folder = cohort(at)
            sent(at, "cohort")
            assert_fell_back(at, run, server, folder, "a copy by the bucket broke off: the bucket answers 5")
    finally:
        subprocess.run(["umount", "-l", root], check=True)


@pytest.mark.slow
def test_objects_that_cannot_be_removed_are_reported(
    at: TransferSites, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(9):
        signing(monkeypatch, "DELETE", f"/{n}", lambda url: url[:-4] + "0000")
    cohort(at)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "bucket"
    (notice,) = run.notices
    assert "objects are left in the bucket, under " in notice
    (folder,) = {file.parent.name for file in server.objects()}
    assert folder in notice


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
