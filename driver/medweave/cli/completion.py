"""`medweave completion SHELL`: print a completion script for bash or zsh."""

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
    """Add the arguments of `medweave completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {' or '.join(SHELLS)}")


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
