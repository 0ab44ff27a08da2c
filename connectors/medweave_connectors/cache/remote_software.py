"""What is known of the programs behind a step at a site, and of the processor there: one line for its shell. Pure.

It is asked where the job's worker environment is loaded: modules, a virtual environment, an image.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files

from medweave_connectors.cache.installed import STEPS
from medweave_connectors.cache.local_software import STEP, first_word
from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.jobs.worker_environment import WorkerEnvironment

_MARK = "medweave-program "
_END = f"{_MARK}end"
_CPU = "/proc/cpuinfo"
_GPUS = "/proc/driver/nvidia/gpus/*/information"


def look(
    words: Sequence[str],
    environment: Mapping[str, str],
    worker: WorkerEnvironment,
    *,
    where: str,
    folder: str,
    computes: bool,
) -> list[str]:
    """Words for a POSIX shell that tell of the program of a command what is known there (`read`).

    Args:
        words: of the command, as a shell is given them.
        environment: what the tool sets: its PATH counts.
        where: the setting of the worker environment, for its messages.
        folder: one that exists there.
        computes: the place that is asked is the one that will compute, so its processor counts.
    """
    path = f"export PATH={shlex.quote(environment['PATH'])}; " if "PATH" in environment else ""
    script = f"{path}{_program(first_word(words))}; {_processor() if computes else ':'}; echo {shlex.quote(_END)}"
    lines = [*worker.lines(where=where), worker.started(worker.inside(script, folder=folder, gpus=False))]
    return [f"{READ_ONLY}(\nexport LC_ALL=C\n" + "\n".join(lines) + "\n) 2>&1"]


def read(text: str) -> str | None:
    """A digest of what `look` printed; None where it did not come to its end: the program is not there, or nobody can tell."""
    told = [line for line in text.splitlines() if line.startswith((_MARK, "medweave-installed "))]
    if _END not in told:
        return None
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _program(name: str) -> str:
    """Of a program its file by content; of the steps and Python all that is installed, too. Where something fails, the end."""
    quoted = shlex.quote(name)
    lines = [
        f"name={quoted}; file=$(command -v -- {quoted}) || exit 1",
        f'case $file in /*) sum=$(sha256sum < "$file") || exit 1;; *) sum=$file;; esac; echo "{_MARK}$name $sum"',
    ]
    if _is_python(name):
        lines.append(_of_python(name))
    return "; ".join(lines)


def _of_python(name: str) -> str:
    source = shlex.quote(files(__package__).joinpath("installed.py").read_text("utf-8"))
    if name.rpartition("/")[2] != STEP:
        return f'"$file" -c {source} || exit 1'
    # The first line of a console command names its interpreter.
    return (
        'read -r line < "$file"; python=${line#\\#!}; python=${python%% *}; '
        "case ${python##*/} in python*) ;; *) python=python3;; esac; "
        f'"$python" -c {source} {STEPS} || exit 1'
    )


def _processor() -> str:
    kept = "'^(model name|flags|Features|CPU part)'"
    return (
        f'echo "{_MARK}$(uname -m) $(grep -c ^processor {_CPU}) '
        f'$( {{ grep -E {kept} {_CPU} | sort -u; cat {_GPUS} 2>/dev/null | grep "^Model"; }} | sha256sum )"'
    )


def _is_python(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last == STEP or last.startswith("python")
