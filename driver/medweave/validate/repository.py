"""Which files there are, and what each of them is; that follows from what is in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from medweave.pipelines import ROLES_FILE
from medweave.validate.findings import Finding
from medweave.validate.source import Source, read
from medweave_connectors.closest import closest
from medweave_connectors.documents import remember
from medweave_connectors.lines import shown
from medweave_steps.contracts.errors import UsageError

IGNORE_FILE = ".medweave-ignore"
CWL_CLASSES = ("Workflow", "CommandLineTool", "ExpressionTool", "Operation")
CHART_FILE = "Chart.yaml"
YAML_ENDS = (".yml", ".yaml", ".cwl")


@dataclass(slots=True)
class Repository:
    """The files that are looked at.

    Attributes:
        root: top of the working tree, or the current folder.
        files: all of them.
        cwl, streamflow, sites, roles, schedules, charts, others: YAML files by kind.
        findings: what is wrong with files as YAML.
    """

    root: Path
    files: Sequence[Path]
    cwl: dict[Path, Source] = field(default_factory=dict)
    streamflow: dict[Path, Source] = field(default_factory=dict)
    sites: dict[Path, Source] = field(default_factory=dict)
    roles: dict[Path, Source] = field(default_factory=dict)
    schedules: dict[Path, Source] = field(default_factory=dict)
    charts: dict[Path, Source] = field(default_factory=dict)
    others: dict[Path, list[Source]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _read: dict[Path, list[Source]] = field(default_factory=dict)

    def source(self, path: Path) -> Source | None:
        """A file that another one names; None where it is missing or no mapping. Its own faults are told where it is looked at."""
        if path not in self._read:
            self._read[path] = read(path)[0] if path.is_file() else []
        documents = self._read[path]
        return documents[0] if documents and isinstance(documents[0].data, dict) else None

    def add(self, path: Path) -> None:
        """Reads a YAML file and puts it with its kind."""
        sources, faults = read(path)
        self._read[path] = sources
        self.findings += faults
        if len(sources) == 1 and not faults:
            remember(sources[0].text, sources[0].data)
        first = sources[0] if sources and isinstance(sources[0].data, dict) else None
        kind = _kind(path, first.data) if first else "others"
        if kind == "others" or first is None:
            self.others[path] = sources
        else:
            getattr(self, kind)[path] = first

    def broken(self) -> set[Path]:
        """Files that something is wrong with as YAML: what follows from that is not told."""
        return {finding.file for finding in self.findings}


def open_repository(paths: Sequence[Path]) -> Repository:
    """The files at and below some paths, without those that git or `.medweave-ignore` leaves out.

    Raises:
        UsageError: one of the paths is not there.
    """
    for path in paths:
        if not path.exists():
            beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UsageError(
                f"{shown(path)}: there is no such file or folder.", seen=str(path), expected="files or folders to look at",
                do=closest(path.name, beside) or "check the path",
            )  # fmt: skip
    root = _top(paths[0].resolve())
    files: dict[Path, None] = {}
    for path in paths:
        start = path.resolve()
        found = [start] if start.is_file() else _below(start, root)
        files.update(dict.fromkeys(found))
    repository = Repository(root=root, files=list(files))
    charts = {path.parent for path in files if path.name == CHART_FILE}
    for path in files:
        is_template = any(chart / "templates" in path.parents for chart in charts)
        if path.suffix in YAML_ENDS and not is_template:
            repository.add(path)
    return repository


def ignored(root: Path, paths: Sequence[Path]) -> set[Path]:
    """Those of some paths that git ignores: a run makes them."""
    if not paths:
        return set()
    told = _git(root, "check-ignore", "-z", "--stdin", given="\0".join(map(str, paths)))
    return {Path(name) for name in told.split("\0") if name}


def _kind(path: Path, data: Mapping[str, Any]) -> str:
    if path.suffix == ".cwl" or ("class" in data and "cwlVersion" in data) or data.get("class") in CWL_CLASSES:
        return "cwl"
    if path.name == CHART_FILE:
        return "charts"
    if path.name == ROLES_FILE:
        return "roles"
    if "workflows" in data or ("version" in data and "deployments" in data):
        return "streamflow"
    if "deployments" in data and {"title", "roles", "mayHold", "inputs"} & set(data):
        return "sites"
    if {"name", "file"} <= set(data) and {"when", "place", "watch", "notify"} & set(data):
        return "schedules"
    return "others"


def _top(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder)


def _below(folder: Path, root: Path) -> list[Path]:
    named = [folder / name for name in _listed(folder)]
    left_out = _Ignored(root)
    is_named = left_out.holds(folder / "any")  # who names a folder that is left out wants it looked at
    kept = [
        path for path in named if not _is_hidden(path.relative_to(folder)) and (is_named or not left_out.holds(path))
    ]
    return sorted(path for path in kept if path.is_file())


def _listed(folder: Path) -> Iterator[str]:
    told = _git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    if told:
        yield from filter(None, told.split("\0"))
        return
    for above, folders, names in os.walk(folder):  # no git here
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.relpath(Path(above) / name, folder) for name in names)


def _git(folder: Path, *words: str, given: str = "") -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *words], input=given, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return ended.stdout if ended.returncode == 0 else ""


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith(".") and part != ".gitlab-ci.yml" for part in path.parts)


class _Ignored:
    """The lines of `.medweave-ignore`: a folder with all in it (`tests/`), or a pattern (`*.draft.yml`), from the file's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def patterns(self) -> list[str]:
        file = self.root / IGNORE_FILE
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def holds(self, path: Path) -> bool:
        inside = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return any(
            str(inside).startswith(each.lstrip("/")) if each.endswith("/") else inside.match(each)
            for each in self.patterns
        )
