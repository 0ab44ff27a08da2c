"""The `medweave` command: help, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave.cli import COMMANDS, main
from medweave_steps.contracts.errors import InternalError, UsageError, UserInputError
from support.cwl_files import WORKFLOWS


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
    assert "write 'report' (closest name)" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["doctor", "--stie", "laptop"], "there is no option --stie; write '--site' (closest name)"),
        (["doctor", "--stie=laptop"], "there is no option --stie; write '--site' (closest name)"),
        (["validate", "--format", "jsn"], "write 'json' (closest name)"),
        (["new", "workflw", "mine"], "write 'workflow' (closest name)"),
        (["schedule", "creat", "x.yml"], "write 'create' (closest name)"),
    ],
)
def test_a_wrong_word_is_told_with_the_closest(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == UsageError.exit_code
    assert told in capsys.readouterr().err


def test_an_option_may_be_shortened_and_what_follows_two_dashes_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--sit", "laptop"]) == 0
    assert main(["report", "--", "--no-run"]) == UserInputError.exit_code
    assert "this folder is not a run" in capsys.readouterr().err


INFER = str(WORKFLOWS / "lung-nodule-segmentation" / "infer.cwl")
SITE = "title: x\ndeployments:\n  a:\n    type: medweave.lcal\n    config: {}\nroles:\n  segment: {deployment: a}\n"


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        (SITE, ["doctor", "--site"], ":4: deployments.a.type: "),
        ("title: x\ndeployments: {a: [}\n", ["doctor", "--site"], ":2: this site file is not valid YAML"),
        ("cohort: {}\ncases_per_bach: 1\n", ["plan", INFER, "--site", "laptop", "--job"], ":2: cases_per_bach: "),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    text: str, words: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yml"
    file.write_text(text)
    assert main([*words, str(file)]) == UserInputError.exit_code
    told = capsys.readouterr().err.splitlines()
    assert f"file.yml{place}" in told[0]
    if "is not valid" not in place:
        assert "(closest name)" in told[-1]


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "cohort: 5\nsegmentation_model: {class: Directory, path: m}\n",
            ":1: cohort: this value is not of the type of 'cohort'.",
        ),
        (
            "cohort: {class: Directory, path: c}\n",
            ":1: the input 'segmentation_model' is missing, which infer.cwl must have.",
        ),
    ],
)
def test_an_input_of_another_type_or_none_is_told_before_anything_starts(
    command: str, text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yml").write_text(text)
    assert main([command, INFER, "--site", "laptop", "--job", str(tmp_path / "job.yml")]) == UserInputError.exit_code
    assert f"job.yml{told}" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", INFER.replace("infer.cwl", "infr.cwl"), "--site", "laptop"]
    assert main(words) == UserInputError.exit_code
    assert "write 'infer.cwl' (closest name)" in capsys.readouterr().err


def test_a_fault_of_its_own_is_no_traceback_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("medweave.report.read_run", fails)
    assert main(["report", "x"]) == InternalError.exit_code
    told = capsys.readouterr().err
    assert "ZeroDivisionError: by nought" in told
    assert "Traceback" not in told
    with pytest.raises(ZeroDivisionError):
        main(["report", "x", "--debug"])


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
