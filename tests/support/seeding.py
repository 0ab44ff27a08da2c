"""A copy of the repository with one mistake in it, and what `medweave validate` reports of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from medweave.validate.command import validate
from medweave.validate.findings import ValidationFinding
from support.cwl_files import ROOT
from support.mistake import Mistake

COPIED = (
    "workflows",
    "deployments",
    "helm",
    "streamflow.yml",
    "streamflow-infer.yml",
    "pyproject.toml",
    ".gitignore",
    ".medweave-ignore",
)


def copy_repository(folder: Path) -> None:
    """Copy the files that mistakes are seeded into, as a git working tree."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *COPIED], capture_output=True, text=True, check=True
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file() and "deployments/testbed/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "-C", str(folder), "init", "--quiet"], check=True)


def seed(folder: Path, mistake: Mistake) -> int:
    """Write a mistake; return the line that must be named, from 1."""
    path = folder / mistake.file
    before = path.read_text(encoding="utf-8") if mistake.old else ""
    assert before.count(mistake.old) >= 1, f"{mistake.name}: the text is not in {mistake.file}"
    after = before.replace(mistake.old, mistake.new, 1) if mistake.old else mistake.new
    path.write_text(after, encoding="utf-8")
    if mistake.at:
        assert mistake.at in after, f"{mistake.name}: no line with {mistake.at!r}"
        return after.count("\n", 0, after.index(mistake.at)) + 1
    pairs = zip([*before.splitlines(), ""], after.splitlines(), strict=False)
    return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)


def seed_and_validate(folder: Path, mistake: Mistake, *, whole: bool = True) -> tuple[int, Sequence[ValidationFinding]]:
    """Return the line of a mistake and the findings for it; the file is restored afterwards.

    Args:
        whole: validate all files; else the changed file alone.
    """
    path = folder / mistake.file
    before = path.read_text(encoding="utf-8") if mistake.old else None
    try:
        return seed(folder, mistake), validate([folder if whole else path])[0]
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")


def fault(folder: Path, mistake: Mistake, line: int, findings: Sequence[ValidationFinding]) -> str:
    """Return why a mistake was not reported as expected; empty if it was: once, with its file, line, rule and fix."""
    text = (
        "; ".join(
            f"{finding.where} {finding.place} [{finding.rule}] {finding.what} do: {finding.fix}" for finding in findings
        )
        or "nothing"
    )
    if len(findings) != 1:
        return f"{len(findings)} findings: {text}"
    (finding,) = findings
    is_right = (
        finding.file == (folder / mistake.file).resolve() and finding.line == line and finding.rule == mistake.rule
    )
    return (
        ""
        if is_right and finding.fix and mistake.fix in finding.fix
        else f"expected line {line}, {mistake.rule}, fix {mistake.fix!r}; reported {text}"
    )
