"""Kubernetes, CoreDNS and Helm: built from Go modules, or taken from a folder of ready programs."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import machine
from .commands import Commands
from .errors import TestbedError
from .layout import HELM_VERSION, KUBERNETES_PROGRAMS, KUBERNETES_VERSION, ROOT, Layout

SOURCES = ROOT / "deployments" / "testbed" / "kubernetes"
_HELM_PACKAGE = "helm.sh/helm/v4/cmd/helm"
TAKEN = "taken from "
BUILD_S = 7200  # 6 minutes alone; on a slow machine, during the tests, more than 30


def link_flags(version: str) -> str:
    """Flags of the Go linker that stamp the versions in; an unstamped Kubernetes calls itself v0.0.0 and charts refuse it."""
    major, minor, _ = version.lstrip("v").split(".")
    stamp, helm = "k8s.io/component-base/version", "helm.sh/helm/v4/internal/version"
    values = {
        f"{stamp}.gitVersion": version, f"{stamp}.gitMajor": major, f"{stamp}.gitMinor": minor,
        f"{stamp}.gitTreeState": "clean", f"{stamp}.gitCommit": "go-module",
        f"{helm}.version": HELM_VERSION, f"{helm}.kubeClientVersionMajor": major, f"{helm}.kubeClientVersionMinor": minor,
    }  # fmt: skip
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def build_words(go: str, output: Path) -> list[str]:
    """Return the one command line that builds all; one, because the programs share most of their packages."""
    packages = [".", "./coredns", _HELM_PACKAGE]
    return [go, "build", "-mod=readonly", "-ldflags", link_flags(KUBERNETES_VERSION), "-o", f"{output}/", *packages]


def build_environment(layout: Layout, environment: Mapping[str, str]) -> dict[str, str]:
    """Go's caches lie with the testbed's; the compiler may use more memory and so less time (GOGC)."""
    return dict(environment) | {
        "GOCACHE": str(layout.cache / "go-build"), "GOMODCACHE": str(layout.cache / "go-modules"),
        "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -modcacherw", "GOGC": "400",
    }  # fmt: skip


def fingerprint(files: Sequence[Path], extra: str) -> str:
    """SHA-256 of what decides how the programs come out."""
    digest = hashlib.sha256(extra.encode())
    for file in sorted(files):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def wanted(environment: Mapping[str, str]) -> str:
    """Return the content of `.made` next to programs of the right versions."""
    ready = environment.get("MEDWEAVE_TESTBED_BINARIES")
    if ready:
        stamps = [(Path(ready) / name).stat() for name in machine.PROGRAMS]
        return TAKEN + ready + " " + str([(stamp.st_size, stamp.st_mtime_ns) for stamp in stamps])
    sources = [*SOURCES.rglob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]
    return "built from " + fingerprint(sources, link_flags(KUBERNETES_VERSION))


def trouble(layout: Layout, environment: Mapping[str, str]) -> str | None:
    """Return why the programs have to be built again; None if their versions are right, or the user supplied them."""
    made = layout.bin / ".made"
    if not made.exists():
        return "they were not made yet"
    recorded = made.read_text(encoding="utf-8")
    supplied = recorded.startswith(TAKEN) and not environment.get("MEDWEAVE_TESTBED_BINARIES")
    if not supplied and recorded != wanted(environment):
        return "they were made from other sources than the present ones"
    missing = [name for name in machine.PROGRAMS if not os.access(layout.bin / name, os.X_OK)]
    return f"{', '.join(missing)} is missing in {layout.bin}" if missing else None


def make(layout: Layout, commands: Commands, environment: Mapping[str, str]) -> None:
    """Build the programs, or take the ready ones, into `bin/`.

    Raises:
        TestbedError: no usable Go compiler, the build failed, or the programs report other versions than required.
    """
    aside = layout.folder / "bin.new"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    ready = environment.get("MEDWEAVE_TESTBED_BINARIES")
    if ready:
        machine.check_ready_programs(Path(ready))
        _copy(Path(ready), aside)
    else:
        _build(layout, commands, environment, aside)
    check_versions(commands, aside)
    layout.bin.mkdir(parents=True, exist_ok=True)
    for file in aside.iterdir():
        file.replace(layout.bin / file.name)
    aside.rmdir()
    (layout.bin / ".made").write_text(wanted(environment), encoding="utf-8")
    # 3.5 GB that only other sources, or a purge, would ask for again; the modules stay.
    shutil.rmtree(layout.cache / "go-build", ignore_errors=True)


def _copy(ready: Path, output: Path) -> None:
    """Copy the ready programs; several names of one file stay so."""
    copied: dict[Path, str] = {}
    for name in machine.PROGRAMS:
        file = (ready / name).resolve()
        if file in copied:
            (output / name).symlink_to(copied[file])
        else:
            shutil.copy2(file, output / name)
            copied[file] = name


def _build(layout: Layout, commands: Commands, environment: Mapping[str, str], output: Path) -> None:
    go = machine.find_go(environment)
    version = commands.outcome([go, "env", "GOVERSION"], folder=SOURCES)[1] if go else ""
    machine.check_go(machine.go_version(version))
    assert go is not None
    commands.run(
        build_words(go, output), environment=build_environment(layout, environment), folder=SOURCES,
        log=layout.log / "binaries.log", timeout_s=BUILD_S,
        do=f"read {layout.log / 'binaries.log'}; the Go module proxy must be reachable",
    )  # fmt: skip
    for name in KUBERNETES_PROGRAMS:
        (output / name).symlink_to("kubernetes")


def check_versions(commands: Commands, folder: Path) -> None:
    """Raises: TestbedError: a program in the folder has another version than the testbed's."""
    for words, expected in (
        (["kubectl", "version", "--client"], KUBERNETES_VERSION),
        (["kube-apiserver", "--version"], KUBERNETES_VERSION),
        (["coredns", "--version"], "CoreDNS-1."),
        (["helm", "version", "--short"], "v4."),
    ):
        output = commands.run([folder / words[0], *words[1:]]).strip()
        if expected not in output:
            raise TestbedError(
                f"{words[0]} is of another version.",
                seen=output.splitlines()[0] if output else "no output",
                expected=expected,
                do="build it with its version stamped in, or unset MEDWEAVE_TESTBED_BINARIES",
            )
