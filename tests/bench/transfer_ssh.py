"""A file of random bytes from one ssh site to another: by medweave's direct route, by `scp` between them, and through the driver.

    python tests/bench/transfer_ssh.py [--mib 1024] [--pairs 7]

Both sites are servers of OpenSSH on this machine, as is the driver. Ours is a whole copy: free space is checked, both ends are
listed with SHA-256, and the copy is renamed into its place. `scp` is started where the file is, without a first login, and verifies
nothing.
Writes build/bench/transfer_ssh.json and build/bench/transfer_ssh_driver.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))
PIECE = 2**20


class Copies:
    """Copies from one server's folder to that of another.

    Attributes:
        connectors: of both sites.
    """

    def __init__(self, folder: Path, servers: dict[str, Any], key: Path) -> None:
        from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector

        self._known_hosts = folder / "known_hosts"
        self._known_hosts.write_text("".join(server.known_host for server in servers.values()))
        self._folder, self._servers, self._key = folder, servers, key
        access = {"username": "root", "sshKey": str(key), "knownHosts": str(self._known_hosts)}
        self.connectors = {
            name: MedweaveSSHConnector(name, "/", nodes=[f"127.0.0.1:{server.port}"], **access)
            for name, server in servers.items()
        }

    @property
    def blob(self) -> Path:
        return self._folder / "blob"

    def _fresh(self) -> Path:
        shutil.rmtree(self._folder / "to", ignore_errors=True)
        (self._folder / "to").mkdir()
        os.sync()
        return self._folder / "to"

    def by_scp(self) -> None:
        """Copy by scp, started at the first site."""
        options = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self._known_hosts}", "-i", str(self._key)]
        port = str(self._servers["second"].port)
        subprocess.run(["scp", "-q", "-P", port, *options, str(self.blob), f"127.0.0.1:{self._fresh()}/"], check=True)

    async def managed(self, manager: Any, route: str) -> float:
        """Return the seconds of a copy by the data manager."""
        from streamflow.core.deployment import ExecutionLocation

        from medweave_connectors.engine.data import manager as module
        from medweave_connectors.transfer import failures
        from medweave_connectors.transfer.manifest.digest_cache import DigestCache
        from support.direct_ends import Recorded

        recorded = Recorded()
        for imported in (module, failures):
            imported.current = lambda: recorded  # type: ignore[attr-defined]
        manager._digests = DigestCache()  # it reads the source again
        manager.path_mapper = type(manager.path_mapper)(manager.context)
        source, target = (
            ExecutionLocation(name=f"127.0.0.1:{self._servers[name].port}", deployment=name)
            for name in ("first", "second")
        )
        folder = self._fresh()
        manager.register_path(source, str(self.blob))
        started = asyncio.get_running_loop().time()
        await manager.transfer_data(source, str(self.blob), [target], str(folder / "blob"))
        seconds = asyncio.get_running_loop().time() - started
        assert [transfer["route"] for transfer in recorded.transfers] == [route], (recorded.transfers, recorded.notices)
        return seconds


def measured(copies: Copies, pairs: int, mib: int) -> None:
    """Run both benchmarks."""
    from support.testbed_ends import managed

    openssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split(",")[0]
    with asyncio.Runner() as runner, ExitStack() as stack:
        opened = managed(copies.connectors, sameFileSystem=False)  # both lie on this machine
        manager = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
        other = type(manager)(manager.context, sameFileSystem=False, direct=False)
        harness.run_pairs(
            "transfer_ssh",
            lambda: runner.run(copies.managed(manager, "direct")),
            copies.by_scp,
            reference_tool=f"scp from site to site, {openssh}", pairs=pairs, bar=1.0, notes={"mib": mib},
        )  # fmt: skip
        harness.run_pairs(
            "transfer_ssh_driver",
            lambda: runner.run(copies.managed(manager, "direct")),
            lambda: runner.run(copies.managed(other, "through-driver")),
            reference_tool="medweave through the driver", pairs=min(pairs, 5), notes={"mib": mib},
        )  # fmt: skip


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, metavar="N", help="size of the file, MiB (default 1024)")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs (default 7)")
    arguments = parser.parse_args()
    from support.sshd import make_key, sshd

    with tempfile.TemporaryDirectory(prefix="medweave-ssh-") as name, ExitStack() as stack:
        folder = Path(name)
        key = make_key(folder / "key")
        servers = {
            name: stack.enter_context(sshd(folder / name, [key], "Subsystem sftp internal-sftp"))
            for name in ("first", "second")
        }
        copies = Copies(folder, servers, key)
        with copies.blob.open("wb") as file:
            for _ in range(arguments.mib):
                file.write(os.urandom(PIECE))
        measured(copies, arguments.pairs, arguments.mib)


if __name__ == "__main__":
    main()
