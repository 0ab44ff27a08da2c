"""What is done on a GPU alone, by stand-ins for it: this shows which calls are made, not that they work there."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_steps.io.prepared import open_prepared
from medweave_steps.runtime.environment import Place
from medweave_steps.train.strategies import strategy_class
from medweave_steps.training.batches import AHEAD, Batches
from medweave_steps.training.cases import open_sampler, usable_cases
from medweave_steps.training.group import Alone, RankGroup
from medweave_steps.training.stepper import Stepper
from support.strategy_work import options
from support.training_set import training_set

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")


@pytest.mark.parametrize(("device", "pinned"), [(GPU, True), (CPU, False)], ids=str)
def test_batches_for_a_gpu_lie_in_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, pinned: bool
) -> None:
    given: dict[str, Any] = {}

    def loader(_: Any, **keywords: Any) -> list[Any]:
        given.update(keywords)
        return [(torch.zeros(1), torch.zeros(1), ["case-0"], 1, False, None)]

    monkeypatch.setattr(torch.utils.data, "DataLoader", loader)
    config = options(training_set(tmp_path))
    prepared = open_prepared(tmp_path)
    sampler = open_sampler(config, prepared, usable_cases(prepared)[0], **config.of_sampler())
    Batches(sampler, rank=0, world_size=1, num_workers=3, device=device).batch(0)
    assert (
        given.items() >= {"pin_memory": pinned, "num_workers": 3, "prefetch_factor": AHEAD, "batch_size": None}.items()
    )


@pytest.mark.parametrize(
    ("device", "is_pinned", "waits"), [(GPU, True, False), (GPU, False, True), (CPU, True, True)], ids=str
)
def test_only_a_copy_out_of_pinned_memory_to_a_gpu_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, is_pinned: bool, waits: bool
) -> None:
    asked = []

    def to(_: Any, *where: Any, non_blocking: bool = False) -> str:
        asked.append((*where, non_blocking))
        return "there"

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: is_pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    stepper: Any = types.SimpleNamespace(device=device, dtype=torch.float32)
    assert Stepper._on_device(stepper, np.zeros(3, np.float32)) == "there"
    assert asked == [(device, torch.float32, not waits)]


@pytest.mark.parametrize(("uses_gpu", "backend"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_ranks_on_gpus_have_nccl_beside_gloo(monkeypatch: pytest.MonkeyPatch, uses_gpu: bool, backend: str) -> None:
    begun = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda name, timeout: begun.append(name))
    place = Place(rank=1, local_rank=1, world_size=2, store=("127.0.0.1", 1))
    group = RankGroup(place, uses_gpu=uses_gpu)
    assert begun == [backend]
    assert (group.rank, group.local_rank, group.world_size) == (1, 1, 2)


@pytest.mark.parametrize(("device", "devices", "hooks"), [(GPU, [1], 0), (CPU, None, 1)], ids=str)
def test_ddp_is_told_the_gpu_of_its_rank_and_sums_by_itself_on_cpus_only(
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
    wrapped = strategy_class("ddp")(config=config, group=Alone(), device=device).wrap(network)
    assert made == [device, {"device_ids": devices, "broadcast_buffers": False}]
    assert wrapped.hooks == hooks
