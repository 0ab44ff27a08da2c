"""Copies between two sites by way of a bucket, over real ssh and a real S3 server: whole, sealed, and gone afterwards."""

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
from support.transfers import Places, places

PATIENT = "Mustermann_Erika_1970"
PIECE = 2 * 2**20
SIZE = 3 * PIECE + 17
MIDDLE = 2 * PIECE + PIECE // 3
# What is sent to the ends has smaller pieces, and shorter pauses before another try.
PROGRAM = {
    b"\nPIECE = 8 * 2**20\n": b"\nPIECE = %d\n" % PIECE,
    b"\nPAUSES_S = (0.5, 2.0, 8.0)": b"\nPAUSES_S = (0.1, 0.3, 0.6)",
}
FIRST, SECOND = "/0", "/1"  # ends of keys
OFF = "direct copies are switched off in dataManager.config"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
def at(tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    for each in server.objects():
        each.unlink()
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket_copy, "REACH_S", 20.0)
    monkeypatch.setattr(bucket_copy, "LATE_S", (0.3, 0.7))
    monkeypatch.setattr(direct_copy, "OTHER_S", 2.0)
    program = small_program()
    monkeypatch.setattr(program_text, "framed", lambda name: program if name == "bucket_peer" else usual_program(name))
    with places(tmp_path) as made:
        made.server.environment["PATH"] = f"{made.programs}:{PATH}"
        made.settings |= {"direct": False, "bucket": server.settings()}
        yield made


usual_program = program_text.framed


def small_program() -> bytes:
    """The program of both ends, with a small piece."""
    text = usual_program("bucket_peer").partition(b"\n")[2]
    for usual, small in PROGRAM.items():
        assert text.count(usual) == 1
        text = text.replace(usual, small)
    return b"%d\n" % len(text) + text


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


def cohort(at: Places, name: str = "cohort", size: int = SIZE) -> Path:
    """A folder of some pieces, with a patient's name."""
    folder = at.source / name
    (folder / "empty").mkdir(parents=True)
    (folder / PATIENT).write_bytes(os.urandom(size))
    (folder / "new\nline").write_bytes(b"x")
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: Places, *names: str) -> None:
    async def act(each: Places) -> None:
        for name in names:
            await each.send("through-driver", name)

    at.at_work(act)


def fell_back(at: Places, run: Recorded, server: Gateway, folder: Path, why: str) -> None:
    """It came whole through the driver, the reason is known, and nothing is left in the bucket."""
    assert same(folder, at.target / folder.name)
    assert at.left() == [folder.name]
    (told,) = run.transfers
    assert told["route"] == "through-driver"
    assert why in told["reason"]
    (said,) = run.notices
    assert why in said
    assert PATIENT not in f"{told} {said}"
    assert server.objects() == []


def signing(monkeypatch: pytest.MonkeyPatch, method: str, ending: str, hook: Callable[[str], str | None]) -> None:
    """Lets a test act when a URL is signed, or change it."""
    real = bucket_copy.presigned

    def presigned(asked: str, url: str, *given: Any, **more: Any) -> str:
        if asked == method and url.endswith(ending):
            return hook(real(asked, url, *given, **more)) or real(asked, url, *given, **more)
        return real(asked, url, *given, **more)

    monkeypatch.setattr(bucket_copy, "presigned", presigned)


# ---- by way of it


@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, 3 * PIECE, 2**20, PIECE - 4096])
def test_a_copy_goes_by_the_bucket(at: Places, run: Recorded, server: Gateway, size: int) -> None:
    folder = cohort(at, size=size)
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    (told,) = run.transfers
    assert (told["route"], told["reason"]) == ("bucket", f"{OFF}; both reach the bucket")
    assert run.notices == []
    assert server.objects() == [], "what was fetched is removed"
    # Looks at the source, digests | prepares, manifest, rename: no stream came through this machine.
    assert dict(at.asked) == {"other": 2, "site": 3}


@pytest.mark.slow
def test_it_is_the_way_where_none_is_straight(
    at: Places, run: Recorded, monkeypatch: pytest.MonkeyPatch, server: Gateway
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
    assert [each["route"] for each in run.transfers] == ["bucket"] * 2
    assert "connection refused" in run.transfers[0]["reason"]
    assert run.notices == [], "nothing goes through this machine"


@pytest.mark.slow
def test_what_the_bucket_sees_is_sealed(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, bytes] = {}

    def look(_: str) -> None:
        seen.update((str(each.relative_to(server.folder)), each.read_bytes()) for each in server.objects())

    for ending in (FIRST, SECOND):
        signing(monkeypatch, "GET", ending, look)
    folder = at.source / PATIENT
    folder.mkdir()
    (folder / PATIENT).write_bytes(PATIENT.encode() * 10**6)
    sent(at, PATIENT)
    assert run.transfers[0]["route"] == "bucket"
    assert [len(each.split("/")) for each in seen][:2] == [3, 3], "prefix, random name, number"
    assert all(PATIENT not in name and PATIENT.encode() not in data for name, data in seen.items())
    assert len({data[:64] for data in seen.values()}) == len(seen), "nothing repeats"


@pytest.mark.slow
def test_what_a_store_lacks_goes_by_it_too(at: Places, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(each: Places) -> None:
        await each.send("through-driver", "cohort")
        each.manager.path_mapper = type(each.manager.path_mapper)(each.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(2**20 + 7))
        await each.send("through-driver", "cohort", "again")

    at.at_work(act)
    assert same(folder, at.target / "again")
    assert [(each["route"], each["num_files"]) for each in run.transfers] == [("bucket", 2), ("bucket", 1)]


def test_what_is_small_goes_through_the_driver(at: Places, run: Recorded, server: Gateway) -> None:
    cohort(at, size=1000)
    sent(at, "cohort")
    assert [each["route"] for each in run.transfers] == ["through-driver"]
    assert run.notices == []


@pytest.mark.slow
def test_many_at_once(at: Places, run: Recorded, server: Gateway) -> None:
    for n in range(6):
        cohort(at, f"case {n}", PIECE + n)

    async def act(each: Places) -> None:
        await asyncio.gather(*(each.send("through-driver", f"case {n}") for n in range(6)))

    at.at_work(act)
    assert [each["route"] for each in run.transfers] == ["bucket"] * 6
    assert server.objects() == []


@pytest.mark.slow
def test_the_bucket_holds_but_some_pieces_at_a_time(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces would be fetched more quickly than one is removed.
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
    assert 1 <= most <= 3, "two, and one that is being removed"


# ---- not by way of it


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["secret", "account", "bucket"])
def test_an_account_or_a_bucket_that_is_wrong(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "bucket":
        at.settings["bucket"] = server.settings(bucket="another")
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY" if wrong == "secret" else "AWS_ACCESS_KEY_ID", "wrong")
    folder = cohort(at)
    sent(at, "cohort")
    why = {"secret": "403 SignatureDoesNotMatch", "account": "404 XAdminUserNotFound", "bucket": "404 NoSuchBucket"}
    fell_back(at, run, server, folder, f"at the source: the bucket answers {why[wrong]}")


@pytest.mark.slow
def test_what_is_refused_is_asked_once_in_a_run(at: Places, run: Recorded, server: Gateway) -> None:
    at.settings["bucket"] = server.settings(bucket="another")
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    assert [each["route"] for each in run.transfers] == ["through-driver"] * 2
    assert all("NoSuchBucket" in each["reason"] for each in run.transfers)
    assert len(run.notices) == 1
    assert sum("command -v python3" in each for each in at.server.commands) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_an_end_that_does_not_reach_it(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"https://127.0.0.1:{free.getsockname()[1]}"
    signing(monkeypatch, method, "/probe", lambda url: url.replace(server.endpoint, nowhere))
    folder = cohort(at)
    sent(at, "cohort")
    where = "source" if method == "PUT" else "destination"
    fell_back(at, run, server, folder, f"at the {where}: the bucket is not reached: connection refused")


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_copy, "REMOVE_S", 1.0)
    monkeypatch.setattr(bucket_copy, "REACH_S", 2.0)  # the far end's own time is longer
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at.settings["bucket"] = server.settings(endpoint=f"https://127.0.0.1:{silent.getsockname()[1]}")
        folder = cohort(at)
        sent(at, "cohort")
    fell_back(at, run, server, folder, "at the source: the bucket does not answer")


@pytest.mark.slow
def test_an_endpoint_with_a_certificate_of_somebody_else(
    at: Places, run: Recorded, server: Gateway, tmp_path: Path
) -> None:
    from medweave_connectors.transfer.routes.direct.certificates import make_identity

    other = tmp_path / "other.pem"
    other.write_text(make_identity().certificate)
    at.settings["bucket"] = server.settings(ca=str(other))
    folder = cohort(at)
    sent(at, "cohort")
    fell_back(at, run, server, folder, "peer certificate does not match")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["flipped", "truncated", "exchanged", "emptied"])
def test_an_object_that_is_not_what_was_stored(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first: list[bytes] = []
    signing(monkeypatch, "GET", FIRST, lambda _: first.extend(each.read_bytes() for each in server.objects()[:1]))

    def spoil(_: str) -> None:
        (file,) = (each for each in server.objects() if each.name == "1")
        data = file.read_bytes()
        spoiled = {
            "flipped": bytes([data[0] ^ 1]) + data[1:],
            "truncated": data[:-100],
            "exchanged": first[0],  # another piece of the same copy
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
    fell_back(at, run, server, folder, "a copy by the bucket broke off: what the bucket gave is not what was stored")


@pytest.mark.slow
def test_a_url_that_has_expired(at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bucket_copy.presigned

    def presigned(method: str, url: str, *given: Any, **more: Any) -> str:
        if method == "GET" and url.endswith(SECOND):
            more["now"] = more["now"].replace(year=2020)
        return real(method, url, *given, **more)

    monkeypatch.setattr(bucket_copy, "presigned", presigned)
    folder = cohort(at)
    sent(at, "cohort")
    fell_back(at, run, server, folder, "a copy by the bucket broke off: the bucket answers 403 AccessDenied")


@pytest.mark.slow
def test_a_source_that_dies_in_the_middle_leaves_nothing(
    at: Places, run: Recorded, server: Gateway, tmp_path: Path
) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace(
        "tar",
        f'case "$1" in c*) {once} "$real" "$@" | head -c {MIDDLE}; kill -9 $PPID; sleep 1; exit 1; fi;; esac; exec "$real" "$@"',
    )
    folder = cohort(at)
    sent(at, "cohort")
    fell_back(at, run, server, folder, "a copy by the bucket broke off: its program ended without a word")


@pytest.mark.slow
def test_a_tar_that_dies_is_told(at: Places, run: Recorded, server: Gateway, tmp_path: Path) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace("tar", f'case "$1" in c*) {once} "$real" "$@" | head -c {MIDDLE}; exit 3; fi;; esac; exec "$real" "$@"')
    folder = cohort(at)
    sent(at, "cohort")
    fell_back(at, run, server, folder, "a copy by the bucket broke off: tar failed where the files are")


@pytest.mark.slow
def test_after_two_copies_that_broke_the_bucket_is_left_alone(at: Places, run: Recorded, server: Gateway) -> None:
    for name in ("one", "two", "three"):
        cohort(at, name, PIECE)
    by_agent = 'tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"'
    at.replace("tar", f'case "$1" in c*) if {by_agent}; then exit 1; fi;; esac; exec "$real" "$@"')
    sent(at, "one", "two", "three")
    assert at.left() == ["one", "three", "two"]
    assert ["2 copies by the bucket broke off" in each["reason"] for each in run.transfers] == [False, True, True]
    assert len(run.notices) == 2


@pytest.mark.slow
def test_an_archive_that_is_not_what_was_asked_for(at: Places, run: Recorded, server: Gateway, tmp_path: Path) -> None:
    once = f'if mkdir "{tmp_path}/once" 2>/dev/null; then'
    at.replace(
        "tar", f'case "$1" in c*) {once} exec "$real" "$@" --transform s,^cohort,other,; fi;; esac; exec "$real" "$@"'
    )
    folder = cohort(at)
    sent(at, "cohort")
    fell_back(at, run, server, folder, "an archive was refused: an entry lies elsewhere")
    assert at.left() == ["cohort"]


@pytest.mark.slow
def test_a_disk_that_fills_up_on_the_way_is_told_at_once(at: Places, run: Recorded, server: Gateway) -> None:
    full = 'head -c 100000 >/dev/null; echo "tar: x: No space left on device" >&2; exit 2'
    at.replace("tar", f'case "$1" in x*) {full};; esac; exec "$real" "$@"')
    cohort(at)
    with pytest.raises(NoRoom):
        sent(at, "cohort")
    assert at.left() == []
    assert server.objects() == []


def cancelled_on_its_way(at: Places, tmp_path: Path) -> None:
    """A copy that is cancelled while its source's tar has more to write."""
    at.replace(
        "tar",
        f'case "$1" in c*) head -c {MIDDLE} /dev/zero; touch {tmp_path}/begun; exec sleep 60;; esac; exec "$real" "$@"',
    )
    cohort(at)

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send("through-driver", "cohort"))
        while not (tmp_path / "begun").exists():
            assert not task.done(), task
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at.at_work(act)


@pytest.mark.slow
def test_a_copy_that_is_cancelled_leaves_nothing(at: Places, tmp_path: Path, server: Gateway) -> None:
    cancelled_on_its_way(at, tmp_path)
    assert at.left() == []
    assert server.objects() == []


@pytest.mark.slow
def test_a_piece_that_is_there_only_after_it_was_removed_is_removed_again(
    at: Places, tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that has a whole piece stores it, though its sender has been ended; it may do so a moment later.
    came: list[Path] = []

    def late(url: str) -> None:
        object_ = server.folder / unquote(urlsplit(url).path).removeprefix(f"/{server.folder.name}/")

        def store() -> None:
            object_.parent.mkdir(parents=True, exist_ok=True)
            object_.write_bytes(b"sealed")
            came.append(object_)

        if not came:
            threading.Timer(0.3, store).start()

    signing(monkeypatch, "DELETE", "/3", late)
    cancelled_on_its_way(at, tmp_path)
    assert came, "it did come"
    assert server.objects() == []


@pytest.mark.slow
def test_a_bucket_that_is_full(at: Places, run: Recorded, tmp_path: Path) -> None:
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
            fell_back(at, run, server, folder, "a copy by the bucket broke off: the bucket answers 5")
    finally:
        subprocess.run(["umount", "-l", root], check=True)


@pytest.mark.slow
def test_what_cannot_be_removed_is_told(
    at: Places, run: Recorded, server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(9):
        signing(monkeypatch, "DELETE", f"/{n}", lambda url: url[:-4] + "0000")
    cohort(at)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "bucket"
    (said,) = run.notices
    assert "objects are left in the bucket, under " in said
    (folder,) = {each.parent.name for each in server.objects()}
    assert folder in said


@pytest.mark.slow
def test_no_command_line_and_no_file_has_a_secret(
    at: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Recorded
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
    texts = [each.read_bytes() for each in tmp_path.glob("seen.*")]
    assert any(b"python3\0-I\0-S\0-c\0" in text for text in texts), "the program was seen"
    secrets = [each for each in keys if len(each) == 64] + [ACCOUNT["AWS_SECRET_ACCESS_KEY"]]
    assert len(secrets) == 2
    assert not any(each.encode() in text for each in secrets for text in texts)
    sent_there = program_text.framed("bucket_peer")
    assert ACCOUNT["AWS_SECRET_ACCESS_KEY"].encode() not in sent_there


def test_a_file_without_its_account_is_refused_at_the_start(server: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    context: Any = SimpleNamespace(config={"path": "/nowhere/streamflow.yml"}, deployment_manager=None)
    with pytest.raises(SiteConfigError, match=r"dataManager.config.bucket.credentials"):
        MedweaveDataManager(context, bucket=server.settings())
