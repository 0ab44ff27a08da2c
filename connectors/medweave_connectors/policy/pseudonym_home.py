"""The re-identification map of a folder of runs: the key of the pseudonyms, and links from pseudonyms to the data.

StreamFlow reads inputs by these links. The folder is for its owner only, is never sent anywhere, and stays for later runs.
No StreamFlow in this module.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import secrets
from pathlib import Path

from medweave_connectors.host.secret_file import NUM_BYTES, made_once
from medweave_connectors.policy.pseudonyms import pseudonym, stem_and_kind
from medweave_connectors.runlog import current
from medweave_core.errors import UsageError

FOLDER, KEY = ".home", "key"  # in the folder of runs


class Home:
    """The key and the links of a folder of runs. Nothing is written before `make`: a file may be read only to validate it."""

    def __init__(self, runs: Path) -> None:
        self.folder = runs / FOLDER
        self.site_links: dict[str, str] = {}  # at sites: link to its target
        self._key: bytes | None = None
        self._requested: dict[
            str, tuple[Path, str]
        ] = {}  # name of a link to its target, and where the target was named
        self._listings: dict[Path, dict[str, list[tuple[Path, str]]]] = {}
        self._link_to: dict[str, str] = {}  # real path of a target to its link

    def link_of(self, path: str, port: str, *, what: str) -> Path:
        """Return the path of the link to a file or folder; `make` creates it.

        Files with the same name but another suffix get links in the same folder: CWL looks for secondary files there.

        Args:
            path: absolute, of this machine.
            port: the input of the workflow.
            what: where the path was named, for an error.
        """
        real = Path(os.path.normpath(path))
        stem, kind = stem_and_kind(real.name)
        name = pseudonym(self._key_of(), port, str(real.with_name(stem)))
        for sibling, suffix in () if real.is_dir() else self._listing(real.parent).get(stem, ()):
            self._requested.setdefault(f"{name}{suffix}", (sibling, ""))
        self._requested[f"{name}{kind}"] = real, what
        return self.folder / f"{name}{kind}"

    def site_link_of(self, path: str, port: str, *, folder: str) -> str:
        """Return the path of the link to a file or folder at a site.

        Args:
            path: absolute, at the site.
            folder: of the links at the site.
        """
        stem, kind = stem_and_kind(posixpath.basename(path))
        name = pseudonym(self._key_of(), port, posixpath.join(posixpath.dirname(path), stem))
        link = posixpath.join(folder, f"{name}{kind}")
        self.site_links[link] = path
        return link

    def make(self) -> None:
        """Create the requested links of this machine, and store the key.

        Raises:
            UsageError: the target of a link does not exist. The message has no path.
        """
        for real, what in self._requested.values():
            if what and not real.exists():
                raise UsageError(
                    f"{what}: there is no such file or folder on this machine.",
                    seen="a path that does not exist, or that you may not read",
                    expected="a path from the folder of the job file, or an absolute one",
                    do="correct the path in the job file",
                )
        if not (self._requested or self.site_links):
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # If another run has stored its key in between, that key stays, and later runs have other names than this one.
        made_once(self.folder / KEY, self._key_of())
        for name, (real, _) in self._requested.items():
            link = self.folder / name
            if not (link.is_symlink() and Path(os.readlink(link)) == real):  # noqa: PTH115 (its words)
                new = self.folder / f"{secrets.token_hex(8)}.new"
                new.symlink_to(real)
                new.replace(link)
        self._link_to = {os.path.realpath(real): str(self.folder / name) for name, (real, _) in self._requested.items()}

    def link_to(self, real: str) -> str:
        """Return the link to a file or folder, so that another link need not name the target; the path itself without a link.

        Args:
            real: absolute, of this machine, without links.
        """
        return self._link_to.get(real, real)

    def _listing(self, folder: Path) -> dict[str, list[tuple[Path, str]]]:
        """Return the files of a folder with their suffixes, by stem. A folder is listed once, for thousands of its files."""
        if folder not in self._listings:
            by_stem = self._listings[folder] = {}
            with contextlib.suppress(OSError):
                for path in folder.iterdir():
                    stem, kind = stem_and_kind(path.name)
                    by_stem.setdefault(stem, []).append((path, kind))
        return self._listings[folder]

    def _key_of(self) -> bytes:
        if self._key is None:
            try:
                self._key = (self.folder / KEY).read_bytes()
            except OSError:
                self._key = secrets.token_bytes(NUM_BYTES)
        return self._key


@functools.cache
def home_of(runs: Path) -> Home:
    """Return the home of a folder of runs: one object for all parts of the process."""
    return Home(runs)


def link_to(path: str) -> str:
    """Return the link by which the current run reads a file or folder of this machine; the path itself without a link.

    Args:
        path: absolute, without links.
    """
    run = current()
    return path if run is None else home_of(run.folder.parent).link_to(path)


def forget_links(runs: Path) -> bool:
    """Remove the links of a folder of runs, and with them the re-identification map. Return False if there were none.

    The key stays: alone it reveals nothing, and gives later runs, which make their links again, the same pseudonyms.
    """
    links = [path for path in (runs / FOLDER).glob("*") if path.is_symlink()]
    for path in links:
        path.unlink(missing_ok=True)
    return bool(links)
