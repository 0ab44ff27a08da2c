"""Run the checks of all deployments of a site at the same time, and then those of the routes between them."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.doctor.connection import SshLogin, Unreachable, login_of
from medweave.doctor.disk_space import hop_of, parse_probe, probe_line
from medweave.doctor.hop_result import Check, Health, HopResult
from medweave.doctor.machine import MachineChecks, reaches, slurm_checks
from medweave.doctor.namespace import NamespaceChecks
from medweave.doctor.probe_host import PodProbeHost, ProbeHost, SshProbeHost
from medweave.doctor.routes import BUCKET, between, by_bucket
from medweave.doctor.routes import NAME as ROUTE
from medweave.project.deployments import connector_schemas, wrapped
from medweave.project.sites import Site
from medweave_core.documents.streamflow_paths import resolve_paths

MACHINE, SLURM, LOCAL = "medweave.ssh", "medweave.slurm", "medweave.local"
BY_HAND = "install the worker by hand (docs/how-to/install-a-worker.md), or correct `virtualEnvironment`"
CLUSTERS = ("medweave.kubernetes", "medweave.helm", "medweave.compss")


def check_site(site: Site, only: Sequence[str], limit_s: float, show: Callable[[HopResult], None]) -> list[HopResult]:
    """Check the deployments of a site and the routes between them.

    Args:
        only: names of deployments; empty for all.
        limit_s: time limit of one answer; a check is abandoned after twice that time.
        show: called with each hop as soon as it is known.

    Returns:
        the hops, in the order of the site file.

    Raises:
        UsageError: a variable of the site file has no value.
    """
    document: dict[str, Any] = {"path": str(site.path), "deployments": copy.deepcopy(dict(site.deployments))}
    resolve_paths(document, Path("runs").absolute(), connector_schemas())
    names = [name for name in site.deployments if not only or name in only]
    results: queue.Queue[tuple[str, HopResult | None]] = queue.Queue()
    for name in names:
        thread = threading.Thread(
            target=_check_deployment, args=(name, document["deployments"], site.path, limit_s, results), daemon=True
        )
        thread.start()
    hops: dict[str, list[HopResult]] = {name: [] for name in names}
    unfinished = set(names)
    while unfinished:
        name, hop = results.get()
        if hop is None:
            unfinished.discard(name)
        else:
            hops[name].append(hop)
            show(hop)
    routes = []
    with contextlib.ExitStack() as exits:
        for check, place in _routes(site, names, document["deployments"], limit_s, exits):
            for hop in _run_check(place, check, 2 * limit_s):
                routes.append(hop)
                show(hop)
    return [*(hop for name in names for hop in hops[name]), *routes]


def _routes(
    site: Site, names: Sequence[str], deployments: dict[str, Any], limit_s: float, exits: contextlib.ExitStack
) -> Iterator[tuple[Check, str]]:
    """Yield the checks of routes between machines and pods, which run one after the other so as not to share bandwidth."""
    hosts: list[ProbeHost] = []
    for name in names:
        kind, settings, workdir = (deployments[name].get(key) for key in ("type", "config", "workdir"))
        if kind == MACHINE:
            with contextlib.suppress(Unreachable):  # the deployment's own check reports it
                hosts += _ssh_hosts(name, deployments[name], limit_s)
        elif kind in CLUSTERS:
            cluster = NamespaceChecks(name, kind.partition(".")[2], settings or {}, limit_s, site.path.parent)
            hosts.append(PodProbeHost(name, workdir, limit_s, cluster, exits))
    if bucket := site.transfers.get("bucket"):
        for host in hosts:
            yield Check(BUCKET, functools.partial(by_bucket, host, bucket, site.path.parent)), host.name
    for one, other in itertools.combinations(hosts, 2):
        yield Check(ROUTE, functools.partial(between, one, other, site.transfers)), f"{one.name} - {other.name}"


def _ssh_hosts(name: str, deployment: Mapping[str, Any], limit_s: float) -> Iterator[SshProbeHost]:
    settings = deployment["config"]
    for login in _logins(name, settings, limit_s):
        label = name if len(settings["nodes"]) == 1 else f"{name} {login.host}"
        yield SshProbeHost(name=label, login=login, workdir=deployment.get("workdir"))


def _check_deployment(
    name: str,
    deployments: dict[str, Any],
    site: Path,
    limit_s: float,
    results: queue.Queue[tuple[str, HopResult | None]],
) -> None:
    """Run the checks of a deployment in threads that can be abandoned."""
    with contextlib.ExitStack() as exits:
        exits.callback(results.put, (name, None))
        try:
            chains = list(_chains(name, deployments, site, limit_s, exits))
        except Unreachable as error:
            results.put(
                (name, HopResult(place=name, name="settings", health=Health.FAULT, seen=str(error), do=error.do))
            )
            return
        for chain in chains:
            for check in chain:
                hops = _run_check(name, check, 2 * limit_s)
                for hop in hops:
                    results.put((name, hop))
                if check.leads_on and any(hop.health in (Health.FAULT, Health.UNKNOWN) for hop in hops):
                    break


def _run_check(place: str, check: Check, limit_s: float) -> list[HopResult]:
    """Return the hops of one check; a timeout or an exception is a hop of unknown health."""
    hops: list[HopResult] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            hops.extend(check.try_it())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive() or any(isinstance(error, TimeoutError | subprocess.TimeoutExpired) for error in errors):
        seen, do = (
            f"no answer within {limit_s:.0f} s",
            "run doctor again with a longer --timeout; if that does not help, contact the site's operators",
        )
        return [*hops, HopResult(place=place, name=check.name, health=Health.UNKNOWN, seen=seen, do=do)]
    if errors:  # a check that failed says nothing about the site
        seen = f"{type(errors[0]).__name__}: {(str(errors[0]).splitlines() or [''])[0][:160]}"
        return [
            *hops,
            HopResult(
                place=place, name=check.name, health=Health.UNKNOWN, seen=seen, do="run the same command by hand"
            ),
        ]
    return hops


def _chains(
    name: str, deployments: dict[str, Any], site: Path, limit_s: float, exits: contextlib.ExitStack
) -> Iterator[Iterator[Check]]:
    """Yield the checks of one deployment: one chain, or one for each of its machines."""
    deployment = deployments[name]
    kind, settings = deployment["type"], deployment.get("config") or {}
    if kind == LOCAL:
        yield iter([Check("workdir", lambda: _check_local_workdir(name, deployment.get("workdir"), limit_s))])
    elif kind == MACHINE:
        for login in _logins(name, settings, limit_s):
            place = name if len(settings["nodes"]) == 1 else f"{name} {login.host}"
            machine = MachineChecks(place, login, exits, _provision(site))
            yield machine.checks(deployment.get("workdir"), settings.get("environment") or {})
    elif kind == SLURM:
        yield _slurm(name, deployments, site, limit_s, exits)
    elif kind in CLUSTERS:
        yield NamespaceChecks(name, kind.partition(".")[2], settings, limit_s, site.parent).checks()
    else:
        seen, do = (
            f"deployment type {kind} is not from medweave, so it is not tested",
            "test it with a small run, or select other deployments with --deployment",
        )
        yield iter([_unknown(name, "type", seen, do)])


def _slurm(
    name: str, deployments: dict[str, Any], site: Path, limit_s: float, exits: contextlib.ExitStack
) -> Iterator[Check]:
    """Yield the checks of a Slurm deployment, on the machine that it wraps or on this one."""
    settings, inner = deployments[name].get("config") or {}, deployments.get(wrapped(deployments[name]) or "", {})
    kind = inner.get("type", LOCAL)
    if kind == MACHINE:
        machine = MachineChecks(name, next(_logins(name, inner.get("config") or {}, limit_s)), exits, _provision(site))
        yield reaches(name, machine)
        yield from slurm_checks(name, settings, machine.ask, _provision(site))
    elif kind == LOCAL:
        yield from slurm_checks(name, settings, functools.partial(run_here, limit_s=limit_s), BY_HAND)
    else:
        seen, do = (
            f"not tested: wraps a {kind} deployment",
            f"deployments.{name}.wraps: choose a {MACHINE} or {LOCAL} deployment",
        )
        yield _unknown(name, "scheduler", seen, do)


def _provision(site: Path) -> str:
    return f"run: medweave provision --site {shlex.quote(str(site))}"


def _unknown(place: str, name: str, seen: str, do: str) -> Check:
    """Return a check that only yields a hop of unknown health, for a deployment that cannot be tested."""
    return Check(name, lambda: [HopResult(place=place, name=name, health=Health.UNKNOWN, seen=seen, do=do)])


def _logins(name: str, settings: dict[str, Any], limit_s: float) -> Iterator[SshLogin]:
    for node in settings["nodes"]:
        yield login_of(f"deployments.{name}.config", node, settings, limit_s)


def _check_local_workdir(name: str, workdir: str | None, limit_s: float) -> Iterator[HopResult]:
    at = str(Path(workdir or "runs").absolute())
    yield hop_of(name, at, parse_probe(run_here(probe_line(at), limit_s)[0]), f"deployments.{name}.workdir")


def run_here(line: str, limit_s: float) -> tuple[str, int]:
    """Return what a line of shell printed on this machine, and its exit status.

    Raises:
        TimeoutError: the line has not ended in time; it is killed with its children.
    """
    with subprocess.Popen(
        ["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(f"not finished after {limit_s:.0f} s") from error
    return out, process.returncode
