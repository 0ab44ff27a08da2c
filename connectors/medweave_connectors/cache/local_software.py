"""The programs behind a step of this machine, and its processor, as far as they can be had in milliseconds. No streamflow in here.

A step of medweave: its source, Python, and the versions of all that is installed beside it. Another one: the file of its program.
What that program calls in its turn is not seen, as in any other workflow manager.
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
    """A digest of what a command would run.

    Args:
        words: as a shell is given them.
        search: folders of programs, as PATH has them.
    """
    name = first_word(words)
    facts = [name, _program(name, search)]
    if Path(name).name == STEP or Path(name).name.startswith("python"):
        facts.append(_installed())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


@functools.cache
def _program(name: str, search: str) -> str:
    """What is known of a program's file; empty for none. Asked once in a run."""
    found = shutil.which(name, path=search) if name else None
    if found is None:
        return ""
    said = Path(found).stat()
    # Of a small one the content: an environment that is made anew has it, too.
    return _content(found) if said.st_size < 2**20 else f"{said.st_size} {said.st_mtime_ns}"


@functools.cache
def processor(file: Path = Path("/proc/cpuinfo"), gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The processor's model and abilities, how many there are, and the GPUs of NVIDIA's driver, as the kernel tells them."""
    kept = ("model name", "flags", "Features", "CPU part")  # of x86 and of ARM
    lines = [line for line in file.read_text().splitlines() if line.startswith(kept)] if file.exists() else []
    cards = [
        line
        for card in sorted(gpus.glob("*/information"))
        for line in card.read_text().splitlines()
        if line.startswith("Model")
    ]
    return "\n".join((platform.machine(), str(os.cpu_count()), *sorted(set(lines)), *cards))


def first_word(words: Sequence[str]) -> str:
    """The program of a command; empty where a shell's own syntax comes first."""
    try:
        return next(iter(shlex.split(words[0])), "") if words else ""
    except ValueError:  # a part of a shell's own syntax
        return ""


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _installed() -> str:
    """Python, its libraries by name and version, and the source of the steps. Asked once in a run."""
    return installed(needs_steps=True)
