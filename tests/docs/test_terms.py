"""Texts for users have the field's terms: `docs/terms.yml` lists private phrases and their replacements."""

from __future__ import annotations

import argparse
import ast
import bisect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli import main_command
from medweave_steps import cli as step_command

ROOT = Path(__file__).resolve().parents[2]
TERMS: list[dict[str, Any]] = yaml.safe_load((ROOT / "docs" / "terms.yml").read_text())
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
SOURCES = sorted(
    path
    for package in ("core/medweave_core", "connectors/medweave_connectors", "driver/medweave", "steps/medweave_steps")
    for path in (ROOT / package).rglob("*.py")
)


def _uses(text: str, *, source: str = "", line: int = 1) -> list[str]:
    """Return source, line, phrase and replacement of each private phrase in a text that starts at a line."""
    lines = [part.strip() for part in text.splitlines()]
    starts = [0]
    for part in lines:
        starts.append(starts[-1] + len(part) + 1)
    joined = " ".join(lines)
    return [
        f"{source}:{line + bisect.bisect_right(starts, match.start()) - 1}: '{match[0]}' (term '{term['term']}'): use {term['use']}"
        for term in TERMS
        for match in re.finditer(term["pattern"], joined, re.IGNORECASE)
    ]


def _prose(markdown: str) -> str:
    """Return Markdown without link targets and without the names in its code spans; of commands the words stay."""
    markdown = re.sub(r"(?<=\])\([^)\n]*\)", "", markdown)
    return re.sub(r"`(?!`)([^`\n]+)`", lambda span: span[1] if span[1].startswith("medweave ") else "code", markdown)


def _messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string literal of several words; docstrings are for developers."""
    tree = ast.parse(source)
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in skipped and " " in text.strip():
            yield node.lineno, text


def _help_texts() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield "medweave --help", main_command.build_parser()
    yield "medweave-step --help", step_command.build_parser(None)
    for name in main_command.COMMANDS:
        yield f"medweave {name} --help", main_command.build_parser(name)
    for name in step_command.VERBS:
        yield f"medweave-step {name} --help", step_command.build_parser(step_command.load_verb(name))


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term["term"])
def test_a_pattern_finds_its_private_phrases_and_no_ordinary_use(term: dict[str, Any]) -> None:
    assert set(term) == {"term", "use", "pattern", "matches", "passes"}
    found = [example for example in term["matches"] if f"(term '{term['term']}')" in "".join(_uses(_prose(example)))]
    assert found == term["matches"]
    assert [use for example in term["passes"] for use in _uses(_prose(example))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    assert _uses(_prose(page.read_text()), source=str(page.relative_to(ROOT))) == []


def test_changelog_of_the_next_release() -> None:
    before, _, after = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")
    unreleased = after.partition("\n## [")[0]
    assert _uses(_prose(unreleased), source="CHANGELOG.md", line=before.count("\n") + 1) == []


def test_help_texts() -> None:
    assert [use for name, parser in _help_texts() for use in _uses(parser.format_help(), source=name)] == []


def test_messages() -> None:
    assert [
        use
        for path in SOURCES
        for line, text in _messages(path.read_text())
        for use in _uses(text, source=str(path.relative_to(ROOT)), line=line)
    ] == []


def test_the_line_of_a_phrase_is_reported() -> None:
    text = "# Title\n\nA run\nthat goes\n  on, beside\n\nit.\n"
    assert [use.partition(" (")[0] for use in _uses(text, source="page.md")] == ["page.md:4: 'goes on'"]


def test_literals_of_a_module_are_read_without_docstrings() -> None:
    source = '"""Told once."""\nNAME = "told"\ndef f(x):\n    "Told by x."\n    raise Error(f"{x} is"\n    f" told {x}", "a b")\n'
    assert list(_messages(source)) == [(5, "{} is told {}"), (6, "a b")]
