"""`make-environment`, run with a Python and a uv that record their arguments and install nothing."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "deployments/environment/make-environment"
# Records the arguments of each call in calls.txt, and a copy of the requirements file, which may be a temporary one.
RECORDER = """#!/usr/bin/env bash
echo "${0##*/} $*" >>calls.txt
case "$*" in *'install --quiet --require-hashes'*) exit "${UV_CANNOT_BE_INSTALLED:-0}" ;; esac
case "$*" in *'- https'*) echo "${INDEX_ERROR:-}"; [ -z "${INDEX_ERROR:-}" ]; exit ;; esac
case "$*" in *'config get'*) echo "${CONFIGURED_INDEX:-}"; exit ;; esac
while [ $# -gt 0 ]; do
  if [ "$1" = --requirement ]; then cp "$2" requirements.txt; env | grep -E '^(UV_|SSL_)' | sort >environment.txt; fi
  shift
done
"""


def is_of_cuda(name: str) -> bool:
    return name.startswith(("triton", "nvidia-", "cuda-"))


def run_script(folder: Path, torch: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a copy of the real constraints.txt, with recorders as Python and uv."""
    (folder / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, folder / SCRIPT)
    shutil.copy(ROOT / "constraints.txt", folder)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "uv"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "SSL_"))}
    command = [folder / SCRIPT, programs / "python", torch]
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)


def installation(folder: Path, torch: str, **variables: str) -> tuple[list[str], str]:
    """Return the arguments of the call that installs the pinned packages, and the requirements it names."""
    result = run_script(folder, torch, **variables)
    assert result.returncode == 0, result.stderr
    calls = (folder / "calls.txt").read_text().splitlines()
    (call,) = [line for line in calls if "--requirement" in line and "install --quiet" not in line]
    return call.split(), (folder / "requirements.txt").read_text()


def pinned() -> dict[str, list[Requirement]]:
    """What constraints.txt pins, parsed independently; a name has several lines where Pythons need several versions."""
    found: dict[str, list[Requirement]] = {}
    for entry in (ROOT / "constraints.txt").read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_the_cpu_build_keeps_every_version_and_marker_but_those_of_cuda(tmp_path: Path) -> None:
    _, text = installation(tmp_path, "cpu")
    left = [Requirement(line) for line in text.splitlines()]  # a hash or a backslash that is left would not parse
    assert not [one.name for one in left if is_of_cuda(one.name)]
    expected = [str(one) for name, lines in pinned().items() if not is_of_cuda(name) for one in lines]
    assert sorted(map(str, left)) == sorted(expected)
    assert "torch" in {one.name for one in left}
    dropped = {name for name in pinned() if is_of_cuda(name)}
    assert {"triton", "cuda-toolkit", "nvidia-cublas"} <= dropped, "there was something to leave out"


def test_the_cpu_build_of_torch_comes_from_its_own_index_without_hashes(tmp_path: Path) -> None:
    # The wheels there are others than those whose hashes are pinned; one hash in the file would ask for all of them.
    words, text = installation(tmp_path, "cpu")
    assert words[words.index("--extra-index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert "--require-hashes" not in words
    assert "--hash" not in text
    assert "--no-deps" in words, "or pip would fetch the libraries of CUDA again"


def test_the_default_build_asks_for_every_hash(tmp_path: Path) -> None:
    words, text = installation(tmp_path, "default")
    assert "--require-hashes" in words
    assert "--extra-index-url" not in words
    assert text == (ROOT / "constraints.txt").read_text()


def test_another_word_for_torch_is_refused(tmp_path: Path) -> None:
    result = run_script(tmp_path, "rocm")
    assert result.returncode == 2
    assert "'default' or 'cpu'" in result.stderr


def test_an_unreachable_cpu_index_is_an_error_before_anything_is_installed(tmp_path: Path) -> None:
    result = run_script(tmp_path, "cpu", INDEX_ERROR="Name or service not known")
    assert result.returncode == 2
    assert "https://download.pytorch.org/whl/cpu cannot be reached: Name or service not known" in result.stderr
    assert "install" not in (tmp_path / "calls.txt").read_text()


def test_uv_installs_with_the_hash_of_its_own_pin(tmp_path: Path) -> None:
    words, _ = installation(tmp_path, "default")
    assert words[:3] == ["uv", "pip", "install"]


def test_pip_installs_where_uv_cannot_be_had(tmp_path: Path) -> None:
    words, text = installation(tmp_path, "default", UV_CANNOT_BE_INSTALLED="1")
    assert words[:3] == ["python", "-m", "pip"]
    assert "--require-hashes" in words
    assert text == (ROOT / "constraints.txt").read_text()


def test_uv_uses_the_index_and_the_certificates_of_pip(tmp_path: Path) -> None:
    installation(
        tmp_path, "default", CONFIGURED_INDEX="https://mirror.example.org/simple", PIP_CERT="/etc/hospital.pem"
    )
    variables = (tmp_path / "environment.txt").read_text().splitlines()
    assert "UV_DEFAULT_INDEX=https://mirror.example.org/simple" in variables
    assert "SSL_CERT_FILE=/etc/hospital.pem" in variables


def test_only_torch_needs_the_packages_that_the_cpu_build_leaves_out() -> None:
    needed = {
        (str(distribution.metadata["Name"]), requirement.name)
        for distribution in importlib.metadata.distributions()
        for requirement in map(Requirement, distribution.requires or [])
        if is_of_cuda(canonicalize_name(requirement.name))
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    }
    others = {pair for pair in needed if pair[0] != "torch" and not is_of_cuda(canonicalize_name(pair[0]))}
    assert others == set()
