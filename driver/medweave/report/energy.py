"""Estimate the electricity of jobs and its CO2e.

Green Algorithms (Lannelongue, Grealey and Inouye, Advanced Science 2021, doi 10.1002/advs.202100707, equation 1):
time × (cores × their use × power of a core + memory × power of memory) × PUE. The energy of GPUs is not estimated, but taken from
the hardware monitor of a training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from medweave import DRIVER_TYPE
from medweave_core.contracts import codec
from medweave_core.contracts.energy import CORE_W, J_PER_WH, MEMORY_W_PER_GB, CountedEnergy
from medweave_core.errors import UserInputError
from medweave_core.runlog.jobs import Job

PUE = 1.67  # average data center: its total electricity divided by that of its computers
PUE_HERE = 1.0  # a workstation has no separate cooling
CO2E_G_PER_KWH = 475.0  # world average
TRAINS = ("train", "train-distributed")
"""Verbs whose report has the energy of their own GPUs; `prune` and others pass on that of the model's training."""
METHOD = (
    "Energy and CO2e are estimates by Green Algorithms (doi 10.1002/advs.202100707): {core:g} W per active core and "
    "{memory:g} W per GB of requested memory, which are not measured, and the energy of the GPUs that trainings measured (from "
    "their first to their last step), times the PUE of the data center ({pue:g}; 1 on this machine), at {intensity:g} g CO2e per "
    "kWh. Other GPUs, disks, networks and idle nodes are not included."
)
_MIB_PER_GB = 1e9 / 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Parameters of the model.

    Attributes:
        pue: power usage effectiveness of all places but the driver's machine.
        co2e_g_per_kwh: carbon intensity of the electricity, g CO2e per kWh.
    """

    pue: float = PUE
    co2e_g_per_kwh: float = CO2E_G_PER_KWH

    @property
    def method(self) -> str:
        """Return the model in words."""
        return METHOD.format(core=CORE_W, memory=MEMORY_W_PER_GB, pue=self.pue, intensity=self.co2e_g_per_kwh)

    def co2e_g(self, energy_wh: float) -> float:
        """Return the CO2e of some electricity, g."""
        return energy_wh / 1000 * self.co2e_g_per_kwh


def energy_wh(job: Job, deployments: Mapping[str, str], model: Model) -> float | None:
    """Return the energy of one job with its measured GPUs, Wh; None if its processor time is unknown, 0 for a cache hit.

    Args:
        deployments: type of each deployment, from the run's log.
    """
    if job.reused_from:
        return 0.0
    if job.cpu_seconds is None or job.duration_s is None:
        return None
    memory_mib = job.requested.get("memory_mib")
    memory_gb = memory_mib / _MIB_PER_GB if isinstance(memory_mib, int | float) else 0.0
    joules = job.cpu_seconds * CORE_W + job.duration_s * memory_gb * MEMORY_W_PER_GB * _num_places(job)
    return (joules / J_PER_WH + (gpu_wh(job) or 0.0)) * (
        PUE_HERE if deployments.get(job.deployment) == DRIVER_TYPE else model.pue
    )


def gpu_wh(job: Job) -> float | None:
    """Return the energy of the GPUs of a training as it was measured, Wh, without the PUE; None where none was measured."""
    if job.report is None or job.report.verb not in TRAINS or job.reused_from:
        return None
    results = job.report.results
    blocks = [training.get("energy") for training in (results.get("training"),) if isinstance(training, Mapping)]
    known = [_counted(block, job) for block in [*blocks, *results.get("fold_energies", ())]]
    whs = [energy.gpu_wh for energy in known if energy is not None and energy.gpu_wh is not None]
    return sum(whs) if whs else None


def _counted(block: Any, job: Job) -> CountedEnergy | None:
    """Return the energy block of a training; None if another version wrote it."""
    try:
        return codec.from_json(CountedEnergy, block, where=f"the energy of {job.label}")
    except UserInputError:
        return None


def total(values: Iterable[float | None]) -> tuple[float, int]:
    """Return the sum of the known values, Wh, and the number of unknown ones."""
    listed = list(values)
    return sum(value for value in listed if value is not None), sum(value is None for value in listed)


def measured(jobs: Iterable[Job]) -> list[tuple[str, str]]:
    """Return the energy that trainings have measured by counters: name and text of each."""
    texts = []
    for job in jobs:
        training = job.report.results.get("training") if job.report else None
        if isinstance(training, Mapping) and "energy" in training:
            energy = _counted(training["energy"], job)
            words = energy.describe() if energy else "written by another version of medweave"
            texts.append((f"Energy of {job.label}", words))
    return texts


def spelled_co2e(grams: float) -> str:
    """Return a mass of CO2e for people: `1.2 g`, `5.9 kg`."""
    return (
        f"{grams / 1000:,.1f} kg"
        if grams >= 1000
        else f"{grams:.0f} g"
        if grams >= 10
        else f"{grams:.2g} g"
        if grams
        else "0 g"
    )


def _num_places(job: Job) -> int:
    """Return the number of locations of a job; its memory is allocated on each."""
    return len(job.location.split(",")) if job.location else 1
