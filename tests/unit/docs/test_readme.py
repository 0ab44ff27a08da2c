"""What the README says of commands, requirements and limits is what the repository has."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator

import pytest
import yaml

from medweave.cli import main_command
from medweave_steps import cli as step_command
from support.cwl_files import LUNG, ROOT, load

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def calls() -> Iterator[list[str]]:
    """Yield the words of each call of medweave or medweave-step in a command block."""
    for block in BLOCKS:
        for line in re.sub(r"\\\n", " ", block).splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in ("medweave", "medweave-step"):
                yield words


def row(title: str) -> str:
    """Return the row of the table of limits with this title."""
    limits = README.partition("\n## What it does, and what it does not do\n")[2].partition("\n## ")[0]
    (found,) = [line for line in limits.splitlines() if line.startswith(f"| {title} |")]
    return found


@pytest.mark.parametrize("words", calls(), ids=" ".join)
def test_commands_are_accepted_by_the_parsers(words: list[str]) -> None:
    program, name, *options = words
    if program == "medweave":
        parser = main_command.build_parser(name)
    else:
        parser = step_command.build_parser(step_command.load_verb(name), options)
    parser.parse_args(options)


def test_commands_are_found() -> None:
    names = {(program, name) for program, name, *_ in calls()}
    assert names >= {("medweave", name) for name in ("run", "doctor", "plan", "new")} | {("medweave-step", "check")}


def test_workflows_and_sites_of_the_commands_exist() -> None:
    files = {word for words in calls() for word in words if word.endswith(".cwl")}
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert (ROOT / "deployments" / "sites" / "laptop.yml").is_file()


def test_job_files_have_inputs_of_the_workflow() -> None:
    jobs = re.findall(r"<<'EOF'\n(.*?)^EOF", README, flags=re.DOTALL | re.MULTILINE)
    assert jobs
    for text in jobs:
        assert set(yaml.safe_load(text)) <= set(load(LUNG / "train.cwl")["inputs"])


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(BLOCKS) + " ".join(re.findall(r"`(make [^`]+)`", README))
    targets = set(re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", text))
    assert targets >= {"demo", "test", "env", "quick"}
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []


def test_requirements_are_those_of_the_installation() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    script = (ROOT / "deployments" / "environment" / "make-environment").read_text()
    needed = {
        name: int(mib) // 1000 for name, mib in re.findall(r"^  (default|cpu)\) needed_mib=(\d+)", script, re.MULTILINE)
    }
    assert f"Python {required.removeprefix('>=')} or newer" in README
    assert f"{needed['default']} GB of disk ({needed['cpu']} GB with `TORCH=cpu`)" in README


def test_all_types_of_connectors_are_named() -> None:
    folders = {
        path.parent.name for path in (ROOT / "connectors" / "medweave_connectors" / "sites").glob("*/connector.py")
    }
    assert set(re.findall(r"`(medweave\.\w+)`", row("sites"))) == {f"medweave.{name}" for name in folders - {"pods"}}


def test_all_verbs_are_named() -> None:
    assert set(re.findall(r"`([a-z-]+)`", row("steps"))) == set(step_command.VERBS)


def test_links_to_headings_have_one() -> None:
    links = re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", README)
    for target, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (ROOT / target).read_text(), flags=re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize(
    "page", ["docs/how-to/lay-out-a-cohort.md", "docs/how-to/describe-your-site.md", "docs/benchmarks.md"]
)
def test_formats_sites_and_costs_are_one_click_away(page: str) -> None:
    assert f"]({page})" in README
