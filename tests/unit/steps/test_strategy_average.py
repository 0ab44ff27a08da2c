"""The average of weights, checked by head, and that nothing but the samples decides it."""

from __future__ import annotations

import itertools

import pytest
import torch

from medweave_steps.train_distributed.rounds import divergence
from medweave_steps.training.distributed.average import averaged, packed, unpacked


def state(*values: float, batches: int = 4) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(values), "bn.num_batches_tracked": torch.tensor(batches)}


def test_the_average_is_weighted_by_samples() -> None:
    mean = averaged([state(1.0, 0.0), state(4.0, -2.0)], [1, 2])
    assert mean["weight"].tolist() == pytest.approx([3.0, -4 / 3])
    assert mean["weight"].dtype == torch.float32
    assert mean["bn.num_batches_tracked"].item() == 4


def test_one_replica_is_its_own_average_bit_for_bit() -> None:
    only = {"weight": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(averaged([only], [7])["weight"], only["weight"])


def test_equal_replicas_are_their_own_average_bit_for_bit() -> None:
    same = {"weight": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(averaged([same] * 3, [20, 20, 20])["weight"], same["weight"])


def test_the_order_of_the_sum_makes_no_difference_after_rounding() -> None:
    generator = torch.Generator().manual_seed(1)
    states = [{"weight": torch.randn(1000, generator=generator)} for _ in range(3)]
    samples = [4, 3, 3]
    means = [
        averaged([states[n] for n in order], [samples[n] for n in order])["weight"]
        for order in itertools.permutations(range(3))
    ]
    assert all(torch.equal(mean, means[0]) for mean in means)


def test_bytes_hold_the_same_tensors_and_no_code() -> None:
    content = {"weight": torch.tensor([1.0, -0.0]), "schedule": {"step": 3}}
    back = unpacked(packed(content))
    assert back["weight"].numpy().tobytes() == content["weight"].numpy().tobytes()
    assert back["schedule"] == {"step": 3}
    with pytest.raises(Exception, match="weights_only"):
        unpacked(packed({"code": print}))


def test_divergence_is_the_largest_distance_of_a_weight_from_the_average() -> None:
    states = [state(1.0, 0.0), state(4.0, -2.0)]
    assert divergence(states, averaged(states, [1, 2])) == pytest.approx(2.0)
