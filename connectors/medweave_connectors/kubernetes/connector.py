"""`medweave.kubernetes`: steps in pods that exist, or in pods of manifest files that live as long as the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from medweave_connectors.kubernetes.objects import Objects, labelled, title
from medweave_connectors.pods import owner
from medweave_connectors.pods.cluster import Refused
from medweave_connectors.pods.connector import PodsConnector
from medweave_connectors.pods.errors import DeploymentRefused
from medweave_connectors.pods.readiness import Readiness
from medweave_connectors.pods.workloads import container_names, documents, selectors, workloads
from medweave_connectors.record import console

UNDO_S, UNDO_PAUSE_S = 30.0, 1.0  # an API server that is started again answers after some seconds


class MedweaveKubernetesConnector(PodsConnector):
    """Applies manifests and deletes them again, or finds pods by their labels."""

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        files: Sequence[str] | None = None,
        selector: str | None = None,
        **access: Any,
    ) -> None:
        super().__init__(deployment_name, config_dir, **access)
        self.files, self.selector = list(files or []), selector
        self._applied: list[dict[str, Any]] = []
        self._found_containers: list[str] = []

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of the deployment's `config`."""
        return package_files(__package__).joinpath("schema.json").read_text("utf-8")

    async def bring_up(self) -> None:
        """Applies the files and waits for their pods; without files, finds the pods.

        Raises:
            DeploymentRefused: a file or an object is refused, or a pod cannot start; nothing of them is left.
        """
        if not self.files:
            await self.find()
            return
        started = time.monotonic()
        manifests = self._read_files()
        self.workloads = workloads(manifests)
        if not self.workloads:
            raise self._refused("files", "no workload in the files", "an object that has pods", "add one")
        try:
            for document in manifests:
                await self._apply(labelled(document, owner.labels()))
            pods = await Readiness(
                self.deployment_name,
                self.cluster,
                self.workloads,
                timeout_s=self.timeout_s,
                pending_timeout_s=self.pending_timeout_s,
                key_of=lambda image: "files",
            ).wait()
        except BaseException:
            # In a task of its own: this one may be being cancelled.
            await asyncio.shield(asyncio.ensure_future(self.take_down()))
            raise
        seconds = time.monotonic() - started
        console.say(f"medweave: {self.deployment_name}: {len(pods)} pods ready after {seconds:.0f} s")

    async def find(self) -> None:
        """Learns the containers of pods that others have made.

        Raises:
            DeploymentRefused: no labels are given, or no pod has them.
        """
        if self.selector is None:
            raise self._refused(
                "selector",
                "neither files nor selector, or `external: true` without selector",
                "the labels of pods that exist (`app=segment`), or files with pods to make",
                "write one of them",
            )
        pods = await self.pods()
        if not pods:
            raise self._refused(
                "selector",
                f"no pods with {self.selector} in namespace '{self.namespace}'",
                "pods that exist",
                "correct the labels or the namespace",
            )
        self._found_containers = list(dict.fromkeys(each.name for pod in pods for each in pod.containers))

    async def take_down(self) -> None:
        """Deletes what was applied, last first; an API server that does not answer is asked again for a while."""
        objects, deadline = Objects(self.cluster), time.monotonic() + UNDO_S
        while self._applied:
            document = self._applied.pop()
            try:
                await _delete(objects, document, deadline)
            except Refused as error:
                console.say(
                    f"medweave: {self.deployment_name}: {title(document)} could not be deleted: {error}\n"
                    f"  do:       kubectl delete {document['kind'].lower()} {document['metadata']['name']} "
                    f"--namespace {self.namespace}"
                )

    def selectors(self) -> list[str]:
        """Labels of the deployment's pods."""
        if self.selector is not None:
            return [self.selector]
        # The run's own label keeps a stranger's pods with the same labels out.
        mine = f"{owner.RUN}={owner.labels()[owner.RUN]}"
        return [f"{each},{mine}" if each else mine for each in selectors(self.workloads)]

    def containers(self) -> list[str]:
        """Names of the deployment's containers."""
        return container_names(self.workloads) or self._found_containers

    # ---- inside

    def _read_files(self) -> list[dict[str, Any]]:
        found = []
        for file in self.files:
            try:
                found += documents(Path(file).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise self._refused("files", f"{file}: {error}", "Kubernetes objects in YAML", "correct it") from error
        return found

    async def _apply(self, document: dict[str, Any]) -> None:
        objects = Objects(self.cluster)
        try:
            whose = owner.owner(await objects.labels(document))
            if whose in ("stranger", "running", "elsewhere"):
                raise self._refused(
                    "files",
                    f"{title(document)} exists in namespace '{self.namespace}' and belongs to somebody else ({whose})",
                    "names that are free, or left by a run that has ended",
                    "give it another name, or use it as it is through `selector`",
                )
            self._applied.append(document)
            await (objects.replace if whose == "ended" else objects.apply)(document)
        except Refused as error:
            if 400 <= error.status < 500 and document in self._applied:
                self._applied.remove(document)  # nothing was made
            raise self._refused(
                "namespace" if error.status == 403 else "files",
                f"{title(document)}: {error}",
                f"an object that namespace '{self.namespace}' accepts from this account",
                "correct the file, or ask the administrator of the namespace",
            ) from error

    def _refused(self, key: str, seen: str, expected: str, do: str) -> DeploymentRefused:
        what = f"deployments.{self.deployment_name}.config.{key}: its pods cannot be used."
        return DeploymentRefused(what, seen=seen, expected=expected, do=do)


async def _delete(objects: Objects, document: dict[str, Any], deadline: float) -> None:
    """Deletes an object of an API server that may be starting anew.

    Raises:
        Refused: it said no, or did not answer before the deadline.
    """
    while True:
        try:
            return await objects.delete(document)
        except Refused as error:
            if not error.may_pass or time.monotonic() > deadline:
                raise
        await asyncio.sleep(UNDO_PAUSE_S)
