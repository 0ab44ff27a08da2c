"""Functions that connectors to remote machines share: a step's environment, quoting, and fetching its reports.

Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_connectors.host.command_size import checked
from medweave_connectors.host.read_only_commands import is_marked_read_only
from medweave_connectors.runlog import current
from medweave_connectors.runlog.reports import REPORT_FILE, REPORT_FOLDER

SHELL_SIGNS = frozenset({"|", ">", "<", "&&", ";"})
_LOOKS = frozenset(("test", "readlink", "sha1sum", "stat", "find", "ls", "cat", "head", "du", "set", "printf", "["))
_CHANGES = frozenset(("rm", "mv", "cp", "ln", "mkdir", "chmod", "tee", "tar", "-delete"))


def shell_line(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: str,
    stdin: str | None = None,
    stdout: str | None = None,
    stderr: str | None = None,
) -> str:
    """Return shell text that runs a command in its folder, with its environment and files; it refuses a command that is too long.

    The words of the command are used unchanged: StreamFlow has quoted them. Everything else is quoted here.

    Args:
        stdin, stdout, stderr: files, relative to `workdir`.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    files = (("<", stdin), (">", stdout), ("2>", stderr))
    redirections = [f"{sign} {shlex.quote(file)}" for sign, file in files if file is not None]
    # A tool may name a file in a folder that does not exist yet.
    folders = {
        posixpath.dirname(file) for file in (stdout, stderr) if file is not None and not file.startswith("/")
    } - {""}
    made = [f"mkdir -p -- {shlex.join(sorted(folders))}"] if folders else []
    line = " && ".join((f"cd {shlex.quote(workdir)}", *made, *exports, " ".join(("exec", *command, *redirections))))
    return checked(line, command, environment)


def utility_line(
    command: Sequence[str], *, environment: Mapping[str, str], workdir: str | None = None, stdin: str | None = None
) -> str:
    """Return shell text for the engine's utility commands (`mkdir`, `test` …), which may be several with `&&` or pipes."""
    lines = [] if workdir is None else [f"cd {shlex.quote(workdir)} || exit"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    words = " ".join(command)
    lines.append(words if stdin is None else f"{{ {words}\n}} < {shlex.quote(stdin)}")
    return "; ".join(lines)


def stream_line(command: Sequence[str]) -> str:
    """Return one line for a POSIX shell from the words of a copy command (`tar xpf - -O | tee /a path > /dev/null`)."""
    return " ".join(word if word in SHELL_SIGNS else shlex.quote(word) for word in command)


def is_read_only(command: Sequence[str]) -> bool:
    """Return True if a command of the engine changes nothing: it may be repeated, and one of several copies can answer it."""
    if is_marked_read_only(command):
        return True
    lexer = shlex.shlex(" ".join(command).replace("2>/dev/null", ""), posix=True, punctuation_chars="<>|&;")
    lexer.commenters, lexer.whitespace_split = "", True
    try:
        words = list(lexer)
    except ValueError:  # an unclosed quote
        return False
    return words[:1] != [] and words[0] in _LOOKS and not _CHANGES.intersection(words) and not _redirects(words)


def _redirects(words: Sequence[str]) -> bool:
    return any(">" in word and not word.strip("<>|&;") for word in words)


def file_name(stream: int | str | None) -> str | None:
    """Return the file of a stream; None for the engine's constants (`STDOUT`)."""
    return stream if isinstance(stream, str) else None


def step_variables(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a remote step: the layers, and the variable that makes steps report progress as JSON."""
    environment: dict[str, str] = {}
    for layer in layers:
        environment |= layer
    environment["MEDWEAVE_PROGRESS"] = "json"
    return environment


async def fetch_reports(connector: Any, location: Any, output_directory: str, job_name: str) -> Path | None:
    """Copy run_report.json and the report folder of a successful job into the run's work folder.

    Args:
        connector, location: StreamFlow's objects for the site of the job.

    Returns:
        The folder of the copies; None if the step wrote none, or outside of a medweave run.
    """
    run = current()
    if run is None:
        return None
    target = run.work / "reports" / job_name.strip("/").replace("/", ".")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in (REPORT_FILE, REPORT_FOLDER):
        source = f"{output_directory}/{name}"
        result = await connector.run(location, ["test", "-e", shlex.quote(source)], capture_output=True)
        if result is not None and result[1] == 0:
            # A missing report is missing in the summary; it does not fail a successful job.
            with contextlib.suppress(Exception):
                await connector.copy_remote_to_local(source, str(target / name), location)
    return target if any(target.iterdir()) else None
