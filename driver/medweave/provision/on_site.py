"""Actions of `medweave provision` that run at a site with the site's Python; standard library only, without medweave.

PATH becomes a link into the folder PATH.provisioned, which contains `wheels` and a folder per environment. Such a folder never
changes once its marker exists, and the link is replaced by a rename: a running job continues in the folder in which it was
started, and a starting job finds a complete environment, old or new.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARKER = "medweave-provision.json"
KEEP_S = 30 * 86400.0  # longer than a job waits and runs


def folder_of(link: Path) -> Path:
    """Return the folder with the environments of a link and their wheels."""
    return link.with_name(f"{link.name}.provisioned")


def state(link: Path) -> dict[str, Any]:
    """Return the environment that the link names, and the complete ones."""
    folder = folder_of(link)
    current = link.readlink() if link.is_symlink() else None
    is_ours = current is not None and current.parent == Path(folder.name)
    whole = sorted(path.parent.name for path in folder.glob(f"*/{MARKER}"))
    return {
        "current": current.name if current is not None and is_ours else "",
        "in_the_way": "" if is_ours or not os.path.lexists(link) else ("a link" if current else "a folder or file"),
        "whole": whole,
    }


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def prepare(link: Path) -> dict[str, Any]:
    """Create the folder for wheels; return its free space and its wheels with their hashes."""
    folder = folder_of(link) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    remove_parts(folder)
    wheels = {path.name: digest(path) for path in sorted(folder.glob("*.whl"))}
    return {"free_mib": shutil.disk_usage(folder).free >> 20, "folder": str(folder), "wheels": wheels}


def remove_parts(folder: Path) -> None:
    """Remove partly copied wheels."""
    for part in folder.glob(".*.part"):
        part.unlink()


def install(link: Path, name: str, requirements: str) -> None:
    """Create an environment from the local wheels, without a network."""
    folder = folder_of(link) / name
    with locked(folder_of(link)):
        if not (folder / MARKER).is_file():
            remove(link, name)
            make(folder, requirements)
            (folder / MARKER).write_text(json.dumps({"made": time.time(), "python": sys.version}), encoding="utf-8")


def make(folder: Path, requirements: str) -> None:
    """Create the environment; exit with the message of a failed program."""
    run([sys.executable, "-m", "venv", str(folder)])
    pinned = folder / "requirements.txt"
    pinned.write_text(requirements, encoding="utf-8")
    # --isolated: settings of the account must not add an index.
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--isolated", "--disable-pip-version-check", "--quiet"]
    wheels = str(folder.parent / "wheels")
    run(
        [*pip, "install", "--no-index", "--find-links", wheels, "--no-cache-dir", "--require-hashes", "-r", str(pinned)]
    )
    run([*pip, "check"])


def run(words: list[str]) -> None:
    """Run a program; exit with its message if it fails."""
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(process.stderr.strip() or process.stdout.strip() or f"{words[0]} ended with {process.returncode}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that concurrent calls run one after the other; without effect if the file system has no locks."""
    with (folder / "lock").open("w") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def switch(link: Path, name: str, wheels: list[str]) -> dict[str, Any]:
    """Replace the link atomically, and remove old environments and unneeded wheels.

    Args:
        wheels: names of the wheels of the environment; if empty, all wheels stay.
    """
    folder, now = folder_of(link), time.time()
    before = state(link)["current"]
    new_link = link.with_name(f".{link.name}.{os.getpid()}")
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(Path(folder.name) / name)
    new_link.replace(link)
    if before and before != name:
        os.utime(folder / before / MARKER)  # the time of its replacement
    for marker in folder.glob(f"*/{MARKER}"):
        if marker.parent.name != name and now - marker.stat().st_mtime > KEEP_S:
            remove(link, marker.parent.name)
    for wheel in (folder / "wheels").glob("*.whl"):
        if wheels and wheel.name not in wheels:
            wheel.unlink()
    return {"before": before}


def remove(link: Path, name: str) -> None:
    """Remove an environment, its marker first."""
    folder = folder_of(link) / name
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def undo(link: Path, name: str) -> dict[str, Any]:
    """Remove incomplete environments and wheels of an interrupted call. Complete wheels stay for the next call."""
    if folder_of(link).is_dir():
        remove_parts(folder_of(link) / "wheels")
        if not (folder_of(link) / name / MARKER).is_file():
            remove(link, name)
    return {}


def main(request: dict[str, Any]) -> None:
    """Run one action and print its result as the last line."""
    link = Path(request.pop("link")).expanduser()
    actions: dict[str, Callable[..., Any]] = {
        "state": state,
        "prepare": prepare,
        "install": install,
        "switch": switch,
        "undo": undo,
    }
    action = actions[request.pop("do")]
    try:
        print(json.dumps(action(link, **request)))
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
