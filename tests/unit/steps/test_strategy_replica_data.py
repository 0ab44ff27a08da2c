"""The patches of a replica of `train-distributed`, the state of its process between rounds, and its errors without memory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.tasks.segmentation.sampler import PatchSampler
from medweave_steps.tasks.segmentation.training import SegmentationTraining
from medweave_steps.train_distributed.config import DistributedConfig
from medweave_steps.train_distributed.engines import replica
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.loop.stepper import Stepper
from support import fake_pycompss
from support.continued import folder_to_continue, words
from support.one_label import TASK
from support.weights import assert_equal_weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, parent/, and model/ continued in order."""
    folder = folder_to_continue(tmp_path_factory.mktemp("continued"))
    assert main(words(folder)) == 0
    return folder


def report_of(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    result: dict[str, dict[str, dict[str, float]]] = json.loads((folder / "model_report.json").read_text())
    return result


def test_a_replica_reports_how_long_it_waited_for_its_patches(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0.05

    def late(self: PatchSampler, step: int, **named: int) -> Batch:
        time.sleep(waits)
        return cut(self, step, **named)

    cut = PatchSampler.batch
    monkeypatch.setattr(PatchSampler, "batch", late)
    assert main(words(tmp_path, data=continued)) == 0
    assert_equal_weights(continued / "model", tmp_path / "model")
    message = report_of(tmp_path)["results"]["training"]
    # Nothing is cut ahead of the first step of a replica that takes turns with another one in a process.
    assert message["step_seconds"] >= message["data_wait_seconds"] >= 3 * waits


@pytest.mark.parametrize("engine", ["in-order", "compss"])
def test_data_are_opened_once_for_all_rounds_of_a_process(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    opened: list[object] = []

    def noted(*values: object, **named: object) -> object:
        opened.append(values)
        return open_sampler(*values, **named)

    open_sampler = SegmentationTraining.open_sampler
    monkeypatch.setattr(SegmentationTraining, "open_sampler", noted)
    fake_pycompss.install(monkeypatch)
    replica._bench.cache_clear()
    assert main(words(tmp_path, "--engine", engine, data=continued)) == 0
    assert len(report_of(tmp_path)["results"]["rounds"]) == 3
    assert len(opened) == 1


def test_batches_of_a_replica_are_cut_ahead_of_its_next_round(continued: Path, tmp_path: Path) -> None:
    config = DistributedConfig(
        training_set=continued / "data", output=tmp_path / "m", trained_model=continued / "parent", replicas=2,
        batch_size=3, patch_shape=(8, 8, 8),
    )  # fmt: skip
    job = replica.ReplicaJob(
        task=TASK,
        config=config, **config.of_replicas(),
        architecture=json.dumps(read_card(continued / "parent").architecture),
        window_shape=(24, 20, 16), overlap=0.0, first_step=0, num_threads=1,
    )  # fmt: skip
    bench = replica._bench(job)
    first = bench.batches.of(0, job, bench)
    assert bench.batches.of(0, job, bench) is first
    second = bench.batches.of(1, job, bench)
    assert second is not first
    assert len(second.batch(0).case_ids) == 1
    with pytest.raises(RuntimeError, match="shutdown"):
        first.batch(0)


@pytest.mark.parametrize(("engine", "code"), [("in-order", 75), ("compss", 75)])
def test_a_replica_without_memory_says_what_lowers_its_need(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    engine: str, code: int,
) -> None:  # fmt: skip
    def exhausted(self: Stepper, batch: Batch) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Stepper, "loss_of", exhausted)
    calls = fake_pycompss.install(monkeypatch)
    assert main(words(tmp_path, "--engine", engine, data=continued)) == code
    message = capfd.readouterr().err
    assert "train-distributed ran out of memory." in message
    assert "2 patches at a time" in message
    assert (
        "more --replicas, or a smaller --batch-size: with 1 instead of 2 patches per replica, the activations in memory are "
        "reduced by 50%; or a smaller --patch-shape" in message
    )
    assert "--accumulate" not in message
    assert calls.count("task train_task") == (2 if engine == "compss" else 0), "it is not tried again as it is"
    assert list(tmp_path.iterdir()) == []
