"""The recipes of the images; tests/hybrid/test_images.py builds them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from support.cwl_files import ROOT
from support.scripts import module_of

IMAGES = ROOT / "deployments" / "images"
RECIPES = sorted(IMAGES.glob("*/Containerfile"))
SECTIONS = {"files", "post", "environment", "runscript", "test", "labels", "help", "arguments", "setup", "startscript"}


def instructions(recipe: Path) -> list[tuple[str, str]]:
    """Return (instruction, its words) of a Containerfile, with continued lines joined and without comments."""
    text = "\n".join(line for line in recipe.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def final_stage(recipe: Path) -> list[tuple[str, str]]:
    steps = instructions(recipe)
    last = max(index for index, (name, _) in enumerate(steps) if name == "FROM")
    return steps[last:]


@pytest.fixture(params=RECIPES, ids=lambda path: path.parent.name)
def recipe(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_there_is_a_recipe_per_role() -> None:
    assert {path.parent.name for path in RECIPES} == {"train", "compss", "segment", "driver"}


def test_recipe_builds_on_any_base_in_stages(recipe: Path) -> None:
    steps = instructions(recipe)
    assert steps[0][0] == "ARG"
    assert re.fullmatch(r"BASE_IMAGE=[a-z/]+:[0-9][\w.-]+", steps[0][1]), "a tag that names a version"
    stages = [words for name, words in steps if name == "FROM"]
    assert len(stages) >= 2
    assert {words.split()[0] for words in stages} <= {"${BASE_IMAGE}", "scratch"}


def test_recipe_ends_with_an_unprivileged_user(recipe: Path) -> None:
    users = [words for name, words in final_stage(recipe) if name == "USER"]
    assert users[-1] == "10001:10001"
    after = final_stage(recipe)[[name for name, _ in final_stage(recipe)].index("USER") + 1 :]
    assert "medweave" in " ".join(words for _, words in after)


def test_image_has_its_labels(recipe: Path) -> None:
    labels = " ".join(words for name, words in final_stage(recipe) if name == "LABEL")
    for key in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{key}=" in labels
    assert "Research use only" in labels
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert f'image.version="{version[1]}"' in labels


def test_python_packages_come_pinned_and_system_packages_leave_no_cache(recipe: Path) -> None:
    text = recipe.read_text()
    assert "pip install" not in text
    (role,) = set(re.findall(r"install_role\.py (\w+)", text))
    assert f"\n{role} = [" in (ROOT / "pyproject.toml").read_text()
    for _, words in final_stage(recipe):
        if "apt-get install" in words:
            assert "--no-install-recommends" in words
            assert "rm -rf /var/lib/apt/lists/*" in words


def test_the_environment_can_be_left_out_where_it_holds_pytorch(recipe: Path) -> None:
    assert ("WITH_TORCH=1" in recipe.read_text()) == (recipe.parent.name in {"train", "compss"})


def test_build_context_has_all_files_of_the_build() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in allowed)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.partition("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert packages | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"} <= allowed


def apptainer_sections(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the header and sections of an Apptainer definition.

    Raises:
        ValueError: a line that the format does not have, or a section twice.
    """
    header: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if opened := re.fullmatch(r"%(\w+)\s*", line):
            if opened[1] not in SECTIONS or opened[1] in sections:
                raise ValueError(line)
            current = sections.setdefault(opened[1], [])
        elif current is not None:
            if line.strip():
                current.append(line.strip())
        elif line.strip() and not line.startswith("#"):
            key, found, value = line.partition(": ")
            if not found:
                raise ValueError(line)
            header[key] = value
    return header, sections


def test_apptainer_definition_is_well_formed() -> None:
    header, sections = apptainer_sections((IMAGES / "train" / "train.def").read_text())
    assert header == {"Bootstrap": "docker", "From": "python:3.12-slim"}
    assert {"files", "post", "environment", "runscript", "test", "labels", "help"} == set(sections)
    copied = [line.split() for line in sections["files"]]
    assert all(len(words) == 2 and (ROOT / words[0]).exists() for words in copied)
    targets = {Path(target).name for _, target in copied}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert targets == {Path(name).name for name in allowed}, "the same files as the other recipes' context"
    assert "python3 install_role.py train /opt/medweave" in sections["post"]
    assert all(re.fullmatch(r"[\w.]+ .+", line) for line in sections["labels"])


@pytest.mark.parametrize("broken", ["Bootstrap docker\n", "%psot\n  x\n", "%post\n x\n%post\n y\n"])
def test_parser_refuses_invalid_apptainer_definitions(broken: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        apptainer_sections(broken)


@pytest.fixture(scope="module")
def install_role() -> ModuleType:
    return module_of(IMAGES / "install_role.py")


def resolution(*names: str) -> str:
    return json.dumps({"install": [{"metadata": {"name": name, "version": "1"}} for name in names]})


def test_a_role_is_installed_by_its_pinned_lines(install_role: ModuleType) -> None:
    blocks = install_role.pinned_blocks(
        "a-b==1 \\\n    --hash=sha256:00\nc==2 ; python_version < '4' \\\n    --hash=sha256:11\n"
    )
    assert install_role.closure(resolution("A_b", "medweave"), blocks) == "a-b==1 \\\n    --hash=sha256:00\n"
    assert install_role.versions(blocks.values()) == "a-b==1\nc==2 ; python_version < '4'\n"


def test_a_package_that_is_not_pinned_is_not_installed(install_role: ModuleType) -> None:
    blocks = install_role.pinned_blocks((ROOT / "constraints.txt").read_text())
    assert {"torch", "openvino", "streamflow", "hatchling"} <= set(blocks)
    with pytest.raises(KeyError):
        install_role.closure(resolution("left-pad"), blocks)
