"""The delivered files that a crate may contain: unchanged outputs of the classes aggregate and model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medweave.crate.classes import SHARED, PortClasses
from medweave.crate.hosts import Hosts
from medweave.crate.workflow import Definition
from medweave.validate.secrets import check_text
from medweave_connectors.runlog.values import folder_digest
from medweave_core.runlog.history import Run

FOLDER = "outputs"  # in the crate


@dataclass(slots=True)
class Included:
    """The files of a crate.

    Attributes:
        by_digest: path in the crate and source path, by digest.
        left_out: name of an output, and why it is not included.
    """

    by_digest: dict[str, tuple[str, Path]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def include(folder: Path, record: Run, definition: Definition, classes: PortClasses, hosts: Hosts | None) -> Included:
    """Return the outputs of a run that a crate may contain, from the folder to which they were delivered.

    Args:
        folder: `--outdir` of the run.
        hosts: names that a file must not contain; None if they are allowed.
    """
    included, delivered = Included(), _delivered(folder)
    for name, ports in definition.results.items():
        for port in ports:
            port_classes = classes.of(port.step, port.name)
            items = [
                item
                for job in record.jobs
                if job.step == port.step and job.state == "completed"
                for item in job.outputs.get(port.name, ())
                if "sha256" in item
            ]
            if not items:
                continue
            if not port_classes or set(port_classes) - SHARED:
                included.left_out.append((name, f"data class: {', '.join(port_classes) or 'unknown'}"))
                continue
            for item in items:
                _include(included, name, delivered.get(str(item["sha256"])), str(item["sha256"]), hosts)
    return included


def _include(included: Included, name: str, source: Path | None, sha256: str, hosts: Hosts | None) -> None:
    if source is None:
        included.left_out.append((name, "not in the results folder, or changed since the run"))
    elif reason := _refusal(source, hosts):
        included.left_out.append((name, reason))
    elif sha256 not in included.by_digest:
        included.by_digest[sha256] = f"{FOLDER}/{name}/{source.name}", source


def _refusal(source: Path, hosts: Hosts | None) -> str:
    """Return why a file or folder of a shareable class is left out; empty if it is not."""
    for path in _files(source):
        if any(check_text(path)):
            return "it contains text that looks like a secret"
        if hosts is not None and (hosts.are_in(path.name.encode()) or hosts.are_in(path.read_bytes())):
            return "it contains a host name (--with-hosts includes it)"
    return ""


def _delivered(folder: Path) -> dict[str, Path]:
    """Return the files and folders of the first two levels, by digest; links are followed."""
    paths = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if path.exists()]
    digests: dict[Path, str] = {}

    def digest(path: Path) -> str:
        if path not in digests:
            with path.open("rb") as content:
                digests[path] = hashlib.file_digest(content, "sha256").hexdigest()
        return digests[path]

    by_digest: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            files: Mapping[str, str] = {file.relative_to(path).as_posix(): digest(file) for file in _files(path)}
            by_digest.setdefault(folder_digest(files), path)
        else:
            by_digest.setdefault(digest(path), path)
    return by_digest


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (inner for inner in sorted(path.rglob("*")) if inner.is_file())
