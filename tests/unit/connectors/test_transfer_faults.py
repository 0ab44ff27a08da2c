"""Copies between this machine and sites over real ssh: whole, or not there at all, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamflow.data.manager import DefaultDataManager

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import (
    NoRoom,
    SiteUnreachable,
    SourceChanged,
    SourceUnreadable,
    TargetRefused,
    TransferFailed,
)
from support.transfers import ROUTES, Places, Route, places, with_pods

ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
PATIENT = "Mustermann_Erika_1970"
UNPACKING = 'case "$1" in x*) ;; *) exec "$real" "$@" ;; esac\n'


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    with places(tmp_path) as made:
        yield made


def cohort(at: Places, name: str = "cohort") -> Path:
    """Ten files below a folder, each with a patient's name."""
    folder = at.source / name
    folder.mkdir()
    for n in range(10):
        (folder / f"{PATIENT}_{n}").write_bytes(bytes([n]) * (5000 + n))
    return folder


def tree(folder: Path) -> dict[str, Any]:
    """All entries by name, links followed: the content of files, the mode of both kinds."""
    found = [
        Path(top, name) for top, folders, files in os.walk(folder, followlinks=True) for name in (*folders, *files)
    ]
    return {
        os.fsdecode(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in (folder, *found)
    }


def sent(at: Places, route: Route = "from-driver", name: str = "cohort", to: str = "") -> None:
    at.at_work(lambda each: each.send(route, name, to))


def failed(at: Places, kind: type[TransferFailed], *, route: Route = "from-driver") -> str:
    """The words of a copy that was not made. They name no file, and nothing is left."""
    with pytest.raises(kind) as raised:
        sent(at, route)
    assert type(raised.value) is kind
    assert at.left() == []
    assert PATIENT not in str(raised.value)
    return str(raised.value)


# ---- what arrives


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_folder_arrives_as_it_is(at: Places, route: Route) -> None:
    folder = at.source / "-a folder's name"
    (folder / "empty" / "emptier").mkdir(parents=True)
    for name in ODD:
        (folder / name).write_bytes(os.urandom(100))
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o750)
    (folder / "again").hardlink_to(folder / "tool")
    with (folder / "sparse").open("wb") as stream:
        stream.truncate(1_000_000)
    (at.source / "elsewhere").write_text("linked")
    (folder / "link").symlink_to(at.source / "elsewhere")
    (folder / "relative").symlink_to("empty")
    sent(at, route, folder.name, "its other name")
    assert at.left() == ["its other name"]
    assert tree(at.target / "its other name") == tree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["-dash", "two\nlines", "$(touch harm)"])
def test_a_file_arrives_under_its_own_name_and_another(at: Places, route: Route, name: str) -> None:
    (at.source / name).write_bytes(b"content")
    (at.source / name).chmod(0o750)

    async def both(each: Places) -> None:
        await each.send(route, name)
        (each.target / "folder").mkdir()
        each.manager.path_mapper = type(each.manager.path_mapper)(each.manager.context)  # nothing is known to be there
        await each.send(route, name, "folder")

    at.at_work(both)
    assert at.left() == sorted([name, "folder"])
    for path in (at.target / name, at.target / "folder" / name):
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"content", 0o750)


@pytest.mark.parametrize("route", ROUTES)
def test_what_was_there_before_is_replaced(at: Places, route: Route) -> None:
    folder = cohort(at)
    stale = at.target / "sub" / "cohort"
    stale.mkdir(parents=True)
    (stale / "of an earlier run").touch()
    sent(at, route, "cohort", "sub")  # a folder: the copy goes below it
    assert tree(stale) == tree(folder)
    assert [each.name for each in (at.target / "sub").iterdir()] == ["cohort"]


def test_clocks_an_hour_apart_do_not_matter(at: Places) -> None:
    at.replace("tar", UNPACKING + '"$real" "$@" && find "$4" -exec touch -d "1 hour" {} +')
    folder = cohort(at)
    sent(at)
    assert tree(at.target / "cohort") == tree(folder)
    assert (at.target / "cohort" / f"{PATIENT}_0").stat().st_mtime > (folder / f"{PATIENT}_0").stat().st_mtime + 3000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cohort", "file"])
def test_pods_that_share_a_file_system_unknown_to_us(at: Places, tmp_path: Path, name: str) -> None:
    folder = cohort(at)
    (at.source / "file").write_bytes(os.urandom(3_000_000))

    async def act(each: Places) -> None:
        laptop = each.places()["laptop"]
        each.manager.register_path(laptop, str(each.source / name))
        await each.manager.transfer_data(laptop, str(each.source / name), pods, str(each.target / "sent"))
        each.manager.register_path(pods[0], str(each.target / "sent"))
        await each.manager.transfer_data(pods[0], str(each.target / "sent"), [laptop], str(each.target / "back"), True)

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert at.left() == ["back", "sent"]
    for copy in (at.target / "sent", at.target / "back"):
        assert tree(copy) == (tree(folder) if name == "cohort" else tree(at.source / "file"))


def test_mirrors_are_verified_too(at: Places, tmp_path: Path) -> None:
    # One of two pods loses a file; the engine knows of the other only.
    cohort(at)

    async def act(each: Places) -> None:
        connector = each.manager.context.deployment_manager.get_connector("pods")
        connector.mirrors = lambda location: [pods[1]]
        seen: list[str] = []
        run = connector.run

        async def losing(location: Any, command: list[str], **keywords: Any) -> Any:
            seen.append(location.name)
            lost = location.name == "w-1:worker" and "medweave-look" in command[0]
            if lost:
                (each.target / next(iter(each.left())) / "cohort" / f"{PATIENT}_7").unlink(missing_ok=True)
            return await run(location=location, command=command, **keywords)

        connector.run = losing
        laptop = each.places()["laptop"]
        each.manager.register_path(laptop, str(each.source / "cohort"))
        with pytest.raises(TransferFailed, match="1 of 10 files missing"):
            await each.manager.transfer_data(laptop, str(each.source / "cohort"), pods[:1], str(each.target / "sent"))
        assert "w-1:worker" in seen

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert at.left() == []


# ---- what does not


def test_a_byte_that_is_flipped_on_the_way(at: Places) -> None:
    at.replace("tar", UNPACKING + f'"$real" "$@"; printf X | dd of="$4/cohort/{PATIENT}_3" bs=1 seek=9 conv=notrunc')
    cohort(at)
    told = failed(at, TransferFailed)
    assert "a copy from laptop to site is not whole" in told
    assert "1 of 10 files with other content" in told


def test_a_stream_that_ends_too_soon_without_a_word(at: Places) -> None:
    # Each file of an archive takes 512 bytes and its content, here in 10 blocks: the cut is between two of them.
    at.replace(
        "tar", UNPACKING + 'head -c "$((512 + 4 * 512 * 11))" | "$real" "$@" 2>/dev/null; cat > /dev/null; exit 0'
    )
    cohort(at)
    assert "6 of 10 files missing" in failed(at, TransferFailed)


@pytest.mark.parametrize("route", ROUTES)
def test_a_tar_that_dies_in_the_middle(at: Places, route: Route) -> None:
    # Fault D1 of the engine. What it writes names files.
    at.replace("tar", f'head -c 2000 /dev/zero; echo "tar: {PATIENT}: Unexpected EOF" >&2; kill -KILL $$')
    cohort(at)
    assert "the stream broke off" in failed(at, TransferFailed, route=route)


def test_too_little_room_is_seen_before_anything_is_sent(at: Places) -> None:
    at.replace(
        "df", 'printf "F 1024-blocks Used Available Capacity Mounted on\\nnfs:/a 100000 99970 30 99%% /my disk\\n"'
    )
    at.replace("tar", f"touch {at.programs}/called")
    folder = cohort(at)
    size = sum(each.stat().st_size for each in folder.iterdir())
    told = failed(at, NoRoom)
    assert f"{size} bytes are needed, {30 * 1024} are free" in told
    assert not (at.programs / "called").exists()


@pytest.mark.parametrize("word", ["Cannot write: No space left on device", "Wrote only 1536 of 10240 bytes"])
def test_a_disk_that_fills_up_on_the_way(at: Places, word: str) -> None:
    at.replace("tar", UNPACKING + f'head -c 9000 >/dev/null; echo "tar: {PATIENT}: {word}" >&2; exit 2')
    cohort(at)
    told = failed(at, NoRoom)
    assert "bytes are needed; the stream broke off: No space left on device (exit status 2)" in told


def told_to_sync(at: Places, then: str) -> list[str]:
    """What a `sync` at the site is called with in a copy, and whether the copy stood in its place by then."""
    told = at.programs / "synced"
    at.replace("sync", f'[ -e {at.target}/cohort ] && there=there || there=aside; echo "$there $1" >> {told}; {then}')
    cohort(at)
    sent(at)
    assert tree(at.target / "cohort") == tree(at.source / "cohort")
    return told.read_text().split()


def test_what_has_arrived_is_on_the_disk_and_then_its_name(at: Places) -> None:
    assert told_to_sync(at, 'exec "$real" "$@"') == ["aside", "-f", "there", f"{at.target}/"]


def test_a_sync_that_knows_no_file_systems_is_not_used(at: Places) -> None:
    assert told_to_sync(at, "echo \"sync: invalid option -- 'f'\" >&2; exit 1") == ["aside", "-f"]


def test_a_disk_that_turns_out_full_behind_its_cache_is_told(at: Places) -> None:
    at.replace("sync", f"echo \"sync: error syncing '{at.target}/{PATIENT}': No space left on device\" >&2; exit 1")
    cohort(at)
    assert "No space left on device" in failed(at, NoRoom)


def test_a_file_system_that_does_not_tell_its_room_is_tried(at: Places) -> None:
    at.replace("df", 'printf "Filesystem 1024-blocks Used Available Capacity Mounted on\\nfuse 0 0 0 - /x\\n"')
    cohort(at)
    sent(at)
    assert at.left() == ["cohort"]


@pytest.mark.slow
def test_a_place_where_nothing_can_be_written(at: Places) -> None:
    cohort(at)
    at.target.rmdir()
    at.target.touch()  # for root too
    with pytest.raises(TargetRefused, match="nothing can be written there"):
        sent(at)
    at.target.unlink()
    at.target.mkdir()
    for word in ("Read-only file system", "Permission denied"):
        at.replace(
            "mkdir", f'case "$*" in *.part) echo "mkdir: {PATIENT}: {word}" >&2; exit 1;; esac; exec "$real" "$@"'
        )
        assert f"seen:     {word}\n" in failed(at, TargetRefused)


def test_a_rename_that_is_refused(at: Places) -> None:
    at.replace(
        "mv",
        'case "$1" in -f) echo "mv: x: Permission denied" >&2; exit 1;; esac; exec "$real" "$@"',
    )
    cohort(at)
    assert "seen:     Permission denied" in failed(at, TargetRefused)


@pytest.mark.parametrize("program", ["sha256sum", "tar"])
def test_files_that_may_not_be_read(at: Places, program: str) -> None:
    at.replace("sha256sum", f'echo "sha256sum: {PATIENT}: Permission denied" >&2; exit 1')
    if program == "tar":
        at.replace(
            "tar", f'case "$1" in x*) exec "$real" "$@";; esac; echo "tar: {PATIENT}: Permission denied" >&2; exit 2'
        )
    cohort(at)
    assert "seen:     Permission denied\n" in failed(at, SourceUnreadable, route="to-driver")


def test_links_that_lead_nowhere_are_refused_before_anything_is_sent(at: Places) -> None:
    (cohort(at) / f"{PATIENT}_link").symlink_to("nowhere")
    assert "1 links that lead nowhere, of 12" in failed(at, SourceUnreadable)


# ---- a source that changes


def changing(at: Places, times: int) -> Path:
    """A cohort of which a file is written to, so many times, while tar reads it."""
    folder, count = cohort(at), at.programs / "count"
    at.replace(
        "tar",
        f'case "$1" in c*) ;; *) exec "$real" "$@" ;; esac\n'
        f'if [ "$(cat {count} 2>/dev/null | wc -l)" -lt {times} ]; then echo x >> {count}; sleep 0.3; '
        f'echo more >> "{folder}/{PATIENT}_9"; fi; exec "$real" "$@"',
    )
    return folder


@pytest.mark.slow
def test_a_source_that_changes_once_is_sent_again(at: Places) -> None:
    folder = changing(at, 1)
    sent(at, "to-driver")
    assert tree(at.target / "cohort") == tree(folder)
    assert at.left() == ["cohort"]


def test_a_file_that_goes_while_it_is_read(at: Places) -> None:
    folder = cohort(at)
    at.replace(
        "sha256sum", f'if mkdir {at.programs}/first; then rm "{folder}/{PATIENT}_4"; fi 2>/dev/null; exec "$real" "$@"'
    )
    sent(at, "to-driver")
    assert len(tree(folder)) == 10
    assert tree(at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_a_source_that_changes_all_the_time_is_an_error(at: Places) -> None:
    changing(at, 9)
    assert "its files change while they are read" in failed(at, SourceChanged, route="to-driver")


def test_a_source_that_was_sent_before_and_has_changed_is_read_again(at: Places) -> None:
    folder = cohort(at)

    async def twice(each: Places) -> None:
        await each.send("to-driver", "cohort", "first", writable=True)
        (folder / f"{PATIENT}_0").write_bytes(b"another scan")
        await each.send("to-driver", "cohort", "second", writable=True)

    at.at_work(twice)
    assert tree(at.target / "second") == tree(folder) != tree(at.target / "first")


# ---- who ends it, who waits


def test_a_copy_that_is_cancelled_leaves_nothing(at: Places) -> None:
    at.replace("tar", UNPACKING + f'touch {at.programs}/begun; "$real" "$@"; sleep 30')
    cohort(at)

    async def cancelled(each: Places) -> None:
        going = asyncio.create_task(each.send("from-driver", "cohort"))
        while not (each.programs / "begun").exists():
            await asyncio.sleep(0.01)
        assert [name[-5:] for name in each.left()] == [".part"], "aside, under a hidden name"
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going

    at.at_work(cancelled)
    assert at.left() == []


@pytest.mark.slow
def test_who_waits_for_a_copy_that_breaks_makes_it_himself(at: Places) -> None:
    # Fault D2 of the engine: he waited for ever.
    at.replace("tar", UNPACKING + f'if mkdir {at.programs}/first; then sleep 1; exit 2; fi; exec "$real" "$@"')
    folder = cohort(at)

    async def both(each: Places) -> list[Any]:
        work = (each.send("from-driver", "cohort", name) for name in ("one", "two"))
        return await asyncio.gather(*work, return_exceptions=True)

    one, two = at.at_work(both)
    assert isinstance(one, TransferFailed)
    assert two is None
    assert at.left() == ["two"]
    assert tree(at.target / "two") == tree(folder)
    assert not (at.target / "two").is_symlink()


def test_who_waits_for_a_copy_that_arrives_links_it(at: Places) -> None:
    folder = cohort(at)

    async def both(each: Places) -> None:
        await asyncio.gather(*(each.send("from-driver", "cohort", name) for name in ("one", "two")))

    at.at_work(both)
    assert sorted((at.target / name).is_symlink() for name in ("one", "two")) == [False, True]
    assert tree(at.target / "one") == tree(at.target / "two") == tree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "most"),
    [
        # looks at the source (a folder here needs no program for that), digests | prepares, stream, manifest, rename
        ("from-driver", {"laptop": 1, "site": 4}),
        ("to-driver", {"site": 3, "laptop": 3}),
        ("through-driver", {"other": 3, "site": 4}),
    ],
)
def test_a_copy_takes_so_many_round_trips(at: Places, route: Route, most: dict[str, int]) -> None:
    cohort(at)
    sent(at, route, "cohort", "another name")
    assert dict(at.asked) == most


# ---- connections that are lost

HANGS_ONCE = 'if mkdir "{once}" 2>/dev/null; then sleep 60; exit 1; fi\nexec "$real" "$@"'


async def cut_while(at: Places, once: Path, work: Coroutine[Any, Any, Any]) -> Any:
    """What the work returns, whose connections are lost in the middle."""
    task = asyncio.create_task(work)
    while not once.exists():
        assert not task.done(), task
        await asyncio.sleep(0.01)
    await asyncio.to_thread(at.server.cut)
    return await task


@pytest.mark.slow
@pytest.mark.parametrize("manager", [MedweaveDataManager, DefaultDataManager])
@pytest.mark.parametrize("route", ROUTES)
def test_a_copy_whose_connection_is_lost_is_made_again(at: Places, tmp_path: Path, route: Route, manager: type) -> None:
    folder, once = cohort(at), tmp_path / "once"
    at.replace("tar", HANGS_ONCE.format(once=once))
    at.at_work(lambda each: cut_while(each, once, each.send(route, "cohort")), manager)
    assert tree(at.target / "cohort") == tree(folder)
    # The program of the lost connection is still there: without our manager, what it began goes when it ends.
    assert [each for each in at.left() if manager is MedweaveDataManager or not each.startswith(".")] == ["cohort"]


@pytest.mark.slow
def test_a_question_whose_connection_is_lost_is_asked_again_and_a_change_is_not(at: Places, tmp_path: Path) -> None:
    async def ask(each: Places, *words: str) -> Any:
        site = each.places()["site"]
        connector = each.manager.context.deployment_manager.get_connector("site")
        return await cut_while(
            each, tmp_path / words[0], connector.run(location=site, command=list(words), capture_output=True)
        )

    for program in ("stat", "touch"):
        at.replace(program, HANGS_ONCE.format(once=tmp_path / program))
    told = at.at_work(lambda each: ask(each, "stat", "-c", "%F", str(tmp_path)))
    assert told == ("directory\n", 0) or told == ("directory", 0)
    with pytest.raises(SiteUnreachable, match="the exit code of a command there is unknown"):
        at.at_work(lambda each: ask(each, "touch", str(tmp_path / "file")))
