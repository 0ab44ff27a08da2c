"""A registry with one chart, over TLS and for those who log in, as a hospital has it; helm is real."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import yaml

from support.cluster_connections import certificate, tls
from support.helm_release import Tenant
from support.private_registry import Registry

_LOGIN = base64.b64encode(b"puller:chart-password").decode()


@dataclass(frozen=True, kw_only=True)
class ChartRegistry:
    """A running registry.

    Attributes:
        url: of the chart, without its version.
        authority: file with the certificate that the server's is checked by.
        login: file as `helm registry login` writes it.
        without_login: the same without a login.
    """

    url: str
    authority: Path
    login: Path
    without_login: Path


@contextmanager
def chart_registry(tenant: Tenant, chart: Path, folder: Path, version: str) -> Iterator[ChartRegistry]:
    """Serve a chart at this machine while the block runs.

    Args:
        folder: for its files; made.
    """
    folder.mkdir()
    tenant.call("helm", "package", chart, "--version", version, "--destination", folder)
    _write_layout(folder / "layout", chart, folder / f"{chart.name}-{version}.tgz")
    own = certificate(folder, "localhost")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Registry, folder / "layout", _LOGIN)) as server:
        server.socket = tls(own).wrap_socket(server.socket, server_side=True)
        host = f"localhost:{server.server_address[1]}"
        for name, logins in (("login", {host: {"auth": _LOGIN}}), ("without", {})):
            (folder / f"{name}.json").write_text(json.dumps({"auths": logins}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ChartRegistry(
            url=f"oci://{host}/charts/{chart.name}",
            authority=own[0],
            login=folder / "login.json",
            without_login=folder / "without.json",
        )
        server.shutdown()


def _write_layout(layout: Path, chart: Path, archive: Path) -> None:
    """Write the files that `helm push` would have stored."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def stored(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": stored("application/vnd.cncf.helm.config.v1+json", json.dumps(about).encode()),
        "layers": [stored("application/vnd.cncf.helm.chart.content.v1.tar+gzip", archive.read_bytes())],
    }
    index = {"schemaVersion": 2, "manifests": [stored(kind, json.dumps(manifest).encode())]}
    (layout / "index.json").write_text(json.dumps(index), encoding="utf-8")
