"""How much may still be written in a folder: free bytes and files by `df`, and a quota, which `df` mostly does not show, by trial.

A trial reserves bytes for a file by fallocate(2) and removes it at once: nothing is written, and whatever counts there refuses
(a user's, a group's, a project's quota), without a word about how it is set up.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass

from medweave.doctor.hop import Health, Hop, quantity

LITTLE_BYTES, LITTLE_FILES = 10 * 2**30, 100_000
_REFUSED, _ABOVE, _OVER, _LET = ("medweave-refused", "medweave-above", "medweave-quota", "medweave-let")
_HALVES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What was seen.

    Attributes:
        is_refused: it cannot be written to.
        will_be_made: it is not there; what was looked at is the next folder above.
        free_bytes, free_files: by `df`; None where it tells none.
        over_bytes: so many more are against a quota; None where none refused any.
        let_bytes: so many more are not.
    """

    is_refused: bool
    will_be_made: bool
    free_bytes: int | None
    free_files: int | None
    over_bytes: int | None
    let_bytes: int


def look(path: str) -> str:
    """One line of shell that tells of a folder, for `read`. What is not there will be made: its next folder above is tried."""
    probe = f".medweave-doctor-{secrets.token_hex(4)}"
    halves = " ".join("x" * _HALVES)
    return (
        f'export LC_ALL=C; at={shlex.quote(path)}; [ -d "$at" ] || echo {_ABOVE}; '
        f'while [ ! -d "$at" ]; do [ ! -e "$at" ] || echo {_REFUSED}; at=${{at%/*}}; at=${{at:-/}}; done; '
        f"probe=$at/{probe}; trap 'rm -f \"$probe\"' EXIT HUP TERM; "
        f'( umask 077; : > "$probe" ) 2>&1 || echo {_REFUSED}; '
        'space=$(df -Pk "$at" | tail -n 1); echo "space $space"; echo "files $(df -Pi "$at" 2>/dev/null | tail -n 1)"; '
        # Other programs of this name write each block where the file system cannot reserve any.
        "case $(fallocate --version 2>/dev/null) in *util-linux*) ;; *) exit 0;; esac; "
        # In memory, what is reserved is taken.
        'case $(stat -f -c %T "$at" 2>/dev/null) in tmpfs|ramfs|"") exit 0;; esac; '
        "kib=$(printf %s \"$space\" | sed -n 's/.* \\([0-9][0-9]*\\)  *[0-9]*% .*/\\1/p'); kib=$(( ${kib:-0} / 2 )); "
        f'[ "$kib" -le {LITTLE_BYTES // 1024} ] || kib={LITTLE_BYTES // 1024}; '
        f'for each in {halves}; do said=$(timeout 5 fallocate -l "$kib"K "$probe" 2>&1) && {{ echo {_LET} $kib; exit 0; }}; '
        f"case $said in *quota*) echo {_OVER} $kib;; *) exit 0;; esac; kib=$(( kib / 2 )); done"
    )


def read(text: str) -> Room:
    """What the line has printed."""
    over = [int(each) for each in re.findall(rf"^{_OVER} (\d+)$", text, re.MULTILINE)]
    let = re.search(rf"^{_LET} (\d+)$", text, re.MULTILINE)
    free_kib = _free(text, "space")
    return Room(
        is_refused=_REFUSED in text,
        will_be_made=_ABOVE in text,
        free_bytes=None if free_kib is None else free_kib * 1024,
        free_files=_free(text, "files"),
        over_bytes=over[-1] * 1024 if over else None,
        let_bytes=int(let.group(1)) * 1024 if let else 0,
    )


def hop_of(place: str, path: str, room: Room, correct: str) -> Hop:
    """The line of a workdir.

    Args:
        path: the folder, as the site file has it.
        correct: the key of the site file to correct.
    """
    if room.is_refused:
        do = f"{correct}: write a folder of your own with much room, such as one on scratch"
        return Hop(place=place, name="workdir", health=Health.FAULT, seen=f"{path}: cannot be written to", do=do)
    told = [f"{quantity(room.free_bytes)} free" if room.free_bytes is not None else "free space unknown"]
    little = []
    if room.free_bytes is not None and room.free_bytes < LITTLE_BYTES:
        little.append(f"less than {quantity(LITTLE_BYTES)} is soon full")
    if room.over_bytes is not None:
        told.append(f"a quota lets {quantity(room.let_bytes)} more be written, and not {quantity(room.over_bytes)}")
        little.append("ask the site for more, or remove what is not needed (`quota -s` may tell how much it is)")
    if room.free_files is not None and room.free_files < LITTLE_FILES:
        told.append(f"{room.free_files} more files")
        little.append(f"less than {LITTLE_FILES} files are soon made")
    seen = f"{path}: {'will be made; ' if room.will_be_made else ''}{'; '.join(told)}"
    do = f"make room: {'; '.join(little)}" if little else ""
    return Hop(place=place, name="workdir", health=Health.WARNING if little else Health.OK, seen=seen, do=do)


def _free(text: str, what: str) -> int | None:
    """Of a line of `df -P`; a file system that counts no files says 0 of 0."""
    found = re.search(rf"^{what} .*? (\d+) +\d+ +(\d+) +(\d+%|-) ", text, re.MULTILINE)
    return None if found is None or found.group(1) == "0" else int(found.group(2))
