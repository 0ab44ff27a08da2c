"""New studies of a watched source: which current are, which have stopped changing, and how they become an input.

A study's folder is named by a keyed digest, and its files by numbers: the engine's database stores file names, and the names of
studies may be those of patients.
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
MOST_TRIES = 3  # afterwards a study is skipped, else it would run at each firing


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study at its source.

    Attributes:
        name: its name at the source, such as a folder's; it may identify a patient.
        content: a value that changes when the study does.
        age_s: time since the last change, s; None if the source does not report it.
    """

    name: str
    content: str
    age_s: float | None = None

    def key(self, secret: bytes) -> str:
        """Return its keyed digest, by which the schedule stores it."""
        return compute_key({"name": self.name, "content": self.content}, secret)


class StudySource(Protocol):
    """The interface of a source of studies."""

    def look(self) -> Sequence[Study]:
        """Return the studies that are current now."""

    def fetch(self, study: Study, into: Path) -> None:
        """Write a study's files into an empty folder."""

    def finish(self, studies: Sequence[Study]) -> None:
        """Handle studies whose run has completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySearch:
    """The result of a search for new studies.

    Attributes:
        new: studies to run, by their keys.
        num_coming: number of studies that still change.
        num_given_up: number of studies that have failed too often.
    """

    new: Mapping[str, Study]
    num_coming: int
    num_given_up: int


def find(
    source: StudySource,
    tries: Mapping[str, int],
    *,
    quiet_s: float,
    secret: bytes,
    wait: Callable[[float], None] = time.sleep,
) -> StudySearch:
    """Return the studies that are new and no longer change; looks a second time, after `quiet_s`, if ages are unknown.

    Args:
        tries: number of failed runs of each known study; 0 after a completed run.
        quiet_s: how long a study must be unchanged, s.
    """

    def is_new(study: Study) -> bool:
        return study.key(secret) not in tries or 0 < tries[study.key(secret)] < MOST_TRIES

    first = {study.key(secret): study for study in source.look() if is_new(study)}
    quiet = {key for key, study in first.items() if study.age_s is not None and study.age_s >= quiet_s}
    current = first
    if len(quiet) < len(first):
        wait(quiet_s)
        current = {study.key(secret): study for study in source.look() if is_new(study)}
        quiet = {*quiet, *first} & set(current)
    return StudySearch(
        new={key: current[key] for key in sorted(quiet)},
        num_coming=len(set(current) - quiet),
        num_given_up=sum(number >= MOST_TRIES for number in tries.values()),
    )


def take_in(source: StudySource, studies: Mapping[str, Study], into: Path) -> None:
    """Replace a folder by one with a folder for each study, named by the first characters of its key."""
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
        """Return the studies that are there now; hidden names, as of unfinished copies, are skipped."""
        studies = []
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or not (files := _files(path)):
                continue
            try:
                changed = max(file.stat().st_ctime for file in (path, *files))
                digest = self._contents.digest(path)
            except FileNotFoundError:  # it is being moved away
                continue
            studies.append(Study(name=path.name, content=digest, age_s=time.time() - changed))
        return studies

    def fetch(self, study: Study, into: Path) -> None:
        """Link the files, or copy them to another file system."""
        for number, file in enumerate(_files(self._folder / study.name), start=1):
            suffix = next((ending for ending in reversed(SUFFIXES) if file.name.lower().endswith(ending)), "")
            target = into / f"{number:06}{suffix}"
            try:
                os.link(file, target)
            except OSError:
                shutil.copyfile(file, target)

    def finish(self, studies: Sequence[Study]) -> None:
        """Do nothing: studies stay in the folder."""


class ReceivedFolder(WatchedFolder):
    """The folder of a receiver, whose studies are copies and are removed after a completed run."""

    def finish(self, studies: Sequence[Study]) -> None:
        """Remove the studies, except those with new files, which have not been run yet."""
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
    """Return the numbers of failed runs after a run.

    Args:
        studies: keys of the studies of that run.
        done: whether it completed.
    """
    return {**tries, **{key: 0 if done else tries.get(key, 0) + 1 for key in studies}}
