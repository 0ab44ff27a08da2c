"""Debian's Orthanc as a DICOM node: with DICOMweb, and one modality to which it sends."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
USER, PASSWORD = "driver", "correct horse"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Orthanc:
    """A running Orthanc node.

    Attributes:
        url: of its REST API.
        sends_to: port of the modality `medweave`, whose title is MEDWEAVE.
    """

    url: str
    sends_to: int

    @property
    def dicomweb(self) -> str:
        return f"{self.url}/dicom-web/"

    def ask(self, method: str, path: str, **more: Any) -> Any:
        answer = requests.request(method, f"{self.url}{path}", auth=(USER, PASSWORD), timeout=30, **more)
        answer.raise_for_status()
        return answer.json()

    def take(self, folder: Path) -> None:
        """Store the DICOM files in a folder."""
        for file in sorted(folder.rglob("*.dcm")):
            self.ask("POST", "/instances", data=file.read_bytes())

    def send(self) -> int:
        """Send all its studies to the modality by C-STORE; return the number of instances sent."""
        sent = self.ask("POST", "/modalities/medweave/store", json={"Resources": self.ask("GET", "/studies")})
        return int(sent["InstancesCount"]) - int(sent["FailedInstancesCount"])


@contextmanager
def orthanc(folder: Path) -> Iterator[Orthanc]:
    """Yield an empty node while the block runs."""
    program = shutil.which("Orthanc", path="/usr/sbin:/usr/bin")
    if program is None or not PLUGIN.exists():
        pytest.skip("there is no Orthanc: apt-get install orthanc orthanc-dicomweb")
    http, dicom, to = free_port(), free_port(), free_port()
    settings = {
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "Plugins": [str(PLUGIN)],
        "HttpPort": http,
        "DicomPort": dicom,
        "DicomAet": "PACS",
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": {USER: PASSWORD},
        "DicomModalities": {"medweave": ["MEDWEAVE", "127.0.0.1", to]},
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }
    folder.mkdir()
    (folder / "orthanc.json").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, str(folder / "orthanc.json")], stdout=log, stderr=log)
    made = Orthanc(url=f"http://127.0.0.1:{http}", sends_to=to)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                made.ask("GET", "/system")
                break
            except requests.RequestException:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "Orthanc does not answer"
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)
