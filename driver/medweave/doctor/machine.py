"""A machine that is reached by ssh, and the Slurm behind it: what is tried there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from medweave import __version__
from medweave.doctor.connection import Closed, Login, Reached, connected
from medweave.doctor.disk_space import hop_of, look, read
from medweave.doctor.hop import Check, Health, Hop, skew
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


class Machine:
    """One machine of a medweave.ssh deployment.

    Args:
        place: the deployment's name.
        fix: what to do about its worker environment.
    """

    def __init__(self, place: str, login: Login, held: contextlib.ExitStack, fix: str) -> None:
        self._place, self._login, self._held, self._fix = place, login, held, fix
        self._reached: Reached | None = None

    def checks(self, workdir: str | None, keys: Mapping[str, Any]) -> Iterator[Check]:
        """What is tried, in this order.

        Args:
            workdir: of the deployment.
            keys: its `environment`.
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

    def open(self) -> Iterator[Hop]:
        """Connects, by the client and with the sessions of a run."""
        began = time.monotonic()
        try:
            self._reached = self._held.enter_context(connected(self._login))
        except Closed as error:
            yield self._hop("ssh", Health.FAULT, str(error), error.do)
            return
        took_s = time.monotonic() - began
        seen = f"{self._login.host}, host key and login accepted, a first command run, {took_s:.2f} s"
        yield self._hop("ssh", Health.OK, seen)
        if noise := self._reached.sessions.noise:
            yield self._hop(
                "login", Health.WARNING, f"start-up files of the account print to standard output: '{noise[-120:]}'",
                "runs work, and scp, rsync and others do not: print in interactive shells only "
                "(in .bashrc: `case $- in *i*) echo hello;; esac`)",
            )  # fmt: skip

    def ask(self, line: str) -> tuple[str, int]:
        """What a line printed there, and its exit status.

        Raises:
            TimeoutError: it has not ended in time.
        """
        assert self._reached is not None
        return self._reached.ask(line)

    # ---- what is tried

    def sessions(self) -> Iterator[Hop]:
        """Opens as many sessions as a run may."""
        assert self._reached is not None
        try:
            number = self._reached.num_sessions()
        except Closed as error:
            yield self._hop("sessions", Health.FAULT, str(error), error.do)
            return
        most, shells = self._login.most_sessions, shells_of(number)
        if number >= most:
            yield self._hop("sessions", Health.OK, f"{number} at the same time over one connection")
            return
        yield self._hop(
            "sessions", Health.WARNING,
            f"{number} at the same time over one connection (MaxSessions of its sshd): {shells} for short commands and "
            f"{number - shells} for jobs and copies; others wait",
            f"ask the operators for MaxSessions {most}, or close sessions of your own that share the connection",
        )  # fmt: skip

    def _clock(self) -> Iterator[Hop]:
        began = time.time()
        text, _ = self.ask("date +%s.%N")
        ended = time.time()
        digits = text.strip().removesuffix(".N")  # busybox knows no %N
        try:
            there = float(digits)
        except ValueError:
            seen = f"`date +%s.%N` printed '{text.strip()[:40]}'"
            do = "have coreutils' or busybox's date on the PATH there, and a shell that prints nothing else at a login"
            yield self._hop("clock", Health.UNKNOWN, seen, do)
            return
        yield skew(self._place, there - (began + ended) / 2, (ended - began) / 2 + (0 if "." in digits else 1))

    def _programs(self) -> Iterator[Hop]:
        asked = " ".join((*NEEDED, "python3", "zstd"))
        text, _ = self.ask(f'for each in {asked}; do command -v "$each" >/dev/null || echo "$each"; done')
        missing = text.split()
        if needed := [each for each in missing if each in NEEDED]:
            yield self._hop(
                "programs", Health.FAULT, f"not on the PATH: {', '.join(needed)}",
                "have them installed there (coreutils, findutils, tar, gzip, awk)",
            )  # fmt: skip
        elif "python3" in missing:
            yield self._hop(
                "programs", Health.WARNING, "no python3 on the PATH",
                "works without; with it, copies of many files are several times as fast, and compressed",
            )  # fmt: skip
        else:
            yield self._hop("programs", Health.OK, "shell, tar, coreutils, python3")

    def _workdir(self, path: str) -> Iterator[Hop]:
        text, _ = self.ask(look(path))
        yield hop_of(self._place, path, read(text), f"deployments.{self._place}.workdir")

    def _bandwidth(self) -> Iterator[Hop]:
        assert self._reached is not None
        began = time.monotonic()
        self.ask("true")
        answer_s = time.monotonic() - began
        there_s, back_s = self._reached.wait(asyncio.wait_for(_copied(self._reached.sessions), self._login.limit_s))
        seen = (
            f"{PROBE_BYTES / there_s / 1e6:.0f} MB/s there, {PROBE_BYTES / back_s / 1e6:.0f} MB/s back, over one connection; "
            f"an answer takes {answer_s * 1e3:.0f} ms"
        )
        yield self._hop("bandwidth", Health.OK, seen)

    def _hop(self, name: str, health: Health, seen: str, do: str = "") -> Hop:
        return Hop(place=self._place, name=name, health=health, seen=seen, do=do)


async def _copied(sessions: Sessions) -> tuple[float, float]:
    """How long some bytes take to the machine and back, s.

    Raises:
        ShellLost: not all of them came.
    """
    content = secrets.token_bytes(PROBE_BYTES)
    began = time.monotonic()
    program = await sessions.program(f"head -c {PROBE_BYTES} | wc -c")
    await program.write(content)
    counted = await program.read()
    there_s = time.monotonic() - began
    await program.close()
    began, num_bytes = time.monotonic(), 0
    program = await sessions.program(f"head -c {PROBE_BYTES} /dev/urandom")
    while num_bytes < PROBE_BYTES and (data := await program.read()):
        num_bytes += len(data)
    back_s = time.monotonic() - began
    await program.close()
    if counted.strip() != str(PROBE_BYTES).encode() or num_bytes < PROBE_BYTES:
        raise ShellLost(
            f"of {PROBE_BYTES} bytes came {counted.decode(errors='replace').strip()} there, {num_bytes} back"
        )
    return there_s, back_s


def worker(place: str, keys: Mapping[str, Any], where: str, ask: Ask, fix: str) -> Iterator[Hop]:
    """The step package in the virtual environment of a deployment or of one of its services.

    Args:
        keys: its `environment`.
        where: the place above it in the site file.
        ask: what a line prints there, and its exit status.
        fix: what to do about its worker environment.
    """
    environment = read_environment(keys, where=f"{where}.environment")
    python = f"{environment.virtualEnvironment}/bin/python"
    shown = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
    text, code = ask(f"{shown} -c {shlex.quote(VERSION)} 2>&1")
    if code:
        seen = f"{python}: {text.strip().splitlines()[-1][:120] if text.strip() else f'ended with {code}'}"
        yield Hop(place=place, name="worker", health=Health.FAULT, seen=seen, do=fix)
        return
    version, _, python_version = text.strip().partition(" ")
    seen = f"medweave {version}, Python {python_version}"
    if version != __version__:
        seen += f"; here it is {__version__}"
        yield Hop(place=place, name="worker", health=Health.WARNING, seen=seen, do=fix)
    else:
        yield Hop(place=place, name="worker", health=Health.OK, seen=seen)


def slurm_checks(place: str, config: Mapping[str, Any], ask: Ask, fix: str) -> Iterator[Check]:
    """What is tried of a medweave.slurm deployment, at the machine from which it submits.

    Args:
        ask: what a line prints there, and its exit status.
        fix: what to do about its worker environment.
    """
    path = f"deployments.{place}.config"
    services: dict[str, Mapping[str, Any]] = dict(config.get("services") or {})
    yield Check("scheduler", lambda: _scheduler(place, config, services, ask, path))
    for name, keys in services.items():
        if (keys.get("environment") or {}).get("virtualEnvironment"):
            where = f"{path}.services.{name}"
            yield Check("worker", lambda keys=keys, where=where: worker(place, keys["environment"], where, ask, fix))  # type: ignore[misc]


def reaches(place: str, machine: Machine) -> Check:
    """That the machine which a deployment wraps is reached, without which nothing behind it can be tried."""
    return Check("ssh", lambda: _only_faults(place, machine), leads_on=True)


def _only_faults(place: str, machine: Machine) -> Iterator[Hop]:
    """The machine's own lines say the rest."""
    for each in machine.open():
        if each.health != Health.OK:
            yield Hop(place=place, name=each.name, health=each.health, seen=each.seen, do=each.do)


def _scheduler(
    place: str,
    config: Mapping[str, Any],
    services: Mapping[str, Mapping[str, Any]],
    ask: Ask,
    path: str,
) -> Iterator[Hop]:
    asked = {
        name: Service(**{**keys, "environment": read_environment(keys.get("environment") or {}, where=path)})
        for name, keys in services.items()
    }
    cluster = config.get("cluster") or ""
    line = (
        f"export SLURM_CLUSTERS={shlex.quote(cluster)}; {survey_command(asked)}" if cluster else survey_command(asked)
    )
    seen = parse_survey(ask(line)[0], asked)
    if seen.missing:
        yield Hop(
            place=place, name="scheduler", health=Health.FAULT, seen=f"not on the PATH: {', '.join(seen.missing)}",
            do="name a login node in the deployment that it wraps, or load Slurm's module for non-interactive shells",
        )  # fmt: skip
        return
    if seen.error:
        yield Hop(
            place=place, name="scheduler", health=Health.FAULT, seen=f"sinfo: {seen.error}",
            do="ask the site whether slurmctld is down; or correct `cluster`",
        )  # fmt: skip
        return
    yield Hop(
        place=place, name="scheduler", health=Health.OK, seen=f"Slurm answers; partitions: {', '.join(seen.partitions)}"
    )
    for name, service in asked.items():
        hop = f"service {name}"
        try:
            check_services(seen, {name: service}, lambda each: f"{path}.services.{each}")
        except UsageError as error:
            yield Hop(
                place=place, name=hop, health=Health.FAULT, seen=f"{error.what} seen: {error.seen}",
                do=f"expected: {error.expected}; {error.do}",
            )  # fmt: skip
            continue
        said = seen.trials.get(name, "")
        yield Hop(place=place, name=hop, health=Health.OK, seen=_asked_for(service, said))


def _asked_for(service: Service, said: str) -> str:
    keys = ("partition", "account", "qos", "constraint", "reservation", "time")
    asked = ", ".join(f"{key} {value}" for key in keys if (value := getattr(service, key)))
    gpus = f", {service.gpusPerNode} × {service.gres} a node" if service.gpusPerNode else ""
    trial = " ".join(said.replace("sbatch:", "").split())
    return f"{asked or 'the defaults'}{gpus} accepted by sbatch --test-only" + (f": {trial[:160]}" if trial else "")
