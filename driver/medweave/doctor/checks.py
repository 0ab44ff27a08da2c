"""All deployments of a site, tried side by side."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import queue
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.doctor.cluster import Cluster
from medweave.doctor.connection import Closed, Login, login_of
from medweave.doctor.disk_space import hop_of, look, read
from medweave.doctor.hop import Check, Health, Hop
from medweave.doctor.local_shell import ask
from medweave.doctor.machine import Machine, reaches, slurm_checks
from medweave.doctor.probe_host import Ground, Place, Pods
from medweave.doctor.routes import BUCKET, between, by_bucket
from medweave.doctor.routes import NAME as ROUTE
from medweave.project.deployments import connector_schemas, wrapped
from medweave.project.sites import Site
from medweave_core.documents.streamflow_paths import resolve_paths

MACHINE, SLURM, LOCAL = "medweave.ssh", "medweave.slurm", "medweave.local"
BY_HAND = "install it by hand (docs/how-to/install-a-worker.md), or correct `virtualEnvironment`"
CLUSTERS = ("medweave.kubernetes", "medweave.helm", "medweave.compss")


def look_at(site: Site, only: Sequence[str], limit_s: float, tell: Callable[[Hop], None]) -> list[Hop]:
    """Tries everything.

    Args:
        only: names of deployments; empty for all.
        limit_s: for one answer; a check that has not ended after twice of it is given up.
        tell: gets each hop as it is known.

    Returns:
        the hops, in the order of the site file.

    Raises:
        UsageError: a variable of the site file has no value.
    """
    document: dict[str, Any] = {"path": str(site.path), "deployments": copy.deepcopy(dict(site.deployments))}
    resolve_paths(document, Path("runs").absolute(), connector_schemas())
    names = [name for name in site.deployments if not only or name in only]
    told: queue.Queue[tuple[str, Hop | None]] = queue.Queue()
    for name in names:
        thread = threading.Thread(
            target=_try, args=(name, document["deployments"], site.path, limit_s, told), daemon=True
        )
        thread.start()
    found: dict[str, list[Hop]] = {name: [] for name in names}
    left = set(names)
    while left:
        name, hop = told.get()
        if hop is None:
            left.discard(name)
        else:
            found[name].append(hop)
            tell(hop)
    routes = []
    with contextlib.ExitStack() as held:
        for check, place in _routes(site, names, document["deployments"], limit_s, held):
            for hop in _within(place, check, 2 * limit_s):
                routes.append(hop)
                tell(hop)
    return [*(hop for name in names for hop in found[name]), *routes]


def _routes(
    site: Site, names: Sequence[str], deployments: dict[str, Any], limit_s: float, held: contextlib.ExitStack
) -> Iterator[tuple[Check, str]]:
    """The ways between machines and pods, one after the other: side by side they would share what is measured."""
    grounds: list[Ground] = []
    for name in names:
        kind, given, workdir = (deployments[name].get(key) for key in ("type", "config", "workdir"))
        if kind == MACHINE:
            with contextlib.suppress(Closed):  # told by its own line
                grounds += _places(name, deployments[name], limit_s)
        elif kind in CLUSTERS:
            cluster = Cluster(name, kind.partition(".")[2], given or {}, limit_s, site.path.parent)
            grounds.append(Pods(name, workdir, limit_s, cluster, held))
    if bucket := site.transfers.get("bucket"):
        for each in grounds:
            yield Check(BUCKET, functools.partial(by_bucket, each, bucket, site.path.parent)), each.name
    for one, other in itertools.combinations(grounds, 2):
        yield Check(ROUTE, functools.partial(between, one, other, site.transfers)), f"{one.name} - {other.name}"


def _places(name: str, deployment: Mapping[str, Any], limit_s: float) -> Iterator[Place]:
    given = deployment["config"]
    for login in _logins(name, given, limit_s):
        shown = name if len(given["nodes"]) == 1 else f"{name} {login.host}"
        yield Place(name=shown, login=login, workdir=deployment.get("workdir"))


def _try(
    name: str, deployments: dict[str, Any], site: Path, limit_s: float, told: queue.Queue[tuple[str, Hop | None]]
) -> None:
    """The checks of a deployment; each of them in a thread that can be given up."""
    with contextlib.ExitStack() as held:
        held.callback(told.put, (name, None))
        try:
            chains = list(_chains(name, deployments, site, limit_s, held))
        except Closed as error:
            told.put((name, Hop(place=name, name="settings", health=Health.FAULT, seen=str(error), do=error.do)))
            return
        for chain in chains:
            for check in chain:
                hops = _within(name, check, 2 * limit_s)
                for hop in hops:
                    told.put((name, hop))
                if check.leads_on and any(hop.health in (Health.FAULT, Health.UNKNOWN) for hop in hops):
                    break


def _within(place: str, check: Check, limit_s: float) -> list[Hop]:
    found: list[Hop] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.extend(check.try_it())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive() or any(isinstance(each, TimeoutError | subprocess.TimeoutExpired) for each in failed):
        seen, do = (
            f"no answer within {limit_s:.0f} s",
            "try again with a longer --timeout; if it stays so, ask the site",
        )
        return [*found, Hop(place=place, name=check.name, health=Health.UNKNOWN, seen=seen, do=do)]
    if failed:  # nothing is assumed of what could not be tried
        seen = f"{type(failed[0]).__name__}: {(str(failed[0]).splitlines() or [''])[0][:160]}"
        return [*found, Hop(place=place, name=check.name, health=Health.UNKNOWN, seen=seen, do="try it by hand")]
    return found


def _chains(
    name: str, deployments: dict[str, Any], site: Path, limit_s: float, held: contextlib.ExitStack
) -> Iterator[Iterator[Check]]:
    """The checks of one deployment: one chain, or one for each of its machines."""
    deployment = deployments[name]
    kind, given = deployment["type"], deployment.get("config") or {}
    if kind == LOCAL:
        yield iter([Check("workdir", lambda: _here(name, deployment.get("workdir"), limit_s))])
    elif kind == MACHINE:
        for login in _logins(name, given, limit_s):
            place = name if len(given["nodes"]) == 1 else f"{name} {login.host}"
            machine = Machine(place, login, held, _provision(site))
            yield machine.checks(deployment.get("workdir"), given.get("environment") or {})
    elif kind == SLURM:
        yield _slurm(name, deployments, site, limit_s, held)
    elif kind in CLUSTERS:
        yield Cluster(name, kind.partition(".")[2], given, limit_s, site.parent).checks()
    else:
        seen, do = (
            f"of the type {kind}, which is not one of ours",
            "try it by a small run, or leave it out by --deployment",
        )
        yield iter([_told(name, "type", seen, do)])


def _slurm(
    name: str, deployments: dict[str, Any], site: Path, limit_s: float, held: contextlib.ExitStack
) -> Iterator[Check]:
    """Through the machine that it wraps; none is this machine, as for the connector."""
    given, inner = deployments[name].get("config") or {}, deployments.get(wrapped(deployments[name]) or "", {})
    kind = inner.get("type", LOCAL)
    if kind == MACHINE:
        machine = Machine(name, next(_logins(name, inner.get("config") or {}, limit_s)), held, _provision(site))
        yield reaches(name, machine)
        yield from slurm_checks(name, given, machine.ask, _provision(site))
    elif kind == LOCAL:
        yield from slurm_checks(name, given, functools.partial(ask, limit_s=limit_s), BY_HAND)
    else:
        seen, do = f"behind a {kind}: not tried", f"deployments.{name}.wraps: name a {MACHINE} or {LOCAL} deployment"
        yield _told(name, "scheduler", seen, do)


def _provision(site: Path) -> str:
    return f"run: medweave provision --site {shlex.quote(str(site))}"


def _told(place: str, name: str, seen: str, do: str) -> Check:
    """Nothing to try: a line that says why."""
    return Check(name, lambda: [Hop(place=place, name=name, health=Health.UNKNOWN, seen=seen, do=do)])


def _logins(name: str, given: dict[str, Any], limit_s: float) -> Iterator[Login]:
    for node in given["nodes"]:
        yield login_of(f"deployments.{name}.config", node, given, limit_s)


def _here(name: str, workdir: str | None, limit_s: float) -> Iterator[Hop]:
    at = str(Path(workdir or "runs").absolute())
    yield hop_of(name, at, read(ask(look(at), limit_s)[0]), f"deployments.{name}.workdir")
