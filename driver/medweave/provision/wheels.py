"""The wheels that a worker needs for a site's Python and machine: medweave's, and those pinned in constraints.txt."""

from __future__ import annotations

import email
import hashlib
import importlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_text
from medweave_core.errors import BackendMissingError, TryAgainError, UserInputError

NAME = "medweave"
OLDEST_GLIBC = 5  # 2.5, of manylinux1
ALIASES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """A Python at a site.

    Attributes:
        markers: its values of the packaging standard's environment markers.
        machine: architecture, such as `x86_64`.
        glibc: its version; empty for another C library.
        has_venv: whether it can create virtual environments with pip.
    """

    executable: str
    version: tuple[int, int, int]
    markers: Mapping[str, str]
    machine: str
    glibc: str
    has_venv: bool

    @property
    def platforms(self) -> list[str]:
        """Return the platforms of the wheels that it accepts, in pip's names, the newest first."""
        major, _, minor = self.glibc.partition(".")
        newest = int(minor) if major == "2" and minor.isdecimal() else OLDEST_GLIBC - 1
        names = []
        for number in range(newest, OLDEST_GLIBC - 1, -1):
            names += [f"manylinux_2_{number}", *([ALIASES[number]] if number in ALIASES else [])]
        return [f"{name}_{self.machine}" for name in (*names, "linux")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel file on this machine."""

    path: Path
    name: str
    version: str
    sha256: str

    @property
    def pinned(self) -> str:
        """Return its line in a file of requirements."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read_wheel(path: Path) -> Wheel:
    """Return the name, version and hash of a wheel.

    Raises:
        UserInputError: the file is no wheel.
    """
    try:
        fields = _metadata(path)
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise UserInputError(
            f"{shown(path)}: not a wheel.", seen=str(error) or "no METADATA in the file", expected="a .whl file",
            do="build a wheel: python -m build --wheel",
        ) from error  # fmt: skip
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return Wheel(path=path, name=_canonical(fields["Name"]), version=fields["Version"], sha256=sha256)


def _metadata(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def fits(package: Wheel, python: Python) -> bool:
    """Return whether medweave's wheel supports a Python."""
    accepted = _packaging("specifiers").SpecifierSet(_metadata(package.path)["Requires-Python"])
    return bool(accepted.contains(".".join(map(str, python.version))))


def checkout() -> Path | None:
    """Return the checkout from which medweave is installed here; None if it was installed from a wheel."""
    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    source = json.loads(text) if text else {}
    path = Path(unquote(urlsplit(source.get("url", "")).path))
    return path if source.get("dir_info", {}).get("editable") and (path / "pyproject.toml").is_file() else None


def build(folder: Path, into: Path) -> Path:
    """Build medweave's wheel from a checkout.

    Raises:
        UserInputError: it cannot be built; the error has pip's message.
    """
    _pip(
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(into),
        str(folder),
        what="build the wheel",
    )
    return next(into.glob("medweave-*.whl"))


def pinned_blocks(constraints: str) -> dict[str, list[str]]:
    """Return the blocks of each package in constraints.txt; several if the version depends on Python's."""
    blocks: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", constraints):
        if "==" in block:
            blocks.setdefault(_canonical(re.split(r"[=\[ ]", block, maxsplit=1)[0]), []).append(block.strip())
    return blocks


def requirement_of(name: str, blocks: Mapping[str, Sequence[str]], markers: Mapping[str, str]) -> str | None:
    """Return the pinned requirement of a package for a Python, with hashes and without marker; None if it has none.

    Raises:
        UserInputError: the package is not pinned at all.
    """
    if name not in blocks:
        raise UserInputError(
            f"the package '{name}' is not pinned.", seen="a requirement of medweave or of one of its packages",
            expected="all packages in constraints.txt, with hashes", do="use the constraints.txt of the same version",
        )  # fmt: skip
    for block in blocks[name]:
        head, *hashes = re.split(r"\s+(?=--hash=)", block.replace("\\\n", " "))
        requirement = _requirement(head)
        if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
            return " ".join((f"{requirement.name}{requirement.specifier}", *(digest.strip() for digest in hashes)))
    return None


def closure(
    package: Path, extras: Collection[str], python: Python, constraints: Path, into: Path, say: Callable[[str], None]
) -> list[Wheel]:
    """Download the wheels that some extras need, with checked hashes; return them, medweave's wheel first.

    Requirements are read from the wheels with the markers of the site's Python, since pip would use those of this machine.

    Args:
        extras: extras of medweave.
        into: an empty folder.
        say: called with a line for each download.

    Raises:
        UserInputError: a package is not pinned, or has no wheel for that machine.
        TryAgainError: the index does not answer.
    """
    blocks = pinned_blocks(read_text(constraints, "constraints.txt"))
    paths = {NAME: package}
    todo = [(NAME, extra) for extra in ("", *sorted(extras))]
    done: set[tuple[str, str]] = set()
    while todo:
        missing = sorted({name for name, _ in todo} - paths.keys())
        if missing:
            paths |= _download(missing, blocks, python, into, say)
        now, todo = [pair for pair in todo if pair not in done and pair[0] in paths], []
        done |= set(now)
        for name, extra in now:
            todo += [pair for pair in _needs(paths[name], extra, python.markers) if pair not in done]
        todo = list(dict.fromkeys(todo))
    return [read_wheel(path) for path in paths.values()]


def _needs(path: Path, extra: str, markers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs (package, extra) that a wheel requires, for itself or for one of its extras."""
    needs = []
    for text in _metadata(path).get_all("Requires-Dist", []):
        requirement = _requirement(text)
        if requirement.marker is None and extra:
            continue
        if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": extra}):
            needs += [(_canonical(requirement.name), name) for name in ("", *sorted(requirement.extras))]
    return needs


def _download(
    names: Sequence[str], blocks: Mapping[str, Sequence[str]], python: Python, into: Path, say: Callable[[str], None]
) -> dict[str, Path]:
    requirements = {name: requirement_of(name, blocks, python.markers) for name in names}
    lines = [line for line in requirements.values() if line is not None]
    if not lines:
        return {}
    say(f"downloading {', '.join(line.partition(' ')[0] for line in lines)}")
    before = set(into.glob("*.whl"))
    file = into / "requirements.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    place = [word for name in python.platforms for word in ("--platform", name)]
    version = ".".join(map(str, python.version[:2]))
    _pip(
        "download", "--quiet", "--progress-bar", "off", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--implementation", "cp", "--python-version", version, *place, "--dest", str(into), "--requirement", str(file),
        what=f"download wheels for Python {version} on {python.machine} with glibc {python.glibc}",
    )  # fmt: skip
    name_of = _packaging("utils").parse_wheel_filename
    return {name_of(path.name)[0]: path for path in sorted(set(into.glob("*.whl")) - before)}


def _pip(*words: str, what: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        message = " ".join(process.stderr.split()) or f"exit code {process.returncode}"
        kind = (
            UserInputError
            if re.search("No matching distribution|DO NOT MATCH|No module named", message)
            else TryAgainError
        )
        raise kind(
            f"pip failed: could not {what}.", seen=message[-600:],
            expected="a reachable package index, wheels for that machine, and the hashes of constraints.txt",
            do="read the message of pip; a package without a wheel for that machine must be installed there by hand",
        )  # fmt: skip


def _canonical(name: str) -> str:
    return str(_packaging("utils").canonicalize_name(name))


def _requirement(text: str) -> Any:
    return _packaging("requirements").Requirement(text)


def _packaging(module: str) -> Any:
    try:
        return importlib.import_module(f"packaging.{module}")
    except ImportError as error:
        raise BackendMissingError(
            "the library 'packaging' is missing.", seen=str(error),
            expected="medweave with the extra 'driver'", do="install it: pip install 'medweave[driver]'",
        ) from error  # fmt: skip
