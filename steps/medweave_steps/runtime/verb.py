"""The frame that every verb runs in: options, signals, errors with exit codes, and the run report."""

from __future__ import annotations

import argparse
import datetime
import errno
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.report import RankFacts, RunReport
from medweave_core.errors import InternalError, StepError, StorageError, TryAgainError
from medweave_steps import __version__
from medweave_steps.runtime import environment, options, partials, signals
from medweave_steps.runtime.progress import Progress

REPORT_NAME = "run_report.json"


@dataclass(slots=True)
class StepContext:
    """The context of a verb's `run`: it collects notices, figures of cases and facts for the report.

    Attributes:
        ranks: facts about the processes of a training.
        versions: of libraries that only another process of this step imported.
        quiet: nothing is printed; for all processes of a training but the first.
        options_set: names of the options that the command line sets.
    """

    verb: str
    num_threads: int
    notices: list[str] = field(default_factory=list)
    cases: list[Mapping[str, Any]] = field(default_factory=list)
    ranks: list[RankFacts] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    quiet: bool = False
    options_set: frozenset[str] = frozenset()

    def take(self, other: StepContext) -> None:
        """Add the notices and figures that another process of this step has collected for the report."""
        self.notices += other.notices
        self.cases += other.cases
        self.ranks += other.ranks
        self.versions |= other.versions

    def progress(self, *, unit: str, total: int, done: int = 0, is_quick: bool = False) -> Progress:
        """Return a counter that prints one line per finished unit, or per second if `is_quick`.

        Args:
            done: units that an earlier run finished.
            is_quick: as in `Progress`.
        """
        return Progress(self.verb, unit=unit, total=total, done=done, quiet=self.quiet, is_quick=is_quick)

    def notice(self, text: str) -> None:
        """Print a notice on stderr and add it to the report. Never patient data."""
        self.notices.append(text)
        if not self.quiet:
            print(f"{self.verb}: note: {text}", file=sys.stderr, flush=True)

    def add_case(self, case_id: str, **figures: Any) -> None:
        """Add a case's figures to the report."""
        self.cases.append({"case_id": case_id, **figures})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A step program.

    Attributes:
        name: the word after `medweave-step`.
        description: for `--help`: its inputs, outputs and checks, with units.
        example: one command line, for `--help` and the reference.
        config: the dataclass whose fields are the options.
        run: does the work and returns the `results` of the run report; heavy imports belong inside it.
    """

    name: str
    description: str
    example: str
    config: type
    run: Callable[[Any, StepContext], Mapping[str, Any]]


def add_verb_options(parser: argparse.ArgumentParser, verb: Verb, words: Sequence[str] = ()) -> None:
    """Add the verb's own options and those that every verb has.

    Args:
        words: the verb's command line.
    """
    options.add_options(parser, verb.config, words)
    parser.add_argument(
        "--num-threads", type=int, default=environment.available_cpus(), metavar="N",
        help="number of compute threads (default: all CPUs available to this process; %(default)s on this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--run-report", type=Path, default=Path(REPORT_NAME), metavar="PATH",
        help="file for the JSON report of this run (default: %(default)s)",
    )  # fmt: skip


def execute(verb: Verb, namespace: argparse.Namespace) -> int:
    """Run a verb and return the process's exit code; errors are printed, never raised."""
    restore, exit_code = signals.install(), 0
    try:
        _run_and_report(verb, namespace)
    except (Exception, signals.Terminated) as error:
        exit_code = _end(verb, error)
        if signals.exit_code_of(error) is not None:
            return exit_code  # the watchdog stays: threads may keep the process from ending
    restore()
    return exit_code


def _end(verb: Verb, error: BaseException) -> int:
    signalled = signals.exit_code_of(error)
    if signalled is not None:
        partials.remove_all()
        print(f"{verb.name}: interrupted; removed partial outputs", file=sys.stderr)
        return signalled
    step_error = as_step_error(error)
    return _fail(verb, str(step_error), step_error.exit_code, error)


def as_step_error(error: BaseException) -> StepError:
    """Return any failure as an error for the user."""
    if isinstance(error, StepError):
        return error
    if isinstance(error, OSError):
        return _storage_error(error)
    if isinstance(error, MemoryError):
        return TryAgainError("out of memory: increase the memory of the step (ramMin in the workflow)")
    return InternalError(
        f"internal error (bug in medweave): {type(error).__name__}. Run again with MEDWEAVE_DEBUG=1 to see the traceback."
    )


def _run_and_report(verb: Verb, namespace: argparse.Namespace) -> None:
    # Imported here: io builds on runtime, and only this function writes.
    from medweave_steps.runtime.write import write_text

    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    writes = environment.node_group().node_rank == 0
    environment.limit_threads(namespace.num_threads)
    config: Any = options.read_options(verb.config, namespace)
    context = StepContext(verb=verb.name, num_threads=namespace.num_threads, options_set=frozenset(vars(namespace)))
    results = verb.run(config, context)
    if not writes:
        return
    own_mib, children_mib = environment.peak_memory_mib()
    report = RunReport(
        verb=verb.name,
        medweave_version=__version__,
        started_at=started.isoformat(timespec="milliseconds"),
        seconds=round(time.monotonic() - clock, 3),
        peak_memory_mib=own_mib,
        peak_memory_children_mib=children_mib,
        num_threads=namespace.num_threads,
        host_cpu=environment.cpu_model(),
        config=options.reported(config),
        versions={**context.versions, **environment.library_versions()},
        results=results,
        cases=tuple(context.cases),
        notices=tuple(context.notices),
        ranks=tuple(context.ranks),
    )
    write_text(namespace.run_report, codec.dumps(report))


def _fail(verb: Verb, text: str, exit_code: int, error: BaseException) -> int:
    partials.remove_all()
    if environment.wants_traceback():
        traceback.print_exception(error, file=sys.stderr)
    print(f"medweave-step {verb.name}: {text}", file=sys.stderr, flush=True)
    return exit_code


def _storage_error(error: OSError) -> StorageError:
    # pydicom raises an OSError without number, with a traceback as its text, from the one with the cause.
    while error.errno is None and isinstance(error.__cause__, OSError):
        error = error.__cause__
    # The file's name may be a person's name, so only its last suffix is shown.
    suffix = Path(str(error.filename)).suffix if error.filename else ""
    reason = errno.errorcode.get(error.errno or 0, "I/O error")
    text = error.strerror or next(iter(str(error).splitlines()), "")
    do = (
        "free space on the disk or choose another output folder"
        if error.errno == errno.ENOSPC
        else "check the folder and its permissions"
    )
    return StorageError(
        "a file could not be read or written.",
        seen=f"{reason}: {text}{f' ({suffix} file)' if suffix else ''}",
        expected="a readable input, and a writable output folder with enough free disk space",
        do=do,
    )
