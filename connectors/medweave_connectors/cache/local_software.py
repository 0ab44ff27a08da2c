"""Digests of the programs that a local step runs, and of the processor, computed in milliseconds. Does not import streamflow.

For a medweave step: its source, Python, and the versions of all installed libraries. For another command: the file of its program.
Programs that it calls in turn are not included, as in other workflow managers.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from medweave_connectors.cache.installed import installed

STEP = "medweave-step"


def software_of(words: Sequence[str], search: str) -> str:
    """Return a digest of the programs that a command would run.

    Args:
        words: of the command, quoted for a shell.
        search: folders of programs, as PATH has them.
    """
    name = first_word(words)
    facts = [name, _program(name, search)]
    if Path(name).name == STEP or Path(name).name.startswith("python"):
        facts.append(_installed())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


@functools.cache
def _program(name: str, search: str) -> str:
    """Return the content digest of a small program file, size and time of a large one; empty without such a program."""
    path = shutil.which(name, path=search) if name else None
    if path is None:
        return ""
    status = Path(path).stat()
    # The content of a small file is the same in an environment that was created again.
    return _content(path) if status.st_size < 2**20 else f"{status.st_size} {status.st_mtime_ns}"


@functools.cache
def processor(file: Path = Path("/proc/cpuinfo"), gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return model, flags and number of the processors, and the GPUs of NVIDIA's driver, as the kernel reports them."""
    fields = ("model name", "flags", "Features", "CPU part")  # of x86 and of ARM
    lines = [line for line in file.read_text().splitlines() if line.startswith(fields)] if file.exists() else []
    cards = [
        line
        for card in sorted(gpus.glob("*/information"))
        for line in card.read_text().splitlines()
        if line.startswith("Model")
    ]
    return "\n".join((platform.machine(), str(os.cpu_count()), *sorted(set(lines)), *cards))


def first_word(words: Sequence[str]) -> str:
    """Return the program of a command; empty if shell syntax comes first."""
    try:
        return next(iter(shlex.split(words[0])), "") if words else ""
    except ValueError:  # a fragment of shell syntax
        return ""


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _installed() -> str:
    """Return the digest of this Python installation; computed once per run."""
    return installed(needs_steps=True)
