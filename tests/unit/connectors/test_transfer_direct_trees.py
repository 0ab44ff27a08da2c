"""Direct copies of large files as a tree stream: hashed once by each peer, without tar."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from medweave_connectors.host.errors import NoRoom, TransferFailed
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.streams import tree_stream_piece
from support.direct_ends import Recorded
from support.transfers import TransferSites

PATIENT = "Mustermann_Erika_1970"
NUM_BYTES = 3 * 2**20 + 3
READ = "                remaining -= len(data)\n"  # of the sender, after each block
WRITE = "        self._left_bytes -= len(piece)\n"  # of the receiver


@pytest.fixture(autouse=True)
def a_mib_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_stream_piece, "LARGE_BYTES", 2**20)


@pytest.fixture
def cohort(at: TransferSites) -> Path:
    """Write a large file and others, with a patient's name."""
    folder = at.source / "cohort"
    (folder / "sub").mkdir(parents=True, mode=0o750)
    (folder / PATIENT).write_bytes(os.urandom(NUM_BYTES))
    (folder / PATIENT).chmod(0o640)
    (folder / "empty").touch()
    (folder / "sub" / "tool").write_text("#!/bin/sh\n")
    (folder / "sub" / "tool").chmod(0o755)
    os.utime(folder / PATIENT, (10**9, 10**9))
    return folder


def sent(at: TransferSites, name: str = "cohort") -> None:
    at.run_connected(lambda sites: sites.send("through-driver", name))


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def patched(monkeypatch: pytest.MonkeyPatch, place: str, does: str) -> None:
    """Insert code before a line of the program of both peers."""
    text = program_text.of("tree_stream")
    assert text.count(place) == 1
    indent = place[: len(place) - len(place.lstrip())]
    lines = "".join(f"{indent}{line}\n" for line in does.splitlines())
    usual = program_text.of
    changed = text.replace(place, lines + place)
    monkeypatch.setattr(program_text, "of", lambda name: changed if name == "tree_stream" else usual(name))


@pytest.mark.slow
def test_a_tree_stream_needs_no_tar_and_reads_each_file_once(at: TransferSites, run: Recorded, cohort: Path) -> None:
    at.replace("tar", "exit 2")
    sent(at)
    target = at.target / "cohort"
    assert same(cohort, target)
    modes = {file.name: file.stat().st_mode & 0o777 for file in target.rglob("*")}
    assert modes == {PATIENT: 0o640, "empty": 0o644, "sub": 0o750, "tool": 0o755}
    assert (target / PATIENT).stat().st_mtime == 10**9
    (transfer,) = run.transfers
    assert (transfer["route"], transfer["reason"]) == ("direct", "both sites reach each other; the destination listens")
    assert NUM_BYTES < transfer["wire_bytes"] < 1.01 * NUM_BYTES
    assert dict(at.calls) == {"other": 1, "site": 3}, "scan | prepare, compare, rename"
    assert run.notices == []


@pytest.mark.slow
def test_a_single_file_is_copied(at: TransferSites, run: Recorded, cohort: Path) -> None:
    at.replace("tar", "exit 2")
    sent(at, f"cohort/{PATIENT}")
    (copy,) = (file for file in at.target.rglob("*") if file.is_file())
    assert copy.read_bytes() == (cohort / PATIENT).read_bytes()
    assert run.transfers[0]["route"] == "direct"


@pytest.mark.slow
def test_bytes_changed_in_memory_are_detected(
    at: TransferSites, run: Recorded, cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS protects the connection: here the source program changes the bytes in memory."""
    patched(monkeypatch, READ, f"data = bytes([data[0] ^ (remaining == {NUM_BYTES})]) + data[1:]")
    with pytest.raises(TransferFailed, match="1 of 3 files with other content") as raised:
        sent(at)
    assert PATIENT not in str(raised.value)
    assert at.target_names() == []
    assert run.transfers == []


@pytest.mark.slow
def test_a_killed_sender_is_resumed(
    at: TransferSites, run: Recorded, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = f"try:\n    remaining < 2**20 and os.mkdir({str(tmp_path / 'once')!r}) is None and os._exit(9)"
    patched(monkeypatch, READ, f"{once}\nexcept FileExistsError:\n    pass")
    sent(at)
    assert (tmp_path / "once").exists()
    assert same(cohort, at.target / "cohort")
    assert at.target_names() == ["cohort"]
    assert any("a copy was cut and is resumed" in notice for notice in run.notices)
    assert run.transfers[0]["route"] == "direct"
    assert PATIENT not in f"{run.notices} {run.transfers}"


def test_a_full_disk_at_the_destination_is_reported(
    at: TransferSites, run: Recorded, cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(monkeypatch, WRITE, "raise OSError(28, os.strerror(28), 'secret name')")
    with pytest.raises(NoRoom) as raised:
        sent(at)
    assert "No space left on device" in str(raised.value)
    assert "secret name" not in f"{raised.value} {run.notices}"
    assert at.target_names() == []


@pytest.mark.slow
def test_a_source_that_changes_during_the_copy_is_sent_again(
    at: TransferSites, run: Recorded, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, file = str(tmp_path / "once"), str(cohort / PATIENT)
    does = (
        f"try:\n    os.mkdir({once!r})\n    open({file!r}, 'r+b').write(b'another')\nexcept FileExistsError:\n    pass"
    )
    patched(monkeypatch, READ, does)
    sent(at)
    assert (at.target / "cohort" / PATIENT).read_bytes()[:7] == b"another"
    assert same(cohort, at.target / "cohort")
    assert at.target_names() == ["cohort"]
