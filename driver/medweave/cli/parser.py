"""The parser of a command: what it does not know is told with the nearest that it does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

_CHOICE = re.compile(r"invalid choice: '?(?P<seen>[^']*?)'? \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """argparse's, with the closest name beside each word that it refuses."""

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Leaves with 2 at an option that there is not: argparse would first tell of one that is missing for it."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                self.error(f"there is no option {name}{_near(name, known)}")

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, with the closest of the words that are accepted, and leaves with 2."""
        if choice := _CHOICE.search(message):
            known = [word.strip().strip("'") for word in choice["known"].split(",")]
            message += _near(choice["seen"], known)
        super().error(message)


def _near(word: str, known: Sequence[str]) -> str:
    from medweave_core.documents.closest_match import closest

    near = closest(word, known)
    return f"; {near}" if near else ""
