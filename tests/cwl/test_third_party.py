"""A package of a third party with a network, a task and a strategy, used by CWL's tool under both engines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from medweave_steps.io.model.folder import read_card
from support.both_engines import only, run_both
from support.cwl_files import WORKFLOWS
from support.third_party import install_third_party
from support.training_set import training_set


@pytest.mark.pipeline
def test_a_network_a_task_and_a_strategy_of_a_package_train_under_both_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install_third_party(tmp_path / "site")
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    job = {
        "training_set": {"class": "Directory", "path": str(training_set(tmp_path / "data"))},
        "task": "regression", "network": "tiny", "strategy": "gossip", "ranks": 2, "threads_per_rank": 1,
        "training_steps": 4, "epoch_steps": 2, "batch_size": 2, "patch_shape": [8, 8, 8], "window_shape": [24, 20, 16],
        "precision": "float32",
    }  # fmt: skip
    result = run_both(tmp_path, WORKFLOWS / "tools" / "train.cwl", job)
    chosen = {name: only(files, "model.safetensors", "curves.json") for name, files in result.items()}
    assert len(chosen["cwltool"]) == 2
    assert chosen["streamflow"] == chosen["cwltool"]
    card = read_card(tmp_path / "by-streamflow" / "trained_model")
    assert card.architecture["class"] == "thirdparty.layers.Tiny"
    assert (card.task_name, card.training["strategy"], card.training["gossiped"]) == ("regression", "gossip", True)
