"""Copies between this machine and sites over real ssh: either complete or absent, whatever fails."""

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
from support.transfers import ROUTES, Route, TransferSites, transfer_sites, with_pods

ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
PATIENT = "Mustermann_Erika_1970"
UNPACKING = 'case "$1" in x*) ;; *) exec "$real" "$@" ;; esac\n'


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    with transfer_sites(tmp_path) as sites:
        yield sites


def cohort(at: TransferSites, name: str = "cohort") -> Path:
    """Write ten files to a folder, all with a patient's name."""
    folder = at.source / name
    folder.mkdir()
    for n in range(10):
        (folder / f"{PATIENT}_{n}").write_bytes(bytes([n]) * (5000 + n))
    return folder


def tree(folder: Path) -> dict[str, Any]:
    """Return the mode of all entries and the content of files, by name, with links followed."""
    paths = [
        Path(top, name) for top, folders, files in os.walk(folder, followlinks=True) for name in (*folders, *files)
    ]
    return {
        os.fsdecode(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in (folder, *paths)
    }


def sent(at: TransferSites, route: Route = "from-driver", name: str = "cohort", to: str = "") -> None:
    at.run_connected(lambda sites: sites.send(route, name, to))


def assert_failed(at: TransferSites, kind: type[TransferFailed], *, route: Route = "from-driver") -> str:
    """Assert that a copy fails, leaves no files and reports no file name. Return the message."""
    with pytest.raises(kind) as raised:
        sent(at, route)
    assert type(raised.value) is kind
    assert at.target_names() == []
    assert PATIENT not in str(raised.value)
    return str(raised.value)


# ---- successful copies


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_folder_is_copied_unchanged(at: TransferSites, route: Route) -> None:
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
    assert at.target_names() == ["its other name"]
    assert tree(at.target / "its other name") == tree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["-dash", "two\nlines", "$(touch harm)"])
def test_a_file_is_copied_under_its_own_name_and_another(at: TransferSites, route: Route, name: str) -> None:
    (at.source / name).write_bytes(b"content")
    (at.source / name).chmod(0o750)

    async def both(sites: TransferSites) -> None:
        await sites.send(route, name)
        (sites.target / "folder").mkdir()
        sites.manager.path_mapper = type(sites.manager.path_mapper)(
            sites.manager.context
        )  # no path is registered at the target
        await sites.send(route, name, "folder")

    at.run_connected(both)
    assert at.target_names() == sorted([name, "folder"])
    for path in (at.target / name, at.target / "folder" / name):
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"content", 0o750)


@pytest.mark.parametrize("route", ROUTES)
def test_an_existing_copy_is_replaced(at: TransferSites, route: Route) -> None:
    folder = cohort(at)
    stale = at.target / "sub" / "cohort"
    stale.mkdir(parents=True)
    (stale / "of an earlier run").touch()
    sent(at, route, "cohort", "sub")  # a folder: the copy is written into it
    assert tree(stale) == tree(folder)
    assert [file.name for file in (at.target / "sub").iterdir()] == ["cohort"]


def test_clocks_an_hour_apart_do_not_matter(at: TransferSites) -> None:
    at.replace("tar", UNPACKING + '"$real" "$@" && find "$4" -exec touch -d "1 hour" {} +')
    folder = cohort(at)
    sent(at)
    assert tree(at.target / "cohort") == tree(folder)
    assert (at.target / "cohort" / f"{PATIENT}_0").stat().st_mtime > (folder / f"{PATIENT}_0").stat().st_mtime + 3000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cohort", "file"])
def test_pods_with_an_undeclared_shared_file_system(at: TransferSites, tmp_path: Path, name: str) -> None:
    folder = cohort(at)
    (at.source / "file").write_bytes(os.urandom(3_000_000))

    async def act(sites: TransferSites) -> None:
        laptop = sites.locations()["laptop"]
        sites.manager.register_path(laptop, str(sites.source / name))
        await sites.manager.transfer_data(laptop, str(sites.source / name), pods, str(sites.target / "sent"))
        sites.manager.register_path(pods[0], str(sites.target / "sent"))
        await sites.manager.transfer_data(
            pods[0], str(sites.target / "sent"), [laptop], str(sites.target / "back"), True
        )

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert at.target_names() == ["back", "sent"]
    for copy in (at.target / "sent", at.target / "back"):
        assert tree(copy) == (tree(folder) if name == "cohort" else tree(at.source / "file"))


def test_mirrors_are_verified_too(at: TransferSites, tmp_path: Path) -> None:
    # One of two pods loses a file; the engine has only the other one as a location.
    cohort(at)

    async def act(sites: TransferSites) -> None:
        connector = sites.manager.context.deployment_manager.get_connector("pods")
        connector.mirrors = lambda location: [pods[1]]
        seen: list[str] = []
        run = connector.run

        async def losing(location: Any, command: list[str], **keywords: Any) -> Any:
            seen.append(location.name)
            lost = location.name == "w-1:worker" and "medweave-look" in command[0]
            if lost:
                (sites.target / next(iter(sites.target_names())) / "cohort" / f"{PATIENT}_7").unlink(missing_ok=True)
            return await run(location=location, command=command, **keywords)

        connector.run = losing
        laptop = sites.locations()["laptop"]
        sites.manager.register_path(laptop, str(sites.source / "cohort"))
        with pytest.raises(TransferFailed, match="1 of 10 files missing"):
            await sites.manager.transfer_data(
                laptop, str(sites.source / "cohort"), pods[:1], str(sites.target / "sent")
            )
        assert "w-1:worker" in seen

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert at.target_names() == []


# ---- failed copies


def test_a_flipped_byte_is_detected(at: TransferSites) -> None:
    at.replace("tar", UNPACKING + f'"$real" "$@"; printf X | dd of="$4/cohort/{PATIENT}_3" bs=1 seek=9 conv=notrunc')
    cohort(at)
    message = assert_failed(at, TransferFailed)
    assert "a copy from laptop to site is not complete" in message
    assert "1 of 10 files with other content" in message


def test_a_truncated_stream_without_an_error_is_detected(at: TransferSites) -> None:
    # A file takes a header of 512 bytes and its content, here 10 blocks: the cut is between two files.
    at.replace(
        "tar", UNPACKING + 'head -c "$((512 + 4 * 512 * 11))" | "$real" "$@" 2>/dev/null; cat > /dev/null; exit 0'
    )
    cohort(at)
    assert "6 of 10 files missing" in assert_failed(at, TransferFailed)


@pytest.mark.parametrize("route", ROUTES)
def test_a_killed_tar_fails_the_copy(at: TransferSites, route: Route) -> None:
    # Fault D1 of the engine. The error of tar contains file names.
    at.replace("tar", f'head -c 2000 /dev/zero; echo "tar: {PATIENT}: Unexpected EOF" >&2; kill -KILL $$')
    cohort(at)
    assert "the stream broke off" in assert_failed(at, TransferFailed, route=route)


def test_too_little_disk_space_is_reported_before_the_copy(at: TransferSites) -> None:
    at.replace(
        "df", 'printf "F 1024-blocks Used Available Capacity Mounted on\\nnfs:/a 100000 99970 30 99%% /my disk\\n"'
    )
    at.replace("tar", f"touch {at.programs}/called")
    folder = cohort(at)
    size = sum(file.stat().st_size for file in folder.iterdir())
    message = assert_failed(at, NoRoom)
    assert f"{size} bytes are needed, {30 * 1024} are free" in message
    assert not (at.programs / "called").exists()


@pytest.mark.parametrize("word", ["Cannot write: No space left on device", "Wrote only 1536 of 10240 bytes"])
def test_a_disk_that_fills_up_during_a_copy_is_reported(at: TransferSites, word: str) -> None:
    at.replace("tar", UNPACKING + f'head -c 9000 >/dev/null; echo "tar: {PATIENT}: {word}" >&2; exit 2')
    cohort(at)
    message = assert_failed(at, NoRoom)
    assert "bytes are needed; the stream broke off: No space left on device (exit status 2)" in message


def sync_calls(at: TransferSites, then: str) -> list[str]:
    """Return the arguments of `sync` at the site during a copy, and whether the copy had its final name by then."""
    log = at.programs / "synced"
    at.replace("sync", f'[ -e {at.target}/cohort ] && there=there || there=aside; echo "$there $1" >> {log}; {then}')
    cohort(at)
    sent(at)
    assert tree(at.target / "cohort") == tree(at.source / "cohort")
    return log.read_text().split()


def test_files_are_synced_before_the_rename_and_the_folder_after_it(at: TransferSites) -> None:
    assert sync_calls(at, 'exec "$real" "$@"') == ["aside", "-f", "there", f"{at.target}/"]


def test_a_sync_without_the_option_f_is_not_used(at: TransferSites) -> None:
    assert sync_calls(at, "echo \"sync: invalid option -- 'f'\" >&2; exit 1") == ["aside", "-f"]


def test_a_full_disk_reported_by_sync_fails_the_copy(at: TransferSites) -> None:
    at.replace("sync", f"echo \"sync: error syncing '{at.target}/{PATIENT}': No space left on device\" >&2; exit 1")
    cohort(at)
    assert "No space left on device" in assert_failed(at, NoRoom)


def test_a_file_system_without_free_space_information_is_used(at: TransferSites) -> None:
    at.replace("df", 'printf "Filesystem 1024-blocks Used Available Capacity Mounted on\\nfuse 0 0 0 - /x\\n"')
    cohort(at)
    sent(at)
    assert at.target_names() == ["cohort"]


@pytest.mark.slow
def test_an_unwritable_target_is_reported(at: TransferSites) -> None:
    cohort(at)
    at.target.rmdir()
    at.target.touch()  # a file, since root ignores permissions
    with pytest.raises(TargetRefused, match="nothing can be written there"):
        sent(at)
    at.target.unlink()
    at.target.mkdir()
    for word in ("Read-only file system", "Permission denied"):
        at.replace(
            "mkdir", f'case "$*" in *.part) echo "mkdir: {PATIENT}: {word}" >&2; exit 1;; esac; exec "$real" "$@"'
        )
        assert f"seen:     {word}\n" in assert_failed(at, TargetRefused)


def test_a_refused_rename_is_reported(at: TransferSites) -> None:
    at.replace(
        "mv",
        'case "$1" in -f) echo "mv: x: Permission denied" >&2; exit 1;; esac; exec "$real" "$@"',
    )
    cohort(at)
    assert "seen:     Permission denied" in assert_failed(at, TargetRefused)


@pytest.mark.parametrize("program", ["sha256sum", "tar"])
def test_unreadable_files_are_reported(at: TransferSites, program: str) -> None:
    at.replace("sha256sum", f'echo "sha256sum: {PATIENT}: Permission denied" >&2; exit 1')
    if program == "tar":
        at.replace(
            "tar", f'case "$1" in x*) exec "$real" "$@";; esac; echo "tar: {PATIENT}: Permission denied" >&2; exit 2'
        )
    cohort(at)
    assert "seen:     Permission denied\n" in assert_failed(at, SourceUnreadable, route="to-driver")


def test_broken_links_are_refused_before_the_copy(at: TransferSites) -> None:
    (cohort(at) / f"{PATIENT}_link").symlink_to("nowhere")
    assert "1 broken links, of 12" in assert_failed(at, SourceUnreadable)


# ---- a source that changes


def changing(at: TransferSites, times: int) -> Path:
    """Write a cohort of which a file changes the first `times` times that tar reads it."""
    folder, count = cohort(at), at.programs / "count"
    at.replace(
        "tar",
        f'case "$1" in c*) ;; *) exec "$real" "$@" ;; esac\n'
        f'if [ "$(cat {count} 2>/dev/null | wc -l)" -lt {times} ]; then echo x >> {count}; sleep 0.3; '
        f'echo more >> "{folder}/{PATIENT}_9"; fi; exec "$real" "$@"',
    )
    return folder


@pytest.mark.slow
def test_a_source_that_changes_once_is_sent_again(at: TransferSites) -> None:
    folder = changing(at, 1)
    sent(at, "to-driver")
    assert tree(at.target / "cohort") == tree(folder)
    assert at.target_names() == ["cohort"]


def test_a_file_removed_during_the_copy(at: TransferSites) -> None:
    folder = cohort(at)
    at.replace(
        "sha256sum", f'if mkdir {at.programs}/first; then rm "{folder}/{PATIENT}_4"; fi 2>/dev/null; exec "$real" "$@"'
    )
    sent(at, "to-driver")
    assert len(tree(folder)) == 10
    assert tree(at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_a_source_that_keeps_changing_fails_the_copy(at: TransferSites) -> None:
    changing(at, 9)
    assert "its files changed while they were read" in assert_failed(at, SourceChanged, route="to-driver")


def test_a_source_that_changed_since_an_earlier_copy_is_read_again(at: TransferSites) -> None:
    folder = cohort(at)

    async def twice(sites: TransferSites) -> None:
        await sites.send("to-driver", "cohort", "first", writable=True)
        (folder / f"{PATIENT}_0").write_bytes(b"another scan")
        await sites.send("to-driver", "cohort", "second", writable=True)

    at.run_connected(twice)
    assert tree(at.target / "second") == tree(folder) != tree(at.target / "first")


# ---- canceled and concurrent copies


def test_a_canceled_copy_leaves_no_files(at: TransferSites) -> None:
    at.replace("tar", UNPACKING + f'touch {at.programs}/begun; "$real" "$@"; sleep 30')
    cohort(at)

    async def cancelled(sites: TransferSites) -> None:
        copy_task = asyncio.create_task(sites.send("from-driver", "cohort"))
        while not (sites.programs / "begun").exists():
            await asyncio.sleep(0.01)
        assert [name[-5:] for name in sites.target_names()] == [".part"], "staged under a hidden name"
        copy_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copy_task

    at.run_connected(cancelled)
    assert at.target_names() == []


@pytest.mark.slow
def test_a_copy_is_made_if_the_copy_that_it_waits_for_fails(at: TransferSites) -> None:
    # Fault D2 of the engine: the second copy waited forever.
    at.replace("tar", UNPACKING + f'if mkdir {at.programs}/first; then sleep 1; exit 2; fi; exec "$real" "$@"')
    folder = cohort(at)

    async def both(sites: TransferSites) -> list[Any]:
        work = (sites.send("from-driver", "cohort", name) for name in ("one", "two"))
        return await asyncio.gather(*work, return_exceptions=True)

    one, two = at.run_connected(both)
    assert isinstance(one, TransferFailed)
    assert two is None
    assert at.target_names() == ["two"]
    assert tree(at.target / "two") == tree(folder)
    assert not (at.target / "two").is_symlink()


def test_a_copy_is_linked_to_the_copy_that_it_waited_for(at: TransferSites) -> None:
    folder = cohort(at)

    async def both(sites: TransferSites) -> None:
        await asyncio.gather(*(sites.send("from-driver", "cohort", name) for name in ("one", "two")))

    at.run_connected(both)
    assert sorted((at.target / name).is_symlink() for name in ("one", "two")) == [False, True]
    assert tree(at.target / "one") == tree(at.target / "two") == tree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "most"),
    [
        # scan the source (a local folder needs no program), digests | prepare, stream, manifest, rename
        ("from-driver", {"laptop": 1, "site": 4}),
        ("to-driver", {"site": 3, "laptop": 3}),
        ("through-driver", {"other": 3, "site": 4}),
    ],
)
def test_the_number_of_round_trips_of_a_copy(at: TransferSites, route: Route, most: dict[str, int]) -> None:
    cohort(at)
    sent(at, route, "cohort", "another name")
    assert dict(at.calls) == most


# ---- connections that are lost

HANGS_ONCE = 'if mkdir "{once}" 2>/dev/null; then sleep 60; exit 1; fi\nexec "$real" "$@"'


async def cut_while(at: TransferSites, once: Path, work: Coroutine[Any, Any, Any]) -> Any:
    """Cut the connections during some work, and return its result."""
    task = asyncio.create_task(work)
    while not once.exists():
        assert not task.done(), task
        await asyncio.sleep(0.01)
    await asyncio.to_thread(at.server.cut)
    return await task


@pytest.mark.slow
@pytest.mark.parametrize("manager", [MedweaveDataManager, DefaultDataManager])
@pytest.mark.parametrize("route", ROUTES)
def test_a_copy_is_repeated_after_a_lost_connection(
    at: TransferSites, tmp_path: Path, route: Route, manager: type
) -> None:
    folder, once = cohort(at), tmp_path / "once"
    at.replace("tar", HANGS_ONCE.format(once=once))
    at.run_connected(lambda sites: cut_while(sites, once, sites.send(route, "cohort")), manager)
    assert tree(at.target / "cohort") == tree(folder)
    # The program of the lost connection still runs; with StreamFlow's manager, its partial copy is removed when it ends.
    assert [name for name in at.target_names() if manager is MedweaveDataManager or not name.startswith(".")] == [
        "cohort"
    ]


@pytest.mark.slow
def test_reading_commands_are_repeated_after_a_lost_connection_and_others_are_not(
    at: TransferSites, tmp_path: Path
) -> None:
    async def run_command(sites: TransferSites, *words: str) -> Any:
        site = sites.locations()["site"]
        connector = sites.manager.context.deployment_manager.get_connector("site")
        return await cut_while(
            sites, tmp_path / words[0], connector.run(location=site, command=list(words), capture_output=True)
        )

    for program in ("stat", "touch"):
        at.replace(program, HANGS_ONCE.format(once=tmp_path / program))
    result = at.run_connected(lambda sites: run_command(sites, "stat", "-c", "%F", str(tmp_path)))
    assert result == ("directory\n", 0) or result == ("directory", 0)
    with pytest.raises(SiteUnreachable, match="the exit code of a command there is unknown"):
        at.run_connected(lambda sites: run_command(sites, "touch", str(tmp_path / "file")))
