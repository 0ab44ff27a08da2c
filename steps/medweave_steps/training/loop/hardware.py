"""The hardware monitors of all ranks of a training: their files in the training log, and the figures for the model card."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.energy import J_PER_WH, ComponentEnergy
from medweave_core.contracts.hardware import HardwareFigures, HardwareUse
from medweave_core.errors import UserInputError
from medweave_steps.runtime import environment, partials
from medweave_steps.runtime.energy import POWERCAP
from medweave_steps.runtime.hardware import EnergySource, HardwareReader
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.monitor import (
    Monitor,
    Recording,
    read_recording,
    read_recordings,
    recording_name,
    thinned_series,
)
from medweave_steps.runtime.write import write_text
from medweave_steps.training.distributed.group import Group
from medweave_steps.training.loop.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """The figures of one rank.

    Attributes:
        energies: source, energy in J, and share of the time in which it is known, of each component.
        gpu_busy, cpu_seconds: mean utilization of the GPU, 0 to 1; processor time of the rank, s. None if not known.
        counts_machine: the rank reads the network of its machine.
        network: bytes sent, received and over the loopback interface; None if not known.
        text: the recording of a rank on another node than the first.
    """

    seconds: float
    num_threads: int
    energies: tuple[tuple[EnergySource, float, float], ...]
    has_gpu: bool
    gpu_busy: float | None
    cpu_seconds: float | None
    counts_machine: bool
    network: tuple[float | None, float | None, float | None]
    peak_memory_mib: float | None
    peak_gpu_memory_mib: float | None
    monitor_cpu_share: float
    missing: tuple[str, ...]
    text: str | None = None


class RanksMonitor:
    """The monitor of this rank, which knows those of the others at its end.

    Ranks of the first node write into the training log; others into a folder of their own, and the first rank writes their files
    at the end.
    """

    def __init__(
        self, group: Group, device: Any, *, folder: Path, interval_s: float, num_threads: int, powercap: Path = POWERCAP
    ) -> None:
        """Open the sources of this rank; every rank must do so.

        Args:
            device: torch.device that this rank computes on; None if other machines than those of the ranks compute.
            folder: the training log.
            interval_s: time between two samples; 0 for no monitor.
            num_threads: compute threads of this rank.
            powercap: folder of the processors' counters.
        """
        self._group, self._folder, self._num_threads = group, folder, num_threads
        self._rank, self._num_ranks = group.rank, group.world_size  # those of the group change if ranks are lost
        self._monitor: Monitor | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        machines = group.gather(environment.machine())
        if device is None or not interval_s:
            return
        self._counts_machine = machines.index(machines[group.rank]) == group.rank
        self._has_gpu = device.type == "cuda"
        uuid = str(require("torch", extra="train").cuda.get_device_properties(device).uuid) if self._has_gpu else None
        self._reader = HardwareReader(gpu_uuid=uuid, counts_machine=self._counts_machine, powercap=powercap)
        if environment.node_group().node_rank > 0:
            self._scratch = tempfile.TemporaryDirectory(prefix="medweave-monitor-", ignore_cleanup_errors=True)
            partials.register(Path(self._scratch.name))
            folder = Path(self._scratch.name)
        header = {
            "rank": group.rank,
            "energy": {part.component: {"kind": part.kind, "source": part.source} for part in self._reader.sources},
            "missing": self._reader.missing,
        }
        path = folder / recording_name(group.rank)
        self._monitor = Monitor(self._reader.read, path, header=header, interval_s=interval_s)

    def start(self) -> None:
        """Start sampling on this rank."""
        if self._monitor is not None:
            self._monitor.start()

    def mark(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Record when this rank reached a step with a loss."""
        if self._monitor is not None and figures.get("loss") is not None:
            self._monitor.mark({"step": step, "loss": figures["loss"]})

    def close(self) -> None:
        """Stop sampling."""
        if self._monitor is not None:
            self._monitor.close()
        if self._scratch is not None:
            self._scratch.cleanup()
            partials.forget(Path(self._scratch.name))

    def finish(self, *, num_samples: int, num_epochs: float) -> HardwareFigures | None:
        """Stop sampling and return the figures of all ranks; None without a monitor. Every rank must call it.

        A rank that was lost has no figures; they are named in `missing`, and its file in the training log ends early.

        Args:
            num_samples: patches or images that all ranks have trained on in the time of the monitor.
            num_epochs: epochs, or rounds, in this time.
        """
        uses = dict(self._group.gather((self._rank, self._own_use() if self._monitor is not None else None)))
        if self._monitor is None:
            return None
        if self._rank == 0:
            for rank, use in uses.items():
                if use.text is not None:
                    write_text(self._folder / recording_name(rank), use.text)
        ranks = list(uses.values())
        components = components_of(ranks)
        use = use_of(ranks, components, num_samples=num_samples, num_epochs=num_epochs)
        lost = [f"rank {rank} (lost during the training)" for rank in range(self._num_ranks) if rank not in uses]
        return HardwareFigures(components=components, use=dataclasses.replace(use, missing=(*use.missing, *lost)))

    def add_series(self, history: History) -> None:
        """Add power, utilization and memory of all ranks to the events of the training, after `finish`, on the first rank."""
        if self._monitor is None or self._rank != 0:
            return
        for recording in read_recordings(self._folder):
            for name, points in thinned_series(recording).items():
                unix_s = recording.started.timestamp()
                series = ((t_s, unix_s + t_s, value) for t_s, value in points)
                history.add_series(f"hardware_rank_{recording.rank}/{name}", series)

    def _own_use(self) -> RankUse:
        assert self._monitor is not None, "the caller checks it"
        self._monitor.close()
        path = self._monitor.path
        try:
            recording = read_recording(path)
        except UserInputError:  # the disk was full from the start
            recording = Recording(header={}, samples=(), marks=())
        return RankUse(
            seconds=recording.seconds,
            num_threads=self._num_threads,
            energies=tuple(_energies(recording, self._reader.sources)),
            has_gpu=self._has_gpu,
            gpu_busy=recording.mean("gpu_utilization"),
            cpu_seconds=recording.increase("process_cpu_s"),
            counts_machine=self._counts_machine,
            network=(
                recording.increase("network_sent_bytes"),
                recording.increase("network_received_bytes"),
                recording.increase("loopback_bytes"),
            ),
            peak_memory_mib=recording.maximum("process_memory_mib"),
            peak_gpu_memory_mib=recording.maximum("gpu_memory_used_mib"),
            monitor_cpu_share=self._monitor.cpu_seconds / recording.seconds if recording.seconds else 0.0,
            missing=(*self._reader.missing, *([self._monitor.failure] if self._monitor.failure else [])),
            text=path.read_text(encoding="utf-8", errors="replace") if self._scratch is not None else None,
        )


def _energies(recording: Recording, sources: Iterable[EnergySource]) -> Iterable[tuple[EnergySource, float, float]]:
    for source in sources:
        known = recording.energy(source.component)
        if known is not None:
            yield source, known[0], known[1] / recording.seconds


def components_of(ranks: Sequence[RankUse]) -> tuple[ComponentEnergy, ...]:
    """Return the energy of each component, summed over the ranks that have it from the same source."""
    by_source: dict[EnergySource, list[tuple[float, float]]] = {}
    for use in ranks:
        for source, joules, share in use.energies:
            by_source.setdefault(source, []).append((joules, share))
    return tuple(
        ComponentEnergy(
            component=source.component,
            kind=source.kind,
            source=source.source,
            wh=round(sum(joules for joules, _ in parts) / J_PER_WH, 6),
            covered_share=round(min(share for _, share in parts), 4),
        )
        for source, parts in by_source.items()
    )


def use_of(
    ranks: Sequence[RankUse], components: Sequence[ComponentEnergy], *, num_samples: int, num_epochs: float
) -> HardwareUse:
    """Return the figures of all ranks together.

    Args:
        components: energy of the ranks.
        num_samples, num_epochs: as in `RanksMonitor.finish`.
    """
    has_gpu = any(use.has_gpu for use in ranks)
    busy = [use.gpu_busy if has_gpu else _threads_busy(use) for use in ranks if use.has_gpu or not has_gpu]
    joules = sum(part.wh for part in components) * J_PER_WH
    is_complete = bool(components) and all(_knows_gpu(use) for use in ranks if use.has_gpu)
    sent, received, loopback = (
        _over(_sum_known(use.network[place] for use in ranks if use.counts_machine), num_epochs) for place in range(3)
    )
    return HardwareUse(
        seconds=round(max(use.seconds for use in ranks), 3),
        idle_of="gpu" if has_gpu else "processor",
        idle_share=None if (total := _sum_known(busy)) is None else round(max(0.0, 1 - total / len(busy)), 4),
        joules_per_sample=_over(joules, num_samples) if is_complete else None,
        sent_bytes_per_epoch=sent,
        received_bytes_per_epoch=received,
        loopback_bytes_per_epoch=loopback,
        peak_memory_mib=_rounded_max(use.peak_memory_mib for use in ranks),
        peak_gpu_memory_mib=_rounded_max(use.peak_gpu_memory_mib for use in ranks if use.has_gpu),
        monitor_cpu_share=round(max(use.monitor_cpu_share for use in ranks), 5),
        missing=tuple(dict.fromkeys(reason for use in ranks for reason in use.missing)),
    )


def _knows_gpu(use: RankUse) -> bool:
    return any(source.component == "gpu" for source, _, _ in use.energies)


def _threads_busy(use: RankUse) -> float | None:
    if use.cpu_seconds is None or not use.seconds:
        return None
    return min(1.0, use.cpu_seconds / (use.seconds * use.num_threads))


def _sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if one value is not known, or there is none."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None


def _rounded_max(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return round(max(known), 1) if known and len(known) == len(listed) else None


def _over(total: float | None, number: float) -> float | None:
    return None if total is None or number <= 0 else round(total / number, 4)
