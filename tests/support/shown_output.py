"""Command blocks of a page, and the output that the page shows below them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        shown: lines of the `text` block below it.
        needs: whether the line before it is a comment `<!-- needs: … -->`: a test does not have what the block needs.
    """

    language: str
    text: str
    shown: tuple[str, ...] = ()
    needs: bool = False


def blocks_of(page: str) -> list[Block]:
    """Return a page's blocks in order; a `text` block belongs to the one before it."""
    found: list[Block] = []
    for match in _FENCE.finditer("\n" + page):
        if match["language"] == "text":
            last = found[-1]
            found[-1] = Block(last.language, last.text, tuple(match["text"].splitlines()), last.needs)
        else:
            found.append(Block(match["language"], match["text"], needs=match["before"].startswith("<!-- needs: ")))
    return found


def first_missing(shown: Sequence[str], printed: str) -> str | None:
    """Return the first line of the page that the program did not print in order; None if it printed all.

    Args:
        shown: lines in which `…` is any text.
    """
    rest = iter(printed.splitlines())
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        if not any(re.fullmatch(pattern, output.rstrip()) for output in rest):
            return line
    return None
