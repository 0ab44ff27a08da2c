"""`medweave completion SHELL`: what makes a shell complete commands, options and files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from medweave.cli.main_command import COMMANDS, load_command
from medweave_core.documents.yaml_documents import not_installed

SHELLS = ("bash", "zsh")
DESCRIPTION = (
    "Prints a script with which a shell completes medweave's commands, options and file names. For bash, in ~/.bashrc:\n\n"
    '  eval "$(medweave completion bash)"\n\n'
    "For zsh, into a folder of its $fpath, before compinit:\n\n"
    "  medweave completion zsh > ~/.zfunc/_medweave"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {' or '.join(SHELLS)}")


def run(namespace: argparse.Namespace) -> int:
    """Prints the script.

    Raises:
        BackendMissingError: the library that makes it is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise not_installed(error) from error
    print(shtab.complete(whole_parser(shtab.FILE), namespace.shell))
    return 0


def whole_parser(files: Any) -> argparse.ArgumentParser:
    """All commands in one parser.

    Args:
        files: what is noted at each argument that is a path.
    """
    parser = argparse.ArgumentParser(prog="medweave")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        own = commands.add_parser(name, help=text)
        load_command(name).add_options(own)
        for action in own._actions:
            if action.type is Path:
                action.complete = files  # type: ignore[attr-defined]
    return parser
