"""The argument parser of a command: errors for unknown words suggest the closest match."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

_CHOICE = re.compile(r"invalid choice: '?(?P<seen>[^']*?)'? \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """argparse's parser, with the closest match in the message for an unknown option or choice."""

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Exit with 2 at an unknown option: argparse would first report required options that are missing."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"there is no option {name}{_suggestion(name, known)}")

    def error(self, message: str) -> NoReturn:
        """Print the error with the closest accepted word and exit with 2."""
        if choice := _CHOICE.search(message):
            known = [word.strip().strip("'") for word in choice["known"].split(",")]
            message += _suggestion(choice["seen"], known)
        super().error(message)


def _suggestion(word: str, known: Sequence[str]) -> str:
    from medweave_core.documents.closest_match import closest

    suggestion = closest(word, known)
    return f"; {suggestion}" if suggestion else ""
