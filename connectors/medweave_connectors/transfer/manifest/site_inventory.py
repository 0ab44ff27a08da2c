"""The content at the sites, as far as this run has sent, verified or read it. No streamflow in here."""

from __future__ import annotations

import hashlib
import os
import posixpath
from typing import Any

from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest

Site = tuple[str, str]  # a deployment that wraps no other, and the location there


def site_of(location: Any) -> Site:
    """Return the site of a StreamFlow location."""
    while location.wraps is not None:
        location = location.wraps
    return location.deployment, location.name


class SiteInventory:
    """Manifests with digests, by site and path. A path that a link leads to is another path."""

    def __init__(self) -> None:
        self._known: dict[tuple[Site, str], Manifest] = {}

    def note(self, site: Site, path: str, manifest: Manifest) -> None:
        """Record the content of a path."""
        self._known[site, path] = manifest

    def linked(self, site: Site, source: str, path: str) -> None:
        """Record a link or further name of a known path."""
        if (known := self.find(site, source)) is not None:
            self._known[site, path] = known

    def find(self, site: Site, path: str) -> Manifest | None:
        """Return the content of a path, also below a known folder; None where it is not known."""
        above, inside = path, ""
        while above not in ("", "/"):
            if (known := self._known.get((site, above))) is not None:
                return subtree(known, inside) if inside else known
            above, name = posixpath.split(above)
            inside = posixpath.join(name, inside) if inside else name
        return None


def subtree(manifest: Manifest, inside: str) -> Manifest | None:
    """Return the manifest of an entry and everything below it; None where there is no such entry."""
    if inside not in manifest.entries:
        return None
    head = f"{inside}/"
    parts = {path.removeprefix(head): entry for path, entry in manifest.entries.items() if path.startswith(head)}
    return Manifest(posixpath.join(manifest.real, inside), {ROOT: manifest.entries[inside]} | parts)


def content_digest(manifest: Manifest) -> str:
    """Return the SHA-256 of a file, or one digest over all entries of a folder.

    Raises:
        ValueError: an entry is neither file nor folder.
    """
    root = manifest.entries[ROOT]
    if any(entry.kind not in (Kind.FILE, Kind.FOLDER) for entry in manifest.entries.values()):
        raise ValueError("neither file nor folder")
    if root.kind == Kind.FILE:
        return root.sha256
    whole = hashlib.sha256()
    for path, entry in sorted(manifest.entries.items()):
        word = "/" if entry.kind == Kind.FOLDER else entry.sha256 + ("x" if entry.mode & 0o100 else "")
        name = os.fsencode(path)
        whole.update(b"%d\0%b\0%b\n" % (len(name), name, word.encode()))
    return whole.hexdigest()
