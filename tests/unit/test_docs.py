"""Generated pages are current, and what the pages point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.command_blocks import blocks_of, calls_of, misplaced_marks, problems_of
from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("workflows/**/*.md"), *ROOT.glob("helm/**/*.md")]
)


def generated() -> dict[Path, str]:
    pages: dict[Path, str] = module_of(ROOT / "docs" / "generate.py").pages()
    return pages


def test_generated_pages_are_current() -> None:
    stale = [
        str(path)
        for path, text in generated().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    ]
    assert stale == [], "run `make docs` and commit the result"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text()) + re.findall(r'src="([^"]+)"', page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target.strip()).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that Git hosts give to a page's headings."""
    headings = re.findall(r"^#+ +(.*?) *$", page.read_text(), flags=re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_of_links_are_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if (other := page.parent / target if target else page).suffix == ".md" and anchor not in anchors(other)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_the_pages_exist(page: Path) -> None:
    from medweave_steps.cli import VERBS

    named = re.findall(r"medweave-step ([a-z]+(?:-[a-z]+)*)", page.read_text())
    assert set(named) - set(VERBS) == set()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make (?:[A-Z]+=\S+ )*([a-z]+(?:-[a-z]+)*)`", page.read_text())
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_command_blocks_and_code_exist(page: Path) -> None:
    calls = calls_of(page.read_text())
    assert [f"line {call.line}: {problem}" for call in calls for problem in problems_of(call)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_needs_comment_stands_directly_before_a_command_block(page: Path) -> None:
    assert misplaced_marks(page.read_text()) == []


def test_blocks_and_calls_are_read_from_a_page() -> None:
    page = """\
# Title
<!-- needs: a cluster -->
```bash
medweave plan x.cwl --fromat svg | jq . && ! A=b medweave runn x   # --nope
medweave plan x.cwl \\
  --format gif
```
See `medweave-step train --stepz 4` and `medweave run --debug`.
1. In a list
   ```bash
   worker/bin/medweave-step segment --model-device CPU
   medweave schedule create x.yml --nix
   ```
"""
    assert [(block.line, block.needs) for block in blocks_of(page)] == [(4, "a cluster"), (11, None)]
    assert [(call.line, problem) for call in calls_of(page) for problem in problems_of(call)] == [
        (4, "'medweave plan' has no option --fromat"),
        (4, "there is no 'medweave runn'"),
        (5, "--format gif is none of text, json, svg"),
        (11, "'medweave-step segment' has no option --model-device"),
        (12, "'medweave schedule' has no option --nix"),
        (8, "'medweave-step train' has no option --stepz"),
    ]
    assert misplaced_marks("<!-- needs: a cluster -->\n\ntext\n") == [1]
