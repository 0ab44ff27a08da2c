"""The shell lines about what lies in a `workdir`: a run's own folder, and the store of files that were copied there. Pure.

A mark tells the folder of a run from anything else.
"""

from __future__ import annotations

import posixpath
import shlex

MARK = ".medweave-run"
STORE = ".medweave-store"
IN_SPARES = "-type d -name '*.spare*' -prune"  # of `find`: folders in the store that no run uses
_CLAIM = 'for each; do gone="$each.gone.$$"; mv "$each" "$gone" 2>/dev/null && rm -rf "$gone"; done; :'
# Before the paths of some of these: removes them. Each is renamed first, as by whoever takes it for a run: one of both gets it, and
# what a run has got loses nothing.
CLAIM = f"sh -c {shlex.quote(_CLAIM)} sh"


def folder_of(workdir: str, run_id: str) -> str:
    """Where the jobs of a run work."""
    return posixpath.join(workdir, run_id)


def make(workdir: str, run_id: str, *, keep_days: int) -> str:
    """A shell line that makes the run's folder, and removes those of earlier runs in which nothing has changed for so many days.

    What nobody has used for so long goes from the store, too. It prints what is free there then (`read_free`).
    """
    above, (folder, mark) = shlex.quote(workdir), _quoted(workdir, run_id)
    old = f'[ -f "$mark" ] && [ -z "$(find "$old" -mtime -{keep_days} 2> /dev/null | head -n 1)" ] && rm -rf "$old"'
    return (
        f"umask 077; mkdir -p {folder} && : > {mark} || exit; "
        f'for mark in {above}/*/{MARK}; do old="${{mark%/*}}"; {old}; done; '
        f"{_old_spares(workdir, keep_days)}; "
        f"{_unused(workdir)} -ctime +{keep_days - 1} -exec rm -f {{}} + 2> /dev/null; "
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


def remove_traces(workdir: str, run_id: str) -> str:
    """The same, and with it what the store has and no other run uses: it may have come with this one."""
    store = shlex.quote(posixpath.join(workdir, STORE))
    # Twice: what was just being made ready may have come between; its list is gone with the first time.
    gone = f"( cd {store} && {without_spares()} ) || :; {_unused(workdir)} -exec rm -f {{}} +"
    return f"{remove(workdir, run_id)}; if [ -d {store} ]; then {gone}; {gone}; fi"


def without_spares(tests: str = "") -> str:
    """A line that removes what stands ready in a store where the shell is.

    Args:
        tests: of `find`, which ones.
    """
    return f"find . {IN_SPARES} {tests} -exec {CLAIM} {{}} + 2>/dev/null"


def _old_spares(workdir: str, keep_days: int) -> str:
    """A line that removes those that nobody has used for so long, and the files in the store that have other names in these alone:
    that one of a file's names goes is a change of it, and it would stay for as long again."""
    old = f"-mtime +{keep_days - 1}"
    spares = f"find . {IN_SPARES} {old}"
    theirs = f"{spares} | while read -r each; do find \"$each\" -type f -exec stat -c '%i %h' {{}} +; done"
    stored = f"find . {IN_SPARES} -o -type f -exec stat -c '%i 0 %n' {{}} +"
    unused = (
        "NF == 2 { names[$1]++; links[$1] = $2 } NF == 3 && ($1 in names) && names[$1] + 1 == links[$1] { print $3 }"
    )
    return (
        f'( cd {shlex.quote(posixpath.join(workdir, STORE))} && [ -n "$({spares} | head -n 1)" ] || exit; '
        f"{{ {theirs}; {stored}; }} | awk '{unused}' | xargs rm -f --; {without_spares(old)} ) 2> /dev/null"
    )


def _unused(workdir: str) -> str:
    # A file that a run uses has a second name in its folder.
    return f"find {shlex.quote(posixpath.join(workdir, STORE))} {IN_SPARES} -o -type f -links 1"


def _quoted(workdir: str, run_id: str) -> tuple[str, str]:
    folder = folder_of(workdir, run_id)
    return shlex.quote(folder), shlex.quote(posixpath.join(folder, MARK))
