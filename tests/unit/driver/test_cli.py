"""The `medweave` command: help, exit codes."""

from __future__ import annotations

import pytest

from medweave.cli import COMMANDS, main
from medweave_steps.contracts.errors import UsageError


def test_help_lists_every_command_with_its_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Research use only" in text
    assert all(name in text for name in COMMANDS)


def test_no_word_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"medweave {name}" in capsys.readouterr().out


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reprot"]) == UsageError.exit_code
    text = capsys.readouterr().err
    assert "'reprot'" in text
    assert "report" in text


def test_a_missing_argument_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == UsageError.exit_code


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("medweave.report.read_run", interrupted)
    assert main(["report", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err
