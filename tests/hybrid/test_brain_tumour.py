"""The brain tumour pipeline with its training on two nodes of a real Slurm: the model of this machine, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from medweave.placement.bind import bind
from medweave_steps.cli import main
from support.brain_cohort import PREPARED_SHAPE, SPACING_MM, training_job
from support.cwl_files import WORKFLOWS
from support.slurm_runs import go
from support.testbed import Sites
from support.weights import assert_equal_weights

EPOCHS, LEARNING_RATE = 2, 0.002


def locally_trained(folder: Path) -> Path:
    """Run the same training by two processes of this machine; return its model folder."""
    cohort = ("--cohort", str(folder / "cohort"))
    spacing, shape = [str(SPACING_MM)] * 3, list(map(str, PREPARED_SHAPE))
    index = str(folder / "index.json")
    assert main(["check", *cohort, "--output", index, "--merge-labels", "1,2,3:whole tumour"]) == 0
    words = ["--cohort-index", index, "--spacing-mm", *spacing]
    assert main(["preprocess", *cohort, *words, "--output", str(folder / "prepared")]) == 0
    words = [
        "--network", "distmis-as-described", "--epochs", str(EPOCHS), "--batch-size", "2", "--learning-rate", str(LEARNING_RATE),
        "--patch-shape", *shape, "--window-shape", *shape, "--schedule", "constant", "--dice", "sample", "--dice-smoothing", "0.1",
        "--cross-entropy-weight", "0", "--strategy", "ddp", "--ranks", "2", "--scale-by-ranks", "--threads-per-rank", "1",
    ]  # fmt: skip
    words += ["--training-set", str(folder / "prepared" / "training_set"), "--training-log", str(folder / "log")]
    assert main(["train", *words, "--output", str(folder / "model")]) == 0
    return folder / "model"


@pytest.mark.long
def test_two_nodes_train_what_two_processes_train_here(
    tmp_path: Path, testbed: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the verbs write their reports
    job = training_job(tmp_path, 5, epochs=EPOCHS, learning_rate=LEARNING_RATE)
    (tmp_path / "job.yml").write_text(json.dumps(job))
    file = tmp_path / "streamflow.yml"
    text = bind(WORKFLOWS / "brain-tumour-segmentation" / "train.cwl", "testbed", file, tmp_path / "job.yml")
    # Other tests cover its pods: the segmentation in this test needs no release.
    file.write_text(
        re.sub(r"\{step: /segment, target: \{.*?\}\}", "{step: /segment, target: {deployment: laptop}}", text)
    )
    ended = go(tmp_path, testbed, 600)
    assert ended.exit_code == 0, ended.stderr
    (report,) = (tmp_path / "runs").glob("*/reports/train/run_report.json")
    assert [rank["host"] for rank in json.loads(report.read_text())["ranks"]] == ["n1", "n2"]
    assert_equal_weights(tmp_path / "results" / "exported_model", locally_trained(tmp_path))
