"""Readiness of a pod of the chart compss-cluster: the Python binding of COMPSs must fit the Python of the steps."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.cwl_files import ROOT

RUNTIME = ROOT / "helm" / "compss-cluster" / "files" / "runtime.sh"
FITS = f"compss{sysconfig.get_config_var('EXT_SUFFIX')}"
OTHER = "compss.cpython-36m-x86_64-linux-gnu.so"


def check(home: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin", "HOSTNAME": "r-worker-0", "COMPSS_HOME": str(home), "POD_PYTHON": sys.executable,
    }  # fmt: skip
    script = f"set -euo pipefail; source {RUNTIME}; check_binding"
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("files", "code"), [([FITS], 0), ([OTHER], 78), ([OTHER, FITS], 0), ([], 0)])
def test_a_binding_for_another_python_is_refused_before_the_pod_is_ready(
    tmp_path: Path, files: list[str], code: int
) -> None:
    bindings = tmp_path / "Bindings" / "python" / "3"
    bindings.mkdir(parents=True)
    for name in files:
        (bindings / name).touch()
    ended = check(tmp_path)
    assert ended.returncode == code, ended.stderr
    if code:
        assert "the Python binding of COMPSs is for another version of Python" in ended.stderr
        assert f"seen:     {OTHER} in {bindings}; Python 3." in ended.stderr


def test_installation_without_its_own_bindings_passes(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 0


def test_the_binding_is_part_of_the_checks_of_a_pod() -> None:
    checks = RUNTIME.read_text(encoding="utf-8").partition("\ncheck_compss() {")[2]
    assert "check_binding\n" in checks.partition("\n}")[0]
