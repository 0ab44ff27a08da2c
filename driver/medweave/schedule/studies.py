"""New studies of a schedule that watches: what is there, what has been quiet for a while, and what is taken in.

A study enters under a name that is made from a secret and its content, and its files under numbers: the engine's database keeps
names of files, and those of studies may be those of people.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from medweave_connectors.cache.content import Contents, tree
from medweave_connectors.cache.key import compute_key

NAME_CHARACTERS = 16
SUFFIXES = (".dcm", ".nii", ".nii.gz")
MOST_TRIES = 3  # then a study is left out: it would be run at each firing for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study at its source.

    Attributes:
        name: at the source, such as a folder's; it may tell of a person.
        content: what changes when the study does.
        age_s: how long nothing has changed, s; None where the source does not tell.
    """

    name: str
    content: str
    age_s: float | None = None

    def key(self, secret: bytes) -> str:
        """What it is remembered by."""
        return compute_key({"name": self.name, "content": self.content}, secret)


class Source(Protocol):
    """Where studies come from."""

    def look(self) -> Sequence[Study]:
        """What is there now."""

    def fetch(self, study: Study, into: Path) -> None:
        """Puts a study's files into an empty folder."""

    def finish(self, studies: Sequence[Study]) -> None:
        """A run with these has done all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at the source gave.

    Attributes:
        new: studies that are to be taken in, by their keys.
        num_coming: those that still change.
        num_given_up: those that have failed too often.
    """

    new: Mapping[str, Study]
    num_coming: int
    num_given_up: int


def find(
    source: Source,
    tries: Mapping[str, int],
    *,
    quiet_s: float,
    secret: bytes,
    wait: Callable[[float], None] = time.sleep,
) -> Found:
    """The studies that are new and quiet: looked at once, and once more after a while where that is not known from one look.

    Args:
        tries: how often each known study was run; 0 for one that is done.
        quiet_s: how long nothing of a study must have changed, s.
    """

    def is_new(study: Study) -> bool:
        return study.key(secret) not in tries or 0 < tries[study.key(secret)] < MOST_TRIES

    first = {study.key(secret): study for study in source.look() if is_new(study)}
    quiet = {key for key, study in first.items() if study.age_s is not None and study.age_s >= quiet_s}
    there = first
    if len(quiet) < len(first):
        wait(quiet_s)
        there = {study.key(secret): study for study in source.look() if is_new(study)}
        quiet = {*quiet, *first} & set(there)
    return Found(
        new={key: there[key] for key in sorted(quiet)},
        num_coming=len(set(there) - quiet),
        num_given_up=sum(each >= MOST_TRIES for each in tries.values()),
    )


def take_in(source: Source, studies: Mapping[str, Study], into: Path) -> None:
    """Makes the folder anew: a folder for each study, under its key's first characters."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(into)
    for key, study in studies.items():
        folder = into / key[:NAME_CHARACTERS]
        folder.mkdir(parents=True)
        source.fetch(study, folder)


class WatchedFolder:
    """A folder in which each folder, or file, is a study.

    Args:
        contents: digests of files.
    """

    def __init__(self, folder: Path, contents: Contents) -> None:
        self._folder, self._contents = folder, contents

    def look(self) -> Sequence[Study]:
        """What is there now; hidden names are left out, as of copies that go on."""
        found = []
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or not (files := _files(path)):
                continue
            try:
                changed = max(each.stat().st_ctime for each in (path, *files))
                digest = self._contents.digest(path)
            except FileNotFoundError:  # it is being moved away
                continue
            found.append(Study(name=path.name, content=digest, age_s=time.time() - changed))
        return found

    def fetch(self, study: Study, into: Path) -> None:
        """Links the files, or copies them where a link cannot be."""
        for number, file in enumerate(_files(self._folder / study.name), start=1):
            suffix = next((each for each in reversed(SUFFIXES) if file.name.lower().endswith(each)), "")
            target = into / f"{number:06}{suffix}"
            try:
                os.link(file, target)
            except OSError:
                shutil.copyfile(file, target)

    def finish(self, studies: Sequence[Study]) -> None:
        """What was run stays there."""


class ReceivedFolder(WatchedFolder):
    """The folder of a receiver: its studies are copies of our own, and go when they are done."""

    def finish(self, studies: Sequence[Study]) -> None:
        """Remove the studies, but those to which files have come since: these have not been run yet."""
        for study in studies:
            folder = self._folder / study.name
            with contextlib.suppress(OSError):
                if self._contents.digest(folder) == study.content:
                    shutil.rmtree(folder, ignore_errors=True)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [Path(file) for _, file, is_folder in tree(str(path)) if not is_folder]


def after(tries: Mapping[str, int], studies: Collection[str], *, done: bool) -> dict[str, int]:
    """The numbers of tries after a run.

    Args:
        studies: keys of those that it took in.
        done: it did all.
    """
    return {**tries, **{key: 0 if done else tries.get(key, 0) + 1 for key in studies}}
