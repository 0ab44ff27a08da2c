"""A login node over real ssh with a fake Slurm that fails as real ones sometimes do, and runs of the engine over it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.engine import Run, start, write_workflow
from support.engine_file import engine_file, ssh_site
from support.ssh_server import SSHServer, ssh_server

FAKES = Path(__file__).parents[1] / "fakes" / "slurm"
# No job is tried again, whatever happens to it.
NEVER_AGAIN = {
    kind: {"do": "stop"} for kind in ("OutOfMemory", "Timeout", "Preempted", "NodeFail", "StepFailed", "SubmitRejected")
}


def interrupted(going: Run, *, within_s: float) -> Run:
    """Interrupt a run; assert that it ends in time and by the signal; return it."""
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait(60)
    assert time.monotonic() - before < within_s
    assert ended.exit_code == -signal.SIGINT
    return ended


class Cluster:
    """A login node and its Slurm.

    Attributes:
        config: settings of the Slurm deployment.
    """

    def __init__(self, folder: Path, server: SSHServer) -> None:
        self.folder, self.server = folder, server
        self.config: Mapping[str, Any] = {"reactions": NEVER_AGAIN}

    def knob(self, name: str, text: Any = "1") -> None:
        (self.folder / "slurm" / name).write_text(str(text))

    @property
    def file(self) -> str:
        """Return the text of streamflow.yml."""
        return self.file_with(ssh_site(self.server.port, f"{self.folder}/site"))

    def file_with(self, login: Mapping[str, Any]) -> str:
        """Return the text of streamflow.yml with another login node."""
        hpc = {"type": "medweave.slurm", "wraps": "login", "config": dict(self.config)}
        return engine_file({"login": login, "hpc": hpc}, {"/": {"deployment": "hpc"}})

    def begin(self, tools: dict[str, Any], preload: str = "") -> Run:
        write_workflow(self.folder, tools, file=self.file)
        (self.folder / "preload.py").write_text(preload)
        return start(self.folder, preload=self.folder / "preload.py" if preload else None)

    def go(self, tools: dict[str, Any], preload: str = "") -> Run:
        return self.begin(tools, preload).wait(90)

    @property
    def submitted(self) -> list[str]:
        """Return the words of each sbatch."""
        path = self.folder / "slurm" / "submitted"
        return path.read_text().splitlines() if path.exists() else []

    def word(self, job_id: str = "100") -> str:
        """Return the job's state; empty if it is not submitted yet."""
        path = self.folder / "slurm" / "jobs" / job_id / "word"
        return path.read_text() if path.exists() else ""


@contextmanager
def fake_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a cluster whose files are in a folder of the test."""
    (folder / "slurm").mkdir()
    environment = {"PATH": f"{FAKES}:/usr/bin:/bin", "FAKE_SLURM": str(folder / "slurm")}
    with ssh_server(folder / "server", environment) as server:
        yield Cluster(folder, server)
