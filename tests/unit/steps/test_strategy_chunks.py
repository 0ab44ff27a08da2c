"""`local-sgd --chunk-mib`: an epoch of a rank in chunks that fit into its memory, each trained as a rank's whole share is."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import UsageError, UserInputError
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.tasks.segmentation.volumes import VolumeSampler
from medweave_steps.train.network import architecture, seeded_network
from medweave_steps.train_distributed.config import DistributedConfig
from medweave_steps.train_distributed.engines import replica
from medweave_steps.train_distributed.engines.compss import CompssEngine
from medweave_steps.train_distributed.engines.replica import ReplicaJob
from medweave_steps.training.data.batches import Batches
from medweave_steps.training.data.case_cache import MIB, sample_bytes
from medweave_steps.training.distributed.average import averaged, packed, unpacked
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop.checkpoint import read_checkpoint
from medweave_steps.training.loop.chunks import Chunk, chunk_of
from support import fake_pycompss, strategy_work
from support.one_label import TASK, open_sampler, usable_cases
from support.rank_work import OneOfTwo, run_to_its_end
from support.strategy_work import Case, by_two_ranks, largest_difference, options
from support.training_set import training_set
from support.weights import weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

# Half a MiB with its label, so that two cases fit into one MiB.
SHAPE = (32, 32, 64)
ONE_MIB: dict[str, Any] = {"strategy": "local-sgd", "chunk_mib": 1}
VALIDATED_LAST = {"window_shape": SHAPE, "validation_interval": 3}


def volumes(data: Path, num_cases: int = 8, **changes: Any) -> Any:
    """Three epochs of whole cases, two a step."""
    arguments = {
        "epochs": 3, "batch_size": 2, "patch_shape": SHAPE, "schedule": "constant", "learning_rate": 1e-3, **VALIDATED_LAST,
    }  # fmt: skip
    return options(data, **arguments | changes).for_cases(num_cases, num_channels=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight training cases: two a step are four steps an epoch, in two chunks of two steps for each of two ranks."""
    return training_set(tmp_path_factory.mktemp("data"), ("train",) * 8 + ("validation",))


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One training case less: in the last step of an epoch the second rank has none."""
    return training_set(tmp_path_factory.mktemp("seven"), ("train",) * 7 + ("validation",))


@pytest.fixture(scope="module")
def by_ranks(data: Path, seven: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All that two ranks do for the tests."""
    saved = tmp_path_factory.mktemp("saved")

    def case(name: str = "", folder: Path = data, resume: str = "", interval: int = 0, **changes: Any) -> Case:
        num_cases = 7 if folder == seven else 8
        keeps = {"checkpoint_folder": saved / name, "checkpoint_interval": interval} if interval else {}
        from_file = saved / resume if resume else None
        return Case(config=volumes(folder, num_cases, ranks=2, **keeps, **changes), recipe=True, resume=from_file)

    cases = {
        "chunks": case("chunks", interval=5, **ONE_MIB),
        "in a chunk": case("in", resume="chunks/checkpoint-before.pt", **ONE_MIB),
        "between chunks": case("between", resume="chunks/checkpoint.pt", **ONE_MIB),
        "whole": case(strategy="local-sgd"),
        "one chunk": case(strategy="local-sgd", chunk_mib=100),
        "on one rank": Case(config=volumes(data), recipe=True, resume=saved / "chunks/checkpoint-before.pt"),
        "seven": case("seven", seven, interval=3, **ONE_MIB),
        "seven, resumed": case(folder=seven, resume="seven/checkpoint-before.pt", **ONE_MIB),
        "by ddp": case(folder=seven, resume="seven/checkpoint-before.pt", strategy="ddp"),
        "padding alone": case(folder=seven, strategy="local-sgd", sync_interval=1),
    }
    results: dict[str, dict[str, Any]] = by_two_ranks(strategy_work.all_trained, cases)
    places = [
        read_checkpoint(saved / f"chunks/{name}")["state"]["step"] for name in ("checkpoint-before.pt", "checkpoint.pt")
    ]
    assert places == [5, 10], "the first in the middle of a chunk, the second between two"
    return results


@pytest.mark.parametrize(
    ("num_rows", "nodes", "fitting", "expected"),
    [(100_000, 10, 5_000, 20), (7, 2, 2, 4), (9, 2, 2, 6), (8, 2, 4, 2), (5, 1, 1, 5), (484, 4, 50, 12)],
)
def test_partitions_are_as_many_as_the_paper_says(num_rows: int, nodes: int, fitting: int, expected: int) -> None:
    num_steps = math.ceil(num_rows / nodes)  # a row a step for each node
    assert nodes * math.ceil(num_steps / fitting) == expected
    chunks = [chunk_of(step, num_steps=num_steps, most_steps=fitting) for step in range(num_steps)]
    assert {chunk.num_chunks for chunk in chunks} == {expected // nodes}
    assert [chunk.number for chunk in chunks] == sorted(chunk.number for chunk in chunks)
    sizes = np.bincount([chunk.number for chunk in chunks])
    assert len(sizes) * nodes == expected
    assert max(sizes) <= fitting
    assert max(sizes) - min(sizes) <= 1
    assert [step for step, chunk in enumerate(chunks) if chunk.is_over] == list(np.cumsum(sizes) - 1)


def sampler_of(config: Any) -> VolumeSampler:
    prepared = open_prepared(config.training_set)
    cases, _ = usable_cases(prepared)
    sampler = open_sampler(config, prepared, cases, **config.of_sampler())
    assert isinstance(sampler, VolumeSampler)
    return sampler


def strategy_of(config: Any, group: Any) -> Any:
    return config.open_strategy(num_cases=8, num_channels=1, group=group, device=torch.device("cpu"))


def test_each_case_comes_once_an_epoch_over_ranks_and_chunks(seven: Path) -> None:
    config = volumes(seven, 7, ranks=2, **ONE_MIB)
    sampler, strategies = sampler_of(config), [strategy_of(config, OneOfTwo(rank)) for rank in range(2)]
    for epoch in range(3):
        seen, padding, chunks = [], 0, []
        for step in range(4 * epoch, 4 * epoch + 4):
            for rank in range(2):
                batch = sampler.batch(step, rank=rank, world_size=2)
                chunks.append(strategies[rank].chunk_of(step))
                padding += batch.is_padding
                seen += [] if batch.is_padding else list(batch.case_ids)
        assert sorted(seen) == [f"case-{place}" for place in range(7)]
        assert padding == 1
        assert chunks[::2] == chunks[1::2] == [
            Chunk(0, 2, False), Chunk(0, 2, True), Chunk(1, 2, False), Chunk(1, 2, True)
        ]  # fmt: skip
    assert [sampler.num_counted(4, rank=rank, world_size=2) for rank in range(2)] == [4, 3]


def test_never_more_than_fits_is_kept_and_the_batches_are_the_same(data: Path) -> None:
    retained, read = (
        sampler_of(volumes(data, ranks=2, augment=True, **changes)) for changes in (ONE_MIB, {"strategy": "local-sgd"})
    )
    assert sample_bytes(SHAPE, 1) * 2 == MIB
    most = 0
    for step in range(12):
        one, other = (sampler.batch(step, rank=1, world_size=2) for sampler in (retained, read))
        assert np.array_equal(one.image_BCIJK, other.image_BCIJK)
        assert np.array_equal(one.label_BCIJK, other.label_BCIJK)
        assert (one.case_ids, read.cache.num_bytes()) == (other.case_ids, 0)
        most = max(most, retained.cache.num_bytes())
        assert retained.cache.num_bytes() <= MIB
    assert most == MIB


@pytest.mark.parametrize("arguments", [{"strategy": "local-sgd", "chunk_mib": 4}, {"cache_mib": 4}])
def test_what_fits_is_read_once(data: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> None:
    sampler, read = sampler_of(volumes(data, **arguments)), []
    plain = VolumeSampler._plain
    monkeypatch.setattr(
        VolumeSampler, "_plain", lambda self, case, middle: read.append(case.case_id) or plain(self, case, middle)
    )
    for step in range(12):
        sampler.batch(step)
    assert sorted(read) == [f"case-{place}" for place in range(8)]


@pytest.mark.parametrize("strategy", ["single", "local-sgd"])
def test_a_cache_that_holds_some_cases_changes_nothing(data: Path, strategy: str) -> None:
    config = volumes(data, strategy=strategy, augment=True)
    cached = dataclasses.replace(config, cache_mib=1)
    assert cached.identity() == config.identity()
    results = [strategy_work.trained(Case(config=arguments, recipe=True), Alone()) for arguments in (config, cached)]
    assert largest_difference(*results) == 0
    assert results[0]["loss"] == results[1]["loss"]
    sampler = sampler_of(cached)
    for step in range(8):
        sampler.batch(step)
        assert 0 < sampler.cache.num_bytes() <= MIB
    if strategy == "local-sgd":
        assert strategy_of(cached, Alone()).chunk_of(0) is None


def test_processes_that_cut_batches_share_the_memory(data: Path) -> None:
    sampler = sampler_of(volumes(data, strategy="local-sgd", chunk_mib=4))
    batches = Batches(sampler, rank=0, world_size=1, num_workers=2, device=torch.device("cpu"))
    try:
        assert sampler.cache.limit_bytes == 2 * MIB
        cut = [batches.batch(step) for step in range(5)]
    finally:
        batches.close()
    for step, batch in enumerate(cut):
        expected = sampler.batch(step)
        assert np.array_equal(batch.image_BCIJK, expected.image_BCIJK)
        assert batch.case_ids == expected.case_ids


class PartOfARank:
    """The cases of the chunks of two ranks, as if each chunk were a replica: the input for `train-distributed`."""

    def __init__(self, sampler: VolumeSampler) -> None:
        self.sampler = sampler

    def batch(self, step: int, *, rank: int, world_size: int) -> Any:
        assert world_size == 4
        epoch, place = divmod(step, 2)
        return self.sampler.batch(4 * epoch + 2 * (rank % 2) + place, rank=rank // 2, world_size=2)


def test_its_average_is_that_of_compss_for_the_same_partition_bit_for_bit(
    data: Path, by_ranks: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = volumes(data, ranks=2, **ONE_MIB)
    further = DistributedConfig(
        training_set=data, output=data / "m", trained_model=data / "parent", rounds=3, steps_per_round=2, replicas=4,
        batch_size=4, patch_shape=SHAPE, learning_rate=config.learning_rate, schedule="constant", precision="float32",
    )  # fmt: skip
    job = ReplicaJob(
        config=further, **further.of_replicas(), task=TASK, architecture=json.dumps(architecture(config)), window_shape=SHAPE,
        overlap=config.overlap, first_step=0, num_threads=1,
    )  # fmt: skip
    bench = dataclasses.replace(replica._bench(job), sampler=PartOfARank(sampler_of(config)))
    monkeypatch.setattr(replica, "_bench", lambda _: bench)
    calls = fake_pycompss.install(monkeypatch, in_runtime=False)
    engine, content = CompssEngine(job), packed(seeded_network(config, TASK).state_dict())
    for number in range(3):
        shares = engine.train(number, content, bfloat16=False)
        assert [share.samples for share in shares] == [2] * 4
        content = packed(averaged([unpacked(share.weights) for share in shares], [share.samples for share in shares]))
    assert "wait" in calls
    for name, tensor in unpacked(content).items():
        assert torch.equal(tensor, torch.from_numpy(by_ranks["chunks"][name])), name


def test_one_chunk_for_each_rank_is_local_sgd_as_it_is_without(by_ranks: dict[str, dict[str, Any]]) -> None:
    assert largest_difference(by_ranks["one chunk"], by_ranks["whole"]) == 0
    assert by_ranks["one chunk"]["loss"] == by_ranks["whole"]["loss"]
    assert largest_difference(by_ranks["chunks"], by_ranks["whole"]) > 1e-6


@pytest.mark.parametrize(
    ("resumed", "uninterrupted"),
    [("in a chunk", "chunks"), ("between chunks", "chunks"), ("seven, resumed", "seven")],
)
def test_a_resumed_training_equals_an_uninterrupted_one(
    by_ranks: dict[str, dict[str, Any]], resumed: str, uninterrupted: str
) -> None:
    assert largest_difference(by_ranks[resumed], by_ranks[uninterrupted]) == 0
    assert by_ranks[resumed]["loss"] == by_ranks[uninterrupted]["loss"]
    assert by_ranks[resumed]["bytes"] == by_ranks[uninterrupted]["bytes"] > 0


@pytest.mark.parametrize("name", ["on one rank", "by ddp", "padding alone"])
def test_it_continues_in_another_way_and_where_a_rank_has_nothing(
    by_ranks: dict[str, dict[str, Any]], name: str
) -> None:
    assert len(by_ranks[name]["loss"]) == 3
    assert all(np.isfinite(by_ranks[name]["loss"]))
    assert all(np.isfinite(array).all() for array in by_ranks[name].values() if isinstance(array, np.ndarray))


def test_the_chunks_of_all_ranks_are_sent_once_an_epoch(data: Path, by_ranks: dict[str, dict[str, Any]]) -> None:
    of_weights = sum(
        tensor.numel() * tensor.element_size() for tensor in seeded_network(volumes(data), TASK).state_dict().values()
    )
    assert by_ranks["chunks"]["bytes"] == 3 * 2 * 2 * of_weights
    assert by_ranks["whole"]["bytes"] == 3 * 2 * of_weights


def test_from_the_middle_of_a_chunk_another_way_begins_with_the_average(data: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    arguments = {"checkpoint_folder": saved, "checkpoint_interval": 5, "epochs": 2}
    # One rank with a MiB takes one step of two cases in a chunk; with two MiB two steps.
    trainer = strategy_work.trainer_of(
        Case(config=volumes(data, **ONE_MIB | {"chunk_mib": 2}, **arguments), recipe=True), Alone()
    )
    run_to_its_end(trainer)
    content = read_checkpoint(saved)
    assert content["state"]["step"] == 5
    (own,) = content["chunks"]["of_ranks"]
    assert own["is_begun"]
    assert [number for _, number in own["weights"]] == [2]
    for change in ({"strategy": "single"}, ONE_MIB):
        other = strategy_work.trainer_of(Case(config=volumes(data, epochs=2, **change), recipe=True), Alone())
        other.restore(read_checkpoint(saved))
        for name, tensor in other.network.state_dict().items():
            assert torch.equal(tensor, own["weights"][0][0][name]), name


def test_the_verb_trains_in_chunks_and_the_card_reports_it(data: Path, tmp_path: Path) -> None:
    words = [
        "train", "--training-set", str(data), "--output", str(tmp_path / "model"), "--training-log", str(tmp_path / "log"),
        "--run-report", str(tmp_path / "report.json"), "--epochs", "1", "--batch-size", "2", "--patch-shape", "32", "32", "64",
        "--window-shape", "32", "32", "64", "--channels", "4", "8", "--strides", "2", "--precision", "float32",
        "--strategy", "local-sgd", "--chunk-mib", "1", "--num-threads", "1",
    ]  # fmt: skip
    assert main(words) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    training = report["results"]["training"]
    assert (training["chunk_mib"], training["chunks_per_epoch"], training["steps_done"]) == (1, 4, 4)
    assert report["ranks"][0]["samples"] == 8
    assert weights(tmp_path / "model")


@pytest.mark.parametrize(
    "changes",
    [{"chunk_mib": 0}, {"epochs": None}, {"strategy": "ddp"}, {"sync_interval": 2}],
)
def test_values_that_cannot_be_used_are_refused(data: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        volumes(data, **ONE_MIB | {"ranks": 2} | changes)
    assert "with --strategy local-sgd and --epochs" in caught.value.expected


@pytest.mark.parametrize("changes", [{"cache_mib": 0}, {"epochs": None}, ONE_MIB])
def test_a_cache_that_cannot_be_used_is_refused(data: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cache-mib") as caught:
        volumes(data, **{"cache_mib": 1} | changes)
    assert "with --epochs and without --chunk-mib" in caught.value.expected


def test_too_little_memory_for_the_cases_of_a_step_is_refused(data: Path) -> None:
    with pytest.raises(UserInputError) as caught:
        volumes(data, batch_size=5, ranks=2, **ONE_MIB)
    error = caught.value
    assert error.seen == "1 MiB fit 2 cases; a rank needs 3 per step"
    assert error.expected.startswith("at least 2 MiB: 3 × (1 + 1) arrays of 32 x 32 x 64 voxels")
    assert "increase --chunk-mib or --ranks, or reduce --batch-size" in error.do
