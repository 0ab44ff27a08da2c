"""What a login node answers to the lines of `commands.py`. Pure. An answer that was cut short is no answer: ValueError."""

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
from medweave_connectors.sites.slurm.messages import unanswered
from medweave_connectors.sites.slurm.states import Told
from medweave_core.untrusted_text import number, plain_line, whole_number

REFUSAL_LINES, PATH_CHARACTERS = 20, 5000
_SIZE = re.compile(r"([0-9.]+)([KMGT]?)")
_UNIT_MIB = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


def read_submission(answer: str) -> tuple[str, str]:
    """Of `commands.submit`: (job id, refusal). Both are empty where it is not known whether sbatch was heard."""
    *told, code = whole(answer)
    code = code.removeprefix("code").strip()
    if code not in ("", "0"):
        return "", "\n".join(map(plain_line, told[-REFUSAL_LINES:])) or f"exit code {plain_line(code)}"
    ids = (re.fullmatch(r"([0-9]{1,18})(;\S+)?", line.strip()) for line in reversed(told))  # id, or id;cluster
    return next((found[1] for found in ids if found), ""), ""


class Queued(NamedTuple):
    """A job as squeue has it; `start` is the time, by the site's clock, at which it started or is expected to, or empty.

    `key` is its comment: an id alone may be that of a later job.
    """

    word: str = ""
    reason: str = ""
    start: str = ""
    key: str = ""

    def is_of(self, keys: Collection[str]) -> bool:
        """Return True for a job of one of these submissions, and where the site keeps no comments, so that the id must do."""
        return self.key in ("", "(null)") or any(key in self.key for key in keys)


@dataclass(slots=True)
class Polled:
    """The queue and what jobs print.

    Attributes:
        answered: squeue was asked and did answer.
        jobs: by job id.
        by_key: comment to job id.
        text: a follower's number to new bytes.
        ended: numbers whose script has ended.
        said: what squeue said when it failed.
    """

    answered: bool = False
    jobs: dict[str, Queued] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    text: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    said: str = ""


def read_poll(answer: str) -> Polled:
    """Of `commands.poll` and `commands.cancel`."""
    polled, said = Polled(), []
    for line in whole(answer):
        mark, _, rest = line.partition(" ")
        if mark == "job" and rest.count("|") >= 3:
            job_id, word, reason, start, key = (*rest.split("|", 4), "", "", "", "")[:5]
            polled.jobs[job_id] = Queued(word, reason, "" if start == "N/A" else start, key.strip())
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
            said.append(line)
    polled.said = plain_line(" ".join(said))
    return polled


@dataclass(slots=True)
class EndWords:
    """All that is known about a job that seems to have ended.

    Attributes:
        answered: the controller said something about it.
        said: what it said instead.
        forgotten: the controller said that there is no such job.
        ranks: node rank to (exit code, end in seconds since 1970, host), of those nodes of a gang that could still say it.
        tails: name of the stream to its last bytes.
    """

    sacct: Told | None = None
    scontrol: Told | None = None
    exit_file: Told | None = None
    answered: bool = False
    said: str = ""
    forgotten: bool = False
    ranks: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    tails: dict[str, bytes] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The controller's, which is about the end; else that of accounting, which may be about the time before the start."""
        return next((each.reason for each in (self.scontrol, self.sacct) if each and each.reason), "")


def sections(answer: str) -> dict[str, str]:
    """Of `commands.ends`: job id to what `read_end` reads."""
    common: list[str] = []
    found: dict[str, list[str]] = {}
    section = common
    for line in whole(answer):
        mark, _, rest = line.partition(" ")
        if mark == "of":
            section = found.setdefault(rest, [])
        else:
            section.append(line)
    return {job_id: "\n".join((*common, *lines, END)) for job_id, lines in found.items()}


def read_end(answer: str, job_id: str, token: str = "") -> EndWords:
    """Of a section of `commands.ends`.

    Args:
        token: of the job's own folder, which no other job has. A controller that has lost its state gives ids again: a
            job of the same id in another folder is another job, and this one is forgotten.
    """
    words, rows = EndWords(), []
    for line in whole(answer):
        mark, _, rest = line.partition(" ")
        name, _, told = rest.partition(" ")
        if mark == "sacct":
            cells = [plain_line(cell, most=PATH_CHARACTERS) for cell in rest.split("|", len(SACCT_FIELDS) - 1)]
            if len(cells) >= len(SACCT_FIELDS) - 2:  # the last two are optional
                rows.append(dict(zip(SACCT_FIELDS, [*cells, "", ""], strict=False)))
        elif mark == "scontrol" and unanswered(rest):
            words.said = plain_line(rest)
        elif mark == "scontrol":
            words.answered = True
            is_other = "JobState=" in rest and token not in rest
            words.forgotten |= "Invalid job id" in rest or is_other
            words.scontrol = words.scontrol if is_other else _from_scontrol(rest) or words.scontrol
        elif mark == "file":
            _take_exit_record(words, name, told)
        elif mark == "tail":
            words.tails[name] = _decoded(told)
    words.sacct = _from_sacct(rows, job_id, token)
    return words


def read_checkpoint(answer: str) -> Checkpoint:
    """Of `commands.checkpoint`."""
    return attempt_script.read_checkpoint(whole(answer))


def mebibytes(text: str) -> float | None:
    """`12345K` in MiB; None for a text that is no size."""
    found = _SIZE.fullmatch(text.strip())
    size = number(found[1]) if found else None
    return round(size * _UNIT_MIB[found[2]], 1) if found and size is not None else None


def seconds(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04` or `03:04.567` in s; None for another text."""
    days, dash, clock = text.strip().rpartition("-")
    parts = [number(part) for part in clock.split(":")[-4:]]
    whole_days = whole_number(days) if dash else 0
    if whole_days is None or None in parts:
        return None
    return sum((part or 0.0) * 60.0**place for place, part in enumerate(reversed(parts))) + whole_days * 86400


def whole(answer: str) -> list[str]:
    """The lines of an answer without its mark of the end.

    Raises:
        ValueError: it was cut short.
    """
    # At line feeds alone: output of a job may hold other characters that Python treats as line ends.
    lines = [line.rstrip("\r") for line in answer.rstrip("\n").split("\n")]
    if lines[-1].strip() != END:
        raise ValueError("the answer is not whole")
    return lines[:-1]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the answer is not whole") from None


def _take_exit_record(words: EndWords, name: str, record: str) -> None:
    parts = record.split()[:4]
    code, started, ended = (whole_number(part) for part in (*parts, "", "", "")[:3])
    host = plain_line(parts[3]) if len(parts) > 3 else ""
    if code is None or started is None or ended is None or code > 255:
        return  # a job can write there, too: that is no exit record
    if name == "exit":
        words.exit_file = Told(
            source="exit file",
            word="COMPLETED" if code == 0 else "FAILED",
            exit_code=code,
            seconds=float(ended - started),
            nodes=host,
        )
    elif (rank := whole_number(name[5:])) is not None:
        words.ranks[rank] = code, ended, host


def _from_sacct(rows: Sequence[Mapping[str, str]], job_id: str, token: str) -> Told | None:
    job = next((row for row in rows if row["JobIDRaw"] == job_id), None)
    if job is None or (job.get("WorkDir") and not job["WorkDir"].endswith(token)):
        return None
    code, signal_number = _two(job["ExitCode"])
    steps = [row for row in rows if row["JobIDRaw"].startswith(f"{job_id}.")]
    peaks = [peak for row in steps if (peak := mebibytes(row["MaxRSS"])) is not None]
    return Told(
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


def _from_scontrol(text: str) -> Told | None:
    words = re.findall(
        r"(?:^|\s)(JobState|ExitCode|RunTime|SubmitTime|StartTime|NodeList|TimeLimit|Reason)=(\S*)", text
    )
    found = {
        name: plain_line(value) for name, value in reversed(words)
    }  # the first of each: a job's own comment comes later
    if "JobState" not in found:
        return None
    code, signal_number = _two(found.get("ExitCode", ""))
    return Told(
        source="scontrol",
        word=found["JobState"],
        exit_code=code,
        signal_number=signal_number,
        seconds=seconds(found.get("RunTime", "")),
        queue_seconds=_between(found.get("SubmitTime", ""), found.get("StartTime", "")),
        nodes=found.get("NodeList", "").replace("(null)", ""),
        time_limit=found.get("TimeLimit", ""),
        reason=_reason(found.get("Reason", "")),
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
