"""The shell lines about a run's own folder at a place. Pure.

A mark tells the folder of a run from anything else that lies in a `workdir`.
"""

from __future__ import annotations

import posixpath
import shlex

MARK = ".medweave-run"


def folder_of(workdir: str, run_id: str) -> str:
    """Where the jobs of a run work."""
    return posixpath.join(workdir, run_id)


def make(workdir: str, run_id: str, *, keep_days: int) -> str:
    """A shell line that makes the run's folder, and removes those of earlier runs in which nothing has changed for so many days.

    It prints what is free there then (`read_free`).
    """
    above, (folder, mark) = shlex.quote(workdir), _quoted(workdir, run_id)
    old = f'[ -f "$mark" ] && [ -z "$(find "$old" -mtime -{keep_days} 2> /dev/null | head -n 1)" ] && rm -rf "$old"'
    return (
        f"umask 077; mkdir -p {folder} && : > {mark} || exit; "
        f'for mark in {above}/*/{MARK}; do old="${{mark%/*}}"; {old}; done; '
        f"df -Pk {folder} 2> /dev/null | awk 'NR == 2 {{print $4}}'"
    )


def read_free(answer: str) -> float | None:
    """Of `make`: free space, MiB; None where it is not known."""
    last = answer.split()[-1:]
    return int(last[0]) / 1024 if last and last[0].isdigit() else None


def remove(workdir: str, run_id: str) -> str:
    """A shell line that removes the run's folder."""
    folder, mark = _quoted(workdir, run_id)
    return f"if [ -f {mark} ]; then rm -rf {folder}; fi"


def _quoted(workdir: str, run_id: str) -> tuple[str, str]:
    folder = folder_of(workdir, run_id)
    return shlex.quote(folder), shlex.quote(posixpath.join(folder, MARK))
