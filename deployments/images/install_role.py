"""Installs one role of this checkout into a separate virtual environment, with the versions and hashes of constraints.txt.

usage: install_role.py ROLE TARGET     ROLE: an extra of pyproject.toml, such as segment; TARGET: the new environment's folder
Runs while an image is built, as root, in a folder that holds pyproject.toml, constraints.txt and the three packages' source.
Standard library only. Neither pip nor the build tools stay behind. Exit code 1 with pip's own words when one of its calls fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path


def canonical(name: str) -> str:
    """Return a package's name as the packaging standard compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_blocks(constraints: str) -> dict[str, list[str]]:
    """Package name -> its blocks in constraints.txt, an exact version and every accepted hash each.

    A package has several if its version depends on Python's; pip chooses one by their markers.
    """
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", constraints):
        if "==" in block:
            found.setdefault(canonical(re.split(r"[=\[ ]", block, maxsplit=1)[0]), []).append(block)
    return found


def versions(blocks: Iterable[list[str]]) -> str:
    """Return the same without hashes, as pip requires for constraints of a local project."""
    return "".join(
        re.sub(r" \\\n.*", "", block, flags=re.DOTALL) + "\n" for alternatives in blocks for block in alternatives
    )


def closure(resolution: str, blocks: dict[str, list[str]]) -> str:
    """Return the pinned lines of what pip resolved, medweave itself left out.

    Args:
        resolution: what `pip install --dry-run --report` wrote.
    Raises:
        KeyError: a resolved package is not pinned; run `make constraints`.
    """
    names = {canonical(item["metadata"]["name"]) for item in json.loads(resolution)["install"]} - {"medweave"}
    return "".join(block + "\n" for name in sorted(names) for block in blocks[name])


def call(*words: str | Path) -> None:
    """Run a program; its failure ends this one."""
    ended = subprocess.run([str(word) for word in words], check=False)
    if ended.returncode:
        sys.exit(f"install_role: {' '.join(str(word) for word in words[:6])} … ended with {ended.returncode}.")


def install(pip: list[str | Path], requirement: str, folder: Path) -> None:
    """Install what a requirement needs, hashes checked, and last the requirement itself where it is our wheel."""
    blocks = pinned_blocks(Path("constraints.txt").read_text())
    wanted, report, pinned = folder / "versions.txt", folder / "resolution.json", folder / "pinned.txt"
    wanted.write_text(versions(blocks.values()))
    call(*pip, "install", "--dry-run", "--quiet", "--report", report, "--constraint", wanted, requirement)
    pinned.write_text(closure(report.read_text(), blocks))
    call(*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--requirement", pinned)
    if "@ file:" in requirement:
        call(*pip, "install", "--quiet", "--no-deps", requirement)


def make_venv(folder: Path, *options: str) -> None:
    """A virtual environment; a bare Debian has Python's venv in a separate package."""
    command = [sys.executable, "-m", "venv", *options, str(folder)]
    if subprocess.run([sys.executable, "-c", "import ensurepip"], check=False, capture_output=True).returncode:
        call("apt-get", "update", "-qq")
        call("apt-get", "install", "-qq", "--yes", "--no-install-recommends", "python3-venv")
    call(*command)


def main(role: str, target: Path) -> None:
    """Build the wheel with tools that are thrown away, then the environment without pip."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_venv(folder / "tools")
        tool: list[str | Path] = [
            folder / "tools/bin/python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-cache-dir",
        ]
        install(tool, "hatchling", folder)
        call(*tool, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, Path.cwd())
        wheel = next(folder.glob("medweave-*.whl"))
        make_venv(target, "--without-pip")
        install([*tool, "--python", target / "bin/python"], f"medweave[{role}] @ file://{wheel}", folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
