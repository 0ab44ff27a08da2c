"""`medweave completion SHELL`: print a completion script for bash or zsh."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from medweave.cli.main_command import COMMANDS, load_command
from medweave_core.documents.yaml_documents import not_installed

SHELLS = ("bash", "zsh")
DESCRIPTION = """\
Print a shell script that completes the commands, options and file names of medweave."""
EPILOG = """\
examples:
  eval "$(medweave completion bash)"                    in ~/.bashrc
  medweave completion zsh > ~/.zfunc/_medweave          in a folder of $fpath, before compinit"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"shell: {' or '.join(SHELLS)}")


def run(namespace: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        BackendMissingError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise not_installed(error) from error
    print(shtab.complete(whole_parser(shtab.FILE), namespace.shell))
    return 0


def whole_parser(files: Any) -> argparse.ArgumentParser:
    """Return one parser with all commands as subcommands.

    Args:
        files: shtab's marker for arguments that are paths.
    """
    parser = argparse.ArgumentParser(prog="medweave")
    commands = parser.add_subparsers()
    for name, entry in COMMANDS.items():
        command = commands.add_parser(name, help=entry.help)
        load_command(name).add_options(command)
        for action in command._actions:
            if action.type is Path:
                action.complete = files  # type: ignore[attr-defined]
    return parser
