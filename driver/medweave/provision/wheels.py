"""The wheels that a worker needs: medweave's own, and those that constraints.txt pins, for a site's Python and machine."""

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

OWN = "medweave"
OLDEST_GLIBC = 5  # 2.5, of manylinux1
ALIASES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """A Python at a site.

    Attributes:
        markers: its values of the packaging standard's environment markers.
        machine: `x86_64`.
        glibc: its version; empty for another C library.
        has_venv: it can make virtual environments with pip.
    """

    executable: str
    version: tuple[int, int, int]
    markers: Mapping[str, str]
    machine: str
    glibc: str
    has_venv: bool

    @property
    def platforms(self) -> list[str]:
        """The platforms of wheels that it takes, as pip names them; the newest first."""
        major, _, minor = self.glibc.partition(".")
        newest = int(minor) if major == "2" and minor.isdecimal() else OLDEST_GLIBC - 1
        names = []
        for number in range(newest, OLDEST_GLIBC - 1, -1):
            names += [f"manylinux_2_{number}", *([ALIASES[number]] if number in ALIASES else [])]
        return [f"{name}_{self.machine}" for name in (*names, "linux")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel on this machine."""

    path: Path
    name: str
    version: str
    sha256: str

    @property
    def pinned(self) -> str:
        """Its line in a file of requirements."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read_wheel(path: Path) -> Wheel:
    """Name, version and hash of a wheel.

    Raises:
        UserInputError: it is none.
    """
    try:
        told = _metadata(path)
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise UserInputError(
            f"{shown(path)}: this is no wheel.", seen=str(error) or "no METADATA in it", expected="a file *.whl",
            do="build it: python -m build --wheel",
        ) from error  # fmt: skip
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return Wheel(path=path, name=_canonical(told["Name"]), version=told["Version"], sha256=sha256)


def _metadata(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def fits(own: Wheel, python: Python) -> bool:
    """Whether medweave's wheel takes this Python."""
    accepted = _packaging("specifiers").SpecifierSet(_metadata(own.path)["Requires-Python"])
    return bool(accepted.contains(".".join(map(str, python.version))))


def checkout() -> Path | None:
    """The checkout from which medweave is installed here; None where it came as a wheel."""
    try:
        text = metadata.distribution(OWN).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    told = json.loads(text) if text else {}
    path = Path(unquote(urlsplit(told.get("url", "")).path))
    return path if told.get("dir_info", {}).get("editable") and (path / "pyproject.toml").is_file() else None


def build(folder: Path, into: Path) -> Path:
    """Builds medweave's wheel of a checkout.

    Raises:
        UserInputError: it cannot be built; the message has pip's words.
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
    """Package name to its blocks in constraints.txt; several where the version depends on Python's."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", constraints):
        if "==" in block:
            found.setdefault(_canonical(re.split(r"[=\[ ]", block, maxsplit=1)[0]), []).append(block.strip())
    return found


def requirement_of(name: str, blocks: Mapping[str, Sequence[str]], markers: Mapping[str, str]) -> str | None:
    """The pinned requirement of a package for a Python, with its hashes and without a marker; None where it has none there.

    Raises:
        UserInputError: the package is not pinned at all.
    """
    if name not in blocks:
        raise UserInputError(
            f"the package '{name}' is not pinned.", seen="a requirement of medweave or of one of its packages",
            expected="each of them in constraints.txt, with hashes", do="take the constraints.txt of the same version",
        )  # fmt: skip
    for block in blocks[name]:
        head, *hashes = re.split(r"\s+(?=--hash=)", block.replace("\\\n", " "))
        wanted = _requirement(head)
        if wanted.marker is None or wanted.marker.evaluate({**markers, "extra": ""}):
            return " ".join((f"{wanted.name}{wanted.specifier}", *(each.strip() for each in hashes)))
    return None


def closure(
    own: Path, extras: Collection[str], python: Python, constraints: Path, into: Path, say: Callable[[str], None]
) -> list[Wheel]:
    """Downloads all that a role needs, hashes checked; medweave's own wheel comes first.

    What a package needs is read from its own wheel, with the markers of the site's Python: pip would take those of this machine.

    Args:
        extras: of medweave.
        into: an empty folder.
        say: gets a line for each part.

    Raises:
        UserInputError: a package is not pinned, or has no wheel for that machine.
        TryAgainError: the index does not answer.
    """
    blocks = pinned_blocks(read_text(constraints, "constraints.txt"))
    paths = {OWN: own}
    todo = [(OWN, extra) for extra in ("", *sorted(extras))]
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
    """(package, extra) of what a wheel requires, for itself or for one of its extras."""
    found = []
    for text in _metadata(path).get_all("Requires-Dist", []):
        wanted = _requirement(text)
        if wanted.marker is None and extra:
            continue
        if wanted.marker is None or wanted.marker.evaluate({**markers, "extra": extra}):
            found += [(_canonical(wanted.name), each) for each in ("", *sorted(wanted.extras))]
    return found


def _download(
    names: Sequence[str], blocks: Mapping[str, Sequence[str]], python: Python, into: Path, say: Callable[[str], None]
) -> dict[str, Path]:
    wanted = {name: requirement_of(name, blocks, python.markers) for name in names}
    lines = [line for line in wanted.values() if line is not None]
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
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        said = " ".join(ended.stderr.split()) or f"exit code {ended.returncode}"
        kind = (
            UserInputError
            if re.search("No matching distribution|DO NOT MATCH|No module named", said)
            else TryAgainError
        )
        raise kind(
            f"pip could not {what}.", seen=said[-600:],
            expected="the package index within reach, wheels for that machine, and the hashes of constraints.txt",
            do="look at pip's words; a package without a wheel for that machine has to be installed there by hand",
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
            "the library 'packaging' is not installed.", seen=str(error),
            expected="medweave installed with its extra 'driver'", do="pip install 'medweave[driver]'",
        ) from error  # fmt: skip
