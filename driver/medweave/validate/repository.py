"""The files of a repository, and the kind of each, by its content."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from medweave.project.near_files import near
from medweave.project.schedules import schema as schedule_schema
from medweave.project.schemas import streamflow_schema
from medweave.project.sites import schema as site_schema
from medweave.project.workflows import ROLES_FILE
from medweave.validate.findings import ValidationFinding, of_syntax
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.source_documents import SourceDocument
from medweave_core.errors import UsageError
from medweave_core.runlog.run_folder import EVENTS

IGNORE_FILE = ".medweave-ignore"
CWL_CLASSES = ("Workflow", "CommandLineTool", "ExpressionTool", "Operation")
CHART_FILE = "Chart.yaml"
YAML_ENDS = (".yml", ".yaml", ".cwl")
FOLDERS = {"deployments/sites": "sites", "deployments/schedules": "schedules"}
# By kind: the rule for an empty file, and the expected content.
EMPTY = {
    "cwl": ("cwl-structure", "CWL document"),
    "charts": ("chart", "Chart.yaml"),
    "roles": ("roles", "roles file"),
    "streamflow": ("binding-structure", "StreamFlow file"),
    "sites": ("site", "site file"),
    "schedules": ("schedule", "schedule file"),
}


@dataclass(slots=True)
class Repository:
    """The files that are checked.

    Attributes:
        root: top of the working tree, or the current folder.
        files: all of them.
        cwl, streamflow, sites, roles, schedules, charts, others: YAML files by kind.
        named: those that whoever called named by themselves.
        hidden: files that git keeps and whose names begin with a dot, or that are in such folders: looked through for secrets.
        findings: errors of files as YAML.
        reader: reader of this command.
        unsound: files that do not have the shape of their kind; nothing that leans on one of them is looked at.
    """

    root: Path
    files: Sequence[Path]
    named: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    cwl: dict[Path, SourceDocument] = field(default_factory=dict)
    streamflow: dict[Path, SourceDocument] = field(default_factory=dict)
    sites: dict[Path, SourceDocument] = field(default_factory=dict)
    roles: dict[Path, SourceDocument] = field(default_factory=dict)
    schedules: dict[Path, SourceDocument] = field(default_factory=dict)
    charts: dict[Path, SourceDocument] = field(default_factory=dict)
    others: dict[Path, list[SourceDocument]] = field(default_factory=dict)
    findings: list[ValidationFinding] = field(default_factory=list)
    unsound: set[Path] = field(default_factory=set)
    reader: CwlReader = field(default_factory=CwlReader)

    def source(self, path: Path) -> SourceDocument | None:
        """Return a file that another one names; None if it is missing, not a mapping or unsound, which its own check reports."""
        documents = self.reader.parse(path).documents
        is_sound = path not in self.unsound and documents and isinstance(documents[0].data, dict)
        return documents[0] if is_sound else None

    def process(self, path: Path) -> Process | None:
        """Return the CWL process in a file; None where `source` returns None."""
        return None if self.source(path) is None else self.reader.find_process(path)

    def add(self, path: Path) -> None:
        """Read a YAML file and store it by its kind."""
        parsed = self.reader.parse(path)
        sources, faults = list(parsed.documents), parsed.faults
        self.findings += map(of_syntax, faults)
        first = sources[0] if sources else None
        kind = _kind(path, first.data if first else None)
        if first is not None and isinstance(first.data, dict) and kind != "others":
            getattr(self, kind)[path] = first
            return
        self.others[path] = sources
        if kind != "others" and not faults:
            rule, what = EMPTY[kind]
            self.findings.append(
                ValidationFinding(
                    file=path,
                    line=1,
                    column=1,
                    rule=rule,
                    what=f"this {what} is empty or not a mapping.",
                    seen=type(first.data).__name__ if first is not None and first.data is not None else "nothing",
                    expected="a mapping: lines `key: value`",
                    fix="start from an existing file, or remove this one",
                )
            )


def open_repository(paths: Sequence[Path]) -> Repository:
    """Return the files at and below some paths, without those that git or `.medweave-ignore` excludes.

    Raises:
        UsageError: one of the paths is not there.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"{shown(path)}: no such file or folder.", seen=str(path), expected="files or folders to check",
                do=near(path)[1] or "correct the path",
            )  # fmt: skip
    root = _top(paths[0].resolve())
    files: dict[Path, None] = {}
    for path in paths:
        start = path.resolve()
        below = [start] if start.is_file() else _below(start, root)
        files.update(dict.fromkeys(below))
    of_runs = {path.parent for path in files if path.name == EVENTS} - {path.resolve() for path in paths}
    files = {path: None for path in files if not of_runs & set(path.parents)}
    named = [start for path in paths if (start := path.resolve()).is_file()]
    repository = Repository(root=root, files=list(files), named=named, hidden=_hidden(paths, files))
    charts = {path.parent for path in files if path.name == CHART_FILE}
    for path in files:
        is_template = any(chart / "templates" in path.parents for chart in charts)
        if path.suffix in YAML_ENDS and not is_template:
            repository.add(path)
    return repository


def ignored(root: Path, paths: Sequence[Path]) -> set[Path]:
    """Return the paths that git ignores: a run creates them."""
    if not paths:
        return set()
    names = _git(root, "check-ignore", "-z", "--stdin", stdin="\0".join(map(str, paths)))
    return {Path(name) for name in names.split("\0") if name}


def _kind(path: Path, data: Any) -> str:
    """Return the kind of a file by its content; by its folder for sites and schedules, since a key may be misspelt."""
    keys: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    if path.suffix == ".cwl" or ("class" in keys and "cwlVersion" in keys) or keys.get("class") in CWL_CLASSES:
        return "cwl"
    if path.name == CHART_FILE:
        return "charts"
    if path.name == ROLES_FILE:
        return "roles"
    if {"apiVersion", "kind"} <= set(keys):  # a manifest of Kubernetes next to a site file
        return "others"
    if (of_folder := FOLDERS.get("/".join(path.parent.parts[-2:]))) is not None:
        return of_folder
    if path.name.startswith("streamflow"):
        return "streamflow"
    matches = {kind: len(words & set(keys)) for kind, words in _keys_of_kinds().items()}
    kind = max(matches, key=lambda kind_name: matches[kind_name])
    return kind if matches[kind] > 1 and 2 * matches[kind] > len(keys) else "others"


@functools.cache
def _keys_of_kinds() -> dict[str, set[str]]:
    schemas = {"streamflow": streamflow_schema(), "sites": site_schema(), "schedules": schedule_schema()}
    return {kind: set(schema["properties"]) for kind, schema in schemas.items()}


def _top(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder)


def _below(folder: Path, root: Path) -> list[Path]:
    listed = [folder / name for name in _listed(folder)]
    ignore_file = _IgnoreFile(root)
    is_named = ignore_file.excludes(folder / "any")  # who names a folder that is left out wants it looked at
    visible = [
        path
        for path in listed
        if not _is_hidden(path.relative_to(folder)) and (is_named or not ignore_file.excludes(path))
    ]
    return sorted(path for path in visible if path.is_file())


def _listed(folder: Path) -> Iterator[str]:
    tracked = _git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    if tracked:
        yield from filter(None, tracked.split("\0"))
        return
    for above, folders, names in os.walk(folder):  # no git here
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.relpath(Path(above) / name, folder) for name in names)


def _git(folder: Path, *words: str, stdin: str = "") -> str:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *words], input=stdin, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return process.stdout if process.returncode == 0 else ""


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith(".") and part != ".gitlab-ci.yml" for part in path.parts)


def _hidden(paths: Sequence[Path], others: Collection[Path]) -> list[Path]:
    hidden = []
    for folder in (path.resolve() for path in paths if path.is_dir()):
        tracked = [Path(name) for name in _git(folder, "ls-files", "--cached", "-z").split("\0") if name]
        hidden += [folder / name for name in tracked if _is_hidden(name)]
    return [path for path in dict.fromkeys(hidden) if path.is_file() and path not in others]


class _IgnoreFile:
    """The lines of `.medweave-ignore`: folders (`tests/`) and patterns (`*.draft.yml`), relative to its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def patterns(self) -> list[str]:
        file = self.root / IGNORE_FILE
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def excludes(self, path: Path) -> bool:
        inside = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return any(
            str(inside).startswith(pattern.lstrip("/")) if pattern.endswith("/") else inside.match(pattern)
            for pattern in self.patterns
        )
