"""The hardware monitor: energy of known power traces, counters that wrap or are missing, and recordings of killed processes."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.errors import UserInputError
from medweave_steps.report.hardware import hardware_facts
from medweave_steps.runtime.energy import GPU, MEMORY, PACKAGE
from medweave_steps.runtime.hardware import GPU_POWER, MODELLED_PROCESSOR, EnergySource, HardwareReader
from medweave_steps.runtime.monitor import Monitor, read_recording, read_recordings, thinned_series
from medweave_steps.training.loop.hardware import RankUse, components_of, use_of
from support.engine import wait_until
from support.powercap import set_energy, zone

HEADER = {"rank": 0, "interval_s": 1.0, "started_at": "2026-08-01T10:00:00.000+00:00"}


def recording_of(folder: Path, *lines: dict[str, Any], end: str = "") -> Path:
    path = folder / "hardware-rank-0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *lines)) + end)
    return path


# -- energy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter_s", [0.0, 0.45])
def test_energy_of_a_known_power_trace_is_within_1_percent(tmp_path: Path, jitter_s: float) -> None:
    # 200 W + 100 W · sin: 10 minutes, a minute per period; the integral is 120 kJ.
    draw = random.Random(0)
    times_s = [0.0, *(second + draw.uniform(-jitter_s, jitter_s) for second in range(1, 600)), 600.0]
    if jitter_s:
        times_s = [t_s for t_s in times_s if not 100 < t_s < 104]  # a process that was stopped
    lines = ({"t_s": t_s, "gpu_power_w": 200 + 100 * math.sin(math.tau * t_s / 60)} for t_s in times_s)
    known = read_recording(recording_of(tmp_path, *lines)).energy("gpu")
    assert known is not None
    assert known == (pytest.approx(120_000, rel=0.01), 600)


def test_an_energy_counter_precedes_the_power_readings_and_one_reading_is_no_energy(tmp_path: Path) -> None:
    both = read_recording(
        recording_of(
            tmp_path,
            {"t_s": 0, "gpu_energy_j": 100, "gpu_power_w": 1, "memory_power_w": 5},
            {"t_s": 2, "gpu_energy_j": 160, "gpu_power_w": 1},
        )
    )
    assert both.energy("gpu") == (60, 2)
    assert both.energy("memory") is None
    assert both.energy("processor") is None


def test_a_package_counter_that_wraps_around_goes_on(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=90_000_000, range_uj=100_000_000)
    dram = zone(tmp_path, "intel-rapl:0:0", "dram", energy_uj=1_000_000)
    zone(tmp_path, "intel-rapl:0:1", "core", energy_uj=5)
    reader = HardwareReader(gpu_uuid=None, counts_machine=True, powercap=tmp_path)
    assert [(part.component, part.kind, part.source) for part in reader.sources] == [
        ("processor", "measured", PACKAGE), ("memory", "measured", MEMORY),
    ]  # fmt: skip
    assert reader.missing == []
    assert "processor_power_w" not in reader.read(0.0), "a power needs two readings of the counter"
    set_energy(package, 20_000_000)
    set_energy(dram, 3_000_000)
    values = reader.read(2.0)
    assert (values["processor_energy_j"], values["processor_power_w"]) == (pytest.approx(30), pytest.approx(15))
    assert (values["memory_energy_j"], values["memory_power_w"]) == (pytest.approx(2), pytest.approx(1))


def test_only_one_rank_of_a_machine_reads_what_its_ranks_share(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=1)
    reader = HardwareReader(gpu_uuid=None, counts_machine=False, powercap=tmp_path)
    assert [(part.component, part.kind) for part in reader.sources] == [("memory", "modelled")]
    values = reader.read(0.0)
    assert values["process_memory_mib"] > 0
    assert not {name for name in values if name.startswith(("cpu_", "network_", "disk_", "processor_", "loopback"))}


def test_without_counters_the_processor_is_modelled_and_says_so(tmp_path: Path) -> None:
    reader = HardwareReader(gpu_uuid=None, counts_machine=True, powercap=tmp_path / "none")
    assert reader.sources[0] == EnergySource(component="processor", kind="modelled", source=MODELLED_PROCESSOR)
    assert reader.missing == ["RAPL (this machine has no processor energy counter)"]
    first, second = reader.read(0.0), reader.read(10.0)
    used_s = second["process_cpu_s"] - first["process_cpu_s"]
    assert second["processor_power_w"] == pytest.approx(12 * used_s / 10)
    assert second["memory_power_w"] == pytest.approx(second["process_memory_mib"] * 2**20 / 1e9 * 0.3725)
    assert not {name for name in second if name.startswith("gpu")}


def test_counters_that_the_machine_lacks_are_unknown_and_not_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(_process: psutil.Process) -> Any:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "io_counters", denied)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {})
    values = HardwareReader(gpu_uuid=None, counts_machine=True, powercap=tmp_path).read(0.0)
    assert {"process_cpu_s", "memory_used_mib"} <= set(values)
    unknown = ("process_read", "process_written", "disk", "cpu_clock", "network", "loopback")
    assert not {name for name in values if name.startswith(unknown)}


class Nvml:
    """The functions of nvidia-ml-py that the monitor uses, for a GPU at 300 W whose temperature cannot be read."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = range(3)

    class NVMLError(Exception):
        pass

    def __init__(self, *, has_energy: bool, has_power: bool = True) -> None:
        self.has_energy, self.has_power = has_energy, has_power
        self.energy_mj = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: str) -> int:
        if not self.has_energy:
            raise self.NVMLError("Not Supported")
        self.energy_mj += 300_000
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:
        if not self.has_power:
            raise self.NVMLError("Not Supported")
        return 300_000

    def nvmlDeviceGetUtilizationRates(self, _handle: str) -> Any:
        return type("Rates", (), {"gpu": 80, "memory": 25})

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> int:
        return (1980, 2619)[kind]

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        return type("Memory", (), {"used": 2**30})

    def nvmlDeviceGetTemperature(self, _handle: str, _kind: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetPerformanceState(self, _handle: str) -> int:
        return 0

    def nvmlDeviceGetCurrPcieLinkGeneration(self, _handle: str) -> int:
        return 5


def gpu_source(reader: HardwareReader) -> list[str]:
    return [part.source for part in reader.sources if part.component == "gpu"]


def test_a_gpu_is_measured_by_its_energy_counter_else_by_its_power(tmp_path: Path) -> None:
    reader = HardwareReader(gpu_uuid="ab", counts_machine=False, powercap=tmp_path, nvml=Nvml(has_energy=True))
    values = {name: value for name, value in reader.read(0.0).items() if name.startswith("gpu")}
    assert values == {
        "gpu_power_w": 300, "gpu_utilization": 0.8, "gpu_memory_utilization": 0.25, "gpu_clock_mhz": 1980,
        "gpu_memory_clock_mhz": 2619, "gpu_memory_used_mib": 1024, "gpu_performance_state": 0, "gpu_pcie_generation": 5,
        "gpu_energy_j": 0,
    }  # fmt: skip
    assert reader.read(1.0)["gpu_energy_j"] == 300
    assert gpu_source(reader) == [GPU]
    without = HardwareReader(gpu_uuid="ab", counts_machine=False, powercap=tmp_path, nvml=Nvml(has_energy=False))
    assert gpu_source(without) == [GPU_POWER]
    assert "gpu_energy_j" not in without.read(0.0)


def test_a_gpu_that_cannot_be_measured_is_named_and_has_no_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark = Nvml(has_energy=False, has_power=False)
    reader = HardwareReader(gpu_uuid="ab", counts_machine=False, powercap=tmp_path, nvml=dark)
    assert (gpu_source(reader), reader.missing) == ([], ["NVML (Not Supported)"])
    assert "gpu_power_w" not in reader.read(0.0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = HardwareReader(gpu_uuid="ab", counts_machine=False, powercap=tmp_path)
    assert (gpu_source(reader), reader.missing) == ([], ["NVML (pip install 'medweave[gpu]')"])
    assert not {name for name in reader.read(0.0) if name.startswith("gpu")}


# -- recordings ---------------------------------------------------------------------------------------------------------


def test_a_recording_has_a_first_and_a_last_sample_and_the_marks_on_one_clock(tmp_path: Path) -> None:
    path, sampled = tmp_path / "log" / "hardware-rank-3.jsonl", threading.Event()

    def read(t_s: float) -> dict[str, float]:
        if t_s > 0.02:
            sampled.set()
        return {"gpu_power_w": 10.0}

    monitor = Monitor(read, path, header={"rank": 3}, interval_s=0.02)
    monitor.mark({"step": 1, "loss": 3.0})  # nothing is open yet
    monitor.start()
    assert sampled.wait(20)
    monitor.mark({"step": 2, "loss": 0.5})
    assert not path.exists(), "it is not complete"
    monitor.close()
    monitor.close()
    (recording,) = read_recordings(path.parent)
    assert [path.name for path in path.parent.iterdir()] == ["hardware-rank-3.jsonl"]
    assert (recording.rank, len(recording.marks), recording.marks[0]["loss"]) == (3, 1, 0.5)
    times_s = [sample["t_s"] for sample in recording.samples]
    assert times_s == sorted(times_s)
    assert len(times_s) >= 3
    assert recording.started.utcoffset() is not None
    assert recording.energy("gpu") == (pytest.approx(10 * recording.seconds), pytest.approx(recording.seconds))


def test_a_killed_process_leaves_its_samples(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from medweave_steps.runtime.hardware import HardwareReader\n"
        "from medweave_steps.runtime.monitor import Monitor\n"
        "reader = HardwareReader(gpu_uuid=None, counts_machine=True)\n"
        "monitor = Monitor(reader.read, Path(sys.argv[1]), header={'rank': 0}, interval_s=0.05)\n"
        "monitor.start(); time.sleep(600)\n"
    )
    path = tmp_path / "hardware-rank-0.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        wait_until(lambda: any(len(file.read_bytes().split(b"\n")) > 4 for file in tmp_path.iterdir()), 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (recording,) = read_recordings(tmp_path)
    assert len(recording.samples) >= 3
    assert recording.energy("processor") is not None


def test_a_cut_last_line_is_left_out_and_another_file_is_refused(tmp_path: Path) -> None:
    path = recording_of(tmp_path, {"t_s": 0, "gpu_power_w": 1}, {"t_s": 1, "gpu_power_w": 3}, end='{"t_s": 2, "gpu_po')
    assert read_recording(path).mean("gpu_power_w") == 2
    for text in ("", "power,12\n", '{"rank": 0}\n', json.dumps(HEADER) + '\n{"gpu_power_w": 1}\n'):
        path.write_text(text)
        with pytest.raises(UserInputError, match=r"hardware samples 'hardware-rank-0.jsonl' cannot be read"):
            read_recording(path)


def test_a_full_disk_ends_the_samples_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl.partial").symlink_to("/dev/full")
    monitor = Monitor(lambda t_s: {"gpu_power_w": 1.0}, tmp_path / "samples.jsonl", header={"rank": 0}, interval_s=0.1)
    monitor.start()
    monitor.mark({"step": 1, "loss": 0.5})
    monitor.close()
    assert monitor.failure == "hardware samples (could not be written: No space left on device)"


def test_a_long_series_is_thinned_to_means(tmp_path: Path) -> None:
    lines = ({"t_s": second, "gpu_power_w": 100 + second % 2, "process_cpu_s": 2 * second} for second in range(8001))
    series = thinned_series(read_recording(recording_of(tmp_path, *lines)))
    power = series["gpu_power_w"]
    assert len(power) == 401
    assert power[0] == (9.5, 100.5), "seconds 0 to 19"
    assert {cores for _, cores in series["process_cores"]} == {2}
    assert "gpu_utilization" not in series


# -- figures of all ranks -----------------------------------------------------------------------------------------------


def rank_use(**changes: Any) -> RankUse:
    values: dict[str, Any] = {
        "seconds": 10.0, "num_threads": 2, "has_gpu": False, "gpu_busy": None, "cpu_seconds": 15.0,
        "energies": ((EnergySource(component="processor", kind="modelled", source="model"), 1800.0, 1.0),),
        "counts_machine": True, "network": (100.0, 50.0, None), "peak_memory_mib": 512.0, "peak_gpu_memory_mib": None,
        "monitor_cpu_share": 0.002, "missing": (),
    }  # fmt: skip
    return RankUse(**(values | changes))


def test_figures_of_two_ranks_are_summed_and_the_network_of_a_machine_counts_once() -> None:
    ranks = [rank_use(), rank_use(cpu_seconds=5.0, counts_machine=False, network=(None, None, None), seconds=9.0)]
    (part,) = components = components_of(ranks)
    assert (part.wh, part.kind, part.covered_share) == (1.0, "modelled", 1.0)
    use = use_of(ranks, components, num_samples=720, num_epochs=4)
    assert (use.idle_of, use.idle_share) == ("processor", pytest.approx(1 - (0.75 + 5 / 18) / 2, abs=1e-4))
    assert use.joules_per_sample == 5
    assert (use.sent_bytes_per_epoch, use.received_bytes_per_epoch) == (25, 12.5)
    assert use.loopback_bytes_per_epoch is None
    assert (use.seconds, use.peak_memory_mib, use.peak_gpu_memory_mib) == (10, 512, None)


def test_where_a_gpu_is_its_idle_share_counts_and_what_one_rank_does_not_know_is_unknown() -> None:
    gpu = EnergySource(component="gpu", kind="measured", source=GPU)
    ranks = [rank_use(has_gpu=True, gpu_busy=share, energies=((gpu, 360.0, 0.5),)) for share in (0.9, 0.5)]
    ranks.append(rank_use(network=(None, 3.0, None), energies=()))
    components = components_of(ranks)
    use = use_of(ranks, components, num_samples=0, num_epochs=1)
    assert (use.idle_of, use.idle_share) == ("gpu", pytest.approx(0.3))
    assert components[0].describe() == "GPU 0.2 Wh (measured: NVML of a GPU, in 50% of the time)"
    assert (use.sent_bytes_per_epoch, use.received_bytes_per_epoch) == (None, 103)
    assert use.joules_per_sample is None, "nothing was trained"
    assert use_of(ranks, components, num_samples=720, num_epochs=1).joules_per_sample == 1
    unknown = [*ranks, rank_use(has_gpu=True, gpu_busy=0.5)]
    assert use_of(unknown, components_of(unknown), num_samples=720, num_epochs=1).joules_per_sample is None, (
        "nothing is known of the energy of one GPU"
    )
    assert dict(use.describe()) == {
        "GPU idle": "30% of the time", "Network traffic per epoch": "0.0 MiB received (whole machines)",
        "Peak memory of a rank": "512 MiB",
    }  # fmt: skip


def test_the_report_has_the_figures_of_the_card_and_nothing_of_a_training_without_a_monitor() -> None:
    ranks = [rank_use(missing=("NVML (Not Found)",))]
    components = components_of(ranks)
    energy = CountedEnergy(each_wh=(None,), counters={}, missing=(), components=components)
    use = use_of(ranks, components, num_samples=360, num_epochs=1)
    facts = hardware_facts({"energy": codec.to_json(energy), "hardware": codec.to_json(use)}, {"validation_dice": 0.9})
    assert facts[:3] == [
        ("Energy by component", "processor 0.5 Wh (modelled: model)"),
        ("Compute threads idle", "25% of the time"),
        ("Energy per sample", "5 J"),
    ]
    assert facts[-3:] == [
        ("Energy-delay product", "18,000 J·s"), ("Time of the samples", "10 s"), ("Not measured", "NVML (Not Found)"),
    ]  # fmt: skip
    assert hardware_facts({"energy": codec.to_json(energy)}, {}) == []
    counted = {"each_wh": [0.2, 0.3], "counters": {}, "missing": []}
    facts = hardware_facts({"energy": counted, "hardware": codec.to_json(use)}, {"validation_macro_f1": 0.9})
    assert ("Validation macro-F1 per kJ", "0.5 (whole machines)") in facts


def test_a_reading_takes_less_than_1_percent_of_a_core_at_one_sample_per_second() -> None:
    reader = HardwareReader(gpu_uuid=None, counts_machine=True)
    reader.read(-1.0)  # imports
    began_s, number = time.thread_time(), 20
    for t_s in range(number):
        json.dumps(reader.read(t_s))
    assert (time.thread_time() - began_s) / number < 0.01, "s, processor time of this thread"
