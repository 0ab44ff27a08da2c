"""What lies below a path: each regular file's SHA-256, and the bytes of all of them. No streamflow in here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

_BYTES = "bytes "
_FILE = "."  # the only entry of a path that is a file itself


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files below a path.

    Attributes:
        sha256: hexadecimal digest by path, relative to the path asked about; that path itself is "." where it is a file.
        num_bytes: of all files together.
    """

    sha256: dict[str, str]
    num_bytes: int

    def difference(self, arrived: Manifest) -> str:
        """What is wrong with a copy, in counts only (file names may tell about patients); empty where nothing is."""
        missing = len(self.sha256.keys() - arrived.sha256.keys())
        strange = len(arrived.sha256.keys() - self.sha256.keys())
        changed = sum(arrived.sha256.get(path, digest) != digest for path, digest in self.sha256.items())
        total = f"of {len(self.sha256)} files"
        counts = (
            (missing, f"{missing} {total} missing"),
            (changed, f"{changed} {total} with other content"),
            (strange, f"{strange} more than were sent"),
        )
        return ", ".join(words for count, words in counts if count)


def command(path: str) -> list[str]:
    """Words for a POSIX shell that print the manifest of a path. Links are followed, as the transfer follows them.

    `sha256sum` writes a name with a newline or backslash in one line, with a backslash in front; so lines are files.
    """
    quoted = shlex.quote(path)
    size = "-exec stat -L -c %s {} + | awk '{ sum += $1 } END { printf \"bytes %.0f\\n\", sum }'"
    folder = f"cd {quoted} && find -L . -type f -exec sha256sum {{}} + && find -L . -type f {size}"
    file = f"sha256sum < {quoted} && find -L {quoted} -type f {size}"
    return [f"if [ -d {quoted} ]; then {folder}; else {file}; fi"]


def parse(text: str) -> Manifest:
    """Reads what `command` printed.

    Raises:
        ValueError: the last line, which holds the sum, is not there, or a line is no digest.
    """
    *lines, last = text.strip("\n").split("\n")
    if not last.startswith(_BYTES):
        raise ValueError("the listing of the files is cut")
    digests: dict[str, str] = {}
    for line in lines:
        digest, separator, name = line.removeprefix("\\").partition("  ")
        if len(digest) != 64 or not separator:
            raise ValueError("a line of the listing is no SHA-256")
        digests[_FILE if name == "-" else name.removeprefix("./")] = digest
    return Manifest(digests, int(last.removeprefix(_BYTES)))
