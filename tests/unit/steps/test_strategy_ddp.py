"""`ddp` equals one process where no layer depends on a rank's patches; ranks with different options or data are refused."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.contracts.report import RankFacts
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import read_card
from medweave_steps.runtime.energy import PACKAGE
from medweave_steps.runtime.monitor import read_recordings
from medweave_steps.training.distributed import agreement
from medweave_steps.training.distributed.agreement import check_agreement
from medweave_steps.training.distributed.group import Alone
from support import strategy_work
from support.continued import folder_to_continue
from support.powercap import consuming, zone
from support.strategy_work import KINDS, VOLUMES, by_two_ranks, case_of, largest_difference, options, with_changes
from support.train_jobs import train_job
from support.training_set import training_set

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

DDP = {"strategy": "ddp", "ranks": 2}


def as_mr(data: Path) -> Path:
    """The same arrays as those of a contrast, of which nothing is looked for but lesions."""
    cohort = open_prepared(data).cohort
    changed = dataclasses.replace(cohort, channels=("FLAIR",), window_hu=None)
    (data / "cohort.json").write_text(codec.dumps(changed), encoding="utf-8")
    return data


def replaced(name: str, by: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path, str], None]:
    """Replace the array of a case by another one."""

    def change(cases: Path, case_id: str) -> None:
        array = np.load(cases / case_id / name)
        np.save(cases / case_id / name, by(array).astype(array.dtype))

    return change


OTHER_ARRAYS: dict[str, tuple[str, Callable[[Path, str], None]]] = {
    "an MR volume is noise": (
        "case-1",
        replaced("volume.npy", lambda v: np.random.default_rng(9).normal(size=v.shape)),
    ),
    "a CT volume is 5 HU brighter": ("case-0", replaced("volume.npy", lambda v: v + 5)),
    "a CT volume has one other voxel": ("case-0", replaced("volume.npy", lambda v: v + (v == v.min()))),
    "a validation volume is empty": ("case-2", replaced("volume.npy", np.zeros_like)),
    "a validation label is empty": ("case-2", replaced("label.npy", np.zeros_like)),
    "a lung is missing": ("case-1", lambda cases, case_id: (cases / case_id / "lung.npy").unlink()),
}
"""The case of which rank 1 has other arrays than rank 0, under one cohort.json; no lesion and no bright structure moves."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("volumes"), ("train", "train", "train", "validation"))


@dataclass(frozen=True, kw_only=True)
class ByRanks:
    """The results of two ranks.

    Attributes:
        trained: the weights of each kind of training.
        refusals: the error of each rank where the ranks have different options.
        not_a_number: the error of each rank of a training whose first loss is not a number.
        facts: what the report of a training has of each rank.
        energy: the energy that a training of two epochs reports, and its folder.
        added_j: by how much the counter rose.
    """

    trained: dict[str, Any]
    refusals: dict[str, Any]
    not_a_number: list[dict[str, str]]
    facts: list[RankFacts]
    energy: tuple[CountedEnergy, Path]
    added_j: float


@pytest.fixture(scope="module")
def by_ranks(data: Path, volumes: Path, tmp_path_factory: pytest.TempPathFactory) -> ByRanks:
    """All that two ranks do for the tests: to start these takes longer than to train."""
    config = options(data, **DDP)
    mr = as_mr(training_set(tmp_path_factory.mktemp("mr")))
    others = {
        "options": with_changes(config, learning_rate=0.25, seed=3),
        "checkpoints": with_changes(config, checkpoint_folder=data / "saved"),
    }
    for name, (like, change) in OTHER_ARRAYS.items():
        folder = tmp_path_factory.mktemp("other") / "data"
        shutil.copytree(mr if "MR" in name else data, folder)
        change(folder / "cases", like)
        others[name] = with_changes(options(mr if "MR" in name else data, **DDP), training_set=folder)
    unfit = training_set(tmp_path_factory.mktemp("unfit"))
    volume = np.load(unfit / "cases/case-0/volume.npy")
    np.save(unfit / "cases/case-0/volume.npy", np.full_like(volume, np.nan))
    others["not a number"] = [options(unfit, **DDP, batch_size=8)] * 2
    cases = {kind: case_of(data, kind, **DDP) for kind in KINDS}
    cases["volumes"] = case_of(volumes, "instance", **DDP, **VOLUMES)
    verb, folder = options(volumes, **DDP, **VOLUMES), tmp_path_factory.mktemp("model")
    job = train_job(verb, folder=folder, log_folder=volumes / "log")
    counted = tmp_path_factory.mktemp("counted")
    package = zone(tmp_path_factory.mktemp("powercap"), "intel-rapl:0", "package-0", energy_uj=0)
    two_epochs = options(data, **DDP, steps=8, epoch_steps=4, validation_interval=1)
    measured = dataclasses.replace(
        job, config=two_epochs, folder=counted, log_folder=counted / "log", powercap=package.parent
    )
    with consuming(package, each_uj=50_000, range_uj=262_143_328_850) as added:
        work = (cases, others, [job, measured])
        trained, refusals, ((_, facts), (results, _)) = by_two_ranks(strategy_work.trained_and_refused, work)
    energy = codec.from_json(CountedEnergy, results["training"]["energy"], where="energy")
    return ByRanks(
        trained=trained, not_a_number=refusals.pop("not a number"), refusals=refusals, facts=facts, energy=(energy, counted),
        added_j=added[0] / 1e6,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_what_one_process_trains_with_the_doubled_batch(
    data: Path, by_ranks: ByRanks, kind: str
) -> None:
    shared = by_ranks.trained
    alone = strategy_work.trained(case_of(data, kind, accumulate=1), Alone())
    tolerance = 1e-12 if kind == "float64" else 1e-6
    start = strategy_work.start(case_of(data, kind))
    assert largest_difference(alone, start) > 0.01, "twenty steps have moved the weights"
    assert largest_difference(shared[kind], alone) <= tolerance
    assert {shared[kind][name].dtype for name in start} == {np.dtype("float64" if kind == "float64" else "float32")}
    assert shared[kind]["loss"] == pytest.approx(alone["loss"], abs=2e-6)


def test_a_rank_that_has_no_case_at_the_end_of_an_epoch_changes_nothing(volumes: Path, by_ranks: ByRanks) -> None:
    shared = by_ranks.trained
    case = case_of(volumes, "instance", **VOLUMES)
    alone = strategy_work.trained(case, Alone())
    assert largest_difference(alone, strategy_work.start(case)) > 0.01
    assert largest_difference(shared["volumes"], alone) <= 1e-6
    assert shared["volumes"]["loss"] == pytest.approx(alone["loss"], abs=2e-6)


def test_the_report_has_the_padding_of_each_rank_next_to_its_samples(by_ranks: ByRanks) -> None:
    # Ten epochs of three cases, two at a time: the second rank has none in the second step of each.
    assert [(facts.rank, facts.samples, facts.padding) for facts in by_ranks.facts] == [(0, 20, 0), (1, 10, 10)]


def test_ranks_that_were_given_other_things_say_so_before_the_first_step(
    by_ranks: ByRanks,
) -> None:
    refusals = by_ranks.refusals
    for message in refusals.values():
        assert message[0] == message[1], "every rank ends with the same words"
        assert message[0]["what"] == "the ranks have different options or data."
    assert refusals["options"][0]["seen"] == "rank 1 has --learning-rate = 0.25; --seed = 3"
    assert refusals["options"][0]["expected"] == "--learning-rate = 0.005; --seed = 0, as on rank 0"
    for name, (case_id, _) in OTHER_ARRAYS.items():
        seen = refusals[name][0]["seen"]
        assert re.fullmatch(rf'rank 1 has digest of the arrays of {case_id} = "\w{{16}}"', seen), f"{name}: {seen}"
    assert refusals["checkpoints"][0]["seen"] == "rank 1 has --checkpoint-folder = true"


def test_a_loss_that_is_not_a_number_names_the_cases_of_all_ranks(by_ranks: ByRanks) -> None:
    first, second = by_ranks.not_a_number
    assert first == second, "every rank ends with the same words"
    assert "the loss is NaN or infinite at step 1." in first["what"]
    assert re.search(
        r"on patches of case-0 \(\d of 8 patches\); the volume of case-0 contains NaN or infinite values",
        first["seen"],
    ), first["seen"]


def test_each_epoch_has_its_energy_which_two_ranks_of_a_machine_count_once(by_ranks: ByRanks) -> None:
    counted, folder = by_ranks.energy
    assert (counted.counters, counted.missing) == ({PACKAGE: 1}, ())
    assert len(counted.known_wh) == 2
    assert min(counted.known_wh) > 0
    assert counted.whole_wh is not None
    assert counted.whole_wh <= by_ranks.added_j / 3600
    assert read_card(folder).energy_wh == counted.whole_wh
    assert [(part.component, part.kind) for part in counted.components] == [
        ("processor", "measured"), ("memory", "modelled"),
    ]  # fmt: skip
    assert 0 < counted.components[0].wh <= by_ranks.added_j / 3600
    assert [recording.rank for recording in read_recordings(folder / "log")] == [0, 1]


class Scripted(Alone):
    """Rank 0 of two, of which the other says what the test wants it to."""

    world_size = 2

    def __init__(self, other: dict[str, Any]) -> None:
        self.other = other

    def gather(self, item: Any) -> list[Any]:
        if isinstance(item, int):
            return [item, item]
        return [item, self.other if isinstance(item, dict) else "another digest"]


def test_a_checkpoint_that_one_rank_lacks_is_reported() -> None:
    with pytest.raises(UserInputError) as caught:
        check_agreement(Scripted({"step of the checkpoint": None, "a": [1]}), {"step of the checkpoint": 40, "a": [1]})
    assert caught.value.seen == "rank 1 has step of the checkpoint = nothing"
    assert caught.value.expected == "step of the checkpoint = 40, as on rank 0"


def test_replicas_that_were_given_another_model_say_so(tmp_path: Path) -> None:
    from medweave_steps.train_distributed.command import DistributedJob, continue_on_rank
    from medweave_steps.train_distributed.config import DistributedConfig

    folder = folder_to_continue(tmp_path)
    config = DistributedConfig(training_set=folder / "data", trained_model=folder / "parent", output=folder / "model")
    job = DistributedJob(
        config=config, card=read_card(folder / "parent"), engine="ddp", num_threads=1,
        folder=folder / "model", log_folder=folder / "log", points=(),
    )  # fmt: skip
    with pytest.raises(UserInputError) as caught:
        continue_on_rank(job, Scripted({"digest of the model to continue": "ab"}))
    assert 'digest of the model to continue = "ab"' in caught.value.seen
    assert "--replicas = 2" in caught.value.expected


def test_of_a_large_set_a_rank_reads_blocks_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = open_prepared(training_set(tmp_path)).cases()[0]
    array = np.random.default_rng(0).normal(size=(64, 64, 64)).astype(np.float32)  # 1 MiB, of which a quarter is read
    assert array.nbytes > 2 * agreement.NUM_BLOCKS * agreement.BLOCK_BYTES

    def message(array: np.ndarray, *, cut_bytes: int = 0) -> str:
        np.save(case.folder / "volume.npy", array)
        with (case.folder / "volume.npy").open("r+b") as file:
            file.truncate(file.seek(0, 2) - cut_bytes)
        with pytest.raises(UserInputError) as caught:
            agreement.check_arrays(Scripted({}), [case])
        return caught.value.expected

    voxel = array.copy()
    voxel[2, 0, 0] += 1  # 32 KiB after the start: between the first block and the second
    assert message(array) != message(voxel), "a small set is read whole"
    monkeypatch.setattr(agreement, "WHOLE_BYTES", array.nbytes // 2)
    first = message(array)
    assert message(array) == first
    assert message(voxel) == first, "this is what the blocks cannot see"
    noise = np.random.default_rng(1).normal(size=array.shape).astype(np.float32)
    late = np.where(np.arange(64)[:, None, None] < 60, array, 0)
    for other in (array + 5, noise, np.zeros_like(array), late):
        assert message(other) != first
    assert message(array, cut_bytes=1) != first


def test_many_cases_that_differ_are_counted() -> None:
    names = [f"case-{number:02}" for number in range(42)]
    with pytest.raises(UserInputError) as caught:
        check_agreement(Scripted(dict.fromkeys(names, 1)), dict.fromkeys(names, 0))
    assert caught.value.seen == "rank 1 has " + "".join(f"{name} = 1; " for name in names[:40]) + "and 2 more"


def test_one_process_agrees_with_itself() -> None:
    check_agreement(Alone(), {"--steps": 3})
