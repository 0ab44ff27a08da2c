"""What a person reads when a run is over: how long, what was delivered, what failed and why, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.runlog.run_state import Job, State
from medweave_core.runlog.engine_names import place_label
from medweave.runs.follow.formatting import END_WORDS, size, why
from medweave_core.documents.line_numbers import shown
from medweave_core.runlog.causes import STEP_PREFIX
from medweave_core.runlog.run_folder import STDERR
from medweave_core.runlog.run_folder import WORK
from medweave_core.contracts.progress import duration
from medweave_core.untrusted_text import plain

LAST_LINES, LAST_BYTES = 12, 16 * 1024
MOST_FAILURES, MOST_LEFT = 5, 10
KINDS = {"File": "file", "Directory": "folder"}  # of CWL, in a person's words


@dataclass(frozen=True, slots=True)
class Started:
    """What a run's next command must name.

    Attributes:
        folder: of the run.
        file: the StreamFlow file that was named when it was started, or None.
        outdir: where its outputs go; the current folder where nobody knows.
    """

    folder: Path
    file: Path | None = None
    outdir: Path = Path()


def summary(state: State, started: Started, outputs: Mapping[str, Any], *, to_a_log: bool = False) -> Iterator[str]:
    """The lines.

    Args:
        to_a_log: they are written down somewhere: what a job has printed may tell of patients, and is left out.
        outputs: the CWL output object that the engine has printed. The names of its files are not told: they may tell of patients.
    """
    end = state.end or "has no end in its log"
    states = Counter(job.state for job in state.jobs.values())
    reused = sum(bool(job.reused_from) for job in state.jobs.values())
    jobs = f"{states['completed']} of {len(state.jobs)} jobs done" + (f", {reused} by an earlier run" if reused else "")
    yield f"medweave: run {state.run_id} {END_WORDS.get(end, end)} after {duration(state.seconds or state.now_s)}; {jobs}"
    for source, destination, route in state.moved:
        moved = state.moved[source, destination, route]
        if moved.num_bytes >= 2**20:
            yield _line("moved", f"{size(moved.num_bytes)} from {place_label(source)} to {place_label(destination)}, {route}")
    if delivered := [_counted(name, value) for name, value in outputs.items() if value is not None]:
        yield _line("delivered", f"in {shown(started.outdir)}: {', '.join(delivered)}")
    if state.left_out:
        yield _line("not in them", ", ".join(state.jobs[name].label for name in state.left_out if name in state.jobs))
    failures = state.failures()
    if state.message and end != "completed":
        yield _line("cause", state.message.splitlines()[0])
        yield from (f"    {line}" for line in state.message.splitlines()[1:])
    for job in failures[:MOST_FAILURES]:
        yield _line("failed", f"{job.label} on {place_label(job.where)}, {why(job)}")
        yield from (f"    {line}" for line in (job.message.splitlines() if to_a_log else said(job, started.folder)))
    if len(failures) > MOST_FAILURES:
        yield _line("failed", f"and {len(failures) - MOST_FAILURES} more jobs; the report names each")
    yield _line("next", f"medweave report {_word(started.folder)}")
    if end != "completed":
        yield _line("", f"{_resume(started)}   goes on; what is done stays done")
        yield _line("", f"{_clean(started)}   removes what it has kept, here and at its sites")


def left(state: State, started: Started) -> Iterator[str]:
    """What a person reads who leaves at once: what may go on without anybody who looks after it."""
    going = state.going_on()
    yield f"medweave: left run {state.run_id} before it was cleaned up"
    for job in going[:MOST_LEFT]:
        yield _line("may go on", f"{job.label} on {place_label(job.where)}")
    if len(going) > MOST_LEFT:
        yield _line("", f"and {len(going) - MOST_LEFT} more jobs")
    yield _line("next", f"{_resume(started)}   goes on; what is done stays done")
    yield _line("", f"{_clean(started)}   ends and removes what it has left")


def said(job: Job, folder: Path) -> list[str]:
    """Return why a job failed: its message, which holds no patient data, and the last lines that its command printed.

    Those are shown to the person who started the run, as the engine does, and are written nowhere. They are left out where the
    message is the step's own, or where the command ended well.
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
    """How many files and folders an output holds; what lies in a folder is not counted."""
    if isinstance(value, list):
        return sum(map(kinds_in, value), Counter())
    kind = value.get("class") if isinstance(value, Mapping) else None
    return Counter([kind] if kind in KINDS else [])


def _counted(name: str, value: Any) -> str:
    kinds = kinds_in(value)
    if kinds.total() < 2:
        return name
    told = [f"{kinds[kind]} {word}{'s' if kinds[kind] > 1 else ''}" for kind, word in KINDS.items() if kinds[kind]]
    return f"{name} ({', '.join(told)})"


def _resume(started: Started) -> str:
    outdir = f" --outdir {_word(started.outdir)}" if started.outdir != Path() else ""
    return f"medweave run --resume {_word(started.folder)}{_file(started)}{outdir}"


def _clean(started: Started) -> str:
    return f"medweave clean {_word(started.folder)}{_file(started)}"


def _file(started: Started) -> str:
    return f" --file {_word(started.file)}" if started.file is not None else ""


def _line(label: str, text: str) -> str:
    return f"  {label:<11} {text}"


def _word(path: Path) -> str:
    return shlex.quote(shown(path))
