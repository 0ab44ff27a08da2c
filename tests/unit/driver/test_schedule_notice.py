"""What a schedule tells of a run's end, to a webhook and a mail server that are really there: nothing of a person."""

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

# What stands in names of files and folders, in files, in the job file, in what a step prints, and in the environment.
NAMES = ("DOE^JANE", "ROE^RICHARD", "MUSTERMANN^ERIKA", "ROSSI^MARIO", "DUPONT^MARIE")
NUMBERS = tuple(f"MRN-{number}" for number in range(7130001, 7130011))
BIRTHS = tuple(
    f"19{year}0{month}1{month}" for year, month in zip(range(31, 41), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1], strict=True)
)
UIDS = tuple(f"1.2.826.0.1.3680043.8.498.{number}" for number in range(555001, 555011))
PHONES = tuple(f"+39 06 555 {number}" for number in range(1001, 1006))
TOKENS = tuple(f"tok-{number:08x}-secret" for number in range(10))
PLANTED = (*NAMES, *NUMBERS, *BIRTHS, *UIDS, *PHONES, *TOKENS)


def fire(file: Path, **variables: str) -> tuple[int, str]:
    code, out, err = call_schedule("run", file.name, cwd=file.parent, **variables)
    return code, out + err


def notified(folder: Path, script: str, **notify: Any) -> Path:
    return write_schedule(folder / "x", script, notify=notify)


def plant(folder: Path) -> dict[str, str]:
    """Puts what must not be told wherever it may come from; the variables that hold secrets."""
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
    words = " ".join(PLANTED)
    says = f"echo '{words}' | tee {folder}/said >&2; exit 65\n"
    (folder / "says.sh").write_text(says)
    return {f"SECRET_{number}": token for number, token in enumerate(TOKENS)}


@pytest.mark.slow
def test_fifty_planted_words_are_in_no_notice_of_a_failure(tmp_path: Path) -> None:
    assert len(set(PLANTED)) == 50
    with webhook() as hook, mail_server(tmp_path, user="medweave", password=SECRET) as server:
        mail = MAIL | {"port": server.port, "password": "${MAIL_PASSWORD}"}
        script = f"sh {tmp_path}/says.sh"
        file = notified(tmp_path, script, at="failure", webhook="${HOOK}", mail=mail)
        secrets = plant(tmp_path) | {"HOOK": hook.url, "MAIL_PASSWORD": SECRET, "SSL_CERT_FILE": str(server.authority)}
        code, said = fire(file, **secrets)
    assert code == 1
    assert "no notice" not in said
    printed = (tmp_path / "said").read_text()
    assert all(planted in printed for planted in PLANTED), "the step has really printed it"
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
    for planted in (*PLANTED, SECRET, "scans", str(tmp_path)):
        assert planted not in hook.came[0]
        assert planted not in text
    for planted in PLANTED:
        assert planted not in said, "what is said stands in the log of a Job or unit"


@pytest.mark.slow
def test_the_end_of_a_run_is_told_where_that_is_wanted_and_a_skip_is_not(tmp_path: Path) -> None:
    with webhook() as hook:
        file = notified(tmp_path, GOOD, at="end", webhook=hook.url)
        assert fire(file)[0] == 0
        assert fire(file)[0] == 0
    (notice,) = hook.notices
    assert (notice["outcome"], notice["num_done"], notice["num_jobs"], notice["failed"]) == ("completed", 1, 1, {})
    assert notice["run"].startswith("tiny-")


@pytest.mark.slow
def test_a_run_that_cannot_begin_is_told(tmp_path: Path) -> None:
    with webhook() as hook:
        file = notified(tmp_path, GOOD, webhook=hook.url)
        (tmp_path / "x/tools/copy.cwl").unlink()
        code, _ = fire(file)
    assert code == 65
    assert [each["text"] for each in hook.notices] == ["medweave: schedule nightly: a run could not begin"]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tries of a notice follow each other at once."""
    monkeypatch.setattr(tick, "send", functools.partial(send, pause_s=0.05))


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_notice_that_does_not_go_out_changes_nothing_and_tells_no_address(tmp_path: Path) -> None:
    with webhook(500, 500, 404) as hook:
        mail = MAIL | {"port": free_port(), "password": "${MAIL_PASSWORD}"}
        file = notified(tmp_path, GOOD, at="end", webhook=hook.url, mail=mail)
        code, said = fire(file, MAIL_PASSWORD=SECRET)
    assert (code, len(hook.came)) == (0, 3)
    assert "no notice by webhook: HTTP 404" in said
    assert "no notice by mail: ConnectionRefusedError" in said
    assert "T0KEN" not in said
    assert SECRET not in said


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_wrong_password_and_an_unknown_authority_are_told(tmp_path: Path) -> None:
    with mail_server(tmp_path, user="medweave", password=SECRET) as server:
        mail = MAIL | {"port": server.port, "password": "${MAIL_PASSWORD}"}
        file = notified(tmp_path, GOOD, at="end", mail=mail)
        (tmp_path / "x/tools/copy.cwl").unlink()  # a run that cannot begin ends at once, and has a notice
        _, said = fire(file, MAIL_PASSWORD="guess", SSL_CERT_FILE=str(server.authority))
        assert "no notice by mail: SMTP 535" in said
        _, said = fire(file, MAIL_PASSWORD=SECRET)
        assert "no notice by mail: SSLCertVerificationError" in said
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
def test_which_ends_are_told(at: str, outcome: str, wanted: bool) -> None:
    assert is_wanted(at, outcome) is wanted


def test_a_password_in_the_clear_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"notify\.mail\.password"):
        read_schedule(notified(tmp_path, GOOD, mail=MAIL | {"password": SECRET}))
