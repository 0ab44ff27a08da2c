"""`make hybrid COMPSS_HOME=… STEPS=…`: refusals, the bound file, and the job file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "deployments" / "hybrid"))
    yield module_of(ROOT / "deployments" / "hybrid" / "hybrid.py")
    for name in ("summary", "demo", *(name for name in sys.modules if name.partition(".")[0] == "medweave_testbed")):
        sys.modules.pop(name, None)


def test_without_an_installation_torch_trains(hybrid: ModuleType) -> None:
    assert hybrid.compss_installation("") is None


def test_a_folder_that_is_no_installation_is_refused(
    hybrid: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        hybrid.compss_installation(str(tmp_path))
    assert left.value.code == 2
    stderr = capsys.readouterr().err
    assert f"seen:     no {tmp_path}/Runtime/scripts/user/runcompss" in stderr
    assert "do:       correct COMPSS_HOME" in stderr


def installation(folder: Path) -> None:
    starter = folder / "COMPSs" / "Runtime" / "scripts" / "user" / "runcompss"
    starter.parent.mkdir(parents=True)
    starter.touch()


def test_an_installation_that_no_pod_can_see_is_refused_before_images_are_built(
    hybrid: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation(tmp_path)
    monkeypatch.setattr(hybrid, "PRIVATE_FOLDERS", (Path("/dev"), tmp_path))
    monkeypatch.setattr(hybrid, "build_images", lambda roles: pytest.fail("images are built"))
    monkeypatch.setattr(sys, "argv", ["hybrid.py"])
    monkeypatch.setenv("COMPSS_HOME", str(tmp_path / "COMPSs"))
    with pytest.raises(SystemExit) as left:
        hybrid.main()
    assert left.value.code == 2
    assert f"seen:     {tmp_path}/COMPSs, below {tmp_path}" in capsys.readouterr().err


@pytest.mark.slow
def test_an_installation_is_given_to_the_pods_and_trains(
    hybrid: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation(tmp_path)
    monkeypatch.setattr(hybrid, "PRIVATE_FOLDERS", (Path("/proc"),))
    home = hybrid.compss_installation(str(tmp_path / "COMPSs"))
    for name in ("workflows", "helm", "deployments"):
        shutil.copytree(ROOT / name, tmp_path / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    commands = []
    monkeypatch.setattr(hybrid, "testbed", lambda *words: commands.append(words) or ["true"])  # type: ignore[func-returns-value]
    hybrid.bind_to_compss(tmp_path, home)
    assert commands == [("volume", "medweave-compss", tmp_path / "COMPSs")]
    bound = hybrid.bound_file(tmp_path, "testbed").read_text(encoding="utf-8")
    assert "{step: /train_distributed, target: {deployment: training-compss}}" in bound
    assert "engine: compss" in bound
    assert "claimName: medweave-compss" in bound


@pytest.mark.parametrize(("steps", "of_a_round"), [(150, 25), (2, 1)])
def test_fewer_steps_shorten_both_trainings_and_nothing_else(
    hybrid: ModuleType, tmp_path: Path, steps: int, of_a_round: int
) -> None:
    shutil.copytree(ROOT / "workflows", tmp_path / "checkout" / "workflows")
    hybrid.shorten(tmp_path, steps)
    job = Path("workflows", "lung-nodule-segmentation", "jobs", "hybrid-train.yml")
    usual = YAML(typ="safe").load(ROOT / job)
    assert YAML(typ="safe").load(tmp_path / "checkout" / job) == usual | {
        "training_steps": steps,
        "distributed_steps_per_round": of_a_round,
    }
