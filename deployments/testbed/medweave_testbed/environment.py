"""The worker environment: medweave with all roles, at one path for the login node, Slurm jobs, pods and the driver."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from .binaries import fingerprint
from .commands import Commands
from .layout import ROOT, Layout
from .part import Part, Testbed

_PATIENCE = 5  # installations of medweave's own wheel, a few seconds each
PYTHON = "/usr/bin/python3"  # the images have it at the same path and of the same release
MAKE_ENVIRONMENT = ROOT / "deployments" / "environment" / "make-environment"


def dependencies_fingerprint(python_version: str, torch: str) -> str:
    """Return what decides which packages of others the environment holds."""
    return fingerprint([ROOT / "constraints.txt", MAKE_ENVIRONMENT], f"{python_version} {torch}")


def package_files() -> Iterable[Path]:
    """Everything that goes into medweave's own wheel."""
    folders = (
        ROOT / "core" / "medweave_core",
        ROOT / "steps" / "medweave_steps",
        ROOT / "connectors" / "medweave_connectors",
        ROOT / "driver" / "medweave",
    )
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return [ROOT / "pyproject.toml", *(file for file in files if "__pycache__" not in file.parts)]


def package_fingerprint() -> str:
    """Return what decides how medweave's own wheel comes out."""
    files = sorted(package_files())
    return fingerprint(files, " ".join(str(file.relative_to(ROOT)) for file in files))


def wanted(commands: Commands, torch: str) -> dict[str, str]:
    """Return what `.made` in the environment must say for it to be current."""
    version = commands.outcome([PYTHON, "--version"])[1].strip()
    dependencies = dependencies_fingerprint(version, torch)
    return {"torch": torch, "dependencies": dependencies, "package": package_fingerprint()}


def made(layout: Layout) -> dict[str, str]:
    """Return what the environment says it was made from; empty if it was not made."""
    try:
        content: dict[str, str] = json.loads((layout.environment / ".made").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content


def torch_build(testbed: Testbed) -> str:
    """PyTorch's build: what the caller asks for as `make TORCH=…`, else the one that is there already."""
    return testbed.environment.get("TORCH") or made(testbed.layout).get("torch") or "default"


def trouble(testbed: Testbed) -> str | None:
    """Return why the environment has to be made, or medweave's wheel installed again."""
    seen, expected = made(testbed.layout), wanted(testbed.commands, torch_build(testbed))
    if seen.get("dependencies") != expected["dependencies"]:
        return "it was made from other constraints" if seen else "it was not made yet"
    return (
        None
        if seen.get("package") == expected["package"]
        else "medweave's own source changed since it was installed there"
    )


def start(testbed: Testbed) -> None:
    """Create the environment; where only medweave's own source changed, install just its wheel again (seconds)."""
    layout, commands = testbed.layout, testbed.commands
    torch = torch_build(testbed)
    expected = wanted(commands, torch)
    if made(layout).get("dependencies") != expected["dependencies"]:
        wheel = build_wheel(layout, commands)
        shutil.rmtree(layout.environment, ignore_errors=True)
        words = [str(MAKE_ENVIRONMENT), PYTHON, torch, str(layout.environment), str(wheel)]
        variables = dict(os.environ) | {"PYTHONNOUSERSITE": "1"}
        commands.run(words, log=layout.log / "environment.log", environment=variables)
        layout.environment.chmod(0o755)
        note(layout, expected)
    for _ in range(_PATIENCE):  # the source may be edited during the installation
        expected = wanted(commands, torch)
        if made(layout) == expected:
            return
        install_package(layout, commands)
        note(layout, expected)


def install_package(layout: Layout, commands: Commands) -> None:
    """Install medweave's own wheel again, and nothing else."""
    wheel = build_wheel(layout, commands)
    pip = [str(layout.environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands.run([*pip, "--no-deps", "--force-reinstall", str(wheel)])


def note(layout: Layout, content: dict[str, str]) -> None:
    """Write what the environment was made from."""
    (layout.environment / ".made").write_text(json.dumps(content), encoding="utf-8")


def build_wheel(layout: Layout, commands: Commands) -> Path:
    """Build medweave's wheel of the checkout by the environment that runs us."""
    folder = layout.cache / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    commands.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT])
    return next(folder.glob("medweave-*.whl"))


def parts() -> list[Part]:
    """Return the worker environment's part."""
    slow = "installing medweave and all that its roles need (7 GB the first time)"
    return [Part(name="environment", needs=("packages",), trouble=trouble, start=start, slow=slow)]
