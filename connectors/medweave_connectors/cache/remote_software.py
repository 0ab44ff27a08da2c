"""Shell command that prints facts about the programs of a step at a site, and about its processor. Pure.

It runs with the job's worker environment loaded: modules, a virtual environment, an image.
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
    """Return the command for a POSIX shell that prints facts about the program of a step (parsed by `read`).

    Args:
        words: of the step's command, quoted for a shell.
        environment: variables of the tool; its PATH is used.
        where: the setting of the worker environment, for messages.
        folder: an existing folder at the site.
        computes: the command runs on the machine that will run the step, so its processor counts.
    """
    path = f"export PATH={shlex.quote(environment['PATH'])}; " if "PATH" in environment else ""
    script = f"{path}{_program(first_word(words))}; {_processor() if computes else ':'}; echo {shlex.quote(_END)}"
    lines = [*worker.lines(where=where), worker.started(worker.inside(script, folder=folder, gpus=False))]
    return [f"{READ_ONLY}(\nexport LC_ALL=C\n" + "\n".join(lines) + "\n) 2>&1"]


def read(text: str) -> str | None:
    """Return a digest of the output of `look`; None if it is incomplete: no such program, or a failed command."""
    facts = [line for line in text.splitlines() if line.startswith((_MARK, "medweave-installed "))]
    if _END not in facts:
        return None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _program(name: str) -> str:
    """Return the lines that print a program's content digest and, for Python and the steps, the installed packages."""
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
    fields = "'^(model name|flags|Features|CPU part)'"
    return (
        f'echo "{_MARK}$(uname -m) $(grep -c ^processor {_CPU}) '
        f'$( {{ grep -E {fields} {_CPU} | sort -u; cat {_GPUS} 2>/dev/null | grep "^Model"; }} | sha256sum )"'
    )


def _is_python(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last == STEP or last.startswith("python")
