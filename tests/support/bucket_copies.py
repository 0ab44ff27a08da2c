"""Two ssh sites that copy over a bucket with small pieces, and what tests of such copies check."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.routes.bucket import bucket_copy
from medweave_connectors.transfer.routes.direct import direct_copy
from support.bucket import ACCOUNT, Gateway
from support.direct_ends import PATH, Recorded
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


usual_program = program_text.framed


def small_program() -> bytes:
    """Return the program of both peers, with a small piece size."""
    text = usual_program("bucket_peer").partition(b"\n")[2]
    for usual, small in PROGRAM.items():
        assert text.count(usual) == 1
        text = text.replace(usual, small)
    return b"%d\n" % len(text) + text


@contextlib.contextmanager
def bucket_sites(tmp_path: Path, server: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransferSites]:
    """Yield the sites; the bucket is empty."""
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
