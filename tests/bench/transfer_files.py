"""20,000 files of 8 KiB to a site over ssh: compared with `scp -r` and `rsync -a`, and the bytes that a second run sends.

    python tests/bench/transfer_files.py [--files 20000] [--pairs 7]

Both ends are on this machine, and OpenSSH's server is the site's. Each figure has its connection and, for ours, all of a transfer:
listing, digests, copy, verification, and that it is on the disk, which scp and rsync leave to the time after them; so the disk has
what was written before each. The site's work after a copy, for the next one, is reported separately.
Writes build/bench/transfer_files_*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))
SIZE = 8192
PER_FOLDER = 200


@dataclass
class Site:
    """A folder on this machine that is reached by ssh.

    Attributes:
        work: the site's workdir, with its store.
        facts: the recorded facts of our last transfer.
    """

    folder: Path
    port: int
    key: Path
    known_hosts: Path
    work: Path
    facts: dict[str, Any] = field(default_factory=dict)
    names_s: list[float] = field(default_factory=list)

    @property
    def cohort(self) -> Path:
        return self.folder / "cohort"

    def fresh(self) -> Path:
        """Return an empty folder. None is removed between copies: ext4 skips inodes that were freed a minute ago, one by one."""
        folder = self.folder / f"at-{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

    def by_program(self, *words: str, folder: Path | None = None) -> Path:
        """Copy by scp or rsync, by default into a new folder."""
        folder = folder or self.fresh()
        ssh = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.known_hosts}", "-i", str(self.key)]
        target = f"127.0.0.1:{folder}/"
        if words[0] == "scp":
            line = [*words, "-q", "-P", str(self.port), *ssh, str(self.cohort), target]
        else:
            line = [*words, "-e", f"ssh -p {self.port} {' '.join(ssh)}", str(self.cohort), target]
        subprocess.run(line, check=True)
        return folder

    def by_medweave(self, run_id: str, *, port: int | None = None) -> None:
        """Copy by medweave in a run."""
        asyncio.run(self._sent(run_id, port or self.port))

    async def _sent(self, run_id: str, port: int) -> None:
        from medweave_connectors.engine.data import manager
        from medweave_connectors.sites.local.connector import MedweaveLocalConnector
        from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector

        hooks = {"transfer_ended": lambda **facts: self.facts.update(facts), "transfer_progress": lambda **_: None}
        run = SimpleNamespace(run_id=run_id, **hooks)
        manager.current = lambda: run  # type: ignore[assignment]
        login = {"nodes": [f"127.0.0.1:{port}"], "username": "root", "sshKey": str(self.key)}
        site = MedweaveSSHConnector("site", "/", **login, knownHosts=str(self.known_hosts))
        laptop = MedweaveLocalConnector("laptop", "/")
        target = self.work / run_id / "job" / "cohort"
        await self._managed(manager.MedweaveDataManager, {"laptop": laptop, "site": site}, port, target)

    def by_stock(self) -> None:
        """Copy by StreamFlow's own connectors and data manager."""
        asyncio.run(self._stock())

    async def _stock(self) -> None:
        from streamflow.data.manager import DefaultDataManager
        from streamflow.deployment.connector.local import LocalConnector
        from streamflow.deployment.connector.ssh import SSHConnector

        login = {"nodes": [f"127.0.0.1:{self.port}"], "username": "root", "sshKey": str(self.key)}
        site = SSHConnector("site", "/", **login, checkHostKey=False)
        await self._managed(
            DefaultDataManager,
            {"laptop": LocalConnector("laptop", "/"), "site": site},
            self.port,
            self.fresh() / "cohort",
        )

    async def _managed(self, kind: Any, connectors: dict[str, Any], port: int, target: Path) -> None:
        """Copy by a data manager."""
        from streamflow.core.deployment import ExecutionLocation

        context: Any = SimpleNamespace(
            deployment_manager=SimpleNamespace(get_connector=connectors.__getitem__),
            checkpoint_manager=SimpleNamespace(register=lambda _: None),
        )
        data = context.data_manager = kind(context)
        laptop = ExecutionLocation(name="laptop", deployment="laptop", local=True)
        there = ExecutionLocation(name=f"127.0.0.1:{port}", deployment="site")
        for connector in connectors.values():
            await connector.deploy(False)
        try:
            data.register_path(laptop, str(self.cohort))
            await data.transfer_data(laptop, str(self.cohort), [there], str(target))
        finally:
            for connector in connectors.values():
                await connector.undeploy(False)

    def cold(self) -> None:
        """Copy by medweave into an empty store."""
        self.work = self.fresh()
        self.by_medweave("run-1")

    def rest(self) -> None:
        """Wait for the work after a copy: the site adds the files to its store, and the system writes to the disk."""
        began = time.monotonic()
        while list(self.work.glob("*/*/lists/*/*.new")):
            time.sleep(0.02)
        if (names_s := time.monotonic() - began) > 0.01:
            self.names_s.append(names_s)
        os.sync()
        time.sleep(1.0)  # the disk's own work

    def timed(self, copy: Callable[[], object]) -> float:
        """Return the seconds of a copy."""
        self.rest()
        began = time.perf_counter()
        copy()
        return time.perf_counter() - began

    def again(self) -> None:
        """Copy by medweave in a later run; nothing has changed."""
        self.by_medweave(f"run-{secrets.token_hex(4)}")


@contextlib.contextmanager
def site(num_files: int) -> Iterator[Site]:
    """Yield the cohort, and a server."""
    from support.sshd import make_key, sshd

    with tempfile.TemporaryDirectory(prefix="medweave-files-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        for number in range(num_files):
            path = folder / "cohort" / f"case-{number // PER_FOLDER:03}" / f"{number:06}.dcm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SIZE))
        key = make_key(folder / "key")
        with sshd(folder / "server", [key], "Subsystem sftp internal-sftp") as server:
            (folder / "known_hosts").write_text(server.known_host)
            yield Site(folder, server.port, key, folder / "known_hosts", folder / "work")


def counted_bytes(at: Site, run_id: str) -> int:
    """Return the bytes on the connection in a copy of ours, in both directions, as counted by a proxy."""
    from support.counting_proxy import counting_proxy

    with counting_proxy(at.port) as proxy:
        known = at.known_hosts.read_text()
        at.known_hosts.write_text(known + known.replace(f":{at.port} ", f":{proxy.port} "))
        at.by_medweave(run_id, port=proxy.port)
        return proxy.num_bytes


def main() -> None:
    """Run the benchmarks."""
    import streamflow.main  # noqa: F401

    from medweave_connectors import plugin  # noqa: F401

    gc.freeze()  # as the plug-in does when a run begins
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="number of files of 8 KiB (default 20000)")
    parser.add_argument("--pairs", type=int, default=7, help="alternating pairs (default 7)")
    options = parser.parse_args()
    notes = {"files": options.files, "bytes": options.files * SIZE}
    with site(options.files) as at:
        rsync = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
        openssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split(",")[0]
        against = {
            "scp": (["scp", "-r"], f"scp -r, {openssh}", 5.0),
            "rsync": (["rsync", "-a"], f"rsync -a {rsync}", 1.0),
        }
        for name, (words, tool, bar) in against.items():
            harness.run_pairs(
                f"transfer_files_{name}",
                lambda: at.timed(at.cold),
                lambda words=words: at.timed(lambda: at.by_program(*words)),  # type: ignore[misc]
                reference_tool=tool, pairs=options.pairs, bar=bar, notes=notes,
            )  # fmt: skip
        stock = f"StreamFlow {version('streamflow')}, which sends them again"
        for name, reference, tool in (
            ("transfer_files_unchanged_stock", at.by_stock, stock),
            ("transfer_files_unchanged_scp", lambda: at.by_program("scp", "-r"), against["scp"][1]),
            ("transfer_files_unchanged", at.cold, "the first run"),
        ):
            harness.run_pairs(
                name, lambda: at.timed(at.again), lambda reference=reference: at.timed(reference),  # type: ignore[misc]
                reference_tool=tool, pairs=options.pairs, bar=10.0, notes=notes,
            )  # fmt: skip
        before = at.by_program("rsync", "-a")
        harness.run_pairs(
            "transfer_files_unchanged_rsync",
            lambda: at.timed(at.again),
            lambda: at.timed(lambda: at.by_program("rsync", "-a", f"--link-dest={before}")),
            reference_tool=f"rsync -a --link-dest, {rsync}: a new folder of links, too", pairs=options.pairs, bar=1.0, notes=notes,
        )  # fmt: skip
        harness.run_pairs(
            "transfer_files_unchanged_rsync_itself",
            lambda: at.timed(lambda: at.by_program("rsync", "-a", folder=before)),
            lambda: at.timed(lambda: at.by_program("rsync", "-a")),
            reference_tool=f"a first run by the same rsync, {rsync}", pairs=options.pairs, notes=notes,
        )  # fmt: skip
        harness.say("transfer_files", f"in the store: {statistics.median(at.names_s):.2f} s after a copy")
        at.work = at.fresh()
        counted = {run_id: counted_bytes(at, run_id) for run_id in ("first", "second")}
        shares = ", ".join(f"{name} run {100 * num / notes['bytes']:.2f} %" for name, num in counted.items())
        harness.say("transfer_files", f"of the files' bytes crossed the connection: {shares}")


if __name__ == "__main__":
    main()
