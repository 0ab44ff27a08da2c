"""Copies to and from file systems that are full, read-only, owned by another user, or gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.host.errors import NoRoom, SourceUnreadable, TargetRefused, TransferFailed
from support.engine import run, start, wait_until, write_workflow
from support.engine_file import LOCAL, OURS, engine_file, ssh_site
from support.ssh_server import ssh_server
from support.transfers import Route, TransferSites, replaced, transfer_sites, with_pods

PATIENT = "Mustermann_Erika_1970"
MIB = 2**20


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    with transfer_sites(tmp_path) as sites:
        yield sites


@pytest.fixture
def small(at: TransferSites) -> Iterator[TransferSites]:
    """Yield sites whose target is a disk of 1 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", at.target], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at.target], check=True)


def cohort(at: TransferSites, size: int = 2 * MIB) -> Path:
    folder = at.source / "cohort"
    folder.mkdir()
    for n in range(4):
        (folder / f"{PATIENT}_{n}").write_bytes(os.urandom(size // 4))
    return folder


def assert_failed(at: TransferSites, kind: type[TransferFailed], route: Route) -> str:
    with pytest.raises(kind) as raised:
        at.run_connected(lambda sites: sites.send(route, "cohort"))
    assert type(raised.value) is kind
    assert PATIENT not in str(raised.value)
    assert at.target_names() == []
    return str(raised.value)


# ---- full disks


@pytest.mark.parametrize("route", ["from-driver", "to-driver"])
def test_a_disk_that_is_too_small_is_reported(small: TransferSites, route: Route) -> None:
    cohort(small)
    small.replace("tar", f'touch {small.programs}/called; exec "$real" "$@"')
    message = assert_failed(small, NoRoom, route)
    assert f"{2 * MIB} bytes are needed, {MIB} are free" in message
    assert not (small.programs / "called").exists()


def test_a_disk_filled_by_another_program_during_the_copy(small: TransferSites) -> None:
    cohort(small, MIB // 2)
    other = small.target / "of another"
    small.replace("tar", f'case "$1" in x*) head -c {MIB} /dev/zero > "{other}" 2>/dev/null ;; esac; exec "$real" "$@"')
    with pytest.raises(NoRoom, match=rf"{MIB // 2} bytes are needed; .*No space left on device"):
        small.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    assert small.target_names() == ["of another"]
    (small.programs / "tar").unlink()
    other.unlink()
    small.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    assert len(list((small.target / "cohort").iterdir())) == 4


# ---- read-only file systems and other users' files


@pytest.mark.parametrize("route", ["from-driver", "to-driver"])
def test_a_read_only_disk_is_reported(small: TransferSites, route: Route) -> None:
    cohort(small, 1000)
    subprocess.run(["mount", "-o", "remount,ro", small.target], check=True)
    assert "seen:     Read-only file system\n" in assert_failed(small, TargetRefused, route)


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_during_the_copy(small: TransferSites) -> None:
    cohort(small, 1000)
    small.replace("tar", f'case "$1" in x*) mount -o remount,ro "{small.target}" ;; esac; exec "$real" "$@"')
    with pytest.raises(TargetRefused, match="Read-only file system"):
        small.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    subprocess.run(["mount", "-o", "remount,rw", small.target], check=True)
    assert [name for name in small.target_names() if not name.endswith(".part")] == [], "no copy that looks complete"


def as_nobody(at: TransferSites, *programs: str) -> None:
    """Run these programs of the sites as another user."""
    for program in programs:
        at.replace(program, 'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$real" "$@"')


def test_a_target_folder_of_another_user(at: TransferSites) -> None:
    cohort(at, 1000)
    as_nobody(at, "mkdir")
    assert "seen:     Permission denied\n" in assert_failed(at, TargetRefused, "from-driver")


@pytest.mark.parametrize("which", ["file", "folder"])
def test_source_files_of_another_user(at: TransferSites, which: str) -> None:
    folder = cohort(at, 1000)
    (folder / "below").mkdir()
    (folder / "below" / PATIENT).touch()
    (folder / "below" if which == "folder" else folder / f"{PATIENT}_2").chmod(0o700)
    as_nobody(at, "tar", "find", "stat", "sha256sum")
    assert "Permission denied" in assert_failed(at, SourceUnreadable, "to-driver")


# ---- lost pods and drivers


@pytest.mark.slow
def test_a_pod_deleted_during_the_copy(at: TransferSites, tmp_path: Path) -> None:
    cohort(at)
    begun = at.programs / "begun"

    async def act(sites: TransferSites) -> None:
        laptop = sites.locations()["laptop"]
        sites.manager.register_path(laptop, str(sites.source / "cohort"))
        copy_task = asyncio.create_task(
            sites.manager.transfer_data(laptop, str(sites.source / "cohort"), pods[:1], str(sites.target / "sent"))
        )
        while not begun.exists():
            assert not copy_task.done(), copy_task
            await asyncio.sleep(0.01)
        await asyncio.to_thread(sites.pods.remove, "w-0")
        with pytest.raises(TransferFailed) as raised:
            await copy_task
        assert PATIENT not in str(raised.value)
        assert not (sites.target / "sent").exists()

    at.replace("tar", f'touch "{begun}"; head -c 1000 > /dev/null; sleep 30')
    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)


@pytest.mark.slow
def test_a_driver_killed_during_the_copy_and_restarted(tmp_path: Path) -> None:
    programs, hangs = tmp_path / "programs", tmp_path / "hangs"
    programs.mkdir()
    hangs.touch()
    unpack = f'head -c 2000 | "$real" "$@"; touch "{tmp_path}/begun"; sleep 20; exit 2'
    replaced(programs, "tar", f'case "$1" in x*) if [ -e "{hangs}" ]; then {unpack}; fi ;; esac; exec "$real" "$@"')
    with ssh_server(tmp_path / "server", {"PATH": f"{programs}:{os.environ['PATH']}"}) as server:
        managers = OURS | {"dataManager": {"type": "medweave.transfer", "config": {}}}
        deployments = {"here": LOCAL, "there": ssh_site(server.port, f"{tmp_path}/site")}
        tool = {"inputs": {"scan": {"type": "File", "inputBinding": {"position": 1}}}}
        write_workflow(
            tmp_path,
            {"first": ('cat "$1" > result.txt', tool)},
            job={"scan": {"class": "File", "path": "scan"}},
            file=engine_file(deployments, {"/": {"deployment": "there"}}, managers=managers),
        )
        document = (
            (tmp_path / "tiny.cwl")
            .read_text()
            .replace('"inputs": {}, "outputs": {"first', '"inputs": {"scan": "File"}, "outputs": {"first')
        )
        (tmp_path / "tiny.cwl").write_text(document.replace('"in": {}', '"in": {"scan": "scan"}'))
        content = os.urandom(100_000).hex()
        (tmp_path / "scan").write_text(content)
        killed = start(tmp_path)
        wait_until((tmp_path / "begun").exists, 60)
        killed.signal(signal.SIGKILL)
        killed.process.join(20)
        remaining = [file for file in (tmp_path / "site").rglob("*") if file.name in {"scan", "result.txt"}]
        assert all(".part/" in str(file) for file in remaining), "an incomplete copy does not have its final name"
        hangs.unlink()
        ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == content


@pytest.mark.slow
def test_the_cause_is_reported_if_tar_prints_it_in_many_pieces(at: TransferSites) -> None:
    # Seen on a full disk: only the last four pieces of tar's output were kept, which were its last line.
    cohort(at, 1000)
    slow = 'for word in "tar: " "x" ": Cannot write: " "No space left on device" "\n" "tar: " "Exiting" " with" " failure" "\n"; do'
    at.replace(
        "tar",
        f'case "$1" in x*) cat > /dev/null; {slow} printf %s "$word" >&2; sleep 0.05; done; exit 2 ;; esac; exec "$real" "$@"',
    )
    assert "1000 bytes are needed" in assert_failed(at, NoRoom, "from-driver")
