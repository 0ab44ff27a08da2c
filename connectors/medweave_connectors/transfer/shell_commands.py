"""What is run at both ends of a copy, for a POSIX shell and the tools that each site has. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

REFUSED = 46
KEEP_S = 20  # for a rename by another place that sees the same files
BLOCK_BYTES = 2**16  # in which the end of a file is counted whose beginning is there
_PLACE = re.compile(r"^medweave-place (new|below) ([0-9]{1,19}|unknown)\.$", re.MULTILINE)
_KIB = 1024
_PART = ".part"
_LINE_CHARACTERS = 25_000  # of at most four bytes each: Linux takes 128 KiB in one word
_C = "export LC_ALL=C; "  # reasons are known by their words
# Only folders get rights: a file may be one of the store's, which others use. A far end whose stream was cut may still be writing.
_REMOVE = (
    'find "$part" -type d ! -perm -700 -exec chmod u+rwx {} \\; 2>/dev/null; '
    'rm -rf "$part" 2>/dev/null || { sleep 1; rm -rf "$part"; } 2>/dev/null || :;'
)
OLD = ".medweave-old"  # what stood at the destination, until the copy stands there
_RESTORE = (
    f'for old in "$part/{OLD}"/* "$part/{OLD}"/.[!.]* "$part/{OLD}"/..?*; do there=${{part%/*}}/${{old##*/}}; '
    'if { [ -e "$old" ] || [ -L "$old" ]; } && [ ! -e "$there" ] && [ ! -L "$there" ]; then mv "$old" "${part%/*}/"; fi; done;'
)


def _script(text: str, values: Mapping[str, str]) -> str:
    """One line of a shell, whose variables have these values whatever stands in them."""
    given = "".join(f"{name}={shlex.quote(value)}; " for name, value in values.items())
    return _C + given + " ".join(line.strip() for line in text.strip().splitlines())


def _in_subshell(text: str, **values: str) -> list[str]:
    """The same in a shell of its own: its `exit` is not that of the shell that runs it."""
    return [f"( {_script(text, values)} )"]


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where a copy is put together, and where it will stand.

    Attributes:
        part: a folder with a hidden name, in the folder of the destination: a rename from there is at once and costs nothing.
        final: path of the copy once it is whole.
        tries: how often its stream was cut: what had arrived by then stands in another folder inside of `part` each time.
    """

    part: str
    final: str
    tries: int = 0

    @property
    def folder(self) -> str:
        """Where it is put together now."""
        return posixpath.join(self.part, staging_name(str(self.tries))) if self.tries else self.part

    def inside(self, name: str) -> str:
        """The path of the copy while it is not whole."""
        return posixpath.join(self.folder, name)

    def after_cut(self) -> StagingPlace:
        """The same after another cut."""
        return replace(self, tries=self.tries + 1)

    def earlier(self, name: str) -> list[str]:
        """Where the copy may stand that was put together before, the latest path first."""
        return [replace(self, tries=tries).inside(name) for tries in reversed(range(self.tries))]


@dataclass(frozen=True, slots=True)
class PreparedFolder:
    """What `prepare` found.

    Attributes:
        below: the destination is a folder, and the copy will stand in it.
        free_bytes: room there; None where the file system does not say.
    """

    below: bool
    free_bytes: int | None


def staging_name(token: str) -> str:
    """The hidden name of a copy that is not whole."""
    return f".medweave-{token}{_PART}"


def is_staging_path(path: str) -> bool:
    """Whether a path lies in a folder that `prepare` made: nobody else has anything there."""
    parent = posixpath.basename(posixpath.dirname(path))
    return parent.startswith(staging_name("")[: -len(_PART)]) and parent.endswith(_PART)


def staging_place(destination: str, name: str, token: str, *, below: bool) -> StagingPlace:
    """Where a copy goes, once it is known whether the destination is a folder already.

    Args:
        name: the source's own, which the copy bears in such a folder.
    """
    folder, final = (destination, posixpath.join(destination, name)) if below else _split(destination)
    return StagingPlace(posixpath.join(folder, staging_name(token)), final)


def _split(destination: str) -> tuple[str, str]:
    return posixpath.dirname(destination), destination


def prepare(destination: str, token: str) -> list[str]:
    """Words that make the folder for a copy and ask for the room, all in one: nothing is sent to where it cannot lie.

    They end with `REFUSED`, after the reason, where nothing can be written; then nothing has been made but folders above it.

    Args:
        token: of this try; places that share a file system make the folder together.
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


def parse_prepared(text: str) -> PreparedFolder | None:
    """What `prepare` printed; None where it did not come to its end."""
    found = _PLACE.search(text)
    if found is None:
        return None
    return PreparedFolder(found[1] == "below", None if found[2] == "unknown" else int(found[2]) * _KIB)


def least_free(places: Iterable[PreparedFolder]) -> int | None:
    """Free bytes where there are fewest; None where no place says it."""
    return min((each.free_bytes for each in places if each.free_bytes is not None), default=None)


def sync(word: str) -> str:
    """Words after which what was written beside a path is on the disk, where the place has a `sync` that knows file systems.

    They end the shell with `REFUSED` where the disk tells that it is not.

    Args:
        word: of the shell.
    """
    return (
        f"{{ sync=sync; why=$(LC_ALL=C sync -f {word} 2>&1) || "
        f'case $why in *"error syncing"*) echo "$why"; exit {REFUSED};; *) sync=:;; esac; }}'
    )


def publish(place: StagingPlace, name: str) -> list[str]:
    """Words that put a copy into its place by a rename, and remove what was there before.

    Places that share a file system may all do it: one renames, the others wait until it has. Where it fails, or is cut off and
    `drop` comes after it, what was there before is there again. What it says has arrived is on the disk, where the place has a
    `sync` that knows file systems: many files by one call, and a disk that was full or broken behind the cache is told.
    """
    # A folder that its owner may not write to cannot change its parent. Moved to the folder above, not to the name: nothing goes
    # into a folder of that name that another one has made meanwhile.
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
        while [ -e "$part" ] && [ $seconds -lt {KEEP_S} ]; do sleep 1; seconds=$((seconds + 1)); done;
        [ ! -e "$part" ] && [ -e "$to" ] || exit {REFUSED}; fi
    """
    return _in_subshell(text, part=place.part, new=place.inside(name), to=place.final)


def discard(destination: str, token: str) -> list[str]:
    """Words that remove a copy which is not whole, wherever `prepare` has put it, and put back what `keep` had moved away."""
    parts = (staging_place(destination, "", token, below=below).part for below in (False, True))
    return _in_subshell(f"for part in {' '.join(map(shlex.quote, parts))}; do {_RESTORE} {_REMOVE} done")


def pack(path: str) -> list[str]:
    """Words that write an archive of a file or folder, by its own name, to standard output. Links are followed."""
    folder, name = posixpath.split(path)
    # Tar takes what begins with a dash for an option; and a connector that is not ours puts words into a line as they are.
    return [*_tar([name]), "chf", "-", "-C", folder or "/", *(["--"] if name.startswith("-") else []), name]


def unpack(name: str, destination: str, token: str, *, own: bool = False) -> list[str]:
    """Words that read an archive of `name` from standard input: into the destination if that is a folder, else it gets that name.

    It asks nothing beforehand, and an archive that is no whole one is removed. What is put together aside already, in the
    folder that `prepare` made, gets its name from `keep`; places that share a file system may all write there.

    Args:
        token: another one for each place.
        own: the files belong to who unpacks them, not to the number of their owner elsewhere.
    """
    tar = f"tar {'xpof' if own else 'xpf'} - -C"
    # Moved to the folder above, not to the name: nothing goes into a folder of that name that another place has made meanwhile.
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
    """Words that write an archive of some files, by paths relative to a folder, to standard output. Links are followed."""
    return [*_tar(names), "chf", "-", "-C", folder, "--", *names]


def _tar(names: Sequence[str]) -> list[str]:
    # GNU tar takes a backslash and what follows for one sign, also in the names of its command line; others do not look here.
    return ["env", "TAR_OPTIONS=--no-unquote", "tar"] if any("\\" in name for name in names) else ["tar"]


def unpack_files(part: str, *, own: bool = False) -> list[str]:
    """Words that read such an archive from standard input, into the folder of a copy that is put together; `own`: see `unpack`."""
    return ["tar", "xpof" if own else "xpf", "-", "-C", part]


# ---- a copy whose stream was cut


def set_aside(place: StagingPlace, name: str, *, keeps: bool) -> list[str]:
    """Words that move what has arrived into the place's new folder; or remove it.

    A program whose connection was cut may still write. Its paths lead to the folder before, which is looked at no more; and to a
    file that it has open it can only write what belongs there: the same bytes at the same places, while the source is unchanged.

    Places that share a file system may all do it: one moves, the others wait until it has.
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
        while [ ! -e "$new.moved" ] && [ $seconds -lt {KEEP_S} ]; do sleep 1; seconds=$((seconds + 1)); done;
        [ -e "$new.moved" ] || exit {REFUSED}; fi
    """
    return _in_subshell(text, new=place.folder)


# A file that has more names may be one of the store's, which others use.
_STAMP = 'stamp() { [ "$(stat -c %h "$3")" = 1 ] || return 0; chmod "$1" "$3"; TZ=UTC0 touch -m -t "$2" "$3"; }; '


def batch_commands(steps: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
    """Words, in as many commands as are needed, that do something to each path. What is refused is no error.

    Args:
        steps: a command and a path; `stamp MODE TIME` gives a file its mode and time.
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
    """Words that write a file to standard output, without its first blocks."""
    return ["dd", f"if={path}", f"bs={BLOCK_BYTES}", f"skip={begins // BLOCK_BYTES}"]


def write_from(path: str, begins: int) -> list[str]:
    """Words that write standard input into a file which has its first blocks; others of its names are not written to."""
    # Short pieces from a pipe are written as they are, one after the other.
    text = f"""
        [ "$(stat -c %h "$file")" = 1 ] || exit {REFUSED}; chmod u+rw "$file" 2>/dev/null;
        exec dd of="$file" bs={BLOCK_BYTES} seek={begins // BLOCK_BYTES} conv=notrunc
    """
    return ["sh", "-c", _script(text, {"file": path})]


def link_or_copy(source: str, destination: str, *, read_only: bool) -> list[str]:
    """Words that give a site's own file another name there, or copy it."""
    paths = [shlex.quote(source), shlex.quote(destination)]
    # What came from a site's store may not be written to; a copy of it may.
    return ["ln", "-snf", *paths] if read_only else ["cp", "-rf", *paths, "&&", "chmod", "-R", "u+w", paths[1]]
