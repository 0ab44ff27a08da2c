"""Each seeded mistake is reported once, at its line and with a fix; the repository has no findings."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from medweave.cli.main_command import main
from medweave.validate.command import validate
from medweave.validate.findings import RULES
from support.cwl_files import ROOT
from support.mistake import Mistake
from support.mistakes import MISTAKES
from support.seeding import copy_repository, fault, seed_and_validate

OF_OPTIONS = {"file-kind", "cwltool"}  # named files, --cwltool: see test_command.py


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository").resolve()
    copy_repository(folder)
    assert validate([folder])[0] == []
    return folder


def test_promised_number_of_mistakes_covers_every_rule() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 40
    assert {mistake.rule for mistake in MISTAKES} == set(RULES) - OF_OPTIONS


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_is_found_once_with_its_line_and_a_fix(mistake: Mistake, copy: Path) -> None:
    # The changed file alone shows most mistakes, in a tenth of the time. make validate-seeded validates the whole copy for each.
    if fault(copy, mistake, *seed_and_validate(copy, mistake, whole=False)):
        assert fault(copy, mistake, *seed_and_validate(copy, mistake)) == ""


def test_the_repository_has_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--format", "json", str(ROOT)]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def summed_up(folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: object) -> tuple[int, dict[str, Any]]:
    """Return exit code and summary of `make validate-seeded`, for one mistake and a folder that replaces the repository."""
    seeded = runpy.run_path(str(ROOT / "tests" / "validate" / "seeded.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["seeded.py", "--only", MISTAKES[0].name])
    for name, value in {"ROOT": folder, **changed}.items():
        monkeypatch.setitem(seeded.__globals__, name, value)
    return seeded(), json.loads((folder / "build" / "validate" / "summary.json").read_text())


def test_summary_of_seeded_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".medweave-ignore").write_text("build/\n")
    num_seeded = sum(MISTAKES[0].name in mistake.name for mistake in MISTAKES)
    code, summary = summed_up(tmp_path, monkeypatch)
    assert code == 0
    assert summary.pop("seconds") > 0
    assert summary == {"seeded": num_seeded, "found": num_seeded, "false_alarms": 0, "missed": [], "alarms": []}


def test_missed_mistake_and_false_alarm_are_counted_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, summary = summed_up(tmp_path, monkeypatch, fault=lambda *_: "nothing was reported")
    assert (code, summary["found"], summary["missed"][0]) == (1, 0, MISTAKES[0].name)
    assert f"MISSED {MISTAKES[0].name}: nothing was reported" in capsys.readouterr().out
    (tmp_path / "wrong.cwl").write_text("cwlVersion: v1.2\nclass: CommandLineTool\ninputs: {a: strin}\noutputs: []\n")
    code, summary = summed_up(tmp_path, monkeypatch)
    assert (code, summary["found"], summary["missed"]) == (1, summary["seeded"], [])
    assert summary["false_alarms"] == len(summary["alarms"]) > 0
