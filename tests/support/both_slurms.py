"""The testbed's Slurm as stock StreamFlow and as medweave reach it, over real ssh: the same jobs for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from support import slurm_runs
from support.connector_runs import Site
from support.engine import Run
from support.engine_faults import start_stock
from support.engine_file import STOCK, engine_file
from support.fake_cluster import NEVER_AGAIN
from support.hybrid_runs import laptop
from support.testbed import Sites, unique

Bend = Callable[[str], str]
ALIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"})


def unbent(line: str) -> str:
    return line


@dataclass(frozen=True, kw_only=True)
class BothSlurms:
    """One login node for both, and a folder there that only this test uses.

    Attributes:
        facts: the environment of the laptop's user.
        home: of this user, with its key and the host keys that it knows.
        folder: on the cluster's scratch; jobs of either side work below it.
    """

    testbed: Sites
    facts: Mapping[str, str]
    host: str
    port: int
    user: str
    home: Path
    folder: str

    @classmethod
    def of(cls, testbed: Sites) -> BothSlurms:
        facts = laptop(testbed)
        return cls(
            testbed=testbed,
            facts=facts,
            host=facts["MEDWEAVE_TESTBED_LOGIN_HOST"],
            port=int(facts["MEDWEAVE_TESTBED_LOGIN_PORT"]),
            user=facts["MEDWEAVE_TESTBED_LOGIN_USER"],
            home=testbed.layout.laptop_home,
            folder=f"{facts['MEDWEAVE_TESTBED_SCRATCH']}/{unique('engine-faults')}",
        )

    # ---- the connectors, called directly

    def stock(self, name: str, *, bend: Bend = unbent, **service: Any) -> Site:
        """Return the site with StreamFlow's own connectors.

        Args:
            name: of the folder below `folder` in which the jobs work.
            bend: changes a command line for the login node.
            service: keys of the one service, in addition to its partition.
        """
        from streamflow.deployment.connector.queue_manager import SlurmConnector
        from streamflow.deployment.connector.ssh import SSHConnector

        def connectors() -> list[Any]:
            usual: Any = {"usual": {"partition": "normal", **service}}
            over = SSHConnector("login", "/", retryDelay=1, **self._stock_login())
            return [bent(over, bend), SlurmConnector("hpc", "/", over, None, pollingInterval=1, services=usual)]

        return self._site(name, connectors)

    def ours(self, name: str, *, bend: Bend = unbent, service: Mapping[str, Any] | None = None, **config: Any) -> Site:
        """Return the same site with medweave's connectors.

        Args:
            config: of the Slurm deployment.
        """

        def connectors() -> list[Any]:
            usual = {"usual": {"partition": "normal", **(service or {})}}
            known = str(self.home / ".ssh" / "known_hosts")
            over = MedweaveSSHConnector("login", "/", nodes=[self._node], **self._account(), knownHosts=known)
            slurm = MedweaveSlurmConnector("hpc", "/", over, None, services=usual, reactions=NEVER_AGAIN, **config)
            return [bent(over, bend), slurm]

        return self._site(name, connectors)

    # ---- whole runs

    def write_stock(self, folder: Path, name: str, tools: Mapping[str, Any], **service: Any) -> None:
        """Write the files of `slurm_runs.write` for stock StreamFlow.

        Args:
            name: of the folder below `folder` of the site in which the jobs work.
        """
        slurm_runs.write(folder, tools)
        usual = {"usual": {"partition": "normal", **service}}
        deployments = {
            "login": {"type": "ssh", "workdir": f"{self.folder}/{name}", "config": self._stock_login()},
            "hpc": {
                "type": "slurm",
                "wraps": "login",
                "workdir": f"{self.folder}/{name}",
                "config": {"maxConcurrentJobs": 4, "pollingInterval": 1, "services": usual},
            },
        }
        target = {"deployment": "hpc", "service": "usual"}
        (folder / "streamflow.yml").write_text(engine_file(deployments, {"/": target}, managers=STOCK))

    def write_ours(self, folder: Path, name: str, tools: Mapping[str, Any], **service: Any) -> None:
        """Write the files of `slurm_runs.write` for medweave."""
        slurm_runs.write(folder, tools, service=service)
        document = yaml.safe_load((folder / "streamflow.yml").read_text())
        document["deployments"]["login"]["workdir"] = f"{self.folder}/{name}"
        (folder / "streamflow.yml").write_text(yaml.safe_dump(document))

    def begin_stock(self, folder: Path, *arguments: str) -> Run:
        """Start a stock run as the laptop's user."""
        return start_stock(folder, *arguments, environment={"HOME": str(self.home)})

    # ---- the site's own view

    def jobs(self, name: str) -> dict[str, str]:
        """Return the id and state of the jobs that work in a folder below `folder`, ended ones too."""
        output = self.testbed.hpc("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%Z").stdout
        rows = (line.split("|", 2) for line in output.splitlines())
        return {job_id: state for job_id, state, folder in rows if folder.startswith(f"{self.folder}/{name}")}

    def running(self, name: str) -> str | None:
        """Return the id of a running job."""
        return next((job_id for job_id, state in self.jobs(name).items() if state == "RUNNING"), None)

    def read(self, path: str) -> str:
        """Return the text of a file of the cluster; empty if it is missing."""
        return self.testbed.hpc("cat", path).stdout

    def clean(self) -> None:
        """Cancel the remaining jobs, and remove the folder."""
        self.cancel(job_id for job_id, state in self.jobs("").items() if state in ALIVE)
        self.testbed.hpc("rm", "-rf", self.folder)

    def cancel(self, job_ids: Any) -> None:
        if ids := list(job_ids):
            self.testbed.hpc("scancel", *ids)

    # ---- inside

    def _site(self, name: str, connectors: Callable[[], Sequence[Any]]) -> Site:
        return Site(
            connectors=connectors, folder=f"{self.folder}/{name}", read=self.read, service="usual", patience_s=90
        )

    @property
    def _node(self) -> str:
        return f"{self.host}:{self.port}"

    def _account(self) -> dict[str, str]:
        return {"username": self.user, "sshKey": str(self.home / ".ssh" / "id_ed25519")}

    def _stock_login(self) -> dict[str, Any]:
        return {"nodes": [self._node], "checkHostKey": False, **self._account()}


def bent(connector: Any, bend: Bend) -> Any:
    """Return a connector whose command lines are changed before they reach the site."""
    run = connector.run

    async def changed(location: Any, command: Sequence[str], **keywords: Any) -> Any:
        return await run(location, [bend(" ".join(command))], **keywords)

    connector.run = changed
    return connector
