"""A copy of the repository with one mistake in it, and what `medweave validate` tells of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from medweave.validate.command import validate
from medweave.validate.findings import Finding
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
    """The files that mistakes are seeded into, as a working tree of git."""
    told = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *COPIED], capture_output=True, text=True, check=True
    )
    for name in filter(None, told.stdout.split("\0")):
        if (ROOT / name).is_file() and "deployments/testbed/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "-C", str(folder), "init", "--quiet"], check=True)


def seed(folder: Path, mistake: Mistake) -> int:
    """Writes a mistake; returns the line that must be named, from 1."""
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


def tell(folder: Path, mistake: Mistake, *, whole: bool = True) -> tuple[int, Sequence[Finding]]:
    """Return the line of a mistake and what is reported with it; the file is restored afterwards.

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


def fault(folder: Path, mistake: Mistake, line: int, findings: Sequence[Finding]) -> str:
    """Why a mistake was not found as it should be; empty where it was: once, with its file, line, rule and fix."""
    told = (
        "; ".join(f"{each.where} {each.place} [{each.rule}] {each.what} do: {each.fix}" for each in findings)
        or "nothing"
    )
    if len(findings) != 1:
        return f"{len(findings)} findings: {told}"
    (found,) = findings
    is_right = found.file == (folder / mistake.file).resolve() and found.line == line and found.rule == mistake.rule
    return (
        ""
        if is_right and found.fix and mistake.fix in found.fix
        else f"expected line {line}, {mistake.rule}, fix {mistake.fix!r}; told {told}"
    )
