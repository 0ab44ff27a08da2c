"""A cohort of CT from and to the laptop over a link of 1 Gbit/s: whole copies of ours over ssh, with and without encoding.

    sudo python tests/bench/transfer_shaped_driver.py [--cases 4] [--pairs 5] [--mbit 1000] [--back]

The link is that of `transfer_shaped.py`. The driver is in one of its namespaces, a server of OpenSSH in the other. A copy is whole:
both ends are listed with SHA-256. Bytes are those that the sender's interface counts.
Writes build/bench/transfer_shaped_driver*.json or, with --back, transfer_shaped_back*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from transfer_shaped import ADDRESSES, NAMES, Copies, made, measured, sent_bytes, shaped

sys.path.insert(0, str(harness.ROOT / "tests"))


def enter(name: str) -> None:
    """Move this thread into a namespace; later sockets and processes are in it."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", name).open() as file:
        if library.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"namespace {name}")


@dataclass(kw_only=True)
class DriverCopies(Copies):
    """Copies of a folder between this process and the server.

    Attributes:
        back: from the server.
    """

    runner: asyncio.Runner
    manager: Any
    site: Any
    back: bool

    def send(self, *, encoded: bool) -> float:
        """Return the seconds of a copy."""
        return self.runner.run(self._sent(encoded=encoded))

    async def _sent(self, *, encoded: bool) -> float:
        from medweave_connectors.transfer.manifest.digest_cache import DigestCache
        from medweave_connectors.transfer.streams.transcoding import SiteCodecs
        from support.transfers import LAPTOP

        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()
        subprocess.run(["sync"], check=True)
        manager, loop, known = self.manager, asyncio.get_running_loop(), SiteCodecs.known
        manager._digests = DigestCache()  # it reads the source again
        manager.path_mapper = type(manager.path_mapper)(manager.context)
        source, target = (self.site, LAPTOP) if self.back else (LAPTOP, self.site)
        manager.register_path(source, str(self.source))
        before, began = sent_bytes(NAMES[self.back]), loop.time()
        SiteCodecs.known = known if encoded else lambda *_: frozenset()  # type: ignore[method-assign]
        try:
            await manager.transfer_data(source, str(self.source), [target], str(self.target / "cohort"))
        finally:
            SiteCodecs.known = known  # type: ignore[method-assign]
        seconds = loop.time() - began
        self.num_bytes[encoded].append(sent_bytes(NAMES[self.back]) - before)
        return seconds


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=4, metavar="N", help="series in the cohort")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="alternating pairs")
    parser.add_argument("--mbit", type=int, default=1000, metavar="N", help="the link's, Mbit/s")
    parser.add_argument("--back", action="store_true", help="from the server to the laptop")
    parser.set_defaults(syntax="explicit")
    options = parser.parse_args()
    if os.geteuid() or not all(shutil.which(program) for program in ("ip", "tc")):
        sys.exit("this benchmark shapes its own link: it needs root, and ip and tc of iproute2")
    from streamflow.core.deployment import ExecutionLocation

    from medweave_connectors.sites.local.connector import MedweaveLocalConnector
    from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
    from support.sshd import USER, make_key, sshd
    from support.testbed_ends import managed

    with tempfile.TemporaryDirectory(prefix="medweave-bench-") as name, shaped(options.mbit), ExitStack() as stack:
        folder = Path(name)
        cohort, key = made(folder, options.cases, "explicit"), make_key(folder / "key")
        enter(NAMES[1])
        server = stack.enter_context(sshd(folder / "sshd", [key], f"ListenAddress {ADDRESSES[1]}"))
        enter(NAMES[0])
        place = f"{ADDRESSES[1]}:{server.port}"
        (folder / "known_hosts").write_text(f"[{ADDRESSES[1]}]:{server.port} {server.host_key}\n")
        access = {"username": USER, "sshKey": str(key), "knownHosts": str(folder / "known_hosts")}
        runner = stack.enter_context(asyncio.Runner())
        site = MedweaveSSHConnector("site", "/", nodes=[place], **access)
        opened = managed({"site": site, "laptop": MedweaveLocalConnector("laptop", "/")}, sameFileSystem=False)
        manager = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
        location = ExecutionLocation(name=place, deployment="site")
        copies = DriverCopies(
            cohort, folder / "target", runner=runner, manager=manager, site=location, back=options.back
        )
        measured(copies, options, "transfer_shaped_back" if options.back else "transfer_shaped_driver")
    return 0


if __name__ == "__main__":
    sys.exit(main())
