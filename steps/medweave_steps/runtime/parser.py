"""The argument parser of a verb: errors are short, suggest the closest match, and show no value that may name a patient."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError


class StepParser(argparse.ArgumentParser):
    """argparse's parser, with medweave's form of errors: a verb has up to 50 options, so the error does not list them."""

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Exit with 2 at an unknown option: argparse would first report required options that are missing."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self._fail(f"unknown option '{name}'.", suggestion=closest(name, known))

    def error(self, message: str) -> NoReturn:
        """Print the error in medweave's form and exit with 2."""
        if message.startswith("unrecognized arguments"):  # its words may be paths
            self._fail(
                "unknown option, or value without an option.", expected="each value after the name of its option"
            )
        self._fail(f"{message.removesuffix('.')}.")

    def _fail(self, message: str, *, expected: str = "", suggestion: str = "") -> NoReturn:
        hint = f"see `{self.prog} --help`"
        error = UsageError(message, expected=expected, do=f"{suggestion}, or {hint}" if suggestion else hint)
        self.exit(UsageError.exit_code, f"{self.prog}: {error}\n")
