"""Files that commit 4c21a2f wrote (tests/fixtures/formats_4c21a2f), put where today's commands read them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from support.fake_cluster import FAKES
from support.ssh_server import SSHServer, ssh_server

FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats_4c21a2f"
STEPS = FIXTURES / "steps"
# Keys of cache entries and of re-attached jobs are digests that absolute paths go into: the folder is that of generate_runs.py.
ROOT = Path("/tmp/medweave-formats-4c21a2f")
PROGRAM = Path(sys.executable).parent / "medweave"


@contextlib.contextmanager
def restored() -> Iterator[Path]:
    """Restore the stored files of old runs at their path, for one test at a time on this machine; remove them at the end."""
    with ROOT.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(ROOT, ignore_errors=True)
        try:
            _restore()
            yield ROOT
        finally:
            shutil.rmtree(ROOT, ignore_errors=True)


def _restore() -> None:
    modes: dict[str, str] = json.loads((FIXTURES / "root.json").read_text(encoding="utf-8"))
    for inside, kind in modes.items():
        path = ROOT / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind.startswith("-> "):
            path.symlink_to(kind.removeprefix("-> "))
        elif kind.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            shutil.copyfile(FIXTURES / "root" / inside, path)
            path.chmod(int(kind, 8))
    for inside, kind in reversed(modes.items()):
        if kind.endswith("/"):
            (ROOT / inside).chmod(int(kind.rstrip("/"), 8))
    for index in ROOT.rglob("memo.sqlite"):
        _use_today(index)


def _use_today(index: Path) -> None:
    """Set the last use of all entries to today: a cache drops entries unused for 14 days."""
    with contextlib.closing(sqlite3.connect(index)) as table, table:
        table.execute("UPDATE works SET used = ?", (time.time(),))


def variables() -> dict[str, str]:
    """Return the environment of the commands: the fixtures' programs and processor, nothing of the caller's medweave."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MEDWEAVE_")}
    path = f"{ROOT}/bin:{PROGRAM.parent}:{os.environ['PATH']}"
    state = f"{ROOT}/schedule/state"
    return own | {"PATH": path, "PYTHONPATH": f"{FIXTURES}/processor", "XDG_STATE_HOME": state, "MEDWEAVE_REUSE": "1"}


def medweave(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `medweave …` in a folder until it ends."""
    command = [PROGRAM, *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=variables(), capture_output=True, text=True, timeout=120, check=False
    )


def good(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the standard output of a command that succeeded."""
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended.stdout


@contextlib.contextmanager
def cluster_at(folder: Path) -> Iterator[SSHServer]:
    """Yield a login node and a stand-in for Slurm whose files are in a restored folder; streamflow.yml points there."""
    environment = {"PATH": f"{ROOT}/bin:{FAKES}:/usr/bin:/bin", "FAKE_SLURM": str(folder / "slurm")}
    with ssh_server(folder / "server", environment) as server:
        file = folder / "streamflow.yml"
        head, _, rest = file.read_text().partition("127.0.0.1:")
        file.write_text(f"{head}127.0.0.1:{server.port}{rest.lstrip('0123456789')}")
        yield server


def run_of(runs: Path) -> Path:
    """Return the folder of the (only) run."""
    (log,) = runs.glob("[!.]*/events.jsonl")
    return log.parent


def events_of(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run."""
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def count(name: str) -> int:
    """Return how often one of the fixtures' programs was run, then and now."""
    path = ROOT / f"{name}.count"
    return len(path.read_text().split()) if path.exists() else 0


def program(name: str) -> Callable[[list[str]], int]:
    """Return the function behind an installed command: its module may move."""
    (found,) = entry_points(group="console_scripts", name=name)
    main: Callable[[list[str]], int] = found.load()
    return main


def step(verb: str, report: Path, *words: str | Path) -> dict[str, Any]:
    """Run `medweave-step VERB` in this process; return its report."""
    code = program("medweave-step")([verb, *map(str, words), "--run-report", str(report), "--num-threads", "1"])
    assert code == 0, verb
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return document
