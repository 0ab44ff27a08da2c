"""Values of inputs and outputs in the event log: files and folders by content, texts by their length only. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Item = dict[str, Any]
GUESSABLE_BYTES = 4096  # the longest key of pseudonyms


def folder_digest(files: Mapping[str, str]) -> str:
    """Return the digest of a folder: SHA-256 of the output of `sha256sum` for all its files, sorted by path in the C locale.

    Args:
        files: SHA-256 by path inside the folder.
    """
    whole = hashlib.sha256()
    for path, sha256 in sorted((os.fsencode(path), sha256) for path, sha256 in files.items()):
        whole.update(b"%b  %b\n" % (sha256.encode(), path))
    return whole.hexdigest()


def of_file(sha256: str, num_bytes: int) -> Item:
    """Return the item of a file."""
    return {"class": "File", "sha256": sha256, "bytes": num_bytes}


def of_folder(files: Mapping[str, str], num_bytes: int) -> Item:
    """Return the item of a folder.

    Args:
        files: SHA-256 by path inside the folder.
        num_bytes: of all files together.
    """
    return {"class": "Directory", "sha256": folder_digest(files), "bytes": num_bytes, "files": len(files)}


def unread(kind: str) -> Item:
    """Return the item of a file or folder whose content was not read."""
    return {"class": kind}


def is_guessable(item: Item) -> bool:
    """Return True if the content could be guessed from its digest: a short key, a list of names."""
    return "sha256" in item and item["bytes"] <= GUESSABLE_BYTES


def without_guessable(values: Mapping[str, Sequence[Item]], made: Collection[str]) -> dict[str, list[Item]]:
    """Return the values without the digests of small inputs of the run.

    Args:
        made: digests of outputs of the run's jobs.
    """

    def of(item: Item) -> Item:
        hidden = is_guessable(item) and item["sha256"] not in made
        return {key: items for key, items in item.items() if key != "sha256"} if hidden else item

    return {name: [of(item) for item in items] for name, items in values.items()}


def plain(value: Any, symbols: Collection[str]) -> list[Item]:
    """Return the items of other values: numbers and words of a fixed set unchanged; other texts may identify people.

    Args:
        symbols: the words that the tool defines for this input.
    """
    if value is None:
        return []
    if isinstance(value, bool | int | float):
        return [{"value": value}]
    if isinstance(value, str):
        return [{"value": value} if value in symbols else {"characters": len(value)}]
    if isinstance(value, Mapping):
        return [item for items in value.values() for item in plain(items, symbols)]
    if isinstance(value, Sequence):
        return [item for items in value for item in plain(items, symbols)]
    return [{"characters": len(str(value))}]
