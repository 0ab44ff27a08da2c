"""Strategies as workflow engines start them: the others are in test_brain_tumour.py, test_both_engines.py and test_search.py."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import medweave_steps
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from support import continued, fake_pycompss
from support.both_engines import digests, only, run_both
from support.cwl_files import WORKFLOWS
from support.training_set import training_set


def trained_alike(folder: Path, job: dict[str, Any]) -> Mapping[str, Any]:
    """Train by both engines; assert equal models and curves; return the card's training facts."""
    result = run_both(folder, WORKFLOWS / "tools" / "train.cwl", job)
    chosen = {name: only(files, "model.safetensors", "curves.json") for name, files in result.items()}
    assert len(chosen["cwltool"]) == 2
    assert chosen["streamflow"] == chosen["cwltool"]
    return read_card(folder / "by-streamflow" / "trained_model").training


@pytest.mark.pipeline
def test_local_sgd_in_chunks_gives_equal_models_under_both_engines(tmp_path: Path) -> None:
    data = training_set(tmp_path / "data", ("train",) * 4 + ("validation",))
    job = {
        "training_set": {"class": "Directory", "path": str(data)}, "epochs": 1, "batch_size": 2, "patch_shape": [32, 32, 128],
        "window_shape": [32, 32, 128], "channels": [4, 4, 4, 4, 4], "strategy": "local-sgd", "ranks": 2, "chunk_mib": 1,
        "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    training = trained_alike(tmp_path, job)
    assert training.items() >= {"chunk_mib": 1, "chunks_per_epoch": 2, "world_size": 2, "steps_done": 2}.items()


@pytest.mark.pipeline
def test_pipeline_stages_give_equal_models_under_both_engines(tmp_path: Path) -> None:
    job = {
        "training_set": {"class": "Directory", "path": str(training_set(tmp_path / "data"))},
        "training_steps": 4, "epoch_steps": 2, "batch_size": 4, "patch_shape": [16, 16, 16], "channels": [4, 4, 4, 4, 4],
        "strategy": "hybrid", "ranks": 4, "stages": 2, "micro_batches": 2,
        "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    training = trained_alike(tmp_path, job)
    expected = {
        "strategy": "hybrid",
        "stages": 2,
        "replicas": 2,
        "micro_batches": 2,
        "steps_done": 4,
    }
    assert {name: training.get(name) for name in expected} == expected
    assert training["partitions"][0][0] == "model.0"


@pytest.mark.pipeline
def test_a_new_strategy_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file is a copy of local SGD: the ranks average their weights at the end of each epoch, here after two steps."""
    package = tmp_path / "steps" / "medweave_steps"
    shutil.copytree(Path(medweave_steps.__file__).parent, package)
    strategies = package / "training" / "strategies"
    shutil.copyfile(strategies / "local_sgd.py", strategies / "another_local_sgd.py")
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    job = {
        "training_set": {"class": "Directory", "path": str(training_set(tmp_path / "data"))},
        "training_steps": 4, "epoch_steps": 2, "batch_size": 2, "patch_shape": [16, 16, 16], "channels": [4, 4, 4, 4, 4],
        "strategy": "another-local-sgd", "ranks": 2, "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    training = trained_alike(tmp_path, job)
    assert training.items() >= {"strategy": "another-local-sgd", "world_size": 2, "steps_done": 4}.items()
    weights = sum(path.stat().st_size for path in (tmp_path / "by-streamflow").rglob("model.safetensors"))
    assert 0 < training["synchronised_bytes"] <= 2 * 2 * weights, "twice, by two ranks"


def with_pycompss(folder: Path) -> Path:
    """Return a folder with the worker's command, for which the stand-in is installed: cwltool passes no variable to it."""
    folder.mkdir()
    python_path = shlex.quote(os.pathsep.join([str(fake_pycompss.FOLDER), *sys.path]))
    command = folder / "medweave-step"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={python_path} exec {sys.executable} -m medweave_steps "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.mark.pipeline
def test_rounds_as_compss_tasks_give_the_model_of_in_order_under_both_engines(tmp_path: Path) -> None:
    """The tasks are those of the stand-in; options that the tool lacks have the verb's default in both."""
    continued.folder_to_continue(tmp_path)
    job = {
        "training_set": {"class": "Directory", "path": str(tmp_path / "data")},
        "first_model": {"class": "Directory", "path": str(tmp_path / "parent")},
        "rounds": 3, "steps_per_round": 2, "replicas": 2, "batch_size": 3, "patch_shape": [8, 8, 8], "precision": "float32",
        "learning_rate": 0.01, "threads_per_replica": 1, "engine": "compss",
    }  # fmt: skip
    assert main(continued.words(tmp_path, name="in_order")) == 0
    names = ("model.safetensors", "curves.json")
    expected = only(digests(tmp_path / "in_order") | digests(tmp_path / "in_order_log"), *names)
    result = run_both(
        tmp_path, WORKFLOWS / "tools" / "train-distributed.cwl", job, first=with_pycompss(tmp_path / "bin")
    )
    for engine, files in result.items():
        chosen = only(files, *names)
        assert sorted(chosen.values()) == sorted(expected.values()), engine
        training = read_card(tmp_path / f"by-{engine}" / "trained_model").training
        assert training.items() >= {"engine": "compss", "compss_runtime": True, "rounds": 3}.items()
        assert {path for path in files if path.startswith("checkpoints/")} == {
            "checkpoints/checkpoint.pt", "checkpoints/checkpoint-before.pt",
        }  # fmt: skip
