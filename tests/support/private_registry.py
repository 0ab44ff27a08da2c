"""The half of an image registry that nodes pull from (OCI Distribution 1.1), for clients that log in; a separate program.

    python private_registry.py LAYOUT USER PASSWORD

LAYOUT is a folder in OCI's image layout with one image, which every name refers to; but names that begin with `missing` are not
there, and for those that begin with `busy` the registry is overloaded. The first line says at which port of 127.0.0.1 it listens.
It ends with its standard input: a signal would reach only the program that has brought it to the node.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REFUSALS = {"missing": (404, "MANIFEST_UNKNOWN"), "busy": (503, "UNAVAILABLE")}


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, layout: Path, login: str, *arguments: object) -> None:
        self.layout, self.login = layout, login
        (self.manifest,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        print(self.command, self.path, "with" if "Authorization" in self.headers else "without", "a login", flush=True)
        if self.headers.get("Authorization") != f"Basic {self.login}":
            self.answer(401, b"{}", "application/json", ("WWW-Authenticate", 'Basic realm="registry"'))
            return
        kind, _, name = self.path.rpartition("/")
        repository = self.path.removeprefix("/v2/")
        refusal = next((answer for start, answer in REFUSALS.items() if repository.startswith(start)), None)
        if refusal is not None:
            status, code = refusal
            self.answer(status, json.dumps({"errors": [{"code": code}]}).encode(), "application/json")
            return
        if self.path == "/v2/":
            self.answer(200, b"{}", "application/json")
        elif kind.endswith("/manifests"):
            digest = name if name.startswith("sha256:") else self.manifest["digest"]
            self.answer(200, self.blob(digest), self.manifest["mediaType"], ("Docker-Content-Digest", digest))
        elif kind.endswith("/blobs"):
            self.answer(200, self.blob(name), "application/octet-stream")
        else:
            self.answer(404, b"{}", "application/json")

    def blob(self, digest: str) -> bytes:
        return (self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()

    def answer(self, status: int, body: bytes, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Ignore the log message of a request."""


def main() -> None:
    layout, user, password = sys.argv[1:]
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Registry, Path(layout), login))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
