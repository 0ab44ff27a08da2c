"""The README opens with lines of a committed file, and with the command that made it."""

from __future__ import annotations

import re

from support.cwl_files import ROOT

README = (ROOT / "README.md").read_text()
OPENING = README.split("\n## ")[0]
LEFT_OUT = "…"


def block(language: str) -> str:
    """The only block of a language before the first section."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", OPENING, flags=re.DOTALL)
    return str(found)


def test_its_binding_lines_stand_in_the_committed_file_in_this_order() -> None:
    (path,) = re.findall(r"\]\((deployments/bindings/[^)]+)\)", OPENING)
    lines = iter((ROOT / path).read_text().splitlines())
    missing = [line for line in block("yaml").splitlines() if line != LEFT_OUT and line not in lines]
    assert missing == []


def test_the_lines_are_those_of_three_environments() -> None:
    types = re.findall(r"type: (medweave\.\w+)", block("yaml"))
    assert types == ["medweave.slurm", "medweave.compss", "medweave.helm"]
    assert re.findall(r"step: /(\w+)", block("yaml")) == ["train", "train_distributed", "segment"]


def test_the_command_is_the_one_in_the_header_of_the_file() -> None:
    (path,) = re.findall(r"\]\((deployments/bindings/[^)]+)\)", OPENING)
    command = re.sub(r" \\\n +", " ", block("bash"))
    assert command.startswith("medweave bind ")
    assert f"#   {command}" in (ROOT / path).read_text()


def test_all_types_of_connectors_are_named() -> None:
    row = next(line for line in README.splitlines() if line.startswith("| `connectors/"))
    named = {f"medweave{suffix}" for suffix in re.findall(r"`(?:medweave)?(\.\w+)`", row)}
    folders = {
        path.parent.name for path in (ROOT / "connectors" / "medweave_connectors" / "sites").glob("*/connector.py")
    }
    assert named == {f"medweave.{name}" for name in folders - {"pods"}}
