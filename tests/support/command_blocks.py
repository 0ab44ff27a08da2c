"""The command blocks of a Markdown page, and the medweave commands in them.

A ```` ```bash ```` block runs as it is, unless the line before it is `<!-- needs: … -->`, which names what a test does not have.
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"^(?P<before>[^\n]*)\n(?P<indent> *)```bash[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(r"(?<!`)`((?:medweave|medweave-step) [^`\n]+)`(?!`)")
_NEEDS = re.compile(r"\s*<!-- needs: (?P<needs>\S.*?) -->\s*")
_PROGRAM = re.compile(r"(?:.*/)?(?P<name>medweave(?:-step)?)")
_PLACEHOLDER = re.compile(r"…|\.\.\.|<[^<>]*>|\$\{?\w+\}?|[A-Z][A-Z_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One ```` ```bash ```` block.

    Attributes:
        line: of its first command, counted from 1.
        needs: what `<!-- needs: … -->` names; None where the block runs in CI.
    """

    line: int
    text: str
    needs: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of `medweave` or `medweave-step`: the line on the page, and its words."""

    line: int
    words: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    """Return the command blocks of a page, in order."""
    return [
        Block(
            line=page.count("\n", 0, match.start("text")) + 1,
            text=textwrap.dedent(match["text"]),
            needs=marked["needs"] if (marked := _NEEDS.fullmatch(match["before"])) else None,
        )
        for match in _BLOCK.finditer("\n" + page)
    ]


def misplaced_marks(page: str) -> list[int]:
    """Return the lines with a `needs` comment that no command block follows."""
    lines = page.splitlines()
    return [
        number
        for number, line in enumerate(lines, 1)
        if "needs:" in line and "<!--" in line and not "".join(lines[number : number + 1]).strip().startswith("```bash")
    ]


def calls_of(page: str) -> Iterator[Call]:
    """Yield the calls in command blocks, then those in code spans that name an option."""
    for block in blocks_of(page):
        for number, line in _logical_lines(block.text):
            yield from _calls_in(line, block.line + number)
    prose = re.sub(r"^ *```.*?^ *```", lambda match: "\n" * match[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)
    for span in _INLINE.finditer(prose):
        yield from _calls_in(span[1], prose.count("\n", 0, span.start()) + 1)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, continuation lines joined."""
    number, parts = 0, list[str]()
    for index, line in enumerate(text.splitlines()):
        number = number if parts else index
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield number, " ".join(parts)
            parts = []


def _calls_in(line: str, number: int) -> Iterator[Call]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    try:
        tokens = [*lexer, ";"]
    except ValueError:  # a quotation that goes over several lines
        tokens = [*line.split(), ";"]
    for token in tokens:
        if set(token) <= set("();&|"):
            while words and (words[0] == "!" or "=" in words[0]):
                words.pop(0)
            if words and (program := _PROGRAM.fullmatch(words[0])):
                yield Call(line=number, words=(program["name"], *words[1:]))
            words = []
        else:
            words.append(token)


def problems_of(call: Call) -> list[str]:
    """Return what the parsers do not accept in a call: its command, option names, and values that must be one of a list."""
    program, *words = call.words
    if not words or words[0] in ("--help", "--version") or _PLACEHOLDER.fullmatch(words[0]):
        return []
    parser = _parser_of(program, words)
    if parser is None:
        return [f"there is no '{program} {words[0]}'"]
    problems = []
    for place, word in enumerate(words[1:], 1):
        parser = _subparser(parser, word) or parser
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--?[a-z][\w-]*", name):
            continue
        action = parser._option_string_actions.get(name)
        if action is None:
            problems.append(f"'{' '.join(call.words[:2])}' has no option {name}")
            continue
        if not equals and place + 1 < len(words):
            value = words[place + 1]
        takes_value = action.nargs != 0 and value and not value.startswith("-")
        if action.choices and takes_value and value not in map(str, action.choices) and not _PLACEHOLDER.search(value):
            problems.append(f"{name} {value} is none of {', '.join(map(str, action.choices))}")
    return problems


def _parser_of(program: str, words: Sequence[str]) -> argparse.ArgumentParser | None:
    if program == "medweave":
        from medweave.cli import main_command

        return main_command.build_parser(words[0]) if words[0] in main_command.COMMANDS else None
    from medweave_steps import cli

    return cli.build_parser(cli.load_verb(words[0]), words[1:]) if words[0] in cli.VERBS else None


def _subparser(parser: argparse.ArgumentParser, word: str) -> argparse.ArgumentParser | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and word in action.choices:
            return action.choices[word]
    return None


def script_of(page: Path, blocks: Sequence[Block]) -> str:
    """Return the unmarked blocks as one script that prints page and line before each block."""
    parts: list[str] = []
    for block in blocks:
        if block.needs is None:
            parts += [f"printf '== %s\\n' '{page.name}:{block.line}'", block.text]
    return "\n".join(parts)
