"""Cache entries of a runs folder, as `medweave plan` reads them: with the functions that a run uses. Does not import streamflow.

Nothing is created or removed; digests of files that were read are stored, as in a run.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.cache.content import Contents, tree
from medweave_connectors.cache.key import SHOWN_CHARACTERS, describe_value, key_parts
from medweave_connectors.cache.local_software import processor, software_of
from medweave_connectors.cache.remote_index import SiteIndex
from medweave_connectors.cache.session import FOLDER, KEEP_DAYS
from medweave_connectors.cache.store import DATABASE_FILE, LocalStore
from medweave_connectors.host.environment import program_path
from medweave_connectors.policy.input_values import with_links
from medweave_connectors.policy.pseudonym_home import Home
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.manifest.site_inventory import content_digest

_NONE: Mapping[str, Any] = {}
_FOLDER = ManifestEntry(Kind.FOLDER, 0, 0o755, 0, "")


class CacheEntries:
    """The cache entries of a runs folder, read-only.

    Args:
        runs: the folder of runs.
    """

    def __init__(self, runs: Path) -> None:
        root = runs.absolute() / FOLDER
        self.exists = (root / DATABASE_FILE).is_file() and (root / "secret").is_file()
        self._store = LocalStore(root, limit_gib=0.0, keep_days=KEEP_DAYS)
        self._home = Home(runs.absolute())

    def find_run(self, work: str) -> str:
        """Return the run whose outputs a job with this cache key would get; empty if there is no complete entry.

        A site's store is not checked: the answer is what this machine's index says about it.
        """
        record = SiteIndex(self._store.database).get(work)
        return record.run_id if record is not None else self._store.find_run(work)

    def input_part(self, name: str, value: Any, *, source: str, folder: str, at_site: bool) -> tuple[str, str]:
        """Return name and digest of an input, as the `parts` of a job in the event log.

        Args:
            name: the tool's input.
            value: as job files have it.
            source: the workflow input that its files and folders are named after.
            folder: where its relative paths start.
            at_site: the job runs at a remote site, where folders are listed by a program.

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
                _digest_as_at_site(self._store.contents, real[path])
                if at_site
                else self._store.contents.digest(real[path])
            )

        named = _with_names(with_links(value, link_of, folder=folder))
        return self._shown(f"input {name}", inputs={name: describe_value(named, digest)})

    def programs_part(self, program: str) -> tuple[str, str]:
        """Return name and digest of the programs that a command would run on this machine.

        Args:
            program: the first word of the command.
        """
        return self._shown("programs", software=software_of([program], program_path({})))

    def processor_part(self) -> tuple[str, str]:
        """Return name and digest of this machine's processor."""
        return self._shown("processor", processor=processor())

    def _shown(
        self, name: str, *, inputs: Mapping[str, Any] = _NONE, software: str = "", processor: str = ""
    ) -> tuple[str, str]:
        parts = key_parts(
            words=(), environment={}, streams=(), inputs=inputs, staged={}, software=software, processor=processor,
            run_id="", secret=self._store.secret(),
        )  # fmt: skip
        return name, parts[name][:SHOWN_CHARACTERS]


def _with_names(value: Any) -> Any:
    """Add to files and folders the `basename` that the engine uses: the last part of their paths."""
    if isinstance(value, Mapping):
        inside = {name: _with_names(item) for name, item in value.items()}
        is_data = value.get("class") in ("File", "Directory")
        return {"basename": posixpath.basename(value["path"])} | inside if is_data else inside
    return [_with_names(item) for item in value] if isinstance(value, list) else value


def _digest_as_at_site(contents: Contents, path: str) -> str:
    """Return the digest of a local path as a remote site computes it: of a folder, the digest of its manifest."""
    if not Path(path).is_dir():
        return contents.digest(path)
    paths = list(tree(path))
    files = {inside: at for inside, at, is_folder in paths if not is_folder}
    digests = dict(zip(files, contents.files(list(files.values())), strict=True))
    entries = {ROOT: _FOLDER} | {
        inside: _FOLDER if is_folder else ManifestEntry(Kind.FILE, 0, os.stat(at).st_mode, 0, "", digests[inside])  # noqa: PTH116
        for inside, at, is_folder in paths
    }
    return content_digest(Manifest("", entries))
