"""Space in a folder: free bytes and files by `df`, and quotas, which `df` mostly does not show, by a trial.

A trial reserves bytes for a file by fallocate(2) and removes it at once. Nothing is written, and a quota of a user, group or
project refuses the reservation, whatever its setup.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass

from medweave.doctor.hop_result import Health, HopResult, quantity

LITTLE_BYTES, LITTLE_FILES = 10 * 2**30, 100_000
_REFUSED, _ABOVE, _OVER, _ACCEPTED = ("medweave-refused", "medweave-above", "medweave-quota", "medweave-let")
_HALVES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Space in a folder.

    Attributes:
        is_refused: the folder cannot be written to.
        will_be_made: the folder does not exist; the values are those of the next folder above.
        free_bytes, free_files: by `df`; None if it does not report them.
        over_bytes: a number of bytes that a quota refused; None if no quota did.
        let_bytes: a number of bytes that was accepted.
    """

    is_refused: bool
    will_be_made: bool
    free_bytes: int | None
    free_files: int | None
    over_bytes: int | None
    let_bytes: int


def probe_line(path: str) -> str:
    """Return a line of shell that probes a folder, for `parse_probe`; of a missing folder, the next folder above."""
    probe = f".medweave-doctor-{secrets.token_hex(4)}"
    halves = " ".join("x" * _HALVES)
    return (
        f'export LC_ALL=C; at={shlex.quote(path)}; [ -d "$at" ] || echo {_ABOVE}; '
        f'while [ ! -d "$at" ]; do [ ! -e "$at" ] || echo {_REFUSED}; at=${{at%/*}}; at=${{at:-/}}; done; '
        f"probe=$at/{probe}; trap 'rm -f \"$probe\"' EXIT HUP TERM; "
        f'( umask 077; : > "$probe" ) 2>&1 || echo {_REFUSED}; '
        'space=$(df -Pk "$at" | tail -n 1); echo "space $space"; echo "files $(df -Pi "$at" 2>/dev/null | tail -n 1)"; '
        # Other implementations of fallocate write each block if the file system cannot reserve any.
        "case $(fallocate --version 2>/dev/null) in *util-linux*) ;; *) exit 0;; esac; "
        # In memory file systems, reserved bytes use memory.
        'case $(stat -f -c %T "$at" 2>/dev/null) in tmpfs|ramfs|"") exit 0;; esac; '
        "kib=$(printf %s \"$space\" | sed -n 's/.* \\([0-9][0-9]*\\)  *[0-9]*% .*/\\1/p'); kib=$(( ${kib:-0} / 2 )); "
        f'[ "$kib" -le {LITTLE_BYTES // 1024} ] || kib={LITTLE_BYTES // 1024}; '
        f'for half in {halves}; do text=$(timeout 5 fallocate -l "$kib"K "$probe" 2>&1) && {{ echo {_ACCEPTED} $kib; exit 0; }}; '
        f"case $text in *quota*) echo {_OVER} $kib;; *) exit 0;; esac; kib=$(( kib / 2 )); done"
    )


def parse_probe(text: str) -> DiskSpace:
    """Return the space that a probe line printed."""
    over = [int(size) for size in re.findall(rf"^{_OVER} (\d+)$", text, re.MULTILINE)]
    let = re.search(rf"^{_ACCEPTED} (\d+)$", text, re.MULTILINE)
    free_kib = _free(text, "space")
    return DiskSpace(
        is_refused=_REFUSED in text,
        will_be_made=_ABOVE in text,
        free_bytes=None if free_kib is None else free_kib * 1024,
        free_files=_free(text, "files"),
        over_bytes=over[-1] * 1024 if over else None,
        let_bytes=int(let.group(1)) * 1024 if let else 0,
    )


def hop_of(place: str, path: str, room: DiskSpace, correct: str) -> HopResult:
    """Return the hop of a workdir.

    Args:
        path: path of the folder as in the site file.
        correct: key of the site file to correct.
    """
    if room.is_refused:
        do = f"{correct}: choose a folder that you own, on a file system with enough space (such as scratch)"
        return HopResult(place=place, name="workdir", health=Health.FAULT, seen=f"{path}: not writable", do=do)
    facts = [f"{quantity(room.free_bytes)} free" if room.free_bytes is not None else "free space unknown"]
    warnings = []
    if room.free_bytes is not None and room.free_bytes < LITTLE_BYTES:
        warnings.append(f"free space: less than {quantity(LITTLE_BYTES)} is not enough for most runs")
    if room.over_bytes is not None:
        facts.append(f"quota: {quantity(room.let_bytes)} more are allowed, {quantity(room.over_bytes)} are not")
        warnings.append("ask the site for a larger quota, or remove files (`quota -s` may show the usage)")
    if room.free_files is not None and room.free_files < LITTLE_FILES:
        facts.append(f"{room.free_files} free inodes")
        warnings.append(f"inodes: fewer than {LITTLE_FILES} are not enough for most runs")
    seen = f"{path}: {'will be created; ' if room.will_be_made else ''}{'; '.join(facts)}"
    do = f"{'; '.join(warnings)}" if warnings else ""
    return HopResult(place=place, name="workdir", health=Health.WARNING if warnings else Health.OK, seen=seen, do=do)


def _free(text: str, what: str) -> int | None:
    """Return the free number in a line of `df -P`; None for a file system that reports 0 of 0 files."""
    match = re.search(rf"^{what} .*? (\d+) +\d+ +(\d+) +(\d+%|-) ", text, re.MULTILINE)
    return None if match is None or match.group(1) == "0" else int(match.group(2))
