"""The two users of the testbed and the sites' roots, each closed to everybody but its owner."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from .layout import POD_UID, TENANTS, Layout
from .part import Part, Testbed


def homes(layout: Layout) -> dict[str, Path]:
    """Home folder of each user."""
    return {layout.laptop_user: layout.laptop_home, layout.hpc_user: layout.hpc / "home"}


def user_words(name: str, home: Path) -> list[str]:
    """Return the command line that makes a user. The password "*" fits nothing, yet sshd does not take the user as locked."""
    comment = ["--comment", "medweave testbed", "--password", "*"]
    return [
        "useradd",
        *comment,
        "--no-create-home",
        "--home-dir",
        str(home),
        "--shell",
        "/bin/bash",
        "--user-group",
        name,
    ]


def folders(layout: Layout) -> list[tuple[Path, str | int, int]]:
    """(folder, owner, mode) of everything that the sites' own users may enter."""
    laptop, hpc = layout.laptop_user, layout.hpc_user
    pods = [(layout.pods / tenant, POD_UID, 0o700) for tenant in TENANTS]
    return [
        (layout.folder, 0, 0o755), (layout.bin, 0, 0o755), (layout.log, 0, 0o700), (layout.run, 0, 0o755),
        (layout.cache, 0, 0o700), (layout.kubernetes, 0, 0o700), (layout.slurm, 0, 0o700),
        (layout.laptop, laptop, 0o700), (layout.laptop_home, laptop, 0o700),
        (layout.hpc, hpc, 0o700), (layout.hpc / "home", hpc, 0o700), (layout.hpc / "scratch", hpc, 0o700),
        (layout.pods, POD_UID, 0o700), *pods,
    ]  # fmt: skip


def trouble(testbed: Testbed) -> str | None:
    """Which user or folder is missing or open to others."""
    for name, home in homes(testbed.layout).items():
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return f"there is no user {name}"
        if entry.pw_dir != str(home):
            return f"the home of {name} is {entry.pw_dir}"
    for folder, owner, mode in folders(testbed.layout):
        if not folder.is_dir():
            return f"there is no folder {folder}"
        seen = folder.stat()
        if (seen.st_uid, seen.st_mode & 0o7777) != (user_id(owner), mode):
            return f"{folder} has owner {seen.st_uid} and mode {seen.st_mode & 0o7777:o}, not {owner} and {mode:o}"
    return None


def start(testbed: Testbed) -> None:
    """Create users and folders; note the users that it made, so that `down --purge` removes these and no others."""
    made = testbed.layout.cache / "users"
    for name, home in homes(testbed.layout).items():
        try:
            if pwd.getpwnam(name).pw_dir != str(home):
                testbed.commands.run(["usermod", "--home", home, name])
        except KeyError:
            testbed.commands.run(user_words(name, home))
            made.parent.mkdir(parents=True, exist_ok=True)
            with made.open("a", encoding="utf-8") as stream:
                stream.write(name + "\n")
    for folder, owner, mode in folders(testbed.layout):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        os.chown(folder, user_id(owner), group_id(owner))


def user_id(owner: str | int) -> int:
    """Return the number of a user, from name or number."""
    return owner if isinstance(owner, int) else pwd.getpwnam(owner).pw_uid


def group_id(owner: str | int) -> int:
    """Return the number of a user's own group; a bare number is its own group."""
    return owner if isinstance(owner, int) else pwd.getpwnam(owner).pw_gid


def parts() -> list[Part]:
    """Return the users' part."""
    return [Part(name="users", needs=("machine",), trouble=trouble, start=start)]
