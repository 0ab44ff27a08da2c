"""`medweave provision --site SITE`: install the virtual environments that a site file names, from wheels of this machine."""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from medweave.project.sites import find_site, read_site
from medweave.provision.site_session import SiteSession
from medweave.provision.wheels import Python, Wheel, build, checkout, closure, fits, read_wheel
from medweave.provision.workers import WorkerEnvironmentSpec, workers_of
from medweave_connectors.jobs.worker_environment import WorkerEnvironment
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import StepError, StorageError, TryAgainError, UserInputError
from medweave_core.untrusted_text import load_json, plain

DESCRIPTION = """\
Install the worker (`medweave-step`) at a site, in the virtual environments that the site file names
(`environment.virtualEnvironment`). Each environment gets the extras of the roles that run there. The site needs no
internet access.

This machine downloads the wheels for the Python version and CPU architecture of the site, checks the hashes of
constraints.txt, copies the wheels over ssh, and installs them at the site.

The site needs Python 3.11 or newer with venv, and free space of about five times the size of the wheels (segment:
131 MB of wheels; train: several GB). An environment that is up to date is not sent again. Running jobs keep the
environment in which they started."""
EPILOG = """\
examples:
  medweave provision --site my-site
  medweave provision --site my-site --deployment hpc

exit codes:
  0   all environments are up to date
  2   wrong usage
  65  the site file, or the site, does not allow the installation
  69  a program or library is missing"""
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
PROBE = """
import importlib.util, json, os, platform, sys
markers = {
    "implementation_name": sys.implementation.name,
    "implementation_version": "%d.%d.%d" % sys.version_info[:3],
    "os_name": os.name,
    "platform_machine": platform.machine(),
    "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(),
    "platform_system": platform.system(),
    "platform_version": platform.version(),
    "python_full_version": platform.python_version(),
    "python_version": "%d.%d" % sys.version_info[:2],
    "sys_platform": sys.platform,
}
libc = platform.libc_ver()
print(json.dumps({
    "executable": sys.executable, "version": sys.version_info[:3], "markers": markers, "machine": platform.machine(),
    "glibc": libc[1] if libc[0] == "glibc" else "", "has_venv": importlib.util.find_spec("ensurepip") is not None,
}))
"""
PROGRESS_S = 10.0
FULL = ("No space left", "quota exceeded")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave provision`."""
    parser.add_argument(
        "--site", required=True, metavar="SITE",
        help="site name (a file in deployments/sites/ of this folder or a parent folder) or path of a site file",
    )  # fmt: skip
    parser.add_argument(
        "--deployment",
        default=None,
        metavar="NAME",
        help="install only the environments of this deployment's services (default: all)",
    )
    parser.add_argument(
        "--wheel", type=Path, default=None, metavar="FILE",
        help="wheel of medweave (default: built from the checkout of this installation)",
    )  # fmt: skip
    parser.add_argument(
        "--constraints", type=Path, default=None, metavar="FILE",
        help="file with versions and hashes of all packages (default: constraints.txt of that checkout)",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Install each environment and print its path."""
    workers = workers_of(read_site(find_site(namespace.site, Path.cwd())), namespace.deployment)
    with tempfile.TemporaryDirectory(prefix="medweave-provision-") as folder:
        package, constraints = _sources(namespace.wheel, namespace.constraints, Path(folder))
        for worker in workers:
            print(provision(worker, package, constraints))
    return 0


def _sources(wheel: Path | None, constraints: Path | None, folder: Path) -> tuple[Wheel, Path]:
    root = checkout()
    missing = [f"--{name}" for name, path in (("wheel", wheel), ("constraints", constraints)) if path is None]
    if missing and root is None:
        raise UserInputError(
            "medweave is not installed from a checkout.", seen="medweave installed from a wheel",
            expected=f"{' and '.join(missing)}, or an installation by `make env` in a checkout",
            do="pass the files of the release with --wheel and --constraints",
        )  # fmt: skip
    if wheel is None:
        assert root is not None
        _say(f"building the wheel of {shown(root)}")
        wheel = build(root, folder)
    return read_wheel(wheel), constraints or (root or Path()) / "constraints.txt"


def provision(worker: WorkerEnvironmentSpec, package: Wheel, constraints: Path) -> str:
    """Install one environment and return a sentence about the result.

    Args:
        package: medweave's wheel.
        constraints: file with versions and hashes of all other packages.

    Raises:
        UserInputError: something at the site or in the file has to be changed; the message names it.
        StorageError: the disk there is full.
        TryAgainError: the site or the package index cannot be reached.
    """
    with SiteSession(worker.deployment, worker.config) as session:
        site = _RemoteEnvironment(session, worker, package)
        name = identity(package, worker.extras, constraints, site.python)
        seen = site.run_action("state")
        if seen["in_the_way"]:
            raise UserInputError(
                f"{worker.where}.virtualEnvironment: the path is in use.",
                seen=f"{seen['in_the_way']} at {worker.path} on {worker.machine}",
                expected="nothing at this path, or an environment that `medweave provision` created",
                do="move it away, or choose another path",
            )
        place = f"{worker.machine}: {worker.path}"
        if seen["current"] == name:
            site.verify()
            return f"{place} is up to date ({name}); nothing sent"
        sent = 0
        try:
            if name not in seen["whole"]:
                sent = site.make(name, constraints)
            site.verify(name)
            site.run_action("switch", name=name, wheels=site.wheel_names)
        except BaseException:
            _say(f"{worker.machine}: removing the incomplete environment")
            with contextlib.suppress(StepError):
                site.run_action("undo", name=name)
            raise
        site.verify()
        return f"{place} updated: {name} with {', '.join(worker.extras) or 'no extra'}; {sent} wheels sent"


def identity(package: Wheel, extras: Sequence[str], constraints: Path, python: Python) -> str:
    """Return the name of an environment, which depends on its wheels, its Python and its machine."""
    pinned = hashlib.sha256(constraints.read_bytes()).hexdigest()
    parts = [package.sha256, sorted(extras), pinned, python.executable, python.version, python.machine, python.glibc]
    return f"{package.version}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


class _RemoteEnvironment:
    """One environment on its machine, and the actions that install it."""

    def __init__(self, session: SiteSession, worker: WorkerEnvironmentSpec, package: Wheel) -> None:
        self._session, self._worker, self._package = session, worker, package
        self.wheel_names: list[str] = []
        _say(f"{worker.machine}: searching for Python")
        self.python = self._find_python()

    def run_action(self, action: str, **arguments: Any) -> Mapping[str, Any]:
        """Run an action of `on_site.py` on the machine and return its result."""
        code, output = self._session.ask(self._script(action, arguments))
        answer = _last_object(output)
        if code or answer is None:
            raise self._failure(action, plain(output))
        return answer

    def make(self, name: str, constraints: Path) -> int:
        """Download the wheels, send missing ones and install them; return the number of sent wheels."""
        present = self.run_action("prepare")
        with tempfile.TemporaryDirectory(prefix="medweave-wheels-") as folder:
            wheels = closure(
                self._package.path, self._worker.extras, self.python, constraints, Path(folder),
                lambda text: _say(f"this machine: {text}"),
            )  # fmt: skip
            new = [wheel for wheel in wheels if present["wheels"].get(wheel.path.name) != wheel.sha256]
            for number, wheel in enumerate(new, 1):
                self._send(wheel, present["folder"], f"{number} of {len(new)}")
            self.wheel_names = [wheel.path.name for wheel in wheels]
            first, *others = (wheel.pinned for wheel in wheels)
            extras = f"[{','.join(self._worker.extras)}]" if self._worker.extras else ""
            lines = [first.replace("==", f"{extras}==", 1), *others]
        _say(f"{self._worker.machine}: installing {len(wheels)} wheels into {self._worker.path}.provisioned/{name}")
        code, output = self._session.work(
            self._script("install", {"name": name, "requirements": "\n".join(lines) + "\n"}), "/"
        )
        if code:
            raise self._failure("install", output, free_mib=present["free_mib"])
        return len(new)

    def verify(self, name: str = "") -> None:
        """Start the worker as a job does, and check its version.

        Args:
            name: of an environment that is not linked yet; empty for the linked one.
        """
        path = f"{self._worker.path}.provisioned/{name}" if name else self._worker.path
        environment = WorkerEnvironment(modules=self._worker.environment.modules, virtualEnvironment=path)
        lines = (*environment.lines(where=self._worker.where), environment.started("medweave-step --version"))
        code, output = self._session.ask("\n".join(lines))
        if code or output.split()[-1:] != [self._package.version]:
            raise UserInputError(
                f"{self._worker.where}.virtualEnvironment: the installed worker does not start correctly.",
                seen=f"`medweave-step --version` in {path}: {output[-400:] or f'exit code {code}'}",
                expected=f"medweave-step {self._package.version}",
                do="read the message above; log in to the machine and run the same command",
            )  # fmt: skip

    def _send(self, wheel: Wheel, folder: str, number: str) -> None:
        size = wheel.path.stat().st_size
        _say(f"{self._worker.machine}: sending {number}: {wheel.path.name} ({size / 1e6:.1f} MB)")
        last_s = time.monotonic()

        def progress(sent: int) -> None:
            nonlocal last_s
            if time.monotonic() - last_s > PROGRESS_S:
                last_s = time.monotonic()
                _say(f"{self._worker.machine}: … {sent / 1e6:.0f} of {size / 1e6:.0f} MB")

        try:
            self._session.send(wheel.path, f"{folder}/{wheel.path.name}", progress)
        except TryAgainError as error:
            if _is_full(error.what):
                raise self._failure("send", error.what) from error
            raise

    def _script(self, action: str, arguments: Mapping[str, Any]) -> str:
        """Return shell text that runs an action by the machine's Python, with its modules."""
        program = base64.b64encode(files("medweave.provision").joinpath("on_site.py").read_bytes()).decode()
        request = json.dumps({"do": action, "link": self._worker.path, **arguments})
        line = f"printf %s {program} | base64 -d | {shlex.quote(self.python.executable)} -I - {shlex.quote(request)}"
        return self._with_modules(line)

    def _with_modules(self, line: str) -> str:
        modules = WorkerEnvironment(modules=self._worker.environment.modules)
        return "\n".join((*modules.lines(where=self._worker.where), modules.started(line)))

    def _find_python(self) -> Python:
        probe = f'python=$(command -v $name) && "$python" -I -c {shlex.quote(PROBE)}'
        code, output = self._session.ask(self._with_modules(f"for name in {' '.join(PYTHONS)}; do {probe}; done; true"))
        if code:
            raise UserInputError(output.rpartition("medweave: ")[2])  # the message of the failed module command
        return choose(output, self._package, self._worker)

    def _failure(self, action: str, output: str, free_mib: int | None = None) -> StepError:
        what = f"{self._worker.where}.virtualEnvironment: cannot create {self._worker.path} on {self._worker.machine}."
        printed = f"{action}:  {' '.join(output.split())[-600:]}"
        if _is_full(output):
            free = "" if free_mib is None else f" ({free_mib} MiB were free before)"
            return StorageError(
                what, seen=f"{printed}{free}",
                expected="space for the wheels, and about three times their size for the installed files",
                do="free space or raise the quota, or choose a path on another file system",
            )  # fmt: skip
        return UserInputError(
            what, seen=printed, expected="a folder that the account owns, and wheels that its Python accepts",
            do="read the message above, then run the same command; it continues with the copied wheels",
        )  # fmt: skip


def choose(output: str, package: Wheel, worker: WorkerEnvironmentSpec) -> Python:
    """Return the first suitable Python of a site.

    Args:
        output: output of `PROBE`, a line for each Python.

    Raises:
        UserInputError: none is suitable; the message lists them.
    """
    pythons = [python for line in output.splitlines() if (python := _python_of(line)) is not None]
    good = [python for python in pythons if fits(package, python)]
    usable = [python for python in good if python.has_venv and python.glibc]
    if usable:
        return usable[0]
    seen = [f"{python.executable} {'.'.join(map(str, python.version))}" for python in pythons]
    if good:
        why = "without venv and pip" if good[0].glibc else "with a C library other than glibc"
        seen = [f"{python.executable} {why}" for python in good]
    raise UserInputError(
        f"{worker.where}: no suitable Python on {worker.machine}.",
        seen=", ".join(dict.fromkeys(seen)) or f"no {', '.join(PYTHONS)}",
        expected="Python 3.11 or newer with venv (Debian: python3-venv), on Linux with glibc",
        do=f"add the environment module that provides Python to {worker.where.rpartition(': ')[2]}.modules",
    )


def _last_object(output: str) -> dict[str, Any] | None:
    """Return the JSON object in the last line of a site's output; None for any other output."""
    lines = output.splitlines()
    try:
        answer = load_json(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _python_of(line: str) -> Python | None:
    """Return the Python that a line of `PROBE` describes; None for any other line, such as a banner of the login."""
    try:
        values = load_json(line) if line.startswith("{") else None
        return Python(**{**values, "version": tuple(values["version"])}) if isinstance(values, dict) else None
    except (ValueError, TypeError, KeyError):
        return None


def _is_full(text: str) -> bool:
    return any(words.lower() in text.lower() for words in FULL)


def _say(text: str) -> None:
    print(f"medweave provision: {text}", file=sys.stderr, flush=True)
