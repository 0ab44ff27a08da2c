"""Notifications about the end of a run, by webhook and mail.

The text contains numbers, the names of steps and fixed words. It contains no data of an input: no name of a file or case, no
message of a step, no path.
"""

from __future__ import annotations

import dataclasses
import smtplib
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from medweave.schedule.state import Firing
from medweave_core.contracts.events import step_label
from medweave_core.contracts.progress import duration
from medweave_core.documents.streamflow_paths import expand
from medweave_core.errors import UsageError
from medweave_core.runlog.history import LOG_FILE, read_run

ALL_DONE = "completed"
ANSWER_S = 15.0
TRIES, PAUSE_S = 3, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The notification about the end of a run.

    Attributes:
        outcome: completed, partial, failed, cancelled or unknown.
        run: id of the run; empty if it could not begin.
        started: ISO 8601.
        seconds: wall time, s.
        num_done, num_jobs: numbers of completed jobs and of all jobs.
        failed: how many jobs failed, by step.
    """

    schedule: str
    outcome: str
    run: str
    workflow: str
    started: str
    seconds: float
    num_done: int
    num_jobs: int
    failed: Mapping[str, int]

    @property
    def text(self) -> str:
        """Return the summary in one line."""
        if not self.run:
            return f"medweave: schedule {self.schedule}: a run could not start"
        jobs = f"{self.num_done} of {self.num_jobs} jobs done"
        return f"medweave: schedule {self.schedule}: run {self.outcome} after {duration(self.seconds)}, {jobs}"

    def lines(self) -> Iterator[str]:
        """Yield the lines of the mail."""
        yield self.text
        yield ""
        if self.run:
            yield f"run       {self.run} of {self.workflow}"
        yield f"started   {self.started}"
        for step, number in self.failed.items():
            yield f"failed    {step}, {number} job{'' if number == 1 else 's'}"
        yield ""
        yield "Details: the log, the run folder, `medweave schedule list` and `medweave report`."


def notice_of(schedule: str, firing: Firing, run: Path) -> Notice:
    """Return the notification about a firing.

    Args:
        run: folder of the run.
    """
    has_log = bool(firing.run) and (run / LOG_FILE).is_file()
    record = read_run(run) if has_log else None
    failed: dict[str, int] = {}
    for job in record.failures() if record else ():
        failed[step_label(job.step)] = failed.get(step_label(job.step), 0) + 1
    jobs = {job.name: job.state for job in record.jobs} if record else {}
    return Notice(
        schedule=schedule, outcome=firing.outcome, run=firing.run if has_log else "", started=firing.moment, seconds=firing.seconds,
        workflow=record.workflow if record else "", num_done=sum(state == ALL_DONE for state in jobs.values()), num_jobs=len(jobs),
        failed=failed,
    )  # fmt: skip


def is_wanted(at: str, outcome: str) -> bool:
    """Return whether to send a notification about this outcome."""
    return at == "end" or outcome != ALL_DONE


def send(settings: Mapping[str, Any], notice: Notice, say: Callable[[str], None], pause_s: float = PAUSE_S) -> None:
    """Send a notification to all recipients. A failure is logged and does not change the run's outcome.

    Args:
        settings: key `notify` of the schedule's file.
        say: writes a line to the log, without addresses.
        pause_s: pause between two attempts, s.
    """
    for channel, send_by in (("webhook", _by_webhook), ("mail", _by_mail)):
        if channel not in settings:
            continue
        for number in range(TRIES):
            reason = send_by(settings[channel], notice)
            if not reason:
                break
            if number < TRIES - 1:
                time.sleep(pause_s)
        if reason:
            say(f"notification by {channel} failed: {reason}")


def _by_webhook(address: str, notice: Notice) -> str:
    """Post a notification; return why it failed, or an empty text."""
    import requests

    try:
        body = {"text": notice.text, **dataclasses.asdict(notice)}
        answer = requests.post(expand(address, where="notify.webhook"), json=body, timeout=ANSWER_S)
    except UsageError as error:
        return error.what
    except requests.RequestException as error:  # its text contains the address, which may be secret
        return type(error).__name__
    return "" if answer.ok else f"HTTP {answer.status_code}"


def _by_mail(mail: Mapping[str, Any], notice: Notice) -> str:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = notice.text, mail["from"], ", ".join(mail["to"])
    message.set_content("\n".join(notice.lines()) + "\n")
    try:
        password = expand(mail.get("password", ""), where="notify.mail.password")
        safe = ssl.create_default_context()
        place = (mail["server"], mail["port"])
        if mail["security"] == "tls":
            connection: smtplib.SMTP = smtplib.SMTP_SSL(*place, timeout=ANSWER_S, context=safe)
        else:
            connection = smtplib.SMTP(*place, timeout=ANSWER_S)
        with connection:
            if mail["security"] == "starttls":
                connection.starttls(context=safe)
            if mail.get("user"):
                connection.login(mail["user"], password)
            connection.send_message(message)
    except UsageError as error:
        return error.what
    except smtplib.SMTPResponseException as error:
        return f"SMTP {error.smtp_code}"
    except (OSError, smtplib.SMTPException) as error:
        return type(error).__name__
    return ""
