"""Notifications about a run's end, to a real webhook and a real mail server, contain no patient data."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.project.schedules import read_schedule
from medweave.schedule import tick
from medweave.schedule.notifications import is_wanted, send
from medweave_core.errors import UserInputError
from support.listeners import mail_server, webhook
from support.orthanc import free_port
from support.schedules import call_schedule, write_schedule

GOOD = 'cat "$0"/* > result.txt'
SECRET = "wrong horse battery"
MAIL = {"server": "127.0.0.1", "from": "medweave@example.org", "to": ["oncall@example.org"], "user": "medweave"}

# Identifiers in names of files and folders, in files, in the job file, in the output of a step, and in the environment.
NAMES = ("DOE^JANE", "ROE^RICHARD", "MUSTERMANN^ERIKA", "ROSSI^MARIO", "DUPONT^MARIE")
NUMBERS = tuple(f"MRN-{number}" for number in range(7130001, 7130011))
BIRTHS = tuple(
    f"19{year}0{month}1{month}" for year, month in zip(range(31, 41), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1], strict=True)
)
UIDS = tuple(f"1.2.826.0.1.3680043.8.498.{number}" for number in range(555001, 555011))
PHONES = tuple(f"+39 06 555 {number}" for number in range(1001, 1006))
TOKENS = tuple(f"tok-{number:08x}-secret" for number in range(10))
IDENTIFIERS = (*NAMES, *NUMBERS, *BIRTHS, *UIDS, *PHONES, *TOKENS)


def fire(file: Path, **variables: str) -> tuple[int, str]:
    code, out, err = call_schedule("run", file.name, cwd=file.parent, **variables)
    return code, out + err


def notified(folder: Path, script: str, **notify: Any) -> Path:
    return write_schedule(folder / "x", script, notify=notify)


def write_identifiers(folder: Path) -> dict[str, str]:
    """Write identifiers wherever a notification may take them from; return variables with secrets."""
    for name, number, birth, uid in zip(NAMES * 2, NUMBERS, BIRTHS, UIDS, strict=True):
        below = folder / "x/scans" / f"{name} {number}"
        below.mkdir()
        (below / f"{uid}.dcm").write_text(f"{name} {number} born {birth} {uid} {PHONES[0]}")
    job = folder / "x/job.yml"
    document = yaml.safe_load(job.read_text()) | {"note": " ".join((*NAMES, *NUMBERS, *PHONES, *BIRTHS))}
    job.write_text(yaml.safe_dump(document))
    workflow = folder / "x/tiny.cwl"
    workflow.write_text(
        workflow.read_text().replace(
            '"inputs": {"scans": "Directory"}, "out', '"inputs": {"scans": "Directory", "note": "string?"}, "out'
        )
    )
    words = " ".join(IDENTIFIERS)
    script = f"echo '{words}' | tee {folder}/output >&2; exit 65\n"
    (folder / "says.sh").write_text(script)
    return {f"SECRET_{number}": token for number, token in enumerate(TOKENS)}


@pytest.mark.slow
def test_fifty_identifiers_are_in_no_notification_of_a_failure(tmp_path: Path) -> None:
    assert len(set(IDENTIFIERS)) == 50
    with webhook() as hook, mail_server(tmp_path, user="medweave", password=SECRET) as server:
        mail = MAIL | {"port": server.port, "password": "${MAIL_PASSWORD}"}
        script = f"sh {tmp_path}/says.sh"
        file = notified(tmp_path, script, at="failure", webhook="${HOOK}", mail=mail)
        secrets = write_identifiers(tmp_path) | {
            "HOOK": hook.url,
            "MAIL_PASSWORD": SECRET,
            "SSL_CERT_FILE": str(server.authority),
        }
        code, output = fire(file, **secrets)
    assert code == 1
    assert "no notice" not in output
    printed = (tmp_path / "output").read_text()
    assert all(identifier in printed for identifier in IDENTIFIERS), "the step has really printed it"
    (notice,), (text,) = hook.notices, server.mails
    assert (notice["schedule"], notice["outcome"], notice["num_done"], notice["num_jobs"]) == (
        "nightly",
        "failed",
        0,
        1,
    )
    assert notice["failed"] == {"copy": 1}
    assert notice["text"].startswith("medweave: schedule nightly: run failed after ")
    assert "Subject: medweave: schedule nightly: run failed after" in text
    assert "failed    copy, 1 job" in text
    for identifier in (*IDENTIFIERS, SECRET, "scans", str(tmp_path)):
        assert identifier not in hook.came[0]
        assert identifier not in text
    for identifier in IDENTIFIERS:
        assert identifier not in output, "the output is in the log of a Job or unit"


@pytest.mark.slow
def test_the_end_of_a_run_is_notified_if_wanted_and_a_skip_is_not(tmp_path: Path) -> None:
    with webhook() as hook:
        file = notified(tmp_path, GOOD, at="end", webhook=hook.url)
        assert fire(file)[0] == 0
        assert fire(file)[0] == 0
    (notice,) = hook.notices
    assert (notice["outcome"], notice["num_done"], notice["num_jobs"], notice["failed"]) == ("completed", 1, 1, {})
    assert notice["run"].startswith("tiny-")


@pytest.mark.slow
def test_a_run_that_cannot_begin_is_notified(tmp_path: Path) -> None:
    with webhook() as hook:
        file = notified(tmp_path, GOOD, webhook=hook.url)
        (tmp_path / "x/tools/copy.cwl").unlink()
        code, _ = fire(file)
    assert code == 65
    assert [notice["text"] for notice in hook.notices] == ["medweave: schedule nightly: a run could not start"]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause between the attempts of a notification."""
    monkeypatch.setattr(tick, "send", functools.partial(send, pause_s=0.05))


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_failed_notification_changes_nothing_and_logs_no_address(tmp_path: Path) -> None:
    with webhook(500, 500, 404) as hook:
        mail = MAIL | {"port": free_port(), "password": "${MAIL_PASSWORD}"}
        file = notified(tmp_path, GOOD, at="end", webhook=hook.url, mail=mail)
        code, output = fire(file, MAIL_PASSWORD=SECRET)
    assert (code, len(hook.came)) == (0, 3)
    assert "notification by webhook failed: HTTP 404" in output
    assert "notification by mail failed: ConnectionRefusedError" in output
    assert "T0KEN" not in output
    assert SECRET not in output


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_wrong_password_and_an_unknown_authority_are_logged(tmp_path: Path) -> None:
    with mail_server(tmp_path, user="medweave", password=SECRET) as server:
        mail = MAIL | {"port": server.port, "password": "${MAIL_PASSWORD}"}
        file = notified(tmp_path, GOOD, at="end", mail=mail)
        (tmp_path / "x/tools/copy.cwl").unlink()  # a run that cannot begin ends at once, and has a notice
        _, output = fire(file, MAIL_PASSWORD="guess", SSL_CERT_FILE=str(server.authority))
        assert "notification by mail failed: SMTP 535" in output
        _, output = fire(file, MAIL_PASSWORD=SECRET)
        assert "notification by mail failed: SSLCertVerificationError" in output
        assert server.mails == []


@pytest.mark.parametrize(
    ("at", "outcome", "wanted"),
    [
        ("end", "completed", True),
        ("failure", "completed", False),
        ("failure", "partial", True),
        ("failure", "unknown", True),
    ],
)
def test_which_ends_are_notified(at: str, outcome: str, wanted: bool) -> None:
    assert is_wanted(at, outcome) is wanted


def test_a_plaintext_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"notify\.mail\.password"):
        read_schedule(notified(tmp_path, GOOD, mail=MAIL | {"password": SECRET}))
