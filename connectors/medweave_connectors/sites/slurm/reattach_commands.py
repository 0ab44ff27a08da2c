"""The command lines about jobs that an earlier driver has left, and what a login node answers to them. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from medweave_connectors.jobs.reattach import same_work
from medweave_connectors.jobs.reattach.journal import Submission
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import read_submission, whole
from medweave_connectors.sites.slurm.script import JobFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What lies at the site.

    Attributes:
        is_same: the output folder is there, and the inputs have the content of the new ones.
        is_claimed: somebody has begun to submit it.
        code: exit code of sbatch; empty while it is not known.
        job_id: what sbatch printed; empty where it is not known.
    """

    is_same: bool
    is_claimed: bool
    code: str
    job_id: str


def look(left: Submission, wanted: Submission) -> str:
    """Compares the inputs of a job with those of the wanted one, and says how far its submission came."""
    files = JobFiles(left.folder)
    claimed, answer, code = (shlex.quote(files.path(name)) for name in ("claimed", "answer", "code"))
    return commands.line(
        f"if {same_work.is_there(left, wanted)}; then echo same; fi",
        f"[ -d {claimed} ] && echo claimed",
        f"cat {answer} 2> /dev/null",
        f"echo code $(cat {code} 2> /dev/null)",
    )


def read_left(answer: str) -> Left:
    """Of `look`."""
    lines = whole(answer)
    job_id, _ = read_submission(answer)
    return Left(
        is_same="same" in lines,
        is_claimed="claimed" in lines,
        code=lines[-1].removeprefix("code").strip(),
        job_id=job_id,
    )


def claim(files: JobFiles) -> str:
    """Takes the claim of a submission that nobody has begun: it can never begin then."""
    return commands.line(
        "umask 077", f"mkdir -p {shlex.quote(files.folder)}", f"mkdir {shlex.quote(files.path('claimed'))}"
    )


def move(outputs: tuple[str, ...]) -> str:
    """As `work.move`."""
    return commands.line(same_work.move(outputs), "echo code $?")


def read_move(answer: str) -> bool:
    """Of `move`: whether it is there."""
    return whole(answer)[-1] == "code 0"
