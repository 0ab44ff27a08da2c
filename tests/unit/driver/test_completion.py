"""`medweave completion`: the script does what it says, in a real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from medweave import cli

ASK = """
source "$0"
COMP_WORDS=(medweave "$@"); COMP_CWORD=$#; COMP_LINE="medweave $*"; COMP_POINT=${#COMP_LINE}
$(complete -p medweave | sed -n 's/.*-F \\([^ ]*\\).*/\\1/p') medweave "${@: -1}" medweave
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out, encoding="utf-8")
    return tmp_path / "script"


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", ASK, script, *words], cwd=script.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(script: Path) -> None:
    assert completed(script, "re") == ["report"]
    assert set(completed(script, "")) >= set(cli.COMMANDS)
    assert completed(script, "run", "--res") == ["--resume"]
    assert set(completed(script, "validate", "--format", "")) >= {"text", "json", "github", "sarif"}
    (script.parent / "infer.cwl").touch()
    assert completed(script, "run", "inf") == ["infer.cwl"]


def test_zsh_gets_a_function_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef medweave\n")
    assert all(f"    {name}:'" in text for name in cli.COMMANDS)


def test_another_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err
