"""The summary of a run: duration, outputs, failures with their reasons, and the next commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.runs.follow.formatting import END_WORDS, size, why
from medweave_core.contracts.progress import duration
from medweave_core.documents.line_numbers import shown
from medweave_core.runlog.causes import STEP_PREFIX
from medweave_core.runlog.engine_names import place_label
from medweave_core.runlog.run_folder import STDERR, WORK
from medweave_core.runlog.run_state import JobProgress, RunState
from medweave_core.untrusted_text import plain

LAST_LINES, LAST_BYTES = 12, 16 * 1024
MOST_FAILURES, MOST_LEFT = 5, 10
KINDS = {"File": "file", "Directory": "folder"}  # words for CWL's classes


@dataclass(frozen=True, slots=True)
class RunInvocation:
    """Paths that a follow-up command for a run must name.

    Attributes:
        folder: folder of the run.
        file: the StreamFlow file that was named at the start, or None.
        outdir: where its outputs go; the current folder if unknown.
    """

    folder: Path
    file: Path | None = None
    outdir: Path = Path()


def summary(
    state: RunState, invocation: RunInvocation, outputs: Mapping[str, Any], *, to_a_log: bool = False
) -> Iterator[str]:
    """Yield the lines of the summary.

    Args:
        to_a_log: the lines are stored in a log, so output of jobs is omitted, as it may identify patients.
        outputs: the CWL output object that the engine printed. File names are not shown: they may identify patients.
    """
    end = state.end or "has no end in its event log"
    states = Counter(job.state for job in state.jobs.values())
    reused = sum(bool(job.reused_from) for job in state.jobs.values())
    jobs = f"{states['completed']} of {len(state.jobs)} jobs done" + (
        f", {reused} cache hit{'s' if reused > 1 else ''}" if reused else ""
    )
    yield f"medweave: run {state.run_id} {END_WORDS.get(end, end)} after {duration(state.seconds or state.now_s)}; {jobs}"
    for source, destination, route in state.moved:
        moved = state.moved[source, destination, route]
        if moved.num_bytes >= 2**20:
            yield _line(
                "moved", f"{size(moved.num_bytes)} from {place_label(source)} to {place_label(destination)}, {route}"
            )
    if delivered := [_counted(name, value) for name, value in outputs.items() if value is not None]:
        yield _line("delivered", f"in {shown(invocation.outdir)}: {', '.join(delivered)}")
    if state.left_out:
        yield _line("incomplete", ", ".join(state.jobs[name].label for name in state.left_out if name in state.jobs))
    failures = state.failures()
    if state.message and end != "completed":
        yield _line("cause", state.message.splitlines()[0])
        yield from (f"    {line}" for line in state.message.splitlines()[1:])
    for job in failures[:MOST_FAILURES]:
        yield _line("failed", f"{job.label} on {place_label(job.where)}, {why(job)}")
        yield from (
            f"    {line}" for line in (job.message.splitlines() if to_a_log else failure_lines(job, invocation.folder))
        )
    if len(failures) > MOST_FAILURES:
        yield _line("failed", f"and {len(failures) - MOST_FAILURES} more jobs; the report lists all")
    yield _line("next", f"medweave report {_word(invocation.folder)}")
    if end != "completed":
        yield _line("", f"{_resume(invocation)}   resume; finished steps are cache hits")
        yield _line("", f"{_clean(invocation)}   remove its files, on this machine and at its sites")


def unfinished_summary(state: RunState, invocation: RunInvocation) -> Iterator[str]:
    """Yield the lines for a user who exits before the clean-up: jobs that may still run without a driver."""
    running = state.running_jobs()
    yield f"medweave: exited before the cleanup of run {state.run_id} finished"
    for job in running[:MOST_LEFT]:
        yield _line("may run on", f"{job.label} on {place_label(job.where)}")
    if len(running) > MOST_LEFT:
        yield _line("", f"and {len(running) - MOST_LEFT} more jobs")
    yield _line("next", f"{_resume(invocation)}   resume; finished steps are cache hits")
    yield _line("", f"{_clean(invocation)}   cancel its jobs and remove its files")


def failure_lines(job: JobProgress, folder: Path) -> list[str]:
    """Return why a job failed: its message, which contains no patient data, and the last lines that its command printed.

    The printed lines go to the user who started the run, as with the engine, and to no file. They are omitted if the message
    comes from the step, or if the command succeeded.
    """
    message = job.message.splitlines()
    if message and (not job.exit_code or any(line.startswith(STEP_PREFIX) for line in message)):
        return message
    try:
        with (folder / WORK / STDERR / job.label).open("rb") as stream:
            stream.seek(max(stream.seek(0, 2) - LAST_BYTES, 0))
            return message + plain(stream.read().decode(errors="replace")).splitlines()[-LAST_LINES:]
    except OSError:
        return message


def kinds_in(value: Any) -> Counter[str]:
    """Return the numbers of files and folders of an output; the contents of a folder are not counted."""
    if isinstance(value, list):
        return sum(map(kinds_in, value), Counter())
    kind = value.get("class") if isinstance(value, Mapping) else None
    return Counter([kind] if kind in KINDS else [])


def _counted(name: str, value: Any) -> str:
    kinds = kinds_in(value)
    if kinds.total() < 2:
        return name
    counts = [f"{kinds[kind]} {word}{'s' if kinds[kind] > 1 else ''}" for kind, word in KINDS.items() if kinds[kind]]
    return f"{name} ({', '.join(counts)})"


def _resume(invocation: RunInvocation) -> str:
    outdir = f" --outdir {_word(invocation.outdir)}" if invocation.outdir != Path() else ""
    return f"medweave run --resume {_word(invocation.folder)}{_file(invocation)}{outdir}"


def _clean(invocation: RunInvocation) -> str:
    return f"medweave clean {_word(invocation.folder)}{_file(invocation)}"


def _file(invocation: RunInvocation) -> str:
    return f" --file {_word(invocation.file)}" if invocation.file is not None else ""


def _line(label: str, text: str) -> str:
    return f"  {label:<11} {text}"


def _word(path: Path) -> str:
    return shlex.quote(shown(path))
