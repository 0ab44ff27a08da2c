"""Parsers of a login node's output for the lines of `commands.py`. Pure. Truncated output raises ValueError."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from medweave_connectors.jobs.retries import attempt_script
from medweave_connectors.jobs.retries.policy import Checkpoint
from medweave_connectors.sites.slurm.commands import END, SACCT_FIELDS
from medweave_connectors.sites.slurm.messages import is_unanswered
from medweave_connectors.sites.slurm.states import SchedulerState
from medweave_core.untrusted_text import number, plain_line, whole_number

REFUSAL_LINES, PATH_CHARACTERS = 20, 5000
_SIZE = re.compile(r"([0-9.]+)([KMGT]?)")
_UNIT_MIB = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


def parse_submission(answer: str) -> tuple[str, str]:
    """Parse the output of `commands.submit`: (job id, refusal). Both are empty if it is unknown whether sbatch ran."""
    *lines, code = complete_lines(answer)
    code = code.removeprefix("code").strip()
    if code not in ("", "0"):
        return "", "\n".join(map(plain_line, lines[-REFUSAL_LINES:])) or f"exit code {plain_line(code)}"
    ids = (re.fullmatch(r"([0-9]{1,18})(;\S+)?", line.strip()) for line in reversed(lines))  # id, or id;cluster
    return next((match[1] for match in ids if match), ""), ""


class QueueEntry(NamedTuple):
    """A job in the output of squeue. `start` is its start time or expected start time by the site's clock; empty if unknown.

    `key` is its comment, because Slurm may assign an id again.
    """

    word: str = ""
    reason: str = ""
    start: str = ""
    key: str = ""

    def is_of(self, keys: Collection[str]) -> bool:
        """Return True for a job of one of these submissions, and if the site stores no comments, so that the id must suffice."""
        return self.key in ("", "(null)") or any(key in self.key for key in keys)


@dataclass(slots=True)
class QueuePoll:
    """The queue, and new output of jobs.

    Attributes:
        answered: squeue was called and succeeded.
        jobs: by job id.
        by_key: comment to job id.
        text: a follower's number to new bytes.
        ended: followers' numbers whose job script has ended.
        error: error output of squeue.
    """

    answered: bool = False
    jobs: dict[str, QueueEntry] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    text: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    error: str = ""


def parse_poll(answer: str) -> QueuePoll:
    """Parse the output of `commands.poll` and `commands.cancel`."""
    polled, errors = QueuePoll(), []
    for line in complete_lines(answer):
        mark, _, rest = line.partition(" ")
        if mark == "job" and rest.count("|") >= 3:
            job_id, word, reason, start, key = (*rest.split("|", 4), "", "", "", "")[:5]
            polled.jobs[job_id] = QueueEntry(word, reason, "" if start == "N/A" else start, key.strip())
            polled.by_key[key.strip()] = job_id
        elif mark == "squeue":
            polled.answered = rest.strip() == "0"
        elif mark == "text":
            number, _, text = rest.partition(" ")
            if (follower := whole_number(number)) is not None:
                polled.text[follower] = _decoded(text)
        elif mark == "ended":
            polled.ended |= {follower} if (follower := whole_number(rest.strip())) is not None else set()
        else:
            errors.append(line)
    polled.error = plain_line(" ".join(errors))
    return polled


@dataclass(slots=True)
class FinalReport:
    """All reports about a job that seems to have ended.

    Attributes:
        answered: the controller answered about the job.
        error: the controller's error output if it did not.
        purged: the controller has no such job (any more).
        ranks: node rank to (exit code, end in seconds since 1970, host), for the nodes of a node group that recorded it.
        tails: name of the stream to its last bytes.
    """

    sacct: SchedulerState | None = None
    scontrol: SchedulerState | None = None
    exit_file: SchedulerState | None = None
    answered: bool = False
    error: str = ""
    purged: bool = False
    ranks: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    tails: dict[str, bytes] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Return the controller's reason, which is about the end, or that of accounting, which may be about the wait."""
        return next((state.reason for state in (self.scontrol, self.sacct) if state and state.reason), "")


def split_by_job(answer: str) -> dict[str, str]:
    """Split the output of `commands.ends`: job id to the input of `parse_final_report`."""
    common: list[str] = []
    match: dict[str, list[str]] = {}
    section = common
    for line in complete_lines(answer):
        mark, _, rest = line.partition(" ")
        if mark == "of":
            section = match.setdefault(rest, [])
        else:
            section.append(line)
    return {job_id: "\n".join((*common, *lines, END)) for job_id, lines in match.items()}


def parse_final_report(answer: str, job_id: str, token: str = "") -> FinalReport:
    """Parse one job's section of the output of `commands.ends`.

    Args:
        token: of the job's folder, unique to it. A controller that has lost its state assigns ids again: a job of the same
            id in another folder is a different job, and this one counts as purged.
    """
    words, rows = FinalReport(), []
    for line in complete_lines(answer):
        mark, _, rest = line.partition(" ")
        name, _, fields = rest.partition(" ")
        if mark == "sacct":
            cells = [plain_line(cell, most=PATH_CHARACTERS) for cell in rest.split("|", len(SACCT_FIELDS) - 1)]
            if len(cells) >= len(SACCT_FIELDS) - 2:  # the last two are optional
                rows.append(dict(zip(SACCT_FIELDS, [*cells, "", ""], strict=False)))
        elif mark == "scontrol" and is_unanswered(rest):
            words.error = plain_line(rest)
        elif mark == "scontrol":
            words.answered = True
            is_other = "JobState=" in rest and token not in rest
            words.purged |= "Invalid job id" in rest or is_other
            words.scontrol = words.scontrol if is_other else _from_scontrol(rest) or words.scontrol
        elif mark == "file":
            _take_exit_record(words, name, fields)
        elif mark == "tail":
            words.tails[name] = _decoded(fields)
    words.sacct = _from_sacct(rows, job_id, token)
    return words


def read_checkpoint(answer: str) -> Checkpoint:
    """Parse the output of `commands.checkpoint`."""
    return attempt_script.read_checkpoint(complete_lines(answer))


def mebibytes(text: str) -> float | None:
    """Convert a size such as `12345K` to MiB; None if the text is not a size."""
    match = _SIZE.fullmatch(text.strip())
    size = number(match[1]) if match else None
    return round(size * _UNIT_MIB[match[2]], 1) if match and size is not None else None


def seconds(text: str) -> float | None:
    """Convert `1-02:03:04`, `02:03:04` or `03:04.567` to seconds; None for another form."""
    days, dash, clock = text.strip().rpartition("-")
    parts = [number(part) for part in clock.split(":")[-4:]]
    whole_days = whole_number(days) if dash else 0
    if whole_days is None or None in parts:
        return None
    return sum((part or 0.0) * 60.0**place for place, part in enumerate(reversed(parts))) + whole_days * 86400


def complete_lines(answer: str) -> list[str]:
    """Return the lines of the output without its end marker.

    Raises:
        ValueError: the output was truncated.
    """
    # At line feeds alone: output of a job may hold other characters that Python treats as line ends.
    lines = [line.rstrip("\r") for line in answer.rstrip("\n").split("\n")]
    if lines[-1].strip() != END:
        raise ValueError("the answer is incomplete")
    return lines[:-1]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the answer is incomplete") from None


def _take_exit_record(words: FinalReport, name: str, record: str) -> None:
    parts = record.split()[:4]
    code, started, ended = (whole_number(part) for part in (*parts, "", "", "")[:3])
    host = plain_line(parts[3]) if len(parts) > 3 else ""
    if code is None or started is None or ended is None or code > 255:
        return  # a job can write there, too: that is no exit record
    if name == "exit":
        words.exit_file = SchedulerState(
            source="exit file",
            word="COMPLETED" if code == 0 else "FAILED",
            exit_code=code,
            seconds=float(ended - started),
            nodes=host,
        )
    elif (rank := whole_number(name[5:])) is not None:
        words.ranks[rank] = code, ended, host


def _from_sacct(rows: Sequence[Mapping[str, str]], job_id: str, token: str) -> SchedulerState | None:
    job = next((row for row in rows if row["JobIDRaw"] == job_id), None)
    if job is None or (job.get("WorkDir") and not job["WorkDir"].endswith(token)):
        return None
    code, signal_number = _two(job["ExitCode"])
    steps = [row for row in rows if row["JobIDRaw"].startswith(f"{job_id}.")]
    peaks = [peak for row in steps if (peak := mebibytes(row["MaxRSS"])) is not None]
    return SchedulerState(
        source="sacct",
        word=job["State"],
        exit_code=code,
        signal_number=signal_number,
        seconds=number(job["ElapsedRaw"]),
        queue_seconds=_between(job["Submit"], job["Start"]),
        cpu_seconds=seconds(job["TotalCPU"]),
        peak_memory_mib=max(peaks, default=None),
        nodes=job["NodeList"],
        time_limit=job["Timelimit"],
        reason=_reason(job.get("Reason", "")),
    )


def _from_scontrol(text: str) -> SchedulerState | None:
    words = re.findall(
        r"(?:^|\s)(JobState|ExitCode|RunTime|SubmitTime|StartTime|NodeList|TimeLimit|Reason)=(\S*)", text
    )
    match = {
        name: plain_line(value) for name, value in reversed(words)
    }  # the first of each: a job's own comment comes later
    if "JobState" not in match:
        return None
    code, signal_number = _two(match.get("ExitCode", ""))
    return SchedulerState(
        source="scontrol",
        word=match["JobState"],
        exit_code=code,
        signal_number=signal_number,
        seconds=seconds(match.get("RunTime", "")),
        queue_seconds=_between(match.get("SubmitTime", ""), match.get("StartTime", "")),
        nodes=match.get("NodeList", "").replace("(null)", ""),
        time_limit=match.get("TimeLimit", ""),
        reason=_reason(match.get("Reason", "")),
    )


def _reason(word: str) -> str:
    return "" if word in ("None", "(null)") else word


def _two(exit_code: str) -> tuple[int, int]:
    first, _, second = exit_code.partition(":")
    return min(whole_number(first) or 0, 255), min(whole_number(second) or 0, 127)


def _between(earlier: str, later: str) -> float | None:
    try:
        return (datetime.datetime.fromisoformat(later) - datetime.datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # `Unknown`, `None`; one with a time zone, one without
        return None
