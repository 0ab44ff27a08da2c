"""`make-environment` itself, with a Python that keeps what pip was asked for instead of installing it."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "deployments/environment/make-environment"
# Keeps the words of each call in calls.txt, and a copy of the file that --requirement names, which may be a temporary one.
RECORDING_PYTHON = """#!/usr/bin/env bash
echo "$*" >>calls.txt
while [ $# -gt 0 ]; do
  if [ "$1" = --requirement ]; then cp "$2" asked.txt; fi
  shift
done
"""


def is_of_cuda(name: str) -> bool:
    return name.startswith(("triton", "nvidia-", "cuda-"))


def asked_of_pip(folder: Path, torch: str) -> tuple[list[str], str]:
    """Runs the script on a copy of the real constraints.txt; the call that installs them, and the requirements it names."""
    (folder / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, folder / SCRIPT)
    shutil.copy(ROOT / "constraints.txt", folder)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(RECORDING_PYTHON)
    python.chmod(0o755)
    subprocess.run([folder / SCRIPT, python, torch], check=True, cwd=folder, capture_output=True)
    (call,) = [line for line in (folder / "calls.txt").read_text().splitlines() if "--requirement" in line]
    return call.split(), (folder / "asked.txt").read_text()


def pinned() -> dict[str, list[Requirement]]:
    """What constraints.txt pins, read here in another way; a name has several lines where Pythons need several versions."""
    found: dict[str, list[Requirement]] = {}
    for entry in (ROOT / "constraints.txt").read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_the_cpu_build_keeps_every_version_and_marker_but_those_of_cuda(tmp_path: Path) -> None:
    _, text = asked_of_pip(tmp_path, "cpu")
    left = [Requirement(line) for line in text.splitlines()]  # a hash or a backslash that is left would not parse
    assert not [one.name for one in left if is_of_cuda(one.name)]
    expected = [str(one) for name, lines in pinned().items() if not is_of_cuda(name) for one in lines]
    assert sorted(map(str, left)) == sorted(expected)
    assert "torch" in {one.name for one in left}
    dropped = {name for name in pinned() if is_of_cuda(name)}
    assert {"triton", "cuda-toolkit", "nvidia-cublas"} <= dropped, "there was something to leave out"


def test_the_cpu_build_of_torch_comes_from_its_own_index_without_hashes(tmp_path: Path) -> None:
    # The wheels there are others than those whose hashes are pinned; one hash in the file would ask for all of them.
    words, text = asked_of_pip(tmp_path, "cpu")
    assert words[words.index("--extra-index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert "--require-hashes" not in words
    assert "--hash" not in text
    assert "--no-deps" in words, "or pip would fetch the libraries of CUDA again"


def test_the_default_build_asks_for_every_hash(tmp_path: Path) -> None:
    words, text = asked_of_pip(tmp_path, "default")
    assert "--require-hashes" in words
    assert "--extra-index-url" not in words
    assert text == (ROOT / "constraints.txt").read_text()


def test_another_word_for_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        asked_of_pip(tmp_path, "rocm")
    assert caught.value.returncode == 2
    assert b"'default' or 'cpu'" in caught.value.stderr


def test_another_environment_begins_with_links_to_the_first(tmp_path: Path) -> None:
    (tmp_path / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, tmp_path / SCRIPT)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    first, second = tmp_path / ".venv", tmp_path / "other" / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", first], check=True)
    (packages,) = first.glob("lib/python*/site-packages")
    (packages / "large.so").write_bytes(b"code")
    (first / "bin" / "tool").write_text(f"#!{first}/bin/python\nimport large\n")
    (first / "bin" / "tool").chmod(0o755)
    (packages / "pip").mkdir()
    (packages / "pip" / "__main__.py").write_text("import sys\nprint(sys.prefix, *sys.argv[1:])\n")
    words = [tmp_path / SCRIPT, sys.executable, "default", second, "medweave.whl"]
    told = subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert next(second.glob("lib/python*/site-packages/large.so")).samefile(packages / "large.so")
    assert (second / "bin" / "tool").read_text() == f"#!{second}/bin/python\nimport large\n"
    assert (first / "bin" / "tool").read_text() == f"#!{first}/bin/python\nimport large\n"
    asked = [line for line in told.splitlines() if line.startswith(f"{second} install")]
    assert any("--require-hashes --requirement constraints.txt" in line for line in asked), "pip has the last word"
    assert any(line.endswith("--no-deps medweave.whl") for line in asked)


def test_nobody_but_torch_needs_what_the_cpu_build_leaves_out() -> None:
    needed = {
        (str(distribution.metadata["Name"]), requirement.name)
        for distribution in importlib.metadata.distributions()
        for requirement in map(Requirement, distribution.requires or [])
        if is_of_cuda(canonicalize_name(requirement.name))
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    }
    others = {pair for pair in needed if pair[0] != "torch" and not is_of_cuda(canonicalize_name(pair[0]))}
    assert others == set()
