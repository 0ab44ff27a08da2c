"""Values of inputs and outputs as the event log tells them: files and folders by content, and of texts their length only. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Item = dict[str, Any]
GUESSABLE_BYTES = 4096  # the longest key of pseudonyms


def folder_digest(files: Mapping[str, str]) -> str:
    """One digest for a folder: SHA-256 of what `sha256sum` prints of all files in it, sorted by path in the C locale.

    Args:
        files: SHA-256 by path inside the folder.
    """
    whole = hashlib.sha256()
    for path, sha256 in sorted((os.fsencode(path), sha256) for path, sha256 in files.items()):
        whole.update(b"%b  %b\n" % (sha256.encode(), path))
    return whole.hexdigest()


def of_file(sha256: str, num_bytes: int) -> Item:
    """A file."""
    return {"class": "File", "sha256": sha256, "bytes": num_bytes}


def of_folder(files: Mapping[str, str], num_bytes: int) -> Item:
    """A folder.

    Args:
        files: SHA-256 by path inside the folder.
        num_bytes: of all files together.
    """
    return {"class": "Directory", "sha256": folder_digest(files), "bytes": num_bytes, "files": len(files)}


def unread(kind: str) -> Item:
    """A file or folder whose content nobody has read."""
    return {"class": kind}


def is_guessable(item: Item) -> bool:
    """Whether somebody who has its digest could find out what is in it by trying: a short key, a list of names."""
    return "sha256" in item and item["bytes"] <= GUESSABLE_BYTES


def without_guessable(told: Mapping[str, Sequence[Item]], made: Collection[str]) -> dict[str, list[Item]]:
    """The same without the digests of what is small and was given to the run.

    Args:
        made: digests of what the jobs of the run have written.
    """

    def of(item: Item) -> Item:
        hidden = is_guessable(item) and item["sha256"] not in made
        return {key: each for key, each in item.items() if key != "sha256"} if hidden else item

    return {name: [of(item) for item in each] for name, each in told.items()}


def plain(value: Any, symbols: Collection[str]) -> list[Item]:
    """Anything else: numbers and words of a fixed set as they are; any other text may be about people.

    Args:
        symbols: the words that the tool knows for this input.
    """
    if value is None:
        return []
    if isinstance(value, bool | int | float):
        return [{"value": value}]
    if isinstance(value, str):
        return [{"value": value} if value in symbols else {"characters": len(value)}]
    if isinstance(value, Mapping):
        return [item for each in value.values() for item in plain(each, symbols)]
    if isinstance(value, Sequence):
        return [item for each in value for item in plain(each, symbols)]
    return [{"characters": len(str(value))}]
