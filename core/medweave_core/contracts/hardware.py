"""What a training used of its hardware, from the samples of the hardware monitor, and its text form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.energy import ComponentEnergy

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareUse:
    """Figures of all ranks in the time of the monitor: from the first to the last step, since the training was resumed, if it was.

    Attributes:
        seconds: time of the monitor, of the rank with the longest one.
        idle_of: the GPUs of the ranks; without one their processors.
        idle_share: mean over time and ranks of the share that was idle: of a GPU by its utilization; of the processors, the share
            of a rank's compute threads without processor time.
        joules_per_sample: energy of all components over the patches or images trained on; None if that of a GPU is unknown.
        sent_bytes_per_epoch, received_bytes_per_epoch: network traffic of the machines of all ranks, other programs included.
        loopback_bytes_per_epoch: likewise between the processes of one machine.
        peak_memory_mib: largest resident set of a rank, MiB.
        peak_gpu_memory_mib: largest use of a GPU's memory, MiB, other programs included.
        monitor_cpu_share: processor time of the monitor over the time, of the rank with the largest one; 1 is one core.
        missing: reasons why something was not measured.

    A figure is None where it is not known on every rank that it is about.
    """

    seconds: float
    idle_of: Literal["gpu", "processor"]
    idle_share: float | None
    joules_per_sample: float | None
    sent_bytes_per_epoch: float | None
    received_bytes_per_epoch: float | None
    loopback_bytes_per_epoch: float | None
    peak_memory_mib: float | None
    peak_gpu_memory_mib: float | None
    monitor_cpu_share: float
    missing: tuple[str, ...] = ()

    @property
    def has_energy_of_gpus(self) -> bool:
        """True unless the energy of a GPU that trained is unknown."""
        return self.idle_of != "gpu" or self.joules_per_sample is not None

    def describe(self) -> list[tuple[str, str]]:
        """Return name and text of each known figure."""
        idle = "GPU idle" if self.idle_of == "gpu" else "Compute threads idle"
        network = [
            f"{number / MIB:,.1f} MiB {word}"
            for number, word in (
                (self.sent_bytes_per_epoch, "sent"),
                (self.received_bytes_per_epoch, "received"),
                (self.loopback_bytes_per_epoch, "between processes of one machine"),
            )
            if number is not None
        ]
        texts = [
            (idle, None if self.idle_share is None else f"{self.idle_share:.0%} of the time"),
            ("Energy per sample", None if self.joules_per_sample is None else f"{self.joules_per_sample:.3g} J"),
            ("Network traffic per epoch", f"{', '.join(network)} (whole machines)" if network else None),
            ("Peak memory of a rank", None if self.peak_memory_mib is None else f"{self.peak_memory_mib:,.0f} MiB"),
            ("Peak GPU memory", None if self.peak_gpu_memory_mib is None else f"{self.peak_gpu_memory_mib:,.0f} MiB"),
        ]
        return [(name, text) for name, text in texts if text is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFigures:
    """All figures of the hardware monitor about a training: energy by component, and the use of the hardware."""

    components: tuple[ComponentEnergy, ...]
    use: HardwareUse
