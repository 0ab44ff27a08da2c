"""Search folders for marker words: in names, contents and links, as text and in encoded forms."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import sqlite3
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.leak_markers import Marker


@dataclass(frozen=True, slots=True)
class Leak:
    """A marker word in a place where it must not be.

    Attributes:
        what: which marker.
        form: how it is encoded there.
        place: the file.
    """

    what: str
    form: str
    place: str


def forms_of(text: str) -> dict[str, bytes]:
    """Return the encodings of a text, by name; all but base64 are searched in lower-case content."""
    plain = text.encode()
    forms = {
        "text": plain.lower(),
        "UTF-16": text.lower().encode("utf-16-le"),
        "UTF-16, big end first": text.lower().encode("utf-16-be"),
        "JSON": json.dumps(text)[1:-1].lower().encode(),
        "URL": urllib.parse.quote(text, safe="").lower().encode(),
        "hex": plain.hex().encode(),
    }
    # In base64 the same bytes look different by their place among three; the first and last letters belong to neighbours, too.
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + plain)
        inner = coded[{0: 0, 1: 2, 2: 3}[shift] :].rstrip(b"=")
        forms[f"base64, shifted by {shift}"] = inner[: len(inner) - (1 if (len(plain) + shift) % 3 else 0)]
    return forms


def search(
    folders: Iterable[Path],
    markers: Iterable[Marker],
    *,
    is_exempt: Callable[[Path], bool] = lambda path: False,
    leads_home: Callable[[Path], bool] = lambda link: False,
) -> list[Leak]:
    """Return all leaks below some folders (or in files).

    Args:
        is_exempt: whether a file or link belongs to the owners of the data.
        leads_home: whether a link belongs to the re-identification map: its target may name data; its own name is searched.
    """
    encoded: Mapping[tuple[str, str], bytes] = {
        (marker.what, form): coded for marker in markers for form, coded in forms_of(marker.text).items()
    }
    leaks: set[Leak] = set()
    for name, content in _everything(folders, is_exempt, leads_home):
        folded = content.lower()
        for (what, form), coded in encoded.items():
            if coded in (content if form.startswith("base64") else folded):
                leaks.add(Leak(what, form, name))
    return sorted(leaks, key=lambda leak: (leak.what, leak.place, leak.form))


def _everything(
    folders: Iterable[Path], is_exempt: Callable[[Path], bool], leads_home: Callable[[Path], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield names, contents, link targets and unpacked archives; a file with several names is read once."""
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            if is_exempt(path) or not (path.exists() or path.is_symlink()):
                continue
            if path != folder:
                yield f"name of {path}", os.fsencode(path.relative_to(folder))
            if path.is_symlink():
                if not leads_home(path):
                    yield f"link {path}", os.fsencode(path.readlink())
                continue
            if not path.is_file():
                continue
            status = path.stat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                content = path.read_bytes()
                yield str(path), content
                yield from _unpacked(str(path), content)


def _unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if content.startswith(b"\x1f\x8b"):
        try:
            yield f"{name}, unpacked", gzip.decompress(content)
        except (OSError, EOFError, zlib.error):  # a kill has cut it off
            return
    elif zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            for inside in packed.namelist():
                yield f"{name}, {inside}", inside.encode() + b"\n" + packed.read(inside)
    elif content.startswith(b"SQLite format 3\0"):  # with its write-ahead log, and in the order of columns
        with sqlite3.connect(f"file:{name}?mode=ro", uri=True) as database:
            yield f"{name}, dumped", "\n".join(database.iterdump()).encode()
