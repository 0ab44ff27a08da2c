"""Copies between deployments that share a file system are made there; others are sent over the network."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.host.errors import NoRoom
from support.direct_ends import PATH, Recorded, recorded
from support.transfers import TransferSites, replaced, transfer_sites, with_pods

PATIENT = "Mustermann_Erika_1970"
ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
SEES = "both sites share a file system; "
# Scan the source, probe the shared files | prepare, copy, compare, rename: no stream is opened, no agent is started.
CALLS = {"other": 3, "site": 4}
STORE_TOOLS = ("cp", "stat", "find", "awk", "id", "head", "rm", "chmod", "mkdir", "tar", "sha256sum", "sort", "base64")


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    with transfer_sites(tmp_path) as sites:
        sites.server.environment["PATH"] = f"{sites.programs}:{PATH}"
        sites.settings = {}
        yield sites


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


def cohort(at: TransferSites, name: str = "cohort") -> Path:
    """Write more than 1 MiB to a folder, with a patient's name and unusual names."""
    folder = at.source / name
    (folder / "empty" / "emptier").mkdir(parents=True)
    (folder / PATIENT).write_bytes(os.urandom(2**20 + 1))
    for odd_name in ODD:
        (folder / odd_name).write_bytes(os.urandom(100))
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o4755)
    (folder / "link").symlink_to("empty")
    (folder / "locked").mkdir(mode=0o500)
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def inodes(folder: Path) -> list[int]:
    return sorted(file.stat().st_ino for file in folder.rglob("*") if file.is_file())


def sent(at: TransferSites, *names: str, writable: bool = False) -> None:
    async def act(sites: TransferSites) -> None:
        for name in names:
            await sites.send("through-driver", name, writable=writable)

    at.run_connected(act)


def routes_and_reasons(run: Recorded) -> list[tuple[str, str]]:
    return [(transfer["route"], transfer["reason"]) for transfer in run.transfers]


def in_a_run(at: TransferSites, run: Recorded) -> None:
    """Put sources and targets of later copies into the folder of a run."""
    for name in ("source", "target"):
        folder = getattr(at, name) / run.run_id / "job"
        folder.mkdir(parents=True)
        setattr(at, name, folder)


# ---- a shared file system


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["gnu", "busybox"])
def test_a_copy_is_made_within_the_shared_file_system(at: TransferSites, run: Recorded, tools: str) -> None:
    if tools == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        for tool in STORE_TOOLS:
            (at.programs / tool).symlink_to(busybox)
    folder = cohort(at)
    sent(at, "cohort", f"cohort/{PATIENT}")
    assert same(folder, at.target / "cohort")
    assert same(folder / PATIENT, at.target / "cohort" / PATIENT)
    assert routes_and_reasons(run) == [("same-file-system", f"{SEES}copied at the destination")] * 2
    assert run.notices == []
    mode = (at.target / "cohort" / "tool").stat().st_mode
    assert stat.S_IMODE(mode) == 0o755, "the copy is not set-uid"
    assert (at.target / "cohort" / "locked").stat().st_mode & 0o777 == 0o500
    assert (at.target / "cohort" / "link").is_dir()
    assert not set(inodes(folder)) & set(inodes(at.target / "cohort")), "the user's files are not hard-linked"


def test_no_stream_is_opened(at: TransferSites, run: Recorded) -> None:
    cohort(at)
    sent(at, "cohort")
    assert dict(at.calls) == CALLS


def test_read_only_files_of_a_run_are_linked(at: TransferSites, run: Recorded) -> None:
    in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    sent(at, "cohort")
    assert routes_and_reasons(run) == [("same-file-system", f"{SEES}linked at the destination")]
    assert inodes(folder) == inodes(at.target / "cohort")
    assert same(folder, at.target / "cohort")


@pytest.mark.slow
@pytest.mark.parametrize("why", ["its owner may write to a file", "the copy is to be written to", "another's", "own"])
def test_writable_files_are_copied(at: TransferSites, run: Recorded, why: str) -> None:
    if why != "own":  # outside the folder of a run
        in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    if why.startswith("its"):
        (folder / "tool").chmod(0o644)
    if why == "another's":
        try:
            os.chown(folder / "tool", 65534, 65534)
        except PermissionError:
            pytest.skip("only root gives files away")
    before = [file.stat().st_mode for file in sorted(folder.rglob("*"))]
    sent(at, "cohort", writable=why.startswith("the copy"))
    assert routes_and_reasons(run) == [("same-file-system", f"{SEES}copied at the destination")]
    assert not set(inodes(folder)) & set(inodes(at.target / "cohort"))
    assert [file.stat().st_mode for file in sorted(folder.rglob("*"))] == before, "the source is unchanged"


def test_files_are_copied_if_they_cannot_be_linked(at: TransferSites, run: Recorded) -> None:
    in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    # Some links can be made: the incomplete copy is removed.
    at.replace("cp", 'case "$1" in *l*) "$real" -RLp "$2" "$3"; exit 1;; esac; exec "$real" "$@"')
    sent(at, "cohort")
    assert routes_and_reasons(run) == [("same-file-system", f"{SEES}copied at the destination")]
    assert same(folder, at.target / "cohort")


@pytest.mark.slow
def test_files_missing_from_a_store_are_copied_in_the_shared_file_system(at: TransferSites, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(sites: TransferSites) -> None:
        await sites.send("through-driver", "cohort")
        sites.manager.path_mapper = type(sites.manager.path_mapper)(sites.manager.context)  # a later run
        for name in ("-new", "new '1'\n"):
            (folder / name).write_bytes(os.urandom(2**20 + 7))
        await sites.send("through-driver", "cohort", "again")

    at.run_connected(act)
    assert same(folder, at.target / "again")
    assert [(transfer["route"], transfer["num_files"]) for transfer in run.transfers] == [
        ("same-file-system", len(ODD) + 2),
        ("same-file-system", 2),
    ]
    assert not any("python3" in command for command in at.server.commands), "no agent was started"


@pytest.mark.slow
def test_pods_that_share_a_folder_copy_it_once(at: TransferSites, tmp_path: Path, run: Recorded) -> None:
    folder = cohort(at)
    times = at.programs / "times"
    at.replace("cp", f'echo >> {times}; exec "$real" "$@"')

    async def act(sites: TransferSites) -> None:
        other = sites.locations()["other"]
        sites.manager.register_path(other, str(folder))
        await sites.manager.transfer_data(other, str(folder), pods, str(sites.target / "sent"))

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert same(folder, at.target / "sent")
    reasons = (f"{SEES}copied at the destination", f"{SEES}one copy for several locations")
    assert sorted(routes_and_reasons(run)) == [("same-file-system", reason) for reason in reasons]
    assert len(times.read_text()) == 2, "the probe for reflinks, and the copy"


# ---- no shared file system


def to_pods(at: TransferSites, tmp_path: Path, script: str, program: str, *names: str) -> None:
    """Copy to pods on which a script replaces a program."""
    own = tmp_path / "own"
    own.mkdir()
    replaced(own, program, script)

    async def act(sites: TransferSites) -> None:
        other = sites.locations()["other"]
        for name in names:
            sites.manager.register_path(other, str(sites.source / name))
            await sites.manager.transfer_data(other, str(sites.source / name), pods[:1], str(sites.target / name))

    with with_pods(at, tmp_path) as pods:
        at.pods.environment = {"PATH": f"{own}:{at.pods.environment['PATH']}"}
        at.run_connected(act)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["-L", "-c"], ids=["other files under the path", "another folder of that name"])
def test_a_site_that_sees_other_files_gets_a_direct_copy(
    at: TransferSites, tmp_path: Path, run: Recorded, which: str
) -> None:
    folder = cohort(at)
    elsewhere = (
        'case "$*" in *"%i %s %Y"*|*"-c %i"*) [ "$1" != WHICH ] || { echo 1 2 3; exit 0; };; esac; exec "$real" "$@"'
    )
    to_pods(at, tmp_path, elsewhere.replace("WHICH", which), "stat", "cohort")
    assert same(folder, at.target / "cohort")
    assert [transfer["route"] for transfer in run.transfers] == ["direct"]


@pytest.mark.slow
def test_a_site_that_sees_an_outdated_folder_gets_a_direct_copy(
    at: TransferSites, tmp_path: Path, run: Recorded
) -> None:
    # An NFS client may list an outdated folder for some seconds: one file is missing.
    folder = cohort(at)
    old = f'"$real" "$@"; code=$?; for last; do :; done; [ "$1" != -RLp ] || rm -f "$last/{PATIENT}"; exit $code'
    to_pods(at, tmp_path, old, "cp", "cohort")
    assert same(folder, at.target / "cohort")
    assert [transfer["route"] for transfer in run.transfers] == ["direct"]


@pytest.mark.slow
def test_a_source_that_does_not_share_the_file_system_is_probed_once(at: TransferSites, run: Recorded) -> None:
    for name in ("cohort", "second"):
        cohort(at, name)
    calls = at.programs / "calls"
    at.replace("stat", f'case "$*" in *.part) echo >> {calls}; exit 1;; esac; exec "$real" "$@"')
    sent(at, "cohort", "second")
    assert [transfer["route"] for transfer in run.transfers] == ["direct"] * 2
    assert len(calls.read_text()) == 1


@pytest.mark.slow
def test_a_user_without_permissions_gets_a_direct_copy(at: TransferSites, run: Recorded) -> None:
    if os.getuid():
        pytest.skip("only root can be another user")
    for name in ("cohort", "second"):
        cohort(at, name)
    (at.source / "cohort" / PATIENT).chmod(0o600)
    at.target.chmod(0o777)
    tried = at.programs / "tried"
    at.replace("cp", f'echo >> {tried}; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$real" "$@"')
    sent(at, "cohort", "second")
    assert same(at.source / "cohort", at.target / "cohort")
    assert at.target_names() == ["cohort", "second"]
    assert [transfer["route"] for transfer in run.transfers] == ["direct"] * 2
    assert len(tried.read_text()) == 2, "the probe for reflinks and one copy: it is not retried without permission"
    assert PATIENT not in str(routes_and_reasons(run))


def test_a_full_disk_is_reported_at_once(at: TransferSites, run: Recorded) -> None:
    cohort(at)
    at.replace("cp", f'echo "cp: error writing {PATIENT}: No space left on device" >&2; exit 1')
    with pytest.raises(NoRoom) as raised:
        sent(at, "cohort")
    assert "No space left on device" in str(raised.value)
    assert PATIENT not in str(raised.value)
    assert at.target_names() == []


def test_same_file_system_copies_can_be_disabled(at: TransferSites, run: Recorded) -> None:
    cohort(at)
    at.settings["sameFileSystem"] = False
    sent(at, "cohort")
    assert [transfer["route"] for transfer in run.transfers] == ["direct"]
