"""Shell lines about the folders in a `workdir`: a run's folder, and the store of files that were copied there. Pure.

A run creates its folder exclusively, with a mark that names the run and holds its token. A folder is removed only where the mark
fits, and one of an earlier run, after some days without a change, only where it still has the name that its mark says. Marks of
older versions are empty: they count in folders with generated names (`ownership.is_generated`).
"""

from __future__ import annotations

import posixpath
import shlex

from medweave_core.runlog.run_ownership import RunOwner

MARK = ".medweave-run"
STORE = ".medweave-store"
NOT_OURS = 73  # exit code where a folder of the run's name is not the run's
_DIGITS = "[0-9]"
_GENERATED = f"*-{8 * _DIGITS}-{6 * _DIGITS}-{4 * '[0-9a-f]'}"  # a pattern of the shell, as `ownership.is_generated`


def folder_of(workdir: str, run_id: str) -> str:
    """Return the folder of a run's jobs."""
    return posixpath.join(workdir, run_id)


def make(workdir: str, owner: RunOwner, *, keep_days: int) -> str:
    """Return a shell line that creates the run's folder, and removes those of earlier runs without a change for so many days.

    Files in the store without any use for so long are removed, too. The line prints the free space (`read_free`). It ends with
    `NOT_OURS` where something of the folder's name exists that this run did not create. Several locations may see one folder, and
    create it at the same time: the marked folder gets its name by one rename.
    """
    above, (folder, mark) = shlex.quote(workdir), _quoted(workdir, owner.run_id)
    return (
        f"umask 077; mkdir -p {above} || exit; if ! {_exists(folder)}; then "
        f'new=$(mktemp -d {folder}.new.XXXXXX) && printf %s {shlex.quote(owner.mark)} > "$new/{MARK}" || exit; '
        # Where another location was faster, `mv` fails or puts the new folder into the existing one.
        f'{_exists(folder)} || mv "$new" {folder}; rm -rf "$new" {folder}/"${{new##*/}}"; {_exists(folder)} || exit 1; fi; '
        f"{_is_ours(mark, owner)} || {_refuse(folder)}; "
        f'for mark in {above}/*/{MARK}; do old="${{mark%/*}}"; {_is_old_run(keep_days)} && rm -rf "$old"; done; '
        f"{_remove_prestaged(workdir)}; "
        f"{_unused(workdir)} -ctime +{keep_days - 1} -exec rm -f {{}} + 2> /dev/null; "
        f"df -Pk {folder} 2> /dev/null | awk 'NR == 2 {{print $4}}'"
    )


def read_free(answer: str) -> float | None:
    """Return the free space in the output of `make`, MiB; None if not known."""
    last = answer.split()[-1:]
    return int(last[0]) / 1024 if last and last[0].isdigit() else None


def remove(workdir: str, owner: RunOwner) -> str:
    """Return a shell line that removes the run's folder where its mark fits, and then prints its path.

    It ends with `NOT_OURS` if the owner is uncertain: the run has a chosen id and no token. The cause is an older version, whose
    marks are empty, or a lost mark in the folder of runs.
    """
    folder, mark = _quoted(workdir, owner.run_id)
    do = f"rm -rf {folder} && printf '%s\\n' {folder}" if owner.is_certain else _refuse(folder)
    return f"if {_is_ours(mark, owner)}; then {do}; fi"


def remove_traces(workdir: str, owner: RunOwner) -> str:
    """Return a shell line that does the same, and removes the files in the store that no run uses: they may be this run's."""
    store = shlex.quote(posixpath.join(workdir, STORE))
    gone = f"{_remove_prestaged(workdir)}; {_unused(workdir)} -exec rm -f {{}} +"
    return (
        f"code=0; ( {remove(workdir, owner)} ) || code=$?; if [ -d {store} ]; then {gone}; fi; "
        '[ "$code" = 0 ] || exit "$code"'
    )


def _unused(workdir: str) -> str:
    # A file that a run uses has a second name in its folder.
    return f"find {shlex.quote(posixpath.join(workdir, STORE))} -type f -links 1"


def _remove_prestaged(workdir: str) -> str:
    """Return a shell line that removes the folders that medweave 0.1 pre-staged in the store.

    Each folder is renamed first: a driver of that version that renames one into its run gets all of it or nothing.
    """
    store = shlex.quote(posixpath.join(workdir, STORE))
    return (
        f"( [ ! -L {store} ] && cd {store} && find . -type d -name '*.spare*' -prune | while read -r old; do "
        'mv "$old" "$old.gone.$$" && rm -rf "$old.gone.$$"; done ) 2> /dev/null'
    )


def _exists(path: str) -> str:
    return f"{{ [ -e {path} ] || [ -L {path} ]; }}"


def _is_ours(mark: str, owner: RunOwner) -> str:
    """Return a condition on a mark. A run without a token is of an older version, or has lost the mark in its folder of runs."""
    marks = shlex.quote(owner.mark) if owner.token else f"''|{shlex.quote(f'{owner.run_id} ')}*"
    return f'{{ [ -f {mark} ] && case "$(cat {mark})" in {marks}) :;; *) false;; esac; }}'


def _refuse(folder: str) -> str:
    return f"{{ printf '%s: exists; nothing shows that this run created it\\n' {folder} >&2; exit {NOT_OURS}; }}"


def _is_old_run(keep_days: int) -> str:
    """Return a shell condition on `$old`, with its `$mark`: an earlier run's folder (own name), unchanged for `keep_days`."""
    return (
        '[ -f "$mark" ] && [ ! -L "$old" ] && id=$(head -c 200 "$mark" | cut -d " " -f 1) && '
        f'case "$id/${{old##*/}}" in "$id/$id"|"$id/$id".new.*|/{_GENERATED}) :;; *) false;; esac && '
        f'[ -z "$(find "$old" -mtime -{keep_days} 2> /dev/null | head -n 1)" ]'
    )


def _quoted(workdir: str, run_id: str) -> tuple[str, str]:
    folder = folder_of(workdir, run_id)
    return shlex.quote(folder), shlex.quote(posixpath.join(folder, MARK))
