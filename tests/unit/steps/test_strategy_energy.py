"""The energy of machines during a training, by simulated counters, because few machines have readable ones."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.contracts.hardware import HardwareUse
from medweave_steps.io.model.folder import read_card
from medweave_steps.runtime.energy import (
    GPU,
    PACKAGE,
    Counter,
    EnergyMeter,
    gpu_counters,
    grown,
    package_counters,
)
from medweave_steps.runtime.monitor import read_recordings
from medweave_steps.train.rank import TrainJob, train_on_rank
from medweave_steps.train_distributed.command import DistributedJob, continue_on_rank
from medweave_steps.train_distributed.config import DistributedConfig
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop.checkpoint import read_checkpoint
from medweave_steps.training.loop.energy import open_energy
from support.continued import folder_to_continue
from support.powercap import consuming, set_energy, zone
from support.strategy_work import options
from support.train_jobs import train_job
from support.training_set import training_set
from support.weights import assert_equal_weights

RANGE_UJ = 5_000_000
NO_PACKAGE = "RAPL (this machine has no processor energy counter)"


@pytest.mark.parametrize(
    ("before", "after", "range_j", "added"),
    [(10, 25, 100, 15), (90, 5, 100, 15), (7, 7, 100, 0), (90, 5, float("inf"), 5)],
)
def test_a_counter_that_has_begun_again_has_gone_on(before: float, after: float, range_j: float, added: float) -> None:
    assert grown(before, after, begins_again_at=range_j) == added


def test_packages_are_counted_once_and_nothing_below_or_above_them(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=1_500_000)
    zone(tmp_path, "intel-rapl:0:0", "core", energy_uj=900_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", energy_uj=300_000)
    zone(tmp_path, "intel-rapl:1", "package-1", energy_uj=2_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", energy_uj=9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", energy_uj=1_500_000)
    counters, missing = package_counters(tmp_path)
    assert [(counter.kind, counter.read(), counter.begins_again_at) for counter in counters] == [
        (PACKAGE, 1.5, 262143.32885), (PACKAGE, 2.0, 262143.32885),
    ]  # fmt: skip
    assert missing == ""


def test_why_a_machine_is_not_measured(tmp_path: Path) -> None:
    assert package_counters(tmp_path / "none") == ([], NO_PACKAGE)
    zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("?")
    assert package_counters(tmp_path) == ([], "RAPL (the counters of this machine cannot be read)")


def test_what_is_for_root_only_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=1)
    read = Path.read_text

    def guarded(path: Path, *words: Any, **more: Any) -> str:  # the tests may run as root, whom no mode keeps out
        if path.name == "energy_uj":
            raise PermissionError(path)
        return read(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", guarded)
    counters, missing = package_counters(tmp_path)
    assert not counters
    assert missing.startswith("RAPL (only root can read")


class Nvml:
    """The four names of nvidia-ml-py that are used, for one GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self, *readings_mj: int) -> None:
        self.readings_mj = list(readings_mj)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-ab":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.readings_mj:
            raise self.NVMLError("Not Supported")
        return self.readings_mj.pop(0)


def test_a_gpu_is_read_by_its_uuid_in_millijoules() -> None:
    (counter,), missing = gpu_counters("ab", Nvml(1000, 2500, 4000))
    meter = EnergyMeter([counter], [])
    assert (meter.joules(), meter.kinds, missing) == (1.5, [GPU], "")
    assert meter.joules() is None  # it has no more to say
    assert meter.missing == [f"{GPU} and others (became unreadable during the run)"]
    assert gpu_counters("cd", Nvml(1)) == ([], "NVML (Not Found)")
    assert gpu_counters("ab", Nvml()) == ([], "NVML (Not Supported)")


@pytest.mark.slow
def test_a_counter_that_begins_again_often_is_read_often_enough(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=90_000_000, range_uj=100_000_000)
    counters, _ = package_counters(tmp_path)
    meter = EnergyMeter(counters, [], read_every_s=0.01)
    for energy_uj in (50_000_000, 10_000_000, 95_000_000):  # 60 J, 60 J, 85 J: two ranges
        set_energy(folder, energy_uj)
        time.sleep(0.3)
    assert meter.joules() == pytest.approx(205)
    meter.close()


def test_no_counter_is_no_zero() -> None:
    assert EnergyMeter([], [NO_PACKAGE]).joules() is None
    assert EnergyMeter([Counter(kind=GPU, read=lambda: 5.0)], []).joules() == 0


def test_words_say_what_was_measured_and_of_what() -> None:
    whole = CountedEnergy(each_wh=(1.0, 2.0), counters={PACKAGE: 2, GPU: 1}, missing=())
    assert whole.whole_wh == 3
    assert whole.describe() == (
        f"3 Wh, 1.5 Wh per epoch, measured by {PACKAGE} (2) and {GPU} (1) for the whole machine, "
        "including other programs"
    )
    part = CountedEnergy(each_wh=(None, 2.0), counters={PACKAGE: 2}, missing=("NVML (Not Found)",))
    assert part.whole_wh is None
    assert part.describe().startswith("2 Wh in 1 of 2 epochs, 2 Wh per epoch, measured by")
    assert part.describe().endswith("; not included: NVML (Not Found)")
    assert (
        CountedEnergy(each_wh=(None,), counters={}, missing=(NO_PACKAGE,)).describe() == f"not measured: {NO_PACKAGE}"
    )


# -- trainings ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return zone(tmp_path / "powercap", "intel-rapl:0", "package-0", energy_uj=4_990_000, range_uj=RANGE_UJ)


def job_of(data: Path, folder: Path, **changes: Any) -> TrainJob:
    config = options(data, steps=8, epoch_steps=4, validation_interval=1, **changes)
    (folder / "model").mkdir(parents=True)
    return train_job(config, folder=folder / "model", log_folder=folder / "log", powercap=folder / "powercap")


def test_each_epoch_has_its_energy(data: Path, package: Path, tmp_path: Path) -> None:
    # test_strategy_ddp.py has that of two ranks.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with consuming(package, each_uj=50_000, range_uj=RANGE_UJ) as added:
        outcome = train_on_rank(job_of(data, tmp_path), Alone())
    assert outcome is not None
    counted = codec.from_json(CountedEnergy, outcome[0]["training"]["energy"], where="energy")
    assert counted.counters == {PACKAGE: 1}
    assert counted.missing == ()
    assert len(counted.known_wh) == 2
    assert min(counted.known_wh) > 0
    assert counted.whole_wh is not None
    assert counted.whole_wh <= added[0] / 1e6 / 3600
    assert read_card(tmp_path / "model").energy_wh == counted.whole_wh
    events = EventAccumulator(str(tmp_path / "log")).Reload().Scalars("training/energy_wh")
    assert [(event.step, event.value) for event in events] == [
        (4 * (epoch + 1), pytest.approx(wh)) for epoch, wh in enumerate(counted.known_wh)
    ]
    assert "energy" not in (tmp_path / "log" / "curves.json").read_text()  # equal trainings have equal curves
    processor, memory = counted.components
    assert (processor.component, processor.kind, memory.kind) == ("processor", "measured", "modelled")
    assert 0 < processor.wh <= added[0] / 1e6 / 3600
    hardware = codec.from_json(HardwareUse, outcome[0]["training"]["hardware"], where="hardware")
    joules = sum(part.wh for part in counted.components) * 3600
    assert hardware.joules_per_sample == pytest.approx(joules / (8 * 4), abs=1e-4), "8 steps of 4 patches"
    assert hardware.idle_of == "processor"
    assert hardware.idle_share is not None
    assert hardware.peak_memory_mib is not None
    assert hardware.sent_bytes_per_epoch is None or hardware.sent_bytes_per_epoch >= 0
    (recording,) = read_recordings(tmp_path / "log")
    assert [mark["step"] for mark in recording.marks] == [4, 8]
    power = EventAccumulator(str(tmp_path / "log")).Reload().Scalars("hardware_rank_0/processor_power_w")
    assert [event.value for event in power] == pytest.approx(recording.series("processor_power_w")[1])
    assert power[-1].wall_time == pytest.approx(recording.started.timestamp() + recording.samples[-1]["t_s"])


def test_a_resumed_training_has_what_its_attempts_took_together(data: Path, package: Path, tmp_path: Path) -> None:
    saving: dict[str, Any] = {"checkpoint_folder": tmp_path / "saved", "checkpoint_interval": 6}
    with consuming(package, each_uj=50_000, range_uj=RANGE_UJ):
        train_on_rank(job_of(data, tmp_path, **saving), Alone())
        state = read_checkpoint(tmp_path / "saved")["state"]
        assert (state["step"], len(state["each_wh"])) == (6, 1)
        assert state["epoch_joules"] > 0
        again = job_of(data, tmp_path / "again", resume_from=tmp_path / "saved")
        results = train_on_rank(dataclasses.replace(again, powercap=package.parent), Alone())
    assert results is not None
    first, second = results[0]["training"]["energy"]["each_wh"]
    assert first == state["each_wh"][0]
    assert second >= state["epoch_joules"] / 3600
    # On a machine without counters the running epoch is not measured, and so the whole training is not.
    dark = job_of(data, tmp_path / "dark", resume_from=tmp_path / "saved")
    results = train_on_rank(dark, Alone())
    assert results is not None
    assert results[0]["training"]["energy"]["each_wh"] == [first, None]
    assert read_card(tmp_path / "dark" / "model").energy_wh is None


def test_where_there_is_no_counter_the_report_says_so(data: Path, tmp_path: Path) -> None:
    outcome = train_on_rank(job_of(data, tmp_path), Alone())
    assert outcome is not None
    counted = outcome[0]["training"]["energy"]
    components = counted.pop("components")
    assert counted == {"each_wh": [None, None], "counters": {}, "missing": [NO_PACKAGE]}
    assert {part["kind"] for part in components} == {"modelled"}
    assert outcome[0]["training"]["hardware"]["missing"] == [NO_PACKAGE]
    assert read_card(tmp_path / "model").energy_wh is None
    assert codec.from_json(CountedEnergy, counted, where="energy").describe() == f"not measured: {NO_PACKAGE}"


def test_without_the_monitor_the_weights_are_the_same_bit_for_bit(data: Path, tmp_path: Path) -> None:
    outcomes = [
        train_on_rank(job_of(data, tmp_path / f"every {seconds} s", monitor_interval=seconds), Alone())
        for seconds in (0.0, 0.1)
    ]
    assert all(outcomes)
    off, on = (tmp_path / "every 0.0 s", tmp_path / "every 0.1 s")
    assert_equal_weights(off / "model", on / "model")
    assert (off / "log" / "curves.json").read_bytes() == (on / "log" / "curves.json").read_bytes()
    assert read_recordings(off / "log") == []
    training = read_card(off / "model").training
    assert "hardware" not in training
    assert training["energy"]["components"] == []


def test_each_round_of_replicas_has_its_energy(package: Path, tmp_path: Path) -> None:
    folder = folder_to_continue(tmp_path)
    (folder / "model").mkdir()
    config = DistributedConfig(
        training_set=folder / "data", trained_model=folder / "parent", output=folder / "model", rounds=2, steps_per_round=2,
        batch_size=2, patch_shape=(8, 8, 8), precision="float32",
    )  # fmt: skip
    job = DistributedJob(
        config=config, card=read_card(folder / "parent"), engine="in-order", num_threads=1, folder=folder / "model",
        log_folder=folder / "log", points=(), powercap=package.parent,
    )  # fmt: skip
    with consuming(package, each_uj=50_000, range_uj=RANGE_UJ):
        outcome = continue_on_rank(job, Alone())
    assert outcome is not None
    counted = outcome[0]["training"]["energy"]
    assert len(counted["each_wh"]) == 2
    assert min(counted["each_wh"]) > 0
    assert read_card(folder / "model").energy_wh == sum(counted["each_wh"])
    assert outcome[0]["training"]["hardware"]["seconds"] > 0
    (recording,) = read_recordings(folder / "log")
    assert len(recording.marks) == 2


class TwoRanks(Alone):
    """The group of rank 0 of two ranks on one machine."""

    world_size = 2

    def gather(self, item: Any) -> list[Any]:
        """Return the item of both."""
        return [item, item]


def test_gpus_of_workers_that_do_not_wait_for_each_other_are_named_as_missing(tmp_path: Path) -> None:
    gpu = SimpleNamespace(type="cuda")
    counted = open_energy(TwoRanks(), gpu, is_together=False, powercap=tmp_path).counted([None])
    assert counted.missing == ("the workers have GPUs of their own, whose counters are not read",)
