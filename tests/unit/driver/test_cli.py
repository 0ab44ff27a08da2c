"""The `medweave` command: help, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from medweave.cli.main_command import COMMANDS, build_parser, main
from medweave_core.errors import InternalError, UsageError, UserInputError
from support.cwl_files import WORKFLOWS


def test_help_lists_every_command_with_its_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Research use only" in text
    assert all(name in text for name in COMMANDS)


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "Set up:" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"medweave {name}" in text
    assert f"\n  medweave {name}" in text or f"$(medweave {name}" in text, "an example"


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reprot"]) == UsageError.exit_code
    text = capsys.readouterr().err
    assert "'reprot'" in text
    assert "write 'report' (closest match)" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--stie", "laptop"], "unknown option '--stie'."),
        (["doctor", "--stie=laptop"], "unknown option '--stie'."),
        (["validate", "--format", "jsn"], "write 'json' (closest match)"),
        (["new", "workflw", "mine"], "write 'workflow' (closest match)"),
        (["schedule", "creat", "x.yml"], "write 'create' (closest match)"),
    ],
)
def test_a_wrong_word_is_an_error_with_the_closest_match(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == UsageError.exit_code
    text = capsys.readouterr().err
    assert message in text
    assert "(closest match), or see `medweave " in text


def test_an_option_may_be_shortened_and_words_after_two_dashes_are_no_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--sit", "laptop"]) == 0
    assert main(["report", "--", "--no-run"]) == UserInputError.exit_code
    assert "this folder is not a run" in capsys.readouterr().err


SITES = WORKFLOWS.parent / "deployments" / "sites"
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
def test_an_error_in_a_file_has_its_line(
    text: str, words: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yml"
    file.write_text(text)
    assert main([*words, str(file)]) == UserInputError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert f"file.yml{place}" in lines[0]
    if "is not valid" not in place:
        assert "(closest match)" in lines[-1]


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cohort: 5\nsegmentation_model: {class: Directory, path: m}\n",
            ":1: cohort: wrong type for input 'cohort'.",
        ),
        (
            "cohort: {class: Directory, path: c}\n",
            ":1: required input 'segmentation_model' of infer.cwl is missing.",
        ),
    ],
)
def test_a_wrong_or_missing_input_is_an_error_before_anything_starts(
    command: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yml").write_text(text)
    assert main([command, INFER, "--site", "laptop", "--job", str(tmp_path / "job.yml")]) == UserInputError.exit_code
    assert f"job.yml{message}" in capsys.readouterr().err


WORKFLOW = "class: Workflow\ncwlVersion: v1.2\ninputs: {}\noutputs: {}\n"


@pytest.mark.parametrize(
    ("steps", "roles", "message"),
    [
        ("steps: 5\n", "w.cwl: {}\n", "w.cwl:5: steps: invalid value."),
        ("steps: [{run: x.cwl}]\n", "w.cwl: {}\n", "w.cwl:5: steps[0]: the key 'id' is missing."),
        ("steps:\n  a: {run: x.cwl}\n", "w.cwl: {/a: segment}\n", "w.cwl:6: steps.a.run: there is no such CWL tool."),
        (
            "steps: {a: {}}\n",
            "v.cwl:\n  /a: segment\n",
            "roles.yml:1: v.cwl: this file has no roles for the steps of w.cwl.",
        ),
    ],
)
def test_an_error_in_a_workflow_has_its_line(
    steps: str, roles: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.cwl").write_text(WORKFLOW + steps)
    (tmp_path / "roles.yml").write_text(roles)
    words = ["bind", str(tmp_path / "w.cwl"), "--site", "deployments/sites/laptop.yml", "-o", str(tmp_path / "o.yml")]
    assert main(words) == UserInputError.exit_code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["bind", INFER, "--site", "laptop", "-o", "."], 74, "seen: a folder of this name"),
        (["bind", INFER, "--site", "./loop.yml", "-o", "o.yml"], 74, "loop.yml: this site file cannot be read."),
        (["bind", INFER, "--site", "laptop", "--job", ".", "-o", "o.yml"], 65, ".: not a job file."),
        (["doctor", "--site", "laptop.yml", "--timeout", "nan"], 2, "more than 0 s"),
        (["doctor", "--site", "port.yml"], 65, "port.yml:6: deployments.a.config.nodes[0]: invalid port"),
        (["doctor", "--site", "phrase.yml"], 65, "sshKeyPassphraseFile: correct the path"),
        (["doctor", "--site", "variable.yml"], 2, "variable.yml:5: deployments.a.workdir: variable NOTHING"),
        (["logs", "first", "--run", "r"], 65, "runs/r/events.jsonl:1: the event log is damaged."),
        (["explain", "first", "--runs", "nowhere"], 65, "nowhere: the folder of runs does not exist."),
        (["run", "--file", "sf.yml"], 65, "sf.yml:4: dataManager.type: there is no 'medweave.transfr'."),
        (["run", "--file", "sf.yml", "--outdir", "sf.yml"], 2, "--outdir sf.yml: not a folder."),
        (["bind", INFER, "--site", "laptop", "-o", "sf.yml/o.yml"], 74, "seen: sf.yml is a file"),
        (["validate", "sff.yml"], 2, "write 'sf.yml' (closest match)"),
        (["run", "--file", "variable-sf.yml"], 2, "variable-sf.yml:5: deployments.a.workdir: variable NOTHING"),
        (["clean", "runs/good", "--file", "sf-bindings.yml"], 65, "sf-bindings.yml:2: workflows.a.bindings: "),
    ],
)
def test_a_wrong_call_is_an_error_that_says_what_to_do(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _write_wrong_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOTHING", raising=False)
    words = [str(SITES / "laptop.yml") if word in ("laptop", "laptop.yml") else word for word in words]
    assert main(words) == code
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


def _write_wrong_files(folder: Path) -> None:
    site = (
        "title: x\ndeployments:\n  a:\n    type: medweave.ssh\n    workdir: {workdir}\n    config: {config}\n"
        "roles: {{segment: {{deployment: a}}}}\n"
    )
    (folder / "port.yml").write_text(site.format(workdir="/x", config="{nodes: ['h:99999']}"))
    phrase = "{nodes: [h], sshKeyPassphraseFile: none}"
    (folder / "phrase.yml").write_text(site.format(workdir="/x", config=phrase))
    (folder / "variable.yml").write_text(site.format(workdir="${NOTHING}", config="{nodes: [h]}"))
    (folder / "loop.yml").symlink_to("loop.yml")
    (folder / "w.cwl").write_text(WORKFLOW)
    file = "version: v1.0\nworkflows: {a: {type: cwl, config: {file: w.cwl}}}\n"
    ours = "scheduling: {scheduler: {type: medweave.scheduler}}\n"
    (folder / "sf.yml").write_text(f"{file}{ours}dataManager: {{type: medweave.transfr}}\n")
    variable = "deployments: {a: {type: medweave.ssh, config: {nodes: [h]},\n  workdir: '${NOTHING}'}}\n"
    (folder / "variable-sf.yml").write_text(file + ours + variable)
    (folder / "sf-bindings.yml").write_text(file.replace("}}}", "}, bindings: 5}}"))
    for name, log in (("r", b"\x80\n\n"), ("good", _log().encode())):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "events.jsonl").write_bytes(log)


def _log() -> str:
    times = {"time": "2026-01-01T00:00:00.000+00:00", "run_id": "good"}
    begun = {"sequence": 1, "type": "run.started", "data": {"workflow": "a"}} | times
    over = {"sequence": 2, "type": "run.ended", "data": {"state": "completed", "seconds": 1, "failed": []}} | times
    return "".join(f"{json.dumps(event)}\n" for event in (begun, over))


def test_a_missing_file_is_an_error_with_the_closest_match(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", INFER.replace("infer.cwl", "infr.cwl"), "--site", "laptop"]
    assert main(words) == UserInputError.exit_code
    assert "write 'infer.cwl' (closest match)" in capsys.readouterr().err


def test_an_internal_error_has_no_traceback_without_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("medweave.report.command.read_run", fails)
    assert main(["report", "x"]) == InternalError.exit_code
    err = capsys.readouterr().err
    assert "ZeroDivisionError: by nought" in err
    assert "Traceback" not in err
    with pytest.raises(ZeroDivisionError):
        main(["report", "x", "--debug"])


def test_a_missing_argument_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == UsageError.exit_code


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("medweave.report.command.read_run", interrupted)
    assert main(["report", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_argument_has_a_name_in_usage_errors_and_reference(name: str) -> None:
    """argparse shows an argument with choices and without a name as `None`."""
    positionals = [action for action in build_parser(name)._actions if not action.option_strings]
    assert all(action.metavar == str(action.metavar).upper() != "NONE" for action in positionals)


def test_missing_arguments_of_new_are_named_as_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new"])
    assert "required: WHAT, NAME" in capsys.readouterr().err


SCHEMA = [sys.executable, "-m", "medweave.cli", "schema", "event"]


def test_a_closed_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(SCHEMA, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_full_disk_is_reported_once() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(SCHEMA, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 74
    assert ended.stderr == ("medweave schema: the output could not be written.\n  seen:     No space left on device\n")
