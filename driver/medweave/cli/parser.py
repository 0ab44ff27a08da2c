"""The argument parser of a command: errors suggest the closest match and show the usage."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError

_CHOICE = re.compile(r"invalid choice: '?(?P<seen>[^']*?)'? \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """argparse's parser, with the closest match in the message for an unknown option or choice."""

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Exit with 2 at an unknown option: argparse would first report required options that are missing."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self._fail(f"unknown option '{name}'", closest(name, known))

    def error(self, message: str) -> NoReturn:
        """Print the error with the usage and the closest accepted word, and exit with 2."""
        suggestion = ""
        if choice := _CHOICE.search(message):
            suggestion = closest(choice["seen"], [word.strip().strip("'") for word in choice["known"].split(",")])
        self._fail(message.removesuffix("."), suggestion)

    def _fail(self, message: str, suggestion: str) -> NoReturn:
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        help_hint = f"see `{self.prog} --help`"
        do = f"{suggestion}, or {help_hint}" if suggestion else help_hint
        self.exit(UsageError.exit_code, f"{self.prog}: {UsageError(f'{message}.', expected=usage, do=do)}\n")
