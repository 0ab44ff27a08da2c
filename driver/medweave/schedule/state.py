"""What a schedule remembers, in its folder: what the last run that did all was made from, and how the last firing ended."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave_connectors.host.secret_file import made_once

FILE, LOCK, SECRET, DIGESTS = "memory.json", "lock", "secret", "digests.sqlite"
ASK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """One time at which the schedule came to run.

    Attributes:
        moment: ISO 8601, with the offset from UTC.
        outcome: completed, partial, failed, cancelled or unknown, as of runs; skipped or held.
        why: in words, where it did not run.
        run: id of the run; empty without one.
        seconds: wall time, s.
    """

    moment: str
    outcome: str
    why: str = ""
    run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered.

    Attributes:
        parts: of what the last run that did all was made from, each by a keyed digest; empty before that.
        done: that firing.
        last: the last firing, whatever came of it.
        tries: of each study that was taken in, by its keyed digest: how often it was run without success; 0 where that is done.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    done: Firing | None = None
    last: Firing | None = None
    tries: Mapping[str, int] = field(default_factory=dict)


def read_memory(folder: Path) -> Memory:
    """What the folder holds; nothing where it holds nothing that can be read: then a run is not left out."""
    try:
        document: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        firings = {key: Firing(**document[key]) for key in ("done", "last") if document.get(key)}
        return Memory(parts=document.get("parts") or {}, tries=document.get("tries") or {}, **firings)
    except (OSError, ValueError, TypeError, AttributeError):
        return Memory()


def write_memory(folder: Path, memory: Memory) -> None:
    """Replaces it, whole or not at all."""
    write_atomically(folder / FILE, json.dumps(dataclasses.asdict(memory), indent=2) + "\n")


def secret_of(folder: Path) -> bytes:
    """The secret of the digests, made once."""
    return made_once(folder / SECRET)


@contextlib.contextmanager
def alone(folder: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Whether no other firing goes on; the kernel forgets one that ends in any way.

    Args:
        wait_s: how long one that goes on is waited for, s.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _locked(descriptor, time.monotonic() + wait_s)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(ASK_S)
        else:
            return True
