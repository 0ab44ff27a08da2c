"""Remote cache lookup: digests of a site's programs and of its files, with real shells."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from medweave_connectors.cache import remote_outputs, remote_software
from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment
from medweave_connectors.transfer.manifest import manifest
from medweave_connectors.transfer.manifest.site_inventory import SiteInventory, content_digest, subtree

SITE = ("login", "host")
BIN = Path(sys.executable).parent


def software_digest(
    word: str, path: str = "/usr/bin:/bin", *, worker: WorkerEnvironment = NOTHING, computes: bool = True
) -> str | None:
    words = remote_software.look(
        [word, "--x"], {"PATH": path}, worker, where="environment", folder="/tmp", computes=computes
    )
    ended = subprocess.run(["sh", "-c", words[0]], capture_output=True, text=True, check=False)
    return remote_software.read(ended.stdout)


def test_a_program_is_identified_by_its_content(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho one\n")
    tool.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    first = software_digest("tool", path)
    assert first is not None
    assert software_digest("tool", path) == first
    assert software_digest("tool", path, computes=False) != first, "the processor counts where it computes"
    tool.write_text("#!/bin/sh\necho two\n")
    assert software_digest("tool", path) not in (first, None)
    assert software_digest("another", path) is None
    assert software_digest("tool", path, worker=WorkerEnvironment(virtualEnvironment=str(tmp_path))) is None, (
        "it cannot be loaded"
    )


def test_the_steps_are_identified_by_all_installed_packages(tmp_path: Path) -> None:
    path = f"{BIN}:/usr/bin:/bin"
    first = software_digest("medweave-step", path)
    assert first is not None
    assert software_digest("python3", path) not in (first, None)
    # The same command of an environment without the steps: nothing is guessed.
    other = tmp_path / "medweave-step"
    other.write_text("#!/usr/bin/python3 -IS\n")
    other.chmod(0o755)
    assert software_digest("medweave-step", f"{tmp_path}:/usr/bin:/bin") is None


@pytest.mark.parametrize("count", [1, 3, 40])
def test_short_commands_are_joined(count: int) -> None:
    line = "printf %s " + "x" * 4_000
    commands = list(remote_outputs.together(*[[line]] * count))
    assert len(commands) == -(-count // 14)
    printed = [subprocess.run(["sh", "-c", *words], capture_output=True, check=True).stdout for words in commands]
    assert sum(map(len, printed)) == 4_000 * count


def test_the_inventory_knows_parts_and_links_of_sent_folders(tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "sub" / "a").write_text("one")
    (tmp_path / "data" / "b").write_text("two")
    words = manifest.command(str(tmp_path / "data"))
    listing = manifest.parse(subprocess.run(["sh", "-c", words[0]], capture_output=True, text=True, check=True).stdout)
    inventory = SiteInventory()
    inventory.note(SITE, "/work/in/data", listing)
    inventory.linked(SITE, "/work/in/data/sub", "/work/next")
    inventory.linked(SITE, "/work/unknown", "/work/other")
    file = inventory.find(SITE, "/work/next/a")
    assert file is not None
    assert content_digest(file) == hashlib.sha256(b"one").hexdigest()
    part = subtree(listing, "sub")
    assert part is not None
    assert inventory.find(SITE, "/work/next") == part
    assert content_digest(part) not in (content_digest(listing), content_digest(file))
    for missing in ("/work/in/data/c", "/work/in", "/work/other", "/"):
        assert inventory.find(SITE, missing) is None
    assert inventory.find(("login", "other"), "/work/in/data") is None
