"""The home of a folder of runs: the key of the pseudonyms, and the links by which the engine gets at the data.

It is for its owner only, and nothing of it is sent anywhere. A link tells whose data have a pseudonym: that is the way back. They
stay for later runs. No streamflow in here.
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
    """Its key and its links; nothing is written before `make`, since files are also read to be validated only."""

    def __init__(self, runs: Path) -> None:
        self.folder = runs / FOLDER
        self.there: dict[str, str] = {}  # links at sites, and what they will lead to
        self._key: bytes | None = None
        self._wanted: dict[str, tuple[Path, str]] = {}
        self._listed: dict[Path, dict[str, list[tuple[Path, str]]]] = {}
        self._led: dict[str, str] = {}  # where its links lead in the end, and their paths

    def link_of(self, path: str, port: str, *, what: str) -> Path:
        """Where the link to a file or folder will lie.

        Files that stand beside a file, under its name but for their kind, get links beside its link: CWL looks for them there.

        Args:
            path: absolute, of this machine.
            port: the input of the workflow.
            what: where it was named, for an error.
        """
        real = Path(os.path.normpath(path))
        stem, kind = stem_and_kind(real.name)
        name = pseudonym(self._key_of(), port, str(real.with_name(stem)))
        for beside, its_kind in () if real.is_dir() else self._listing(real.parent).get(stem, ()):
            self._wanted.setdefault(f"{name}{its_kind}", (beside, ""))
        self._wanted[f"{name}{kind}"] = real, what
        return self.folder / f"{name}{kind}"

    def link_there(self, path: str, port: str, *, folder: str) -> str:
        """Where the link to a file or folder at a site will lie.

        Args:
            path: absolute, of the site.
            folder: of the links there.
        """
        stem, kind = stem_and_kind(posixpath.basename(path))
        name = pseudonym(self._key_of(), port, posixpath.join(posixpath.dirname(path), stem))
        link = posixpath.join(folder, f"{name}{kind}")
        self.there[link] = path
        return link

    def make(self) -> None:
        """Makes the links of this machine that were asked for, and keeps the key.

        Raises:
            UsageError: what one leads to is not there. Its words hold no path.
        """
        for real, what in self._wanted.values():
            if what and not real.exists():
                raise UsageError(
                    f"{what}: there is no such file or folder on this machine.",
                    seen="a path that leads nowhere, or to what you may not see",
                    expected="a path from the folder of the job file, or an absolute one",
                    do="correct the path in the job file",
                )
        if not (self._wanted or self.there):
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Where another run was quicker, that one's is kept, and later runs have other names than this one.
        made_once(self.folder / KEY, self._key_of())
        for name, (real, _) in self._wanted.items():
            link = self.folder / name
            if not (link.is_symlink() and Path(os.readlink(link)) == real):  # noqa: PTH115 (its words)
                new = self.folder / f"{secrets.token_hex(8)}.new"
                new.symlink_to(real)
                new.replace(link)
        self._led = {os.path.realpath(real): str(self.folder / name) for name, (real, _) in self._wanted.items()}

    def behind(self, real: str) -> str:
        """The link that leads to a file or folder, so that another link to it need not name it; what has none is left as it is.

        Args:
            real: absolute, of this machine, without links.
        """
        return self._led.get(real, real)

    def _listing(self, folder: Path) -> dict[str, list[tuple[Path, str]]]:
        """The files of a folder with their kinds, by their names without these; thousands may be named, so it is looked at once."""
        if folder not in self._listed:
            found = self._listed[folder] = {}
            with contextlib.suppress(OSError):
                for each in folder.iterdir():
                    stem, kind = stem_and_kind(each.name)
                    found.setdefault(stem, []).append((each, kind))
        return self._listed[folder]

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
    """Return the link by which the current run reads a file or folder of this machine; the path itself if there is none.

    Args:
        path: absolute, without links.
    """
    run = current()
    return path if run is None else home_of(run.folder.parent).behind(path)


def forget_links(runs: Path) -> bool:
    """Removes the links of a folder of runs, and so the way back from its pseudonyms; False where there were none.

    The key stays: it tells nothing alone, and later runs, which make the links that they need, have the same pseudonyms by it.
    """
    links = [path for path in (runs / FOLDER).glob("*") if path.is_symlink()]
    for path in links:
        path.unlink(missing_ok=True)
    return bool(links)
