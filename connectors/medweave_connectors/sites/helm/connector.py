"""`medweave.helm`: steps in the pods of a Helm release that exists as long as the run."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow

from medweave_connectors.runlog import console, current
from medweave_connectors.sites.helm import commands, process
from medweave_connectors.sites.helm.commands import DEPLOYMENT, Access, HelmChart, Release, parse_releases
from medweave_connectors.sites.helm.process import HelmFailed
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.masking import without_secrets
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun, list_pods, remove_folders, wait_until_gone
from medweave_connectors.sites.pods.connector import PodsConnector
from medweave_connectors.sites.pods.exec.member import Member
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.workloads import (
    Workload,
    claim_names,
    container_names,
    find_workloads,
    parse_documents,
    selectors,
)
from medweave_connectors.sites.pods.startup.readiness import Readiness

HELM_S = 120
GONE_S = 8.0
_in_use: set[tuple[str, str]] = set()


class MedweaveHelmConnector(PodsConnector):
    """Connector that installs a chart before its first step, and uninstalls it at the end of the run in every case."""

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        chart: str = "",
        chartVersion: str | None = None,
        repo: str | None = None,
        releaseName: str | None = None,
        values: Mapping[str, Any] | None = None,
        yamlValues: Sequence[str] | None = None,
        **access: Any,
    ) -> None:
        super().__init__(deployment_name, config_dir, **access)
        self.chart = HelmChart(reference=self._reference(chart, repo), repository=repo, version=chartVersion)
        self.configured_name = releaseName
        self.release = releaseName or commands.build_release_name(deployment_name, secrets.token_hex(3))
        self.values: dict[str, Any] = dict(values or {})
        self.value_files = list(yamlValues or [])
        self._container_names: list[str] = []
        self._installed = False
        self._claims = frozenset[str]()

    def removed_claims(self) -> frozenset[str] | None:
        """Return the claims of the release, which is uninstalled at the end of the run; None for an external release."""
        return self._claims if self._installed else None

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    @property
    def access(self) -> Access:
        """Return helm's settings of the connection to the cluster."""
        kubeconfig = None if self.in_cluster else self.kubeconfig
        return Access(namespace=self.namespace, kubeconfig=kubeconfig, context=self.kube_context)

    async def bring_up(self) -> None:
        """Install the chart and wait for its pods.

        Raises:
            DeploymentRefused: helm or the cluster refuses; the release is removed.
        """
        started = time.monotonic()
        self._check_chart()
        await self._check_helm()
        await self._remove_stale_releases()
        _in_use.add((self.namespace, self.release))
        try:
            self._installed = True
            atexit.register(self._uninstall_now)
            await self._install()
            self.workloads = await self._read_workloads()
            pods = await Readiness(
                self.deployment_name,
                self.cluster,
                self.workloads,
                timeout_s=self.timeout_s,
                pending_timeout_s=self.pending_timeout_s,
                key_of=lambda image: commands.find_image_key(self.values, image),
            ).wait()
            await self.on_pods_ready(pods)
        except BaseException:
            # Runs synchronously, so that neither a second signal nor the engine's shutdown interrupts it.
            self._uninstall_now()
            raise
        seconds = time.monotonic() - started
        console.say(
            f"medweave: {self.deployment_name}: release {self.release}, {len(pods)} pods ready after {seconds:.0f} s"
        )

    async def on_pods_ready(self, pods: Sequence[Pod]) -> None:
        """Hook that is called once with the ready pods."""

    async def find(self) -> None:
        """Read the containers of an external release.

        Raises:
            DeploymentRefused: the release is not named, or has no pods.
        """
        if self.configured_name is None:
            raise DeploymentRefused(
                f"deployments.{self.deployment_name}.config.releaseName: an external release needs its name.",
                seen="external: true without releaseName",
                expected="the name of a release that exists",
                do="write releaseName, or remove `external: true`",
            )
        pods = await self.pods()
        if not pods:
            raise DeploymentRefused(
                f"deployments.{self.deployment_name}.config.releaseName: the external release '{self.release}' has no pods.",
                seen=f"no pods with {self.selectors()[0]} in namespace '{self.namespace}'",
                expected="pods of an installed release",
                do="install it, correct releaseName or namespace, or remove `external: true`",
            )
        self._container_names = list(dict.fromkeys(container.name for pod in pods for container in pod.containers))
        await self.on_pods_ready(pods)

    async def take_down(self) -> None:
        """Uninstall the release, and wait up to `GONE_S` for its pods to end."""
        if not self._installed:
            return
        try:
            if self.release not in (await process.run_helm(self._look_up_words(), timeout_s=HELM_S)).split():
                console.say(
                    f"medweave: {self.deployment_name}: release {self.release} does not belong to this run; it is not removed"
                )
                self._mark_uninstalled()
                return
            await process.run_helm(commands.build_uninstall_command(self.release, self.access), timeout_s=HELM_S)
            self._mark_uninstalled()
        except FileNotFoundError:
            self._mark_uninstalled()
        except HelmFailed as error:
            console.say(
                f"medweave: {self.deployment_name}: release {self.release} could not be uninstalled: "
                f"{commands.parse_failure(str(error))}\n  do:       helm uninstall {self.release} --namespace {self.namespace}"
            )
            return
        finally:
            if self._installed:
                self._uninstall_now()
        await self._wait_until_gone()

    async def remove_left(self, gone: GoneRun) -> Cleaned:
        """Uninstall the releases of the run; before that, remove its folders on volumes that outlive their pods.

        Raises:
            DeploymentRefused: helm or the cluster refuses.
        """
        cleaned = Cleaned()
        own = [release for release in await self._releases() if gone.made(release.labels)]
        for release in own:
            await self._check_helm()
            self.release = release.name
            self.workloads = await self._read_workloads()
            pods = await list_pods(self.cluster, self.selectors())
            await remove_folders(self, gone, pods, cleaned, pods_go=True)
            await self._helm(commands.build_uninstall_command(release.name, self.access))
            cleaned.removed.append(f"release {release.name}")
            cleaned.stays += [f"pod {name}" for name in await wait_until_gone(self.cluster, self.selectors())]
        if not own and self.configured_name is not None:  # of others
            pods = await list_pods(self.cluster, self.selectors())
            await remove_folders(self, gone, pods, cleaned, pods_go=False)
            cleaned.stays += [f"{folder}: no pod of {self.release} is ready" for folder in cleaned.unreached if pods]
        return cleaned

    def selectors(self) -> list[str]:
        """Return the label selectors of the release's pods."""
        return list(selectors(self.workloads)) or [f"app.kubernetes.io/instance={self.release}"]

    def containers(self) -> list[str]:
        """Return the names of the release's containers."""
        return container_names(self.workloads) or self._container_names

    def site_facts(self, members: Sequence[Member]) -> dict[str, Any]:
        """Return the pods, and the release that they belong to."""
        return super().site_facts(members) | {"release": self.release}

    # ---- inside

    def _reference(self, chart: str, repo: str | None) -> str:
        # The path of a folder or archive is relative to the StreamFlow file; registry and repository charts have no path.
        if repo is not None or "://" in chart:
            return chart
        return os.path.normpath(self.folder / Path(chart).expanduser())

    def _check_chart(self) -> None:
        path = Path(self.chart.reference)
        if path.is_absolute() and not path.exists():
            raise self._refused(
                "chart",
                f"there is no {self.chart.reference}",
                "a folder or archive with a chart, `oci://…`, or the name of a chart with the URL of its repository as `repo`",
                "correct the path; for a chart that `helm repo add` knows as `name/chart` write `chart: chart` and its `repo`",
            )

    async def _check_helm(self) -> None:
        try:
            output = await process.run_helm(commands.build_version_command(), timeout_s=HELM_S)
        except (FileNotFoundError, HelmFailed) as error:
            raise self._refused(
                "chart", str(error), "helm on the PATH of this machine", "install Helm 3.13 or newer"
            ) from error
        number = commands.parse_version(output)
        if number is None or number < commands.OLDEST:
            raise self._refused("chart", f"helm {output}", "Helm 3.13 or newer", "install a newer Helm")

    async def _remove_stale_releases(self) -> None:
        """Uninstall releases of killed runs; refuse a name that another owner uses."""
        if (self.namespace, self.release) in _in_use:
            raise self._refused(
                "releaseName",
                f"two deployments of this run with releaseName '{self.release}'",
                "a release for each deployment",
                "set another releaseName for one of them, or none",
            )
        for release in await self._releases():
            whose = owner.owner(release.labels)
            if whose == "ended" or (whose == "me" and release.name == self.release):
                run = release.labels.get(owner.RUN, "?")
                console.say(f"medweave: {self.deployment_name}: removing release {release.name}, left by run {run}")
                await self._helm(commands.build_uninstall_command(release.name, self.access))
            elif release.name == self.release:
                raise self._name_taken(release, whose)

    async def _releases(self) -> list[Release]:
        mine = f"owner=helm,{DEPLOYMENT}={owner.label(self.deployment_name)}"
        try:
            named, of_deployment = await asyncio.gather(
                self.cluster.secrets(f"owner=helm,name={self.release}"), self.cluster.secrets(mine)
            )
        except ApiServerError as error:
            raise self._refused(
                "namespace",
                str(error),
                f"an account that may read and write secrets in namespace '{self.namespace}', where helm keeps its records",
                "ask the administrator of the namespace for that right",
            ) from error
        return parse_releases([*named, *of_deployment])

    def _name_taken(self, release: Release, whose: owner.Owner) -> DeploymentRefused:
        run = release.labels.get(owner.RUN, "?")
        seen = {
            "stranger": f"a release '{release.name}' ({release.status}) that medweave did not create",
            "running": f"release '{release.name}', used by run {run}, which is running",
        }.get(whose, f"release '{release.name}' of run {run}, created from another machine")
        return self._refused(
            "releaseName",
            seen,
            f"an unused release name in namespace '{self.namespace}'",
            "remove releaseName (each run then has its own), or `external: true` to use an existing release, or "
            f"`helm uninstall {release.name} --namespace {self.namespace}` if it is not needed",
        )

    async def _install(self) -> None:
        run = current()
        folder = run.work if run is not None else None
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            values = Path(temporary) / "values.yml"
            values.write_text(yaml.safe_dump(self.values), encoding="utf-8")
            await self._helm(
                commands.build_install_command(
                    self.release,
                    self.chart,
                    self.access,
                    values=[*self.value_files, str(values)],
                    labels=owner.labels() | {DEPLOYMENT: owner.label(self.deployment_name)},
                    timeout_s=HELM_S,
                )
            )

    async def _read_workloads(self) -> list[Workload]:
        text = await self._helm(commands.build_manifest_command(self.release, self.access))
        objects = parse_documents(text)
        self._claims = claim_names(objects)
        chart_workloads = find_workloads(objects)
        if not chart_workloads:
            raise self._refused("chart", "a chart without pods", "a chart with a workload", "name another chart")
        return chart_workloads

    async def _helm(self, words: Sequence[str]) -> str:
        try:
            return await process.run_helm(words, timeout_s=HELM_S)
        except HelmFailed as error:
            reason = commands.parse_failure(str(error))
            key, do = commands.explain_chart_failure(reason, self.chart) or (
                commands.find_failing_key(reason, self.values),
                "correct the key that the message names, and run again",
            )
            raise self._refused(
                key,
                without_secrets(reason),
                f"`helm {words[1]}` of {self.chart.reference} to succeed in namespace '{self.namespace}'",
                do,
            ) from error

    def _refused(self, key: str, seen: str, expected: str, do: str) -> DeploymentRefused:
        what = f"deployments.{self.deployment_name}.config.{key}: the release cannot be installed."
        return DeploymentRefused(what, seen=seen, expected=expected, do=do)

    async def _wait_until_gone(self) -> None:
        with contextlib.suppress(ApiServerError):
            await wait_until_gone(self.cluster, self.selectors(), within_s=GONE_S)

    def _uninstall_now(self) -> None:
        if self._installed:
            self._mark_uninstalled()
            try:
                if self.release in process.run_helm_now(self._look_up_words()).split():
                    process.run_helm_now(commands.build_uninstall_command(self.release, self.access))
            except HelmFailed as error:
                console.say(
                    f"medweave: {self.deployment_name}: release {self.release}: {commands.parse_failure(str(error))}"
                )

    def _look_up_words(self) -> list[str]:
        """Return the words that print the release's name if this driver created it: another run may use the name by now."""
        return commands.build_list_command(self.release, self.access, {owner.DRIVER: owner.labels()[owner.DRIVER]})

    def _mark_uninstalled(self) -> None:
        self._installed = False
        _in_use.discard((self.namespace, self.release))
        atexit.unregister(self._uninstall_now)
