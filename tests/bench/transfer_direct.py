"""A file of random bytes from pod to pod: by medweave's direct route, by a bare TLS stream, and through the driver.

    make testbed
    python tests/bench/transfer_direct.py [--mib 512] [--pairs 7]

Ours is a whole copy: free space is checked, both ends are listed with SHA-256, and the copy is renamed. The bare stream
is a Python program at each end, TLS 1.3 too, started alike, that hashes while it sends and receives, and calls fsync at
the end (ours does not). Writes build/bench/transfer_direct.json and build/bench/transfer_direct_driver.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from contextlib import ExitStack
from typing import Any

import harness

for _folder in (harness.ROOT / "tests", harness.ROOT / "deployments" / "testbed"):
    sys.path.insert(0, str(_folder))

BAR = 1 / 1.3  # ours may take 1.3 times as long
PORT = 47900
BARE = """
import hashlib, json, os, socket, ssl, sys
config = json.loads(sys.stdin.readline())
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if config["gets"] else ssl.PROTOCOL_TLS_CLIENT)
context.minimum_version, context.check_hostname = ssl.TLSVersion.TLSv1_3, False
context.verify_mode = ssl.CERT_REQUIRED
context.load_verify_locations(cadata=config["peer"])
file = os.memfd_create("identity")
os.write(file, config["own"].encode())
context.load_cert_chain("/dev/fd/%d" % file)
digest, view = hashlib.sha256(), memoryview(bytearray(2**20))
if config["gets"]:
    listener = socket.create_server((config["host"], config["port"]))
    print("ready", flush=True)
    link = context.wrap_socket(listener.accept()[0], server_side=True)
    with open(config["path"], "wb", buffering=0) as target:
        while count := link.recv_into(view):
            digest.update(view[:count])
            target.write(view[:count])
        os.fsync(target.fileno())
else:
    link = context.wrap_socket(socket.create_connection((config["host"], config["port"])))
    with open(config["path"], "rb", buffering=0) as source:
        while count := source.readinto(view):
            digest.update(view[:count])
            link.sendall(view[:count])
    link.unwrap()
print(digest.hexdigest(), flush=True)
"""


class Copies:
    """Copies from the pod of one workload to that of another."""

    def __init__(self, tenant: Any, names: tuple[str, str], mib: int) -> None:
        from support.pod_runs import WORKDIR
        from support.testbed_ends import pod_place, pods_connector

        self.connectors = {name: pods_connector(tenant, name) for name in names}
        self.source, self.target = (pod_place(name) for name in names)
        self.path, self.to, self.num_bytes = f"{WORKDIR}/blob", f"{WORKDIR}/copy", mib * 2**20

    async def shell(self, place: Any, line: str) -> str:
        """Run a command in a pod; return its output."""
        result = await self.connectors[place.deployment].run(place, [line], capture_output=True)
        assert result is not None
        assert result[1] == 0, result
        return str(result[0])

    async def make(self) -> None:
        """Create the file, in the source's page cache."""
        await self.shell(self.source, f"head -c {self.num_bytes} /dev/urandom > {self.path}; sync {self.path}")

    async def managed(self, manager: Any, route: str) -> float:
        """Return the seconds of a copy by the data manager."""
        from medweave_connectors.engine.data import manager as module
        from medweave_connectors.transfer import failures
        from medweave_connectors.transfer.manifest.digest_cache import DigestCache
        from support.direct_ends import Recorded

        recorded = Recorded()
        for imported in (module, failures):
            imported.current = lambda: recorded  # type: ignore[attr-defined]
        manager._digests = DigestCache()  # it reads the source again
        manager.path_mapper = type(manager.path_mapper)(manager.context)
        await self.shell(self.target, f"rm -rf {self.to}; sync")
        manager.register_path(self.source, self.path)
        started = asyncio.get_running_loop().time()
        await manager.transfer_data(self.source, self.path, [self.target], self.to)
        seconds = asyncio.get_running_loop().time() - started
        assert [transfer["route"] for transfer in recorded.transfers] == [route], recorded.notices
        return seconds

    async def bare(self) -> float:
        """Return the seconds of the bare stream."""
        from medweave_connectors.transfer.routes.direct.certificates import make_identity

        await self.shell(self.target, f"rm -rf {self.to}; sync")
        own, other = make_identity(), make_identity()
        loop, words = asyncio.get_running_loop(), ["sh", "-c", f"exec python3 -I -S -c {shlex.quote(BARE)}"]
        started = loop.time()
        target, source = [
            await self.connectors[location.deployment].agent_endpoint(location)
            for location in (self.target, self.source)
        ]
        getting, sending = await asyncio.gather(target.open(words), source.open(words))
        config = {"host": target.bind, "port": PORT, "gets": True, "path": self.to}
        config |= {"own": own.certificate + own.key, "peer": other.certificate}
        await getting.write(json.dumps(config).encode() + b"\n")
        assert (await getting.read()).strip() == b"ready"
        config |= {"gets": False, "path": self.path, "own": other.certificate + other.key, "peer": own.certificate}
        await sending.write(json.dumps(config).encode() + b"\n")
        digests = await asyncio.gather(getting.read(), sending.read())
        seconds = loop.time() - started
        await asyncio.gather(getting.close(), sending.close())
        assert digests[0] == digests[1] != b""
        return seconds


def measured(copies: Copies, pairs: int, mib: int) -> None:
    """Run both benchmarks."""
    from support.testbed_ends import managed

    with asyncio.Runner() as runner:
        stack = ExitStack()
        with stack:
            direct = managed(copies.connectors, sameFileSystem=False)
            manager = runner.run(direct.__aenter__())
            stack.callback(lambda: runner.run(direct.__aexit__(None, None, None)))
            other = type(manager)(manager.context, sameFileSystem=False, direct=False)
            runner.run(copies.make())
            notes = {
                "mib": mib,
                "clock": "the driver's, with the start of all programs",
                "fsync": "by the reference only",
            }
            harness.run_pairs(
                "transfer_direct",
                lambda: runner.run(copies.managed(manager, "direct")),
                lambda: runner.run(copies.bare()),
                reference_tool="a bare TLS 1.3 stream that hashes at both ends and calls fsync",
                pairs=pairs,
                bar=BAR,
                notes=notes,
            )
            harness.run_pairs(
                "transfer_direct_driver",
                lambda: runner.run(copies.managed(manager, "direct")),
                lambda: runner.run(copies.managed(other, "through-driver")),
                reference_tool="medweave through the driver",
                pairs=min(pairs, 5),
                notes={"mib": mib},
            )


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, metavar="N", help="size of the file, MiB")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs")
    options = parser.parse_args()
    from support.helm_release import first_tenant
    from support.pod_runs import pods_of
    from support.testbed import down_parts, unique
    from support.testbed_ends import standing

    if down := down_parts().keys() - {"environment"}:  # the worker's own: these pods have none of it
        sys.exit(f"this benchmark needs the testbed up: make testbed ({', '.join(down)})")
    tenant = first_tenant()
    names = unique("bench-a"), unique("bench-b")
    limits = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(standing(tenant, pods_of(name, kind="StatefulSet", replicas=1, resources=limits)))
        measured(Copies(tenant, names, options.mib), options.pairs, options.mib)
    return 0


if __name__ == "__main__":
    sys.exit(main())
