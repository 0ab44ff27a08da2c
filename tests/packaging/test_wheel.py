"""What users install is the wheel, so the wheel is what these tests install and call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from medweave.cli.main_command import COMMANDS
from medweave.cli.schema import schemas
from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[2]
VERBS = (
    "phantom",
    "check",
    "deidentify",
    "preprocess",
    "encode-table",
    "train",
    "train-distributed",
    "prune",
    "place-layers",
    "search",
    "export",
    "bundle",
    "quantize",
    "gate",
    "segment",
    "classify",
    "explain",
    "evaluate",
    "stats",
    "report",
)
SEGMENT_LIMIT_MB = 600
BYTECODE = 1.5  # bytes of bytecode for one of source, at most: 1.36 in an environment of `medweave[segment]`

install_role = module_of(ROOT / "deployments" / "images" / "install_role.py")


def call(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, text=True, capture_output=True, check=False
    )


def make_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin"


def pinned_blocks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = install_role.pinned_blocks((ROOT / "constraints.txt").read_text())
    return found


def install(
    binaries: Path, wheel: Path, extra: str, folder: Path, blocks: dict[str, list[str]], *options: str
) -> subprocess.CompletedProcess[str]:
    """Install the wheel as docs/how-to/install-a-worker.md says: its closure from constraints.txt, hashes checked."""
    versions = folder / "versions.txt"
    versions.write_text(install_role.versions(blocks.values()))
    report = folder / "resolution.json"
    pip = (binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    resolved = call(*pip, "--dry-run", "--report", report, "--constraint", versions, f"{wheel}{extra}")
    if resolved.returncode:
        return resolved
    requirements = folder / "requirements.txt"
    requirements.write_text(install_role.closure(report.read_text(), blocks))
    closure = call(*pip, *options, "--require-hashes", "--no-deps", "--requirement", requirements)
    return closure if closure.returncode else call(*pip, *options, "--no-deps", wheel)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@dataclass(frozen=True)
class Bare:
    """An environment with medweave and no extra.

    Attributes:
        changed: pip's earlier output, for a package whose hash is not the pinned one.
    """

    folder: Path
    changed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def bare_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    folder = tmp_path_factory.mktemp("bare")
    binaries, blocks = make_environment(folder / "venv"), pinned_blocks()
    (block,) = blocks["numpy"]
    wrong = re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", block)
    changed = install(binaries, wheel, "", folder, blocks | {"numpy": [wrong]})
    installed = install(binaries, wheel, "", folder, blocks)
    assert installed.returncode == 0, installed.stderr
    return Bare(folder / "venv", changed)


@pytest.fixture(scope="session")
def bare(bare_environment: Bare) -> Path:
    """Return the binaries of an environment with medweave and no extra."""
    return bare_environment.folder / "bin"


@pytest.fixture(scope="module")
def segment_worker(wheel: Path, bare_environment: Bare, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the root of an environment with `medweave[segment]` alone, whose packages have no bytecode: that takes ten seconds."""
    folder = tmp_path_factory.mktemp("segment")
    shutil.copytree(bare_environment.folder, folder / "venv", symlinks=True)
    installed = install(folder / "venv" / "bin", wheel, "[segment]", folder, pinned_blocks(), "--no-compile")
    assert installed.returncode == 0, installed.stderr
    yield folder / "venv"
    shutil.rmtree(folder)  # half a gigabyte


def test_the_wheel_contains_the_four_packages_and_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"medweave", "medweave_connectors", "medweave_core", "medweave_steps"}
    source = {
        path.relative_to(room).as_posix()
        for room in (ROOT / "core", ROOT / "steps", ROOT / "connectors", ROOT / "driver")
        for path in room.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.relative_to(room).parts[0] in tops  # no type stubs
    }
    assert source - set(names) == set()


def test_there_is_exactly_one_streamflow_entry_point(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    text = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()
    section = text.partition("[unito.streamflow.plugin]")[2].partition("[")[0]
    assert section.split() == ["medweave", "=", "medweave_connectors.plugin:MedweavePlugin"]


@pytest.mark.packaging
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_its_help_in_a_bare_environment(bare: Path, verb: str) -> None:
    shown = call(bare / "medweave-step", verb, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: medweave-step {verb}")
    assert "Research use only" in shown.stdout


@pytest.mark.packaging
@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=["medweave", *COMMANDS])
def test_driver_prints_its_help_in_a_bare_environment(bare: Path, words: list[str]) -> None:
    shown = call(bare / "medweave", *words, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(" ".join(["usage: medweave", *words]))


@pytest.mark.packaging
def test_each_schema_is_in_the_wheel(bare: Path) -> None:
    shown = call(bare / "medweave", "schema")
    assert shown.returncode == 0, shown.stderr
    assert {line.split()[0] for line in shown.stdout.splitlines()} == {*schemas(), "WORKFLOW.cwl"}


@pytest.mark.packaging
def test_a_missing_library_is_exit_code_69_and_names_the_extra(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "a.dcm").write_bytes(b"\0" * 128 + b"DICM")
    ended = call(
        bare / "medweave-step", "check", "--cohort", tmp_path / "cohort", "--output", "index.json", cwd=tmp_path
    )
    assert ended.returncode == 69, ended.stderr
    assert "pip install 'medweave[" in ended.stderr


@pytest.mark.packaging
def test_a_worker_that_only_segments_is_small_and_has_no_training_libraries(segment_worker: Path) -> None:
    listed = call(segment_worker / "bin" / "python", "-m", "pip", "list", "--format=freeze").stdout.lower()
    present = {line.partition("==")[0] for line in listed.split()}
    assert present.isdisjoint({"torch", "monai", "streamflow", "simpleitk", "onnxruntime", "nncf"})
    files = [path for path in segment_worker.rglob("*") if path.is_file() and not path.is_symlink()]
    size_mb = sum(path.stat().st_size for path in files if path.suffix != ".pyc") / 1e6
    size_mb += BYTECODE * sum(path.stat().st_size for path in files if path.suffix == ".py") / 1e6
    print(f"medweave[segment]: {size_mb:.0f} MB installed")
    assert size_mb <= SEGMENT_LIMIT_MB


@pytest.mark.packaging
def test_a_worker_that_only_segments_can_import_what_it_needs(segment_worker: Path) -> None:
    program = (
        "import openvino, highdicom, pydicom, nibabel, scipy.ndimage, scipy.sparse; "
        "import medweave_steps.segment.command as c, medweave_steps.classify.command as d; print(c.VERB.name, d.VERB.name)"
    )
    ended = call(segment_worker / "bin" / "python", "-c", program)
    assert ended.stdout.strip() == "segment classify", ended.stderr


def test_a_package_whose_version_depends_on_python_keeps_all_its_versions() -> None:
    # Earlier only the last version stayed, and pip skipped the package if its marker did not match: workers without scipy.
    blocks = pinned_blocks()
    assert [re.split(r"[ \\]", block)[0].startswith("scipy==") for block in blocks["scipy"]] == [True, True]
    lines = [line for line in install_role.versions(blocks.values()).splitlines() if line.startswith("scipy==")]
    assert len(lines) == 2
    assert all("python_full_version" in line and "--hash" not in line for line in lines)
    report = '{"install": [{"metadata": {"name": "scipy"}}, {"metadata": {"name": "medweave"}}]}'
    assert install_role.closure(report, blocks).count("scipy==") == 2


@pytest.mark.packaging
def test_a_changed_download_is_refused(bare_environment: Bare) -> None:
    assert bare_environment.changed.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in bare_environment.changed.stderr


def test_every_requirement_is_pinned_with_a_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {install_role.canonical(re.split(r"[\[<>=~! ]", item, maxsplit=1)[0]) for item in wanted} - {"medweave"}
    pinned = {name for name, blocks in pinned_blocks().items() if all("--hash=sha256:" in block for block in blocks)}
    assert names - pinned == set()
    assert "streamflow==0.2.0rc3" in project["optional-dependencies"]["driver"]
