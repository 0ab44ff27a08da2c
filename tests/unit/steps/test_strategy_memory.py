"""What a training holds in memory, and how its patches come: the weights are the same whatever is chosen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import TryAgainError, UsageError
from medweave_steps.io.model.network import build_network
from medweave_steps.tasks.segmentation.sampler import PatchSampler
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import architecture
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop import memory
from medweave_steps.training.loop.recompute import recompute_activations
from medweave_steps.training.loop.stepper import Stepper
from support.rank_work import run_to_its_end
from support.strategy_work import Case, options, trained, trainer_of
from support.training_set import training_set


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


def weights(data: Path, **changes: Any) -> dict[str, Any]:
    arguments = {"steps": 4, "epoch_steps": 4, "validation_interval": 1} | changes
    return trained(Case(config=options(data, **arguments), recipe=True), Alone())


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        {},
        {"residual_units": 1},
        {"norm": "instance"},
        {"accumulate": 2},
        {"network": "distmis-as-described", "window_shape": (24, 24, 16)},
    ],
    ids=str,
)
def test_what_is_computed_again_trains_the_same_weights_bit_for_bit(data: Path, network: dict[str, Any]) -> None:
    retained, again = weights(data, **network), weights(data, recompute=True, **network)
    assert retained.keys() == again.keys()
    for name, value in retained.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "channels"), [("unet", 1), ("distmis-as-described", 4)])
def test_what_is_computed_again_is_not_kept(name: str, channels: int) -> None:
    shape = (32, 32, 32)
    arguments: Any = {"network": name, "patch_shape": shape, "window_shape": shape}
    config = TrainConfig(training_set=Path("a"), output=Path("b"), **arguments)

    def kept_bytes(*, recompute: bool) -> int:
        network = build_network(architecture(config, channels=channels))  # PyTorch's own kernels
        if recompute:
            recompute_activations(network)
        result: dict[int, int] = {}

        def keep(tensor: Any) -> Any:
            result[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network(torch.zeros(1, channels, *shape)).sum()
        loss.backward()
        return sum(result.values())

    share = kept_bytes(recompute=True) / kept_bytes(recompute=False)
    least, most = memory.RECOMPUTED_SHARE
    assert least <= share <= most, "as the message says"


def test_processes_that_cut_patches_change_no_weight(data: Path) -> None:
    by_thread, by_processes = weights(data), weights(data, data_workers=2)
    for name, value in by_thread.items():
        np.testing.assert_array_equal(by_processes[name], value, err_msg=name)


@pytest.mark.slow
def test_the_time_that_a_training_waits_for_its_patches_is_counted(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = PatchSampler.batch

    def slowly(self: PatchSampler, *arguments: Any, **more: Any) -> Any:
        time.sleep(0.2)
        return cut(self, *arguments, **more)

    monkeypatch.setattr(PatchSampler, "batch", slowly)
    trainer = trainer_of(Case(config=options(data, steps=3, epoch_steps=3), recipe=True), Alone())
    run_to_its_end(trainer, [])
    assert 0.2 <= trainer.state.data_wait_seconds <= trainer.state.train_seconds


def test_fewer_than_no_processes_are_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="--data-workers"):
        options(data, data_workers=-1)


# ---- memory that is not there


def test_a_step_that_does_not_fit_says_which_setting_makes_it_smaller(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine has no GPU, and torch's allocator for the CPU really refuses this.
    monkeypatch.setattr(Stepper, "loss_of", lambda *_: torch.empty(2**46))
    trainer = trainer_of(Case(config=options(data), recipe=True), Alone())
    with pytest.raises(TryAgainError) as raised:
        run_to_its_end(trainer, [])
    assert "train ran out of memory." in str(raised.value)
    assert "seen:     4 patches at a time\n" in str(raised.value)
    assert "--accumulate 2, which reduces the activations in memory by 50%; " in str(raised.value)
    assert "--recompute" in str(raised.value)


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_torchs_own_error_in_a_step_is_reported_with_amounts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stepper, "loss_of", out_of_memory)
    trainer = trainer_of(Case(config=options(data), recipe=True), Alone())
    with pytest.raises(TryAgainError, match=r"^train ran out of memory\.") as raised:
        run_to_its_end(trainer, [])
    message = raised.value.do
    assert "--accumulate 2, which reduces the activations in memory by 50%" in message
    assert "the activations in memory by 50% to 65%" in message
    assert "--precision bfloat16, which halves the bytes of activations" in message


def test_a_validation_that_does_not_fit_says_which_setting_makes_it_smaller(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stepper, "predict", out_of_memory)
    trainer = trainer_of(
        Case(config=options(data, steps=2, epoch_steps=2, validation_interval=1), recipe=True), Alone()
    )
    with pytest.raises(TryAgainError, match=r"^train ran out of memory during validation\.") as raised:
        run_to_its_end(trainer, [])
    assert raised.value.seen == "a window of 24 x 20 x 16 voxels at a time, in addition to a whole case and its result"
    assert "smaller --window-shape: half the size along one axis halves the activations of a window" in raised.value.do
    assert "--accumulate" not in raised.value.do


def test_a_network_that_does_not_fit_is_reported_before_the_first_step(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", out_of_memory)
    with pytest.raises(TryAgainError, match=r"^train ran out of memory before the first step\.") as raised:
        trainer_of(Case(config=options(data), recipe=True), Alone())
    assert "half of --channels, which needs a quarter of the weights" in raised.value.do


def test_another_error_of_torch_is_another_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stepper, "loss_of", lambda *_: torch.zeros(2) @ torch.zeros(3))
    trainer = trainer_of(Case(config=options(data), recipe=True), Alone())
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        run_to_its_end(trainer, [])


FACTS: dict[str, Any] = {
    "patches": 8, "parts": 1, "recomputes": False, "uses_bfloat16": True, "num_weights": 2**28, "peak_bytes": 20 * 2**30,
    "on_a_gpu": True,
}  # fmt: skip


def test_on_a_gpu_it_says_by_how_much() -> None:
    message = str(memory.exhausted(**FACTS))
    assert "train ran out of GPU memory." in message
    assert "8 patches at a time; 20.0 GiB were in use" in message
    assert "with 4.00 GiB of weights, gradients and Adam moments" in message
    assert "--accumulate 2, which reduces the activations in memory by 50%, about 8.0 GiB" in message


def test_what_is_at_its_least_is_not_proposed() -> None:
    message = str(memory.exhausted(**FACTS | {"parts": 8, "recomputes": True}))
    assert "1 patch at a time" in message
    assert "--accumulate" not in message
    assert "--recompute" not in message
    assert "--precision" not in message
    assert "--patch-shape" in message


def test_running_out_is_reported_from_other_errors() -> None:
    assert memory.is_exhausted(MemoryError())
    assert memory.is_exhausted(torch.OutOfMemoryError("CUDA out of memory."))
    assert not memory.is_exhausted(ValueError("memory"))
    assert not memory.is_exhausted(RuntimeError("a shape"))
