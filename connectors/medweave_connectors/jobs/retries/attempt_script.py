"""Parts of a script for steps with retries: a clean start, checkpoints, and the signal before the time limit. Pure.

Files of an earlier start never mix with those of this one. The output folder is replaced, not emptied: a process of a lost node
may still write to the old one.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Sequence

from medweave_connectors.jobs.retries.policy import Checkpoint
from medweave_core.errors import TryAgainError

RESUME_FROM = "MEDWEAVE_RESUME_FROM"
SIGNAL = "USR1"
SIGNAL_LEAD_S = 120


def lead_s(limit_s: int | None, usual_s: int) -> int:
    """Return how long before its time limit a command gets the signal, s.

    A lead as long as the limit would request a checkpoint before there is anything to save.
    """
    return usual_s if limit_s is None else min(usual_s, limit_s // 2)


def look_for_checkpoint(folder: str, *, since: str) -> tuple[str, str]:
    """Return shell lines that print whether a step wrote a checkpoint, and whether it is newer than a file."""
    files = f"find {shlex.quote(folder)} -type f"
    return (
        f'[ -n "$({files} 2> /dev/null | head -n 1)" ] && echo {Checkpoint.OLD}',
        f'[ -n "$({files} -newer {shlex.quote(since)} 2> /dev/null | head -n 1)" ] && echo {Checkpoint.NEW}',
    )


def read_checkpoint(lines: Sequence[str]) -> Checkpoint:
    """Parse the output of `look_for_checkpoint`."""
    return next((checkpoint for checkpoint in (Checkpoint.NEW, Checkpoint.OLD) if checkpoint in lines), Checkpoint.NONE)


_AGES = (Checkpoint.NONE, Checkpoint.OLD, Checkpoint.NEW)


def oldest(checkpoints: Iterable[Checkpoint]) -> Checkpoint:
    """Return the state that counts where several hosts have a checkpoint folder each."""
    return min(checkpoints, key=_AGES.index, default=Checkpoint.NONE)


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint:
    """Return the state that counts where one of several hosts gives its checkpoints to the others."""
    return max(checkpoints, key=_AGES.index, default=Checkpoint.NONE)


def clean_start(
    output_directory: str, *, home: str, checkpoint_folder: str, temporary: str = "", was_empty: bool = False
) -> tuple[str, ...]:
    """Return shell lines that restore the output folder as the engine made it, and the newest checkpoints.

    The first start copies the folder, which contains files that the workflow staged there, mostly none. Interrupted at any
    point, the lines do the same when they run again, and a checkpoint is never lost.

    Args:
        home: folder of the step's first job, which holds the copy.
        checkpoint_folder: name of the folder inside the output folder that outlives a start; empty for a step without one.
        temporary: folder of the command's temporary files, emptied at each start but the first; empty for none.
        was_empty: the engine had made an empty folder, and it may have been used since.

    Raises:
        ValueError: the output folder is the root, which is not a step's folder.
    """
    if not output_directory.strip("/"):
        raise ValueError(f"{output_directory!r} is not an output folder")
    fresh, part, saved_copy, new, old = (
        shlex.quote(posixpath.join(home, name)) for name in ("fresh", "fresh.part", "kept", "new", "old")
    )
    output = shlex.quote(output_directory.rstrip("/"))
    empty = f"  mkdir -p {fresh} || return\n" if was_empty else ""
    clear = f"  rm -rf {shlex.quote(temporary)}; mkdir -p {shlex.quote(temporary)} || return\n" if temporary else ""
    keep = restore = ""
    if checkpoint_folder:
        saved = shlex.quote(posixpath.join(output_directory, checkpoint_folder))
        keep = f"  if [ -d {saved} ]; then rm -rf {saved_copy} && mv {saved} {saved_copy} || return; fi\n"
        restore = (
            f"  if [ -d {saved_copy} ]; then rm -rf {saved}; mv {saved_copy} {saved} || return; fi\n"
            f'  if [ -n "$(ls -A {saved} 2> /dev/null)" ]; then export {RESUME_FROM}={saved}; fi\n'
        )
    return (
        "clean_start() {\n"
        f"{empty}"
        f"  if [ ! -d {fresh} ]; then rm -rf {part} && cp -a {output} {part} && mv {part} {fresh}; return; fi\n"
        f"{clear}{keep}"
        f"  rm -rf {old} {new} && cp -a {fresh} {new} || return\n"
        f"  if [ -e {output} ]; then mv {output} {old} || return; fi\n"
        f"  mv {new} {output} || return\n"
        f"{restore}"
        f"  rm -rf {old} || true\n"
        "}",
        "if ! clean_start; then",
        "  echo 'medweave: the output folder of the step could not be prepared.' >&2",
        f"  exit {TryAgainError.exit_code}",
        "fi",
    )


def begun(home: str) -> str:
    """Return the path of an empty file whose timestamp is the start of the attempt (`begin_attempt`)."""
    return posixpath.join(home, "begun")


def begin_attempt(home: str, clean_start_lines: Sequence[str]) -> str:
    """Return a script that starts an attempt in a clean folder, for sites whose command gets its variables from the driver.

    Args:
        home: folder of the step's attempts.
        clean_start_lines: of `clean_start`.
    """
    begins = f"mkdir -p {shlex.quote(home)} && : > {shlex.quote(begun(home))}"
    return "\n".join((begins, *clean_start_lines, f'echo "resumes:${{{RESUME_FROM}:+yes}}"'))


def has_checkpoints(output: str) -> bool:
    """Parse the output of `begin_attempt`: True if the attempt can resume from checkpoints."""
    return "resumes:yes" in output


def with_signal(line: str, *, process_id: str, status: str) -> tuple[str, ...]:
    """Return shell lines that run a command and forward a signal to it; the last one exits with the command's exit code.

    A shell acts on a signal only when its foreground program has ended, so the command runs in the background. Its exit code goes
    through a file: bash was seen to lose it when the signal cut its `wait` off just then.

    Args:
        process_id: file with the number of the process that gets the signal; the lines do not write it.
        status: file that does not exist yet.
    """
    return (
        f"process_id={shlex.quote(process_id)} status={shlex.quote(status)}",
        f'trap \'{{ kill -{SIGNAL} "$(cat "$process_id")"; }} 2> /dev/null\' {SIGNAL}',
        f"( {line}",
        'echo "$?" > "$status.part" && mv "$status.part" "$status" ) &',
        "command=$!",
        "await_status() {\n"
        '  while [ ! -e "$status" ] && kill -0 "$command" 2> /dev/null; do wait "$command"; done\n'
        '  return "$(cat "$status" || echo 1)"\n'
        "}",
        "await_status",
    )


def with_process_id(line: str, *, file: str) -> str:
    """Return shell lines that run a command, write its process id to a file, and exit with its exit code."""
    return f'{line} &\necho "$!" > {shlex.quote(file)}; wait "$!"'
