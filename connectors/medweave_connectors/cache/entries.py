"""What the runs of a folder keep, asked before a run: by the functions that a run asks with. No streamflow in here.

Nothing is made or removed; digests of files that were read are remembered, as in a run.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.cache.content import Contents, tree
from medweave_connectors.cache.key import SHOWN_CHARACTERS, described, parts_of
from medweave_connectors.cache.local_software import processor, software_of
from medweave_connectors.cache.remote_index import Ledger
from medweave_connectors.cache.session import FOLDER, KEEP_DAYS
from medweave_connectors.cache.store import MEMO, Shelf
from medweave_connectors.policy.input_values import behind_links
from medweave_connectors.policy.pseudonym_home import Home
from medweave_connectors.sites.local.environment import step_environment
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.manifest.site_inventory import content_digest

_NONE: Mapping[str, Any] = {}
_FOLDER = ManifestEntry(Kind.FOLDER, 0, 0o755, 0, "")


class Kept:
    """See the module.

    Args:
        runs: the folder of runs.
    """

    def __init__(self, runs: Path) -> None:
        root = runs.absolute() / FOLDER
        self.there = (root / MEMO).is_file() and (root / "secret").is_file()
        self._shelf = Shelf(root, limit_gib=0.0, keep_days=KEEP_DAYS)
        self._home = Home(runs.absolute())

    def run_of(self, work: str) -> str:
        """The run whose outputs a job of this work would get; empty where they are not kept, or not whole any more.

        What a site keeps is not looked at: it is what this machine knows of it.
        """
        record = Ledger(self._shelf.memo).get(work)
        return record.run_id if record is not None else self._shelf.run_of(work)

    def input_part(self, name: str, value: Any, *, source: str, folder: str, at_site: bool) -> tuple[str, str]:
        """Name and digest of an input, as a job's `parts` have them in the event log.

        Args:
            name: the tool's input.
            value: as job files have it.
            source: the workflow's input, which its files and folders get their names from.
            folder: where its relative paths start.
            at_site: the job is elsewhere, where folders are listed by a program.

        Raises:
            OSError: a file or folder cannot be read.
        """
        real: dict[str, str] = {}

        def link_of(path: str) -> str:
            link = str(self._home.link_of(path, source, what=""))
            real[link] = path
            return link

        def digest(path: str) -> str:
            return (
                _as_a_site_lists(self._shelf.contents, real[path])
                if at_site
                else self._shelf.contents.digest(real[path])
            )

        seen = _with_names(behind_links(value, link_of, folder=folder))
        return self._shown(f"input {name}", inputs={name: described(seen, digest)})

    def programs_part(self, program: str) -> tuple[str, str]:
        """The same of the programs that a command of this machine would run.

        Args:
            program: the first word of the command.
        """
        return self._shown("programs", software=software_of([program], step_environment()["PATH"]))

    def processor_part(self) -> tuple[str, str]:
        """The same of this machine's processor."""
        return self._shown("processor", processor=processor())

    def _shown(
        self, name: str, *, inputs: Mapping[str, Any] = _NONE, software: str = "", processor: str = ""
    ) -> tuple[str, str]:
        parts = parts_of(
            words=(), environment={}, streams=(), inputs=inputs, staged={}, software=software, processor=processor,
            run_id="", secret=self._shelf.secret(),
        )  # fmt: skip
        return name, parts[name][:SHOWN_CHARACTERS]


def _with_names(value: Any) -> Any:
    """Files and folders with the names that the engine gives them: the last part of their paths."""
    if isinstance(value, Mapping):
        inside = {name: _with_names(each) for name, each in value.items()}
        is_data = value.get("class") in ("File", "Directory")
        return {"basename": posixpath.basename(value["path"])} | inside if is_data else inside
    return [_with_names(each) for each in value] if isinstance(value, list) else value


def _as_a_site_lists(contents: Contents, path: str) -> str:
    if not Path(path).is_dir():
        return contents.digest(path)
    there = list(tree(path))
    files = {inside: at for inside, at, is_folder in there if not is_folder}
    digests = dict(zip(files, contents.files(list(files.values())), strict=True))
    entries = {ROOT: _FOLDER} | {
        inside: _FOLDER if is_folder else ManifestEntry(Kind.FILE, 0, os.stat(at).st_mode, 0, "", digests[inside])  # noqa: PTH116
        for inside, at, is_folder in there
    }
    return content_digest(Manifest("", entries))
