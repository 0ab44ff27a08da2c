"""Which delivered files a crate may hold: outputs of the classes aggregate and model, as the run has written them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medweave.crate.classes import SHARED, Classes
from medweave.crate.hosts import Hosts
from medweave.crate.workflow import Definition
from medweave.validate.secrets import check_text
from medweave_connectors.runlog.values import folder_digest
from medweave_core.runlog.history import Run

FOLDER = "outputs"  # in the crate


@dataclass(slots=True)
class Included:
    """What the crate holds.

    Attributes:
        held: path in the crate, and where it lies, by digest.
        left_out: name of an output and why nothing of it is held.
    """

    held: dict[str, tuple[str, Path]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def include(folder: Path, record: Run, definition: Definition, classes: Classes, hosts: Hosts | None) -> Included:
    """Looks for the outputs of a run where they were delivered.

    Args:
        folder: `--outdir` of the run.
        hosts: names that a file must not have; None where they may be told.
    """
    found, there = Included(), _there(folder)
    for name, ports in definition.results.items():
        for port in ports:
            told = classes.of(port.step, port.name)
            items = [
                item
                for job in record.jobs
                if job.step == port.step and job.state == "completed"
                for item in job.outputs.get(port.name, ())
                if "sha256" in item
            ]
            if not items:
                continue
            if not told or set(told) - SHARED:
                found.left_out.append((name, f"its data class: {', '.join(told) or 'not known'}"))
                continue
            for item in items:
                _include(found, name, there.get(str(item["sha256"])), str(item["sha256"]), hosts)
    return found


def _include(found: Included, name: str, source: Path | None, sha256: str, hosts: Hosts | None) -> None:
    if source is None:
        found.left_out.append((name, "it is not in the folder, or not as the run has written it"))
    elif why := _refusal(source, hosts):
        found.left_out.append((name, why))
    elif sha256 not in found.held:
        found.held[sha256] = f"{FOLDER}/{name}/{source.name}", source


def _refusal(source: Path, hosts: Hosts | None) -> str:
    """Why a file or folder stays out, though its class is one that may be shared."""
    for path in _files(source):
        if any(check_text(path)):
            return "something in it has the form of a secret"
        if hosts is not None and (hosts.are_in(path.name.encode()) or hosts.are_in(path.read_bytes())):
            return "it names a host (--with-hosts lets it)"
    return ""


def _there(folder: Path) -> dict[str, Path]:
    """Files and folders of the first two levels, by digest; links are followed."""
    paths = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if path.exists()]
    digests: dict[Path, str] = {}

    def digest(path: Path) -> str:
        if path not in digests:
            with path.open("rb") as content:
                digests[path] = hashlib.file_digest(content, "sha256").hexdigest()
        return digests[path]

    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside: Mapping[str, str] = {file.relative_to(path).as_posix(): digest(file) for file in _files(path)}
            found.setdefault(folder_digest(inside), path)
        else:
            found.setdefault(digest(path), path)
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (each for each in sorted(path.rglob("*")) if each.is_file())
