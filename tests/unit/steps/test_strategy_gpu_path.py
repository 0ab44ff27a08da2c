"""The code for GPUs only, with a fake GPU: the tests check which calls are made, not that they work on a GPU."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.runtime.environment import RankPlace
from medweave_steps.training.data.batches import AHEAD, Batches
from medweave_steps.training.device import move_to_device
from medweave_steps.training.distributed.group import Alone, RankGroup
from medweave_steps.training.loop.checkpoint import read_checkpoint
from medweave_steps.training.loop.stepper import Stepper
from support.one_label import open_sampler, usable_cases
from support.strategy_work import Case, largest_difference, options, trained
from support.training_set import training_set

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")


@pytest.mark.parametrize(("device", "pinned"), [(GPU, True), (CPU, False)], ids=str)
def test_batches_for_a_gpu_lie_in_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, pinned: bool
) -> None:
    values: dict[str, Any] = {}

    def loader(_: Any, **keywords: Any) -> list[Any]:
        values.update(keywords)
        return [(torch.zeros(1), torch.zeros(1), ["case-0"], 1, False)]

    monkeypatch.setattr(torch.utils.data, "DataLoader", loader)
    config = options(training_set(tmp_path))
    prepared = open_prepared(tmp_path)
    sampler = open_sampler(config, prepared, usable_cases(prepared)[0], **config.of_sampler())
    Batches(sampler, rank=0, world_size=1, num_workers=3, device=device).batch(0)
    assert (
        values.items() >= {"pin_memory": pinned, "num_workers": 3, "prefetch_factor": AHEAD, "batch_size": None}.items()
    )


@pytest.mark.parametrize(
    ("device", "is_pinned", "waits"), [(GPU, True, False), (GPU, False, True), (CPU, True, True)], ids=str
)
def test_only_a_copy_out_of_pinned_memory_to_a_gpu_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, is_pinned: bool, waits: bool
) -> None:
    calls = []

    def to(_: Any, *where: Any, non_blocking: bool = False) -> str:
        calls.append((*where, non_blocking))
        return "there"

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: is_pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    stepper: Any = types.SimpleNamespace(device=device, dtype=torch.float32)
    assert Stepper.on_device(stepper, np.zeros(3, np.float32)) == "there"
    assert calls == [(device, torch.float32, not waits)]


@pytest.mark.parametrize(("uses_gpu", "backend"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_ranks_on_gpus_have_nccl_next_to_gloo(monkeypatch: pytest.MonkeyPatch, uses_gpu: bool, backend: str) -> None:
    begun = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda name, timeout: begun.append(name))
    place = RankPlace(rank=1, local_rank=1, world_size=2, store=("127.0.0.1", 1))
    group = RankGroup(place, uses_gpu=uses_gpu)
    assert begun == [backend]
    assert (group.rank, group.local_rank, group.world_size) == (1, 1, 2)


def test_one_rank_has_nobody_to_take_the_mean_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "all_gather", lambda *_: pytest.fail("it asks the other ranks"))
    group = RankGroup(RankPlace(rank=0, local_rank=0, world_size=1, store=("127.0.0.1", 1)), uses_gpu=True)
    assert group.mean(np.array([1.5, 2.0])).tolist() == [1.5, 2.0]


@pytest.mark.parametrize(("device", "devices", "hooks"), [(GPU, [1], 0), (CPU, None, 1)], ids=str)
def test_ddp_is_reported_the_gpu_of_its_rank_and_sums_by_itself_on_cpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, devices: list[int] | None, hooks: int
) -> None:
    made: list[Any] = []

    class Wrapped:
        def __init__(self, network: Any, **keywords: Any) -> None:
            made.append(keywords)
            self.hooks = 0

        def register_comm_hook(self, *_: Any) -> None:
            self.hooks += 1

    network = torch.nn.Conv3d(1, 1, 1)
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Wrapped)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, where: made.append(where) or self)
    config = options(tmp_path, strategy="ddp", ranks=2)
    strategy = config.open_strategy(num_cases=3, num_channels=1, group=Alone(), device=device)
    wrapped = strategy.wrap(network)
    assert made == [device, {"device_ids": devices, "broadcast_buffers": False}]
    assert wrapped.hooks == hooks


@pytest.mark.parametrize(("device", "is_last"), [(GPU, True), (CPU, False)], ids=str)
def test_on_a_gpu_the_channels_of_a_voxel_lie_side_by_side(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, is_last: bool
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, where: self)
    layers = [torch.nn.Conv3d(1, 4, 3), torch.nn.Conv3d(2, 4, 3), torch.nn.Conv2d(2, 4, 3)]
    network = torch.nn.Sequential(*layers)
    before = [weight.detach().clone() for weight in network.parameters()]
    assert move_to_device(network, device) is network
    of_planes = (18, 9, 3, 1)  # a bundle may have other tensors than volumes
    usual, last = [(27, 27, 9, 3, 1), (54, 27, 9, 3, 1), of_planes], [(27, 1, 9, 3, 1), (54, 1, 18, 6, 2), of_planes]
    assert [layer.weight.stride() for layer in layers] == (last if is_last else usual)
    assert all(torch.equal(*pair) for pair in zip(network.parameters(), before, strict=True))


class OnGpu:
    """A fake tensor, event or stream of a GPU that records the order of calls."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name) or self

    def __float__(self) -> float:
        self.calls.append("float")
        return 0.5


def test_the_loss_is_read_next_to_the_backward_pass_of_a_gpu_not_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: OnGpu(calls))
    stepper: Any = types.SimpleNamespace(device=GPU, _loss_buffer=OnGpu(calls))
    stepper._value_of = types.MethodType(Stepper._value_of, stepper)
    loss: Any = OnGpu(calls)
    assert Stepper.backward(stepper, loss) == 0.5
    assert calls == ["detach", "copy_", "record_event", "backward", "synchronize", "float"]


@pytest.mark.parametrize("strategy", ["single", "local-sgd"])
def test_a_training_is_continued_where_weights_lie_as_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    def as_on_a_gpu(network: torch.nn.Module, _: torch.device) -> torch.nn.Module:
        return move_to_device(network, types.SimpleNamespace(type="cuda"))

    plain = Case(config=options(training_set(tmp_path), strategy=strategy))
    expected = trained(plain, Alone())
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    module = f"medweave_steps.training.strategies{'' if strategy == 'single' else '.local_sgd'}"
    monkeypatch.setattr(f"{module}.move_to_device", as_on_a_gpu)
    assert largest_difference(trained(plain, Alone()), expected) < 1e-6
    config = options(tmp_path, strategy=strategy, checkpoint_folder=tmp_path / "checkpoints", checkpoint_interval=12)
    whole = Case(config=config, recipe=True)
    weights = trained(whole, Alone())
    assert read_checkpoint(tmp_path / "checkpoints")["state"]["step"] == 12
    resumed = trained(dataclasses.replace(whole, resume=tmp_path / "checkpoints"), Alone())
    assert largest_difference(resumed, weights) == 0
