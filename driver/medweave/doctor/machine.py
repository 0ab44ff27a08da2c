"""Checks of a machine that is reached by ssh, and of its Slurm."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from medweave import __version__
from medweave.doctor.connection import SshConnection, SshLogin, Unreachable, connected
from medweave.doctor.disk_space import hop_of, parse_probe, probe_line
from medweave.doctor.hop_result import Check, Health, HopResult, skew
from medweave_connectors.host.shells import ShellLost
from medweave_connectors.jobs.worker_environment import read_environment
from medweave_connectors.sites.slurm.service import Service
from medweave_connectors.sites.slurm.site_survey import check_services, parse_survey, survey_command
from medweave_connectors.sites.ssh.sessions import Sessions, shells_of
from medweave_core.errors import UsageError

PROBE_BYTES = 8 * 2**20
NEEDED = ("tar", "gzip", "base64", "sha256sum", "find", "stat", "sort", "awk", "xargs")
Ask = Callable[[str], tuple[str, int]]
VERSION = "import importlib.metadata as m, sys; print(m.version('medweave'), sys.version.split()[0])"


class MachineChecks:
    """Checks of one machine of a medweave.ssh deployment.

    Args:
        place: name of the deployment.
        fix: what to do about its worker environment.
    """

    def __init__(self, place: str, login: SshLogin, exits: contextlib.ExitStack, fix: str) -> None:
        self._place, self._login, self._exits, self._fix = place, login, exits, fix
        self._reached: SshConnection | None = None

    def checks(self, workdir: str | None, keys: Mapping[str, Any]) -> Iterator[Check]:
        """Yield the checks in their order.

        Args:
            workdir: workdir of the deployment.
            keys: `environment` of the deployment.
        """
        yield Check("ssh", self.open, leads_on=True)
        yield Check("sessions", self.sessions)
        yield Check("clock", self._clock)
        yield Check("programs", self._programs)
        if workdir:
            yield Check("workdir", lambda: self._workdir(workdir))
        if keys.get("virtualEnvironment"):
            yield Check("worker", lambda: worker(self._place, keys, self._login.where, self.ask, self._fix))
        yield Check("bandwidth", self._bandwidth)

    def open(self) -> Iterator[HopResult]:
        """Connect by the client and with the sessions of a run."""
        began = time.monotonic()
        try:
            self._reached = self._exits.enter_context(connected(self._login))
        except Unreachable as error:
            yield self._hop("ssh", Health.FAULT, str(error), error.do)
            return
        took_s = time.monotonic() - began
        seen = f"{self._login.host}: host key and login accepted, first command ran, {took_s:.2f} s"
        yield self._hop("ssh", Health.OK, seen)
        if noise := self._reached.sessions.noise:
            yield self._hop(
                "login", Health.WARNING, f"login scripts print to standard output: '{noise[-120:]}'",
                "runs work, but scp and rsync fail: print only in interactive shells (in .bashrc: `case $- in "
                "*i*) echo hello;; esac`)",
            )  # fmt: skip

    def ask(self, line: str) -> tuple[str, int]:
        """Return what a line printed on the machine, and its exit status.

        Raises:
            TimeoutError: the line has not ended in time.
        """
        assert self._reached is not None
        return self._reached.ask(line)

    # ---- checks

    def sessions(self) -> Iterator[HopResult]:
        """Open as many sessions as a run may."""
        assert self._reached is not None
        try:
            number = self._reached.num_sessions()
        except Unreachable as error:
            yield self._hop("sessions", Health.FAULT, str(error), error.do)
            return
        most, shells = self._login.most_sessions, shells_of(number)
        if number >= most:
            yield self._hop("sessions", Health.OK, f"{number} parallel sessions over one connection")
            return
        yield self._hop(
            "sessions", Health.WARNING,
            f"{number} parallel sessions over one connection (MaxSessions of sshd): {shells} for short "
            f"commands, {number - shells} for jobs and copies; further ones wait",
            f"ask the operators for MaxSessions {most}, or close other sessions that share the connection",
        )  # fmt: skip

    def _clock(self) -> Iterator[HopResult]:
        began = time.time()
        text, _ = self.ask("date +%s.%N")
        ended = time.time()
        digits = text.strip().removesuffix(".N")  # busybox does not support %N
        try:
            remote_s = float(digits)
        except ValueError:
            seen = f"`date +%s.%N` printed '{text.strip()[:40]}'"
            do = "provide `date` of coreutils or busybox on the PATH, and a login shell that prints nothing else"
            yield self._hop("clock", Health.UNKNOWN, seen, do)
            return
        yield skew(self._place, remote_s - (began + ended) / 2, (ended - began) / 2 + (0 if "." in digits else 1))

    def _programs(self) -> Iterator[HopResult]:
        names = " ".join((*NEEDED, "python3", "zstd"))
        text, _ = self.ask(f'for name in {names}; do command -v "$name" >/dev/null || echo "$name"; done')
        missing = text.split()
        if needed := [name for name in missing if name in NEEDED]:
            yield self._hop(
                "programs", Health.FAULT, f"not on the PATH: {', '.join(needed)}",
                "install them on the machine (coreutils, findutils, tar, gzip, awk)",
            )  # fmt: skip
        elif "python3" in missing:
            yield self._hop(
                "programs", Health.WARNING, "python3 is not on the PATH",
                "optional: with python3, copies of many files are several times faster and compressed",
            )  # fmt: skip
        else:
            yield self._hop("programs", Health.OK, "shell, tar, coreutils, python3")

    def _workdir(self, path: str) -> Iterator[HopResult]:
        text, _ = self.ask(probe_line(path))
        yield hop_of(self._place, path, parse_probe(text), f"deployments.{self._place}.workdir")

    def _bandwidth(self) -> Iterator[HopResult]:
        assert self._reached is not None
        began = time.monotonic()
        self.ask("true")
        answer_s = time.monotonic() - began
        to_s, from_s = self._reached.wait(asyncio.wait_for(_copied(self._reached.sessions), self._login.limit_s))
        seen = (
            f"{PROBE_BYTES / to_s / 1e6:.0f} MB/s to the site, {PROBE_BYTES / from_s / 1e6:.0f} MB/s from the "
            f"site, over one connection; latency {answer_s * 1e3:.0f} ms"
        )
        yield self._hop("bandwidth", Health.OK, seen)

    def _hop(self, name: str, health: Health, seen: str, do: str = "") -> HopResult:
        return HopResult(place=self._place, name=name, health=health, seen=seen, do=do)


async def _copied(sessions: Sessions) -> tuple[float, float]:
    """Return how long some bytes take to the machine and back, s.

    Raises:
        ShellLost: not all bytes arrived.
    """
    content = secrets.token_bytes(PROBE_BYTES)
    began = time.monotonic()
    program = await sessions.program(f"head -c {PROBE_BYTES} | wc -c")
    await program.write(content)
    counted = await program.read()
    to_s = time.monotonic() - began
    await program.close()
    began, num_bytes = time.monotonic(), 0
    program = await sessions.program(f"head -c {PROBE_BYTES} /dev/urandom")
    while num_bytes < PROBE_BYTES and (data := await program.read()):
        num_bytes += len(data)
    from_s = time.monotonic() - began
    await program.close()
    if counted.strip() != str(PROBE_BYTES).encode() or num_bytes < PROBE_BYTES:
        raise ShellLost(
            f"{counted.decode(errors='replace').strip()} of {PROBE_BYTES} bytes arrived at the site, "
            f"{num_bytes} came back"
        )
    return to_s, from_s


def worker(place: str, keys: Mapping[str, Any], where: str, ask: Ask, fix: str) -> Iterator[HopResult]:
    """Yield the hop of the step package in the virtual environment of a deployment or service.

    Args:
        keys: `environment` of the deployment or service.
        where: path of the mapping with `environment` in the site file.
        ask: runs a line on the machine; returns its output and exit status.
        fix: what to do about its worker environment.
    """
    environment = read_environment(keys, where=f"{where}.environment")
    python = f"{environment.virtualEnvironment}/bin/python"
    shown = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
    text, code = ask(f"{shown} -c {shlex.quote(VERSION)} 2>&1")
    if code:
        seen = f"{python}: {text.strip().splitlines()[-1][:120] if text.strip() else f'ended with {code}'}"
        yield HopResult(place=place, name="worker", health=Health.FAULT, seen=seen, do=fix)
        return
    version, _, python_version = text.strip().partition(" ")
    seen = f"medweave {version}, Python {python_version}"
    if version != __version__:
        seen += f"; this machine has {__version__}"
        yield HopResult(place=place, name="worker", health=Health.WARNING, seen=seen, do=fix)
    else:
        yield HopResult(place=place, name="worker", health=Health.OK, seen=seen)


def slurm_checks(place: str, config: Mapping[str, Any], ask: Ask, fix: str) -> Iterator[Check]:
    """Yield the checks of a medweave.slurm deployment, on the machine from which it submits.

    Args:
        ask: runs a line on the machine; returns its output and exit status.
        fix: what to do about its worker environment.
    """
    path = f"deployments.{place}.config"
    services: dict[str, Mapping[str, Any]] = dict(config.get("services") or {})
    yield Check("scheduler", lambda: _scheduler(place, config, services, ask, path))
    for name, keys in services.items():
        if (keys.get("environment") or {}).get("virtualEnvironment"):
            where = f"{path}.services.{name}"
            yield Check("worker", lambda keys=keys, where=where: worker(place, keys["environment"], where, ask, fix))  # type: ignore[misc]


def reaches(place: str, machine: MachineChecks) -> Check:
    """Return the check that the wrapped machine is reached; if it fails, the deployment's other checks are skipped."""
    return Check("ssh", lambda: _only_faults(place, machine), leads_on=True)


def _only_faults(place: str, machine: MachineChecks) -> Iterator[HopResult]:
    """Yield only the failed hops of a machine, whose own deployment shows the others."""
    for hop in machine.open():
        if hop.health != Health.OK:
            yield HopResult(place=place, name=hop.name, health=hop.health, seen=hop.seen, do=hop.do)


def _scheduler(
    place: str,
    config: Mapping[str, Any],
    services: Mapping[str, Mapping[str, Any]],
    ask: Ask,
    path: str,
) -> Iterator[HopResult]:
    requested = {
        name: Service(**{**keys, "environment": read_environment(keys.get("environment") or {}, where=path)})
        for name, keys in services.items()
    }
    cluster = config.get("cluster") or ""
    line = (
        f"export SLURM_CLUSTERS={shlex.quote(cluster)}; {survey_command(requested)}"
        if cluster
        else survey_command(requested)
    )
    seen = parse_survey(ask(line)[0], requested)
    if seen.missing:
        yield HopResult(
            place=place, name="scheduler", health=Health.FAULT, seen=f"not on the PATH: {', '.join(seen.missing)}",
            do="wrap a deployment of a login node, or load the Slurm module for non-interactive shells",
        )  # fmt: skip
        return
    if seen.error:
        yield HopResult(
            place=place, name="scheduler", health=Health.FAULT, seen=f"sinfo: {seen.error}",
            do="check with the operators that slurmctld runs, or correct `cluster`",
        )  # fmt: skip
        return
    yield HopResult(
        place=place,
        name="scheduler",
        health=Health.OK,
        seen=f"Slurm responds; partitions: {', '.join(seen.partitions)}",
    )
    for name, service in requested.items():
        hop = f"service {name}"
        try:
            check_services(seen, {name: service}, lambda service_name: f"{path}.services.{service_name}")
        except UsageError as error:
            yield HopResult(
                place=place, name=hop, health=Health.FAULT, seen=f"{error.what} seen: {error.seen}",
                do=f"expected: {error.expected}; {error.do}",
            )  # fmt: skip
            continue
        message = seen.trials.get(name, "")
        yield HopResult(place=place, name=hop, health=Health.OK, seen=_accepted_text(service, message))


def _accepted_text(service: Service, message: str) -> str:
    keys = ("partition", "account", "qos", "constraint", "reservation", "time")
    requested = ", ".join(f"{key} {value}" for key in keys if (value := getattr(service, key)))
    gpus = f", {service.gpusPerNode} × {service.gres} per node" if service.gpusPerNode else ""
    trial = " ".join(message.replace("sbatch:", "").split())
    return f"{requested or 'default settings'}{gpus} accepted by sbatch --test-only" + (
        f": {trial[:160]}" if trial else ""
    )
