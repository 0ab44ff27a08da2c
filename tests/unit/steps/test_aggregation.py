"""Aggregation rules and the asynchronous server against reference loops of a few lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.training.distributed.aggregation import (
    Vector,
    count_overfitting,
    mean_gradient,
    pulled,
    weighted_mean,
)
from medweave_steps.training.distributed.async_server import AsyncServer, read_arrivals, write_arrivals


def server_of(num_workers: int, *, quorum: int = 1, weighting: float = 1) -> AsyncServer:
    def combine(state: Vector | None, mean: Vector) -> Vector:
        return pulled(state, mean, weighting=weighting)

    return AsyncServer(num_workers=num_workers, quorum=quorum, combine=combine)


def test_a_mean_is_weighted_and_keeps_the_dtype() -> None:
    one, other = np.array([1, 2], np.float32), np.array([5, 10], np.float32)
    mean = weighted_mean([one, other], [3, 1])
    assert mean.tolist() == [2, 4]
    assert mean.dtype == np.float32
    assert mean_gradient([one, other]).tolist() == [3, 6]


def test_the_mean_of_weights_is_the_start_plus_the_mean_of_the_changes() -> None:
    random = np.random.default_rng(0)
    start = random.normal(size=50)
    changes = [random.normal(size=50) for _ in range(4)]
    mean = weighted_mean([start + change for change in changes], [1] * 4)
    np.testing.assert_allclose(mean, start + weighted_mean(changes, [1] * 4), atol=1e-12)


def test_a_sum_is_taken_in_the_order_of_its_vectors() -> None:
    parts = [np.array([value]) for value in (1e16, 1.0, -1e16)]
    assert mean_gradient(parts).tolist() == [0.0]
    assert mean_gradient([parts[0], parts[2], parts[1]]).tolist() == [1 / 3]


@pytest.mark.parametrize(("weighting", "expected"), [(0, 6.0), (1, 4.0), (3, 3.0)])
def test_an_arrival_pulls_the_state_by_its_weight(weighting: float, expected: float) -> None:
    assert pulled(np.array([2.0]), np.array([6.0]), weighting=weighting).tolist() == [expected]
    assert pulled(None, np.array([6.0]), weighting=weighting).tolist() == [6.0]


def reference(order: list[int], *, quorum: int, w: float) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Fifteen lines: workers add their number to what they last got; the server averages what has arrived."""
    theta, state, waiting = {k: np.zeros(2) for k in order}, None, []
    for k in order:
        theta[k] = theta[k] + [k, 1]
        waiting.append(k)
        if len(waiting) == quorum:
            mean = sum(theta[i] for i in waiting) / quorum
            state = mean if state is None else (w * state + mean) / (w + 1)
            for i in waiting:
                theta[i] = state
            waiting = []
    assert state is not None
    return state, theta


@pytest.mark.parametrize(
    ("order", "quorum", "weighting"),
    [([1, 2, 1, 1, 3, 2], 1, 1), ([1, 2, 3, 3, 1, 2], 3, 1), ([2, 1, 3, 1], 2, 4)],
)
def test_a_scripted_order_of_arrivals_gives_the_weights_of_the_reference_loop(
    order: list[int], quorum: int, weighting: float
) -> None:
    server = server_of(3, quorum=quorum, weighting=weighting)
    weights = {worker: np.zeros(2) for worker in order}
    for worker in order:
        weights[worker] = weights[worker] + [worker, 1]
        for receiver in server.update(worker, weights[worker]):
            assert server.state is not None
            weights[receiver] = server.state
    state, expected = reference(order, quorum=quorum, w=weighting)
    assert server.state is not None
    np.testing.assert_allclose(server.state, state, rtol=1e-15)
    for worker, own in expected.items():
        np.testing.assert_allclose(weights[worker], own, rtol=1e-15)


def test_one_worker_and_no_weight_of_the_server_is_sequential_training() -> None:
    server = server_of(1, weighting=0)
    weights = np.array([0.1, 0.7], np.float32)
    for _ in range(3):
        weights = weights * np.float32(0.9)
        assert server.update(1, weights) == [1]
        np.testing.assert_array_equal(server.state, weights)


def test_training_is_over_when_every_worker_has_converged_or_is_lost() -> None:
    server = server_of(3)
    server.report(2, has_converged=True)
    server.report(1, has_converged=False)
    server.lose(3)
    assert not server.is_over
    server.report(1, has_converged=True)
    assert server.is_over
    assert (server.converged, server.lost) == ([2, 1], [3])
    assert server.events == [(2, "converged"), (1, "report"), (3, "lost"), (1, "converged")]


def test_a_quorum_is_no_larger_than_the_workers_that_can_still_send() -> None:
    server = server_of(3, quorum=3)
    assert server.update(1, np.array([2.0])) == []
    assert server.update(2, np.array([4.0])) == []
    assert server.lose(3) == [1, 2], "a lost worker blocks no other"
    assert server.state is not None
    assert server.state.tolist() == [3.0]
    server.update(1, np.array([1.0]))
    assert server.lose(2) == [1]
    assert server.update(1, np.array([1.0])) == [1]


def test_a_worker_paused_for_a_checkpoint_blocks_no_other() -> None:
    server = server_of(2, quorum=2)
    server.pause(1)
    assert server.update(2, np.array([4.0])) == [2]
    server.resume()
    assert server.update(2, np.array([4.0])) == []


@pytest.mark.parametrize(
    ("points", "counters"),
    [
        pytest.param([(0.5, 1.0), (0.6, 0.9), (0.7, 0.8)], [0, 0, 0], id="both improve"),
        pytest.param([(0.5, 1.0), (0.4, 0.9), (0.4, 0.8), (0.3, 0.7)], [0, 1, 2, 3], id="overfitting"),
        pytest.param([(0.5, 1.0), (0.4, 0.9), (0.5, 0.8), (0.4, 0.7)], [0, 1, 0, 1], id="equal validation resets"),
        pytest.param([(0.5, 1.0), (0.4, 1.0), (0.4, 1.1)], [0, 0, 0], id="equal or higher loss does not count"),
        pytest.param([(0.5, 1.0), (0.4, 0.9), (0.4, 0.95), (0.4, 0.8)], [0, 1, 1, 2], id="a pause keeps the counter"),
    ],
)
def test_early_stopping_counts_falling_losses_without_better_validations(
    points: list[tuple[float, float]], counters: list[int]
) -> None:
    counter, best_score, best_loss, counted = 0, -1.0, float("inf"), []
    for score, loss in points:
        counter = count_overfitting(counter, score=score, best_score=best_score, loss=loss, best_loss=best_loss)
        best_score, best_loss = max(best_score, score), min(best_loss, loss)
        counted.append(counter)
    assert counted == counters


def test_a_record_of_arrivals_is_read_as_it_was_written(tmp_path: Path) -> None:
    server = server_of(2)
    server.update(2, np.zeros(1))
    server.report(2, has_converged=True)
    server.lose(1)
    write_arrivals(tmp_path, server.events, num_workers=2, facts={"rule": "async-weights"})
    assert read_arrivals(tmp_path / "arrivals.json", num_workers=2) == server.events


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1, "workers": 2, "events": [[3, "update"]]}'])
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "arrivals.json").write_text(content)
    with pytest.raises(UserInputError, match="cannot be read"):
        read_arrivals(tmp_path / "arrivals.json", num_workers=2)


def test_a_record_of_another_number_of_workers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arrivals.json").write_text(json.dumps({"version": 1, "workers": 3, "events": []}))
    with pytest.raises(UserInputError) as caught:
        read_arrivals(tmp_path / "arrivals.json", num_workers=2)
    assert (caught.value.seen, caught.value.do.partition(",")[0]) == ("3 workers", "use --ranks 4")
