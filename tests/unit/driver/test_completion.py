"""`medweave completion`: the script in real shells."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from medweave.cli import main_command

ASK = """
source "$0"
COMP_WORDS=(medweave "$@"); COMP_CWORD=$#; COMP_LINE="medweave $*"; COMP_POINT=${#COMP_LINE}
$(complete -p medweave | sed -n 's/.*-F \\([^ ]*\\).*/\\1/p') medweave "${@: -1}" medweave
printf '%s\\n' "${COMPREPLY[@]}"
"""

# A zsh on a pseudo-terminal with the completion system as users load it: presses Tab and prints the offered words.
ASK_ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PROMPT=; unset zle_bracketed_paste; stty -echo'
zpty -w z "fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -D -u"
zpty -w z "bindkey '^I' complete-word; compprefuncs=(); comppostfuncs=(exit)"
zpty -w z 'compadd () { [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }'\
'; typeset -a offered; builtin compadd -A offered "$@"; print; print -rl -- "offered "$^offered }'
zpty -w z 'print -r -- "at"" last"'
while zpty -r z line && [[ $line != *"at last"* ]]; do :; done
zpty -n -w z "$2"$'\t'
while zpty -r z line; do print -r -- "$line"; done
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main_command.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out, encoding="utf-8")
    return tmp_path / "script"


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", ASK, script, *words], cwd=script.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(script: Path) -> None:
    assert completed(script, "re") == ["report"]
    assert set(completed(script, "")) >= set(main_command.COMMANDS)
    assert completed(script, "run", "--res") == ["--resume"]
    assert set(completed(script, "validate", "--format", "")) >= {"text", "json", "github", "sarif"}
    (script.parent / "infer.cwl").touch()
    assert completed(script, "run", "inf") == ["infer.cwl"]


@pytest.fixture
def functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the script into a folder of zsh's $fpath, as `medweave completion --help` says."""
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh: apt-get install zsh")
    assert main_command.main(["completion", "zsh"]) == 0
    (tmp_path / "_medweave").write_text(capsys.readouterr().out, encoding="utf-8")
    return tmp_path


def offered(functions: Path, line: str) -> list[str]:
    """Return the words that zsh offers for the end of a line."""
    words = ["zsh", "-f", "-c", ASK_ZSH, "ask", functions, line]
    done = subprocess.run(words, cwd=functions, capture_output=True, text=True, check=True, timeout=60)
    return re.findall(r"^offered (\S+)\s*$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_zsh_completes_commands_options_and_files(functions: Path) -> None:
    assert offered(functions, "medweave re") == ["report"]
    assert set(offered(functions, "medweave ")) == set(main_command.COMMANDS)
    assert offered(functions, "medweave run --res") == ["--resume"]
    assert set(offered(functions, "medweave run --")) >= {"--site", "--job", "--role", "--file", "--outdir", "--json"}
    assert offered(functions, "medweave validate --format ") == ["text", "json", "github", "sarif"]
    assert offered(functions, "medweave schedule pa") == ["pause"]
    (functions / "infer.cwl").touch()
    assert offered(functions, "medweave run inf") == ["infer.cwl"]
    assert offered(functions, "medweave run --site laptop --job inf") == ["infer.cwl"]


def test_another_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main_command.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err
