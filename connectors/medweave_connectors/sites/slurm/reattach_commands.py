"""Command lines about jobs of an earlier driver, and parsers of their output. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from medweave_connectors.jobs.reattach import same_work
from medweave_connectors.jobs.reattach.journal import Submission
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import complete_lines, parse_submission
from medweave_connectors.sites.slurm.script import SlurmJobFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionStatus:
    """State of an earlier submission at the site.

    Attributes:
        is_same: the output folder exists, and the inputs have the content of the new ones.
        is_claimed: a process has started to submit it.
        code: exit code of sbatch; empty while unknown.
        job_id: printed by sbatch; empty while unknown.
    """

    is_same: bool
    is_claimed: bool
    code: str
    job_id: str


def inspect(earlier: Submission, planned: Submission) -> str:
    """Build the line that compares the inputs of two submissions and prints how far the earlier one got."""
    files = SlurmJobFiles(earlier.folder)
    claimed, answer, code = (shlex.quote(files.path(name)) for name in ("claimed", "answer", "code"))
    return commands.line(
        f"if {same_work.is_there(earlier, planned)}; then echo same; fi",
        f"[ -d {claimed} ] && echo claimed",
        f"cat {answer} 2> /dev/null",
        f"echo code $(cat {code} 2> /dev/null)",
    )


def parse_status(answer: str) -> SubmissionStatus:
    """Parse the output of `inspect`."""
    lines = complete_lines(answer)
    job_id, _ = parse_submission(answer)
    return SubmissionStatus(
        is_same="same" in lines,
        is_claimed="claimed" in lines,
        code=lines[-1].removeprefix("code").strip(),
        job_id=job_id,
    )


def claim(files: SlurmJobFiles) -> str:
    """Build the line that claims a submission that has not started, so that it never starts."""
    return commands.line(
        "umask 077", f"mkdir -p {shlex.quote(files.folder)}", f"mkdir {shlex.quote(files.path('claimed'))}"
    )


def move(outputs: tuple[str, ...]) -> str:
    """Build the line that moves the output folders, as `same_work.move` does."""
    return commands.line(same_work.move(outputs), "echo code $?")


def read_move(answer: str) -> bool:
    """Parse the output of `move`: True if the folders were moved."""
    return complete_lines(answer)[-1] == "code 0"
