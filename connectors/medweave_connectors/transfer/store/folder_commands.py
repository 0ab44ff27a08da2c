"""The shell lines about what lies in a `workdir`: a run's own folder, and the store of files that were copied there. Pure.

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
IN_SPARES = "-type d -name '*.spare*' -prune"  # of `find`: folders in the store that no run uses
_CLAIM = 'for each; do gone="$each.gone.$$"; mv "$each" "$gone" 2>/dev/null && rm -rf "$gone"; done; :'
# Before the paths of some of these: removes them. Each is renamed first, as by whoever takes it for a run: one of both gets it, and
# what a run has got loses nothing.
CLAIM = f"sh -c {shlex.quote(_CLAIM)} sh"
NOT_OURS = 73  # exit code where a folder of the run's name is not the run's
_DIGITS = "[0-9]"
_GENERATED = f"*-{8 * _DIGITS}-{6 * _DIGITS}-{4 * '[0-9a-f]'}"  # a pattern of the shell, as `ownership.is_generated`


def folder_of(workdir: str, run_id: str) -> str:
    """Where the jobs of a run work."""
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
        f"{_old_spares(workdir, keep_days)}; "
        f"{_unused(workdir)} -ctime +{keep_days - 1} -exec rm -f {{}} + 2> /dev/null; "
        f"df -Pk {folder} 2> /dev/null | awk 'NR == 2 {{print $4}}'"
    )


def read_free(answer: str) -> float | None:
    """Of `make`: free space, MiB; None where it is not known."""
    last = answer.split()[-1:]
    return int(last[0]) / 1024 if last and last[0].isdigit() else None


def remove(workdir: str, owner: RunOwner) -> str:
    """Return a shell line that removes the run's folder where its mark fits, and then prints its path.

    It ends with `NOT_OURS` where nobody can tell: the run has a chosen id and no token. It is of an older version, whose marks are
    empty, or the mark in its folder of runs is lost.
    """
    folder, mark = _quoted(workdir, owner.run_id)
    do = f"rm -rf {folder} && printf '%s\\n' {folder}" if owner.is_certain else _refuse(folder)
    return f"if {_is_ours(mark, owner)}; then {do}; fi"


def remove_traces(workdir: str, owner: RunOwner) -> str:
    """Return a shell line that does the same, and removes the files in the store that no run uses: they may be this run's."""
    # Twice: a folder may have become ready in between; its list is removed at the first time.
    gone = f"( {_in_store(workdir)} && {without_spares()} ) || :; {_unused(workdir)} -exec rm -f {{}} +"
    store = shlex.quote(posixpath.join(workdir, STORE))
    return (
        f"code=0; ( {remove(workdir, owner)} ) || code=$?; if [ -d {store} ]; then {gone}; {gone}; fi; "
        '[ "$code" = 0 ] || exit "$code"'
    )


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
        f'( {_in_store(workdir)} && [ -n "$({spares} | head -n 1)" ] || exit; '
        f"{{ {theirs}; {stored}; }} | awk '{unused}' | xargs rm -f --; {without_spares(old)} ) 2> /dev/null"
    )


def _unused(workdir: str) -> str:
    # A file that a run uses has a second name in its folder.
    return f"find {shlex.quote(posixpath.join(workdir, STORE))} {IN_SPARES} -o -type f -links 1"


def _in_store(workdir: str) -> str:
    """A part of a line that enters the store; a link of that name leads to something else."""
    store = shlex.quote(posixpath.join(workdir, STORE))
    return f"[ ! -L {store} ] && cd {store}"


def _exists(path: str) -> str:
    return f"{{ [ -e {path} ] || [ -L {path} ]; }}"


def _is_ours(mark: str, owner: RunOwner) -> str:
    """A condition on a mark. A run without a token is of an older version, or has lost the mark in its folder of runs."""
    marks = shlex.quote(owner.mark) if owner.token else f"''|{shlex.quote(f'{owner.run_id} ')}*"
    return f'{{ [ -f {mark} ] && case "$(cat {mark})" in {marks}) :;; *) false;; esac; }}'


def _refuse(folder: str) -> str:
    return f"{{ printf '%s: exists; nothing shows that this run created it\\n' {folder} >&2; exit {NOT_OURS}; }}"


def _is_old_run(keep_days: int) -> str:
    """A condition on `$old`, with its `$mark`: the folder of an earlier run, under its own name, without a change for so long."""
    return (
        '[ -f "$mark" ] && [ ! -L "$old" ] && id=$(head -c 200 "$mark" | cut -d " " -f 1) && '
        f'case "$id/${{old##*/}}" in "$id/$id"|"$id/$id".new.*|/{_GENERATED}) :;; *) false;; esac && '
        f'[ -z "$(find "$old" -mtime -{keep_days} 2> /dev/null | head -n 1)" ]'
    )


def _quoted(workdir: str, run_id: str) -> tuple[str, str]:
    folder = folder_of(workdir, run_id)
    return shlex.quote(folder), shlex.quote(posixpath.join(folder, MARK))
