"""A file of random bytes from this machine to a pod: by medweave, by stock StreamFlow, and by `cat | kubectl exec`.

    make testbed
    python tests/bench/transfer_pod.py [--mib 512] [--pairs 7]

Ours is a whole copy: free space is checked, both ends are listed with SHA-256, and the copy is renamed; neither of the
others verifies anything. Writes build/bench/transfer_pod_stock.json and build/bench/transfer_pod_kubectl.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import harness

for _folder in (harness.ROOT / "tests", harness.ROOT / "deployments" / "testbed"):
    sys.path.insert(0, str(_folder))


class Copies:
    """Copies from a file of this machine into a pod."""

    def __init__(self, tenant: Any, name: str, blob: Path) -> None:
        from streamflow.deployment.connector.kubernetes import KubernetesConnector

        from medweave_connectors.sites.local.connector import MedweaveLocalConnector
        from support.pod_runs import WORKDIR
        from support.testbed_ends import pod_place, pods_connector

        self._tenant, self._blob, self._to = tenant, blob, f"{WORKDIR}/copy"
        self._place = pod_place(name)
        access = {"kubeconfig": str(tenant.kubeconfig), "namespace": tenant.namespace}
        laptop = MedweaveLocalConnector("laptop", "/")
        self.ours = {"laptop": laptop, name: pods_connector(tenant, name)}
        self.stock = {"laptop": laptop, name: KubernetesConnector(name, "/", files=[], **access)}

    def clear(self) -> None:
        """Remove earlier copies, and flush pending writes."""
        self._kubectl("sh", "-c", f"rm -rf {self._to}; sync")

    def _kubectl(self, *words: str, stdin: Any = None) -> None:
        pod, container = self._place.name.split(":")
        line = [str(self._tenant.binaries / "kubectl"), "exec", "--namespace", self._tenant.namespace]
        line += [*(["-i"] if stdin else []), pod, "-c", container, "--", *words]
        environment = os.environ | {"KUBECONFIG": str(self._tenant.kubeconfig)}
        subprocess.run(line, env=environment, stdin=stdin, check=True)

    def by_kubectl(self) -> float:
        """Return the seconds of a bare stream."""
        self.clear()
        started = time.monotonic()
        with self._blob.open("rb") as stream:
            self._kubectl("sh", "-c", f"cat > {self._to}", stdin=stream)
        return time.monotonic() - started

    async def managed(self, manager: Any) -> float:
        """Return the seconds of a copy by a data manager."""
        from streamflow.core.deployment import ExecutionLocation

        self.clear()
        manager.path_mapper = type(manager.path_mapper)(manager.context)
        laptop = ExecutionLocation(name="laptop", deployment="laptop", local=True)
        manager.register_path(laptop, str(self._blob))
        started = asyncio.get_running_loop().time()
        await manager.transfer_data(laptop, str(self._blob), [self._place], self._to)
        return asyncio.get_running_loop().time() - started


def measured(copies: Copies, pairs: int, mib: int) -> None:
    """Run both benchmarks."""
    from importlib.metadata import version
    from types import SimpleNamespace

    from streamflow.data.manager import DefaultDataManager

    from medweave_connectors.transfer.manifest.digest_cache import DigestCache
    from support.testbed_ends import managed

    with asyncio.Runner() as runner, ExitStack() as stack:
        opened = managed(copies.ours)
        ours = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
        context: Any = SimpleNamespace(
            deployment_manager=SimpleNamespace(get_connector=copies.stock.__getitem__),
            checkpoint_manager=SimpleNamespace(register=lambda _: None),
        )
        stock = context.data_manager = DefaultDataManager(context)
        for connector in copies.stock.values():
            runner.run(connector.deploy(True))

        def by_medweave() -> float:
            ours._digests = DigestCache()  # it reads the source again
            return runner.run(copies.managed(ours))

        for name, reference, tool in (
            ("stock", lambda: runner.run(copies.managed(stock)), f"StreamFlow {version('streamflow')}"),
            ("kubectl", copies.by_kubectl, "cat | kubectl exec, v1.34.4"),
        ):
            harness.run_pairs(
                f"transfer_pod_{name}", by_medweave, reference,
                reference_tool=tool, pairs=pairs, bar=1.0, notes={"mib": mib},
            )  # fmt: skip


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, metavar="N", help="size of the file, MiB (default 512)")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs (default 7)")
    options = parser.parse_args()
    from support.helm_release import first_tenant
    from support.pod_runs import pods_of
    from support.testbed import down_parts, unique
    from support.testbed_ends import standing

    if down := down_parts().keys() - {"environment"}:  # the worker's own: these pods have none of it
        sys.exit(f"this benchmark needs the testbed up: make testbed ({', '.join(down)})")
    tenant, name = first_tenant(), unique("bench")
    limits = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    with tempfile.TemporaryDirectory(prefix="medweave-pod-") as folder, ExitStack() as stack:
        blob = Path(folder) / "blob"
        with blob.open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(2**20))
        stack.enter_context(standing(tenant, pods_of(name, kind="StatefulSet", replicas=1, resources=limits)))
        measured(Copies(tenant, name, blob), options.pairs, options.mib)
    return 0


if __name__ == "__main__":
    sys.exit(main())
