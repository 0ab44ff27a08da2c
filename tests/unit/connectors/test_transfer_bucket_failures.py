"""Copies over a bucket that fail: they go through the driver, or are reported, and leave no objects."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from medweave_connectors.host.errors import NoRoom
from medweave_connectors.transfer.routes.bucket import bucket_copy
from support.bucket import Gateway, gateway
from support.bucket_copies import (
    FIRST,
    MIDDLE,
    PIECE,
    SECOND,
    assert_fell_back,
    bucket_sites,
    cohort,
    sent,
    signing,
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
    assert_fell_back(at, run, server, folder, f"at the source: the bucket responds with status {why[wrong]}")


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
    assert_fell_back(at, run, server, folder, f"at the {where}: the bucket cannot be reached: connection refused")


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
    assert_fell_back(at, run, server, folder, "at the source: the bucket does not respond")


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
        at, run, server, folder, "a copy through the bucket broke off: a fetched object differs from the stored one"
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
    assert_fell_back(
        at, run, server, folder, "a copy through the bucket broke off: the bucket responds with status 403 AccessDenied"
    )


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
    assert_fell_back(at, run, server, folder, "a copy through the bucket broke off: its agent ended without a message")


@pytest.mark.slow
def test_a_failed_tar_is_reported(at: TransferSites, run: Recorded, server: Gateway, tmp_path: Path) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace("tar", f'case "$1" in c*) {once} "$real" "$@" | head -c {MIDDLE}; exit 3; fi;; esac; exec "$real" "$@"')
    folder = cohort(at)
    sent(at, "cohort")
    assert_fell_back(at, run, server, folder, "a copy through the bucket broke off: tar failed at the source")


@pytest.mark.slow
def test_the_bucket_is_not_used_after_two_copies_broke_off(at: TransferSites, run: Recorded, server: Gateway) -> None:
    for name in ("one", "two", "three"):
        cohort(at, name, PIECE)
    by_agent = 'tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"'
    at.replace("tar", f'case "$1" in c*) if {by_agent}; then exit 1; fi;; esac; exec "$real" "$@"')
    sent(at, "one", "two", "three")
    assert at.target_names() == ["one", "three", "two"]
    assert ["2 copies through the bucket broke off" in transfer["reason"] for transfer in run.transfers] == [
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

    at.cancel_once_begun("cohort", tmp_path / "begun")


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
            assert_fell_back(
                at, run, server, folder, "a copy through the bucket broke off: the bucket responds with status 5"
            )
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
