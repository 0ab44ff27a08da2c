"""Shell commands for both ends of a copy, with the tools that each site has. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

REFUSED = 46
WAIT_S = 20  # for a rename by another location that shares the files
BLOCK_BYTES = 2**16  # unit of the offset at which an incomplete file is continued
_PLACE = re.compile(r"^medweave-place (new|below) ([0-9]{1,19}|unknown)\.$", re.MULTILINE)
_KIB = 1024
_PART = ".part"
_LINE_CHARACTERS = 25_000  # of at most four bytes each: Linux allows 128 KiB in one argument
_C = "export LC_ALL=C; "  # error messages are matched in English
# Modes of folders only: files may be shared with the store. A program whose stream was cut may still be writing.
_REMOVE = (
    'find "$part" -type d ! -perm -700 -exec chmod u+rwx {} \\; 2>/dev/null; '
    'rm -rf "$part" 2>/dev/null || { sleep 1; rm -rf "$part"; } 2>/dev/null || :;'
)
OLD = ".medweave-old"  # previous content of the destination, until the copy is published
_RESTORE = (
    f'for old in "$part/{OLD}"/* "$part/{OLD}"/.[!.]* "$part/{OLD}"/..?*; do there=${{part%/*}}/${{old##*/}}; '
    'if { [ -e "$old" ] || [ -L "$old" ]; } && [ ! -e "$there" ] && [ ! -L "$there" ]; then mv "$old" "${part%/*}/"; fi; done;'
)


def _script(text: str, values: Mapping[str, str]) -> str:
    """Return one shell line, with variables that have these values, quoted."""
    assignments = "".join(f"{name}={shlex.quote(value)}; " for name, value in values.items())
    return _C + assignments + " ".join(line.strip() for line in text.strip().splitlines())


def _in_subshell(text: str, **values: str) -> list[str]:
    """Return the line in a subshell: its `exit` does not end the shell that runs it."""
    return [f"( {_script(text, values)} )"]


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where a copy is staged, and its final path.

    Attributes:
        part: the staging folder, with a hidden name, in the folder of the destination: publishing is a rename.
        final: path of the complete copy.
        tries: number of cuts of its stream; after each cut, the copy is staged in another folder inside `part`.
    """

    part: str
    final: str
    tries: int = 0

    @property
    def folder(self) -> str:
        """Return the current staging folder."""
        return posixpath.join(self.part, staging_name(str(self.tries))) if self.tries else self.part

    def inside(self, name: str) -> str:
        """Return the path of the staged copy."""
        return posixpath.join(self.folder, name)

    def after_cut(self) -> StagingPlace:
        """Return the place after another cut."""
        return replace(self, tries=self.tries + 1)

    def earlier(self, name: str) -> list[str]:
        """Return earlier paths of the staged copy, the latest first."""
        return [replace(self, tries=tries).inside(name) for tries in reversed(range(self.tries))]


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """The result of `prepare`.

    Attributes:
        below: the destination is a folder, and the copy goes into it.
        free_bytes: free space; None where the file system does not report it.
    """

    below: bool
    free_bytes: int | None


def staging_name(token: str) -> str:
    """Return the hidden name of a staging folder."""
    return f".medweave-{token}{_PART}"


def is_staging_path(path: str) -> bool:
    """Return whether a path is in a staging folder, which only its copy uses."""
    parent = posixpath.basename(posixpath.dirname(path))
    return parent.startswith(staging_name("")[: -len(_PART)]) and parent.endswith(_PART)


def staging_place(destination: str, name: str, token: str, *, below: bool) -> StagingPlace:
    """Return the staging place of a copy.

    Args:
        name: the source's own name, which the copy gets in an existing folder.
        below: the destination is an existing folder.
    """
    folder, final = (destination, posixpath.join(destination, name)) if below else _split(destination)
    return StagingPlace(posixpath.join(folder, staging_name(token)), final)


def _split(destination: str) -> tuple[str, str]:
    return posixpath.dirname(destination), destination


def prepare(destination: str, token: str) -> list[str]:
    """Return the command that makes the staging folder and prints the free space.

    It ends with `REFUSED`, after the reason, where nothing can be written; then only parent folders may have been made.

    Args:
        token: of this attempt; locations that share a file system use one staging folder.
    """
    numbers = "2s/.* \\([0-9][0-9]*\\)  *[0-9][0-9]*  *\\([0-9][0-9]*\\)  *[0-9]*% .*/\\1 \\2/p"
    text = f"""
        if [ -d "$to" ]; then at=below; else at=new; to=${{to%/*}}/; mkdir -p "$to" || exit {REFUSED}; fi;
        part=${{to%/}}/{staging_name(token)};
        mkdir -m 700 "$part" || [ -d "$part" ] || exit {REFUSED};
        df=$(df -Pk "$part" 2>/dev/null | sed -n '{numbers}');
        all=${{df% *}}; free=${{df#* }}; [ "${{all:-0}}" != 0 ] || free=;
        echo "medweave-place $at ${{free:-unknown}}."
    """
    return _in_subshell(text, to=destination)


def parse_prepared(text: str) -> StagingFolder | None:
    """Return the result in the output of `prepare`; None where the output is incomplete."""
    match = _PLACE.search(text)
    if match is None:
        return None
    return StagingFolder(match[1] == "below", None if match[2] == "unknown" else int(match[2]) * _KIB)


def least_free(places: Iterable[StagingFolder]) -> int | None:
    """Return the least free space; None where no location reports it."""
    return min((place.free_bytes for place in places if place.free_bytes is not None), default=None)


def sync(word: str) -> str:
    """Return a shell line that flushes the file system of a path, where the site's `sync` supports that.

    It ends the shell with `REFUSED` where the disk reports an error.

    Args:
        word: the path, as a word of the shell.
    """
    return (
        f"{{ sync=sync; why=$(LC_ALL=C sync -f {word} 2>&1) || "
        f'case $why in *"error syncing"*) echo "$why"; exit {REFUSED};; *) sync=:;; esac; }}'
    )


def publish(place: StagingPlace, name: str) -> list[str]:
    """Return the command that publishes a copy by a rename, and removes the previous content.

    Locations that share a file system may all run it: one renames, the others wait. Where it fails, or is interrupted and
    `discard` follows, the previous content is restored. The copy is flushed to the disk first, where the site's `sync` supports
    that: one call for many files, which reports write errors that the cache has hidden.
    """
    # A folder that its owner may not write to cannot change its parent. Moved to the folder above, not to the name: nothing goes
    # into a folder of that name that another process has made since.
    text = f"""
        trap : HUP INT TERM;
        if [ -e "$new" ] && mkdir "$part/.medweave-keep" 2>/dev/null; then
        {sync('"$part"')};
        lock=; if [ -d "$new" ] && [ ! -w "$new" ]; then lock=1; chmod u+w "$new" || exit {REFUSED}; fi;
        mkdir "$part/.medweave-new" "$part/{OLD}" && mv "$new" "$part/.medweave-new/${{to##*/}}" || exit {REFUSED};
        if [ -d "$to" ] || [ -L "$to" ]; then mv "$to" "$part/{OLD}/" || exit {REFUSED}; fi;
        mv -f "$part/.medweave-new/${{to##*/}}" "${{to%/*}}/" || {{ {_RESTORE} exit {REFUSED}; }};
        [ -z "$lock" ] || chmod u-w "$to"; $sync "${{to%/*}}/" 2>/dev/null || :;
        {_REMOVE}
        else seconds=0;
        while [ -e "$part" ] && [ $seconds -lt {WAIT_S} ]; do sleep 1; seconds=$((seconds + 1)); done;
        [ ! -e "$part" ] && [ -e "$to" ] || exit {REFUSED}; fi
    """
    return _in_subshell(text, part=place.part, new=place.inside(name), to=place.final)


def discard(destination: str, token: str) -> list[str]:
    """Return the command that removes a staged copy, and restores what `publish` had moved away."""
    parts = (staging_place(destination, "", token, below=below).part for below in (False, True))
    return _in_subshell(f"for part in {' '.join(map(shlex.quote, parts))}; do {_RESTORE} {_REMOVE} done")


def pack(path: str) -> list[str]:
    """Return the command that writes an archive of a file or folder to standard output. Links are followed."""
    folder, name = posixpath.split(path)
    # Tar takes a name with a leading dash for an option; StreamFlow's own connectors do not quote arguments.
    return [*_tar([name]), "chf", "-", "-C", folder or "/", *(["--"] if name.startswith("-") else []), name]


def unpack(name: str, destination: str, token: str, *, own: bool = False) -> list[str]:
    """Return the command that unpacks an archive of `name`: into the destination if it is a folder, else under its path.

    An incomplete archive is removed. A copy in a staging folder is published by `publish`; locations that share a file system may
    all write there.

    Args:
        token: different for each location.
        own: the files get the owner who unpacks them, not the numeric owner of the archive.
    """
    tar = f"tar {'xpof' if own else 'xpf'} - -C"
    # The target of the move is the parent folder: a folder of that name may have been made by another location.
    text = f"""
        case $to in */{staging_name("*")}/"$name") exec {tar} "${{to%/*}}";; esac;
        if [ -d "$to" ]; then exec {tar} "$to"; fi;
        trap : HUP INT TERM; part=${{to%/*}}/{staging_name(token)}; new=$part/${{to##*/}}; lock=;
        mkdir -m 700 "$part" && {tar} "$part" && {{ [ "$part/$name" = "$new" ] || mv "$part/$name" "$new"; }} &&
        if [ -d "$new" ] && [ ! -w "$new" ]; then lock=1; chmod u+w "$new"; fi &&
        {{ mv -f "$new" "${{to%/*}}/" || [ -d "$to" ]; }} && {{ [ -z "$lock" ] || chmod u-w "$to"; }}; code=$?;
        {_REMOVE}
        exit $code
    """
    return ["sh", "-c", _script(text, {"to": destination, "name": name})]


def pack_files(folder: str, names: Sequence[str]) -> list[str]:
    """Return the command that writes an archive of some files, named relative to a folder, with links followed."""
    return [*_tar(names), "chf", "-", "-C", folder, "--", *names]


def _tar(names: Sequence[str]) -> list[str]:
    # GNU tar unescapes backslashes in file arguments; other tars ignore this variable.
    return ["env", "TAR_OPTIONS=--no-unquote", "tar"] if any("\\" in name for name in names) else ["tar"]


def unpack_files(part: str, *, own: bool = False) -> list[str]:
    """Return the command that unpacks such an archive from standard input into a staging folder; `own`: see `unpack`."""
    return ["tar", "xpof" if own else "xpf", "-", "-C", part]


# ---- a copy whose stream was cut


def set_aside(place: StagingPlace, name: str, *, keeps: bool) -> list[str]:
    """Return the command that moves what has arrived into the place's new folder, or removes it.

    A program whose connection was cut may still write. Its paths lead to the previous folder, which is not used any more. Into an
    open file it can write only the same bytes at the same offsets, while the source is unchanged.

    Locations that share a file system may all run it: one moves, the others wait.
    """
    # A folder that its owner may not write to cannot change its parent.
    do = f'mv "$old" "$new/" || exit {REFUSED}; break;' if keeps else 'rm -rf "$old";'
    text = f"""
        if mkdir -m 700 "$new" 2>/dev/null; then
        for old in {" ".join(map(shlex.quote, place.earlier(name)))}; do if [ -e "$old" ]; then
        find "$old" -type d ! -perm -700 -exec chmod u+rwx {{}} \\; 2>/dev/null;
        {do} fi; done; mkdir "$new.moved";
        elif [ ! -d "$new" ]; then mkdir "$new"; exit {REFUSED};
        else seconds=0;
        while [ ! -e "$new.moved" ] && [ $seconds -lt {WAIT_S} ]; do sleep 1; seconds=$((seconds + 1)); done;
        [ -e "$new.moved" ] || exit {REFUSED}; fi
    """
    return _in_subshell(text, new=place.folder)


# A file with several names may be shared with the store.
_STAMP = 'stamp() { [ "$(stat -c %h "$3")" = 1 ] || return 0; chmod "$1" "$3"; TZ=UTC0 touch -m -t "$2" "$3"; }; '


def batch_commands(steps: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield commands that apply steps to paths, several in one command. A failed step is ignored.

    Args:
        steps: a command and a path; `stamp MODE TIME` sets the mode and time of a file.
    """
    lines: list[str] = []
    num_characters = 0
    for command, group in groupby(steps, key=lambda step: step[0]):
        for number, path in enumerate(shlex.quote(path) for _, path in group):
            if num_characters + len(path) > _LINE_CHARACTERS:
                yield [f"( {_C}{_STAMP}{'; '.join(lines)}; : ) 2>/dev/null"]
                lines, num_characters = [], 0
            if number == 0 or not lines or command.startswith("stamp"):
                lines.append(command)
            lines[-1] += f" {path}"
            num_characters += len(command) + len(path)
    if lines:
        yield [f"( {_C}{_STAMP}{'; '.join(lines)}; : ) 2>/dev/null"]


def read_from(path: str, begins: int) -> list[str]:
    """Return the command that writes a file to standard output, without its first blocks."""
    return ["dd", f"if={path}", f"bs={BLOCK_BYTES}", f"skip={begins // BLOCK_BYTES}"]


def write_from(path: str, begins: int) -> list[str]:
    """Return the command that continues a file that has its first blocks; a file with several names is refused."""
    # dd writes short reads from a pipe one after the other.
    text = f"""
        [ "$(stat -c %h "$file")" = 1 ] || exit {REFUSED}; chmod u+rw "$file" 2>/dev/null;
        exec dd of="$file" bs={BLOCK_BYTES} seek={begins // BLOCK_BYTES} conv=notrunc
    """
    return ["sh", "-c", _script(text, {"file": path})]


def link_or_copy(source: str, destination: str, *, read_only: bool) -> list[str]:
    """Return the command that links or copies a file within a site."""
    paths = [shlex.quote(source), shlex.quote(destination)]
    # Files of the store are read-only; a copy may be written to.
    return ["ln", "-snf", *paths] if read_only else ["cp", "-rf", *paths, "&&", "chmod", "-R", "u+w", paths[1]]
