#!/usr/bin/env python3
"""Tries the faults of tests/engine_faults on another StreamFlow, and lists those that went away.

It makes a throw-away virtual environment with that StreamFlow and with medweave's other dependencies of the driver, whatever
version the project pins, and runs the stock side of each test in it. Faults that only a real site shows are named, not tried.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "engine_faults"
HYBRID = ROOT / "tests" / "hybrid"
Verdict = Literal["still there", "gone", "not tried", "needs the testbed"]


class Fault(NamedTuple):
    """The result of one test: the fault's id (`C1`), the test's name, and the message if the fault was not shown."""

    id: str
    test: str
    verdict: Verdict
    seen: str = ""


def requirements(version: str) -> list[str]:
    """Return the packages to install: that StreamFlow, and the driver's other dependencies from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    others = [*project["dependencies"], *project["optional-dependencies"]["driver"]]
    streamflow = str(Path(version).resolve()) if Path(version).is_file() else f"streamflow=={version}"
    pytest = next(line for line in project["optional-dependencies"]["dev"] if line.startswith("pytest"))
    return [streamflow, *(line for line in others if not line.startswith("streamflow")), pytest]


def make_environment(folder: Path, version: str) -> Path:
    """Create a virtual environment; return its interpreter.

    Raises:
        subprocess.CalledProcessError: there is no such version, or it conflicts with the others.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *requirements(version)], check=True)
    subprocess.run([*install, "--no-deps", ROOT], check=True)  # without its pin
    return python


def try_faults(python: Path, folder: Path) -> list[Fault]:
    """Run the stock side of each test."""
    report = folder / "report.xml"
    options = [
        "--stock-only",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        f"--junitxml={report}",
    ]
    subprocess.run([python, "-m", "pytest", "--quiet", "--tb=short", *options, FAULTS], cwd=ROOT, check=False)
    if not report.exists():
        raise SystemExit("try_streamflow: the tests did not run at all; see above.")
    return list(read_report(ElementTree.parse(report).getroot()))


def read_report(root: ElementTree.Element) -> Iterable[Fault]:
    """Return the verdicts in pytest's JUnit report: a test that passed has shown its fault."""
    for case in root.iter("testcase"):
        name = str(case.get("name"))
        named = re.match(r"test_([qnkdc]\d+)_", name)
        if named is None:
            continue
        verdict: Verdict = "still there"
        seen = ""
        for problem in (*case.iter("failure"), *case.iter("error")):
            seen = str(problem.get("message"))
            # Another error says that the test does not fit this version, nothing about the fault.
            verdict = "gone" if "FaultIsGone" in seen else "not tried"
        yield Fault(named[1].upper(), name, verdict, seen.strip().splitlines()[0][:200] if seen.strip() else "")


def of_sites() -> list[Fault]:
    """Return the faults whose stock side runs on the testbed only, so that they have no verdict here."""
    here, there = (
        re.findall(r"^def (test_([qnkdc]\d+)_\w+)", "\n".join(file.read_text("utf-8") for file in files), re.MULTILINE)
        for files in (FAULTS.glob("test_*.py"), HYBRID.glob("test_engine_faults_*.py"))
    )
    tried = {number for _, number in here}
    return [Fault(number.upper(), test, "needs the testbed") for test, number in there if number not in tried]


def main() -> int:
    """Print the verdicts; return 0 if all tests could be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="a release (0.2.0rc4), or the path of a wheel of StreamFlow")
    version = parser.parse_args().version
    with tempfile.TemporaryDirectory(prefix="try-streamflow-") as name:
        folder = Path(name)
        try:
            python = make_environment(folder / "environment", version)
        except subprocess.CalledProcessError as error:
            print(f"try_streamflow: StreamFlow {version} could not be installed (exit code {error.returncode}).")
            return 2
        faults = try_faults(python, folder) + of_sites()
    faults.sort(key=lambda fault: (fault.id[0], int(fault.id[1:])))
    for verdict in get_args(Verdict):
        matching = [fault for fault in faults if fault.verdict == verdict]
        print(f"\n{verdict}: {len(matching)} of {len(faults)}")
        for fault in matching:
            print(f"  {fault.id:4} {fault.test}" + (f"\n       {fault.seen}" if verdict == "not tried" else ""))
    return 1 if any(fault.verdict == "not tried" for fault in faults) else 0


if __name__ == "__main__":
    sys.exit(main())
