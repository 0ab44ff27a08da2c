"""Each seeded mistake is told once, at its line and with a fix; of the repository's own files nothing is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave.cli import main
from medweave.validate import validate
from medweave.validate.findings import RULES
from support.cwl_files import ROOT
from support.mistakes import MISTAKES, Mistake
from support.seeding import copy_repository, fault, tell

OF_NAMED_FILES = {"file-kind"}  # see test_command.py


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository").resolve()
    copy_repository(folder)
    assert validate([folder])[0] == []
    return folder


def test_there_are_as_many_mistakes_as_were_promised_and_of_every_rule() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 40
    assert {mistake.rule for mistake in MISTAKES} == set(RULES) - OF_NAMED_FILES


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_is_found_once_with_its_line_and_a_fix(mistake: Mistake, copy: Path) -> None:
    assert fault(copy, mistake, *tell(copy, mistake)) == ""


def test_of_the_repository_itself_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--format", "json", str(ROOT)]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
