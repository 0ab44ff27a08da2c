"""What `medweave provision` runs at a site, by the site's own Python; standard library only, nothing of medweave is there yet.

Beside PATH, which becomes a link, lies PATH.provisioned: `wheels`, and a folder per environment that was made. Such a folder never
changes once its marker is in it, and the link is replaced by a rename: a job that runs goes on in the folder that it was started
in, a job that starts finds the old environment or the new one, whole.
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
    """Where the environments of a link and their wheels lie."""
    return link.with_name(f"{link.name}.provisioned")


def state(link: Path) -> dict[str, Any]:
    """What is there: the environment that the link names, and those that are whole."""
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
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def prepare(link: Path) -> dict[str, Any]:
    """Makes the folder for the wheels; what is free there, and the wheels that lie there already, with their hashes."""
    folder = folder_of(link) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    remove_parts(folder)
    wheels = {path.name: digest(path) for path in sorted(folder.glob("*.whl"))}
    return {"free_mib": shutil.disk_usage(folder).free >> 20, "folder": str(folder), "wheels": wheels}


def remove_parts(folder: Path) -> None:
    """Removes wheels that were cut off on their way."""
    for part in folder.glob(".*.part"):
        part.unlink()


def install(link: Path, name: str, requirements: str) -> None:
    """Makes an environment from the wheels that lie there; no network is used."""
    folder = folder_of(link) / name
    with alone(folder_of(link)):
        if not (folder / MARKER).is_file():
            remove(link, name)
            make(folder, requirements)
            (folder / MARKER).write_text(json.dumps({"made": time.time(), "python": sys.version}), encoding="utf-8")


def make(folder: Path, requirements: str) -> None:
    """The environment itself; exits with the words of whatever failed."""
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
    """Runs a program; its failure ends this one, with its words."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr.strip() or ended.stdout.strip() or f"{words[0]} ended with {ended.returncode}")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two calls at once make one environment after the other; where the file system knows no locks, they trust to luck."""
    with (folder / "lock").open("w") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def switch(link: Path, name: str, wheels: list[str]) -> dict[str, Any]:
    """Lets the link name another environment, in one step; what nobody needs any more goes.

    Args:
        wheels: names of those that belong to it; where they are not known, all stay.
    """
    folder, now = folder_of(link), time.time()
    before = state(link)["current"]
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(Path(folder.name) / name)
    aside.replace(link)
    if before and before != name:
        os.utime(folder / before / MARKER)  # replaced now
    for marker in folder.glob(f"*/{MARKER}"):
        if marker.parent.name != name and now - marker.stat().st_mtime > KEEP_S:
            remove(link, marker.parent.name)
    for wheel in (folder / "wheels").glob("*.whl"):
        if wheels and wheel.name not in wheels:
            wheel.unlink()
    return {"before": before}


def remove(link: Path, name: str) -> None:
    """Removes an environment, its marker first."""
    folder = folder_of(link) / name
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def undo(link: Path, name: str) -> dict[str, Any]:
    """After an interrupted call: no half environment and no half wheel stays. Wheels that came whole stay for the next call."""
    if folder_of(link).is_dir():
        remove_parts(folder_of(link) / "wheels")
        if not (folder_of(link) / name / MARKER).is_file():
            remove(link, name)
    return {}


def main(asked: dict[str, Any]) -> None:
    """Does one of the actions; prints what it returns as the last line."""
    link = Path(asked.pop("link")).expanduser()
    actions: dict[str, Callable[..., Any]] = {
        "state": state,
        "prepare": prepare,
        "install": install,
        "switch": switch,
        "undo": undo,
    }
    action = actions[asked.pop("do")]
    try:
        print(json.dumps(action(link, **asked)))
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
