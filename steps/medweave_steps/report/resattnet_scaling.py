"""Speed-up of 3D-ResAttNet on several GPUs: table 3 of its paper, bounds by the loads of its parts, and measured trainings.

Source: Akintoye et al. 2021, "A Hybrid Parallelization Approach for Distributed and Scalable Deep Learning", table 3. Minutes and
accuracies are as printed; speed-ups and efficiencies are computed from the minutes. The paper prints no loads: they are those of
medweave's `resattnet18` and `resattnet34` for a volume of 96 x 112 x 96 voxels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.report import RunReport
from medweave_steps.report.scaling_table import Column, Table, conditions_of, measured_trainings

GPUS = tuple(range(1, 9))
DEPTH_OF = {"resattnet18": 18, "resattnet34": 34}
"""Depth of the paper's network by our name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTrainings:
    """Trainings of one network for one task on 1 to 8 GPUs, 50 epochs each.

    Attributes:
        depth: of the network, 18 or 34.
        task: names of the two classes.
        minutes: training time by GPUs, as printed.
        accuracies: by GPUs, as printed.
    """

    depth: int
    task: str
    minutes: tuple[int, ...]
    accuracies: tuple[float, ...]

    def speed_up(self, gpus: int) -> float:
        """Return the time on one GPU over the time on some."""
        return self.minutes[0] / self.minutes[gpus - 1]

    def rounding_range(self, gpus: int) -> tuple[float, float]:
        """Return the smallest and largest speed-up of times that round to the printed minutes."""
        one, several = self.minutes[0], self.minutes[gpus - 1]
        return (one - 0.5) / (several + 0.5), (one + 0.5) / (several - 0.5)


MCI, AD = "sMCI vs pMCI", "AD vs NC"
PUBLISHED = (
    PublishedTrainings(
        depth=18, task=MCI, minutes=(34, 15, 13, 11, 10, 9, 7, 6),
        accuracies=(0.82, 0.81, 0.81, 0.82, 0.80, 0.82, 0.81, 0.81),
    ),
    PublishedTrainings(
        depth=18, task=AD, minutes=(62, 26, 21, 18, 17, 15, 12, 11),
        accuracies=(0.95, 0.94, 0.96, 0.92, 0.94, 0.95, 0.95, 0.95),
    ),
    PublishedTrainings(
        depth=34, task=MCI, minutes=(37, 17, 14, 12, 11, 10, 8, 7),
        accuracies=(0.83, 0.84, 0.84, 0.83, 0.84, 0.82, 0.84, 0.84),
    ),
    PublishedTrainings(
        depth=34, task=AD, minutes=(68, 29, 24, 21, 19, 16, 14, 12),
        accuracies=(0.96, 0.96, 0.97, 0.96, 0.97, 0.96, 0.96, 0.96),
    ),
)  # fmt: skip
PRINTED_FOR_34: Mapping[str, tuple[float, ...]] = {
    MCI: (1, 2.27, 2.62, 3.09, 3.40, 3.78, 4.86, 5.67),
    AD: (1, 2.38, 2.95, 3.44, 3.65, 4.13, 5.17, 5.64),
}
"""Speed-ups that the text of the paper (section 4.5.1) gives for depth 34. They are those of depth 18."""

_FIRST, _LAST = (0.223,), (0.001,)
LOADS_GMAC: Mapping[int, tuple[float, ...]] = {
    18: (*_FIRST, *(3.567,) * 2, 1.354, 1.784, 0.677, 0.892, 0.387, 0.510, *_LAST),
    34: (*_FIRST, *(3.567,) * 3, 1.354, *(1.784,) * 3, 0.677, *(0.892,) * 5, 0.387, *(0.510,) * 2, *_LAST),
}
"""Billions of multiply-adds of the parts of the network by depth: stem, residual blocks, head."""
LARGEST_STAGE_GMAC: Mapping[int, tuple[float, ...]] = {
    18: (12.962, 6.490, 4.417, *(3.567,) * 5),
    34: (24.175, 12.103, 8.107, 6.200, 4.969, 4.244, *(3.567,) * 2),
}
"""Load of the largest of 1 to 8 stages, by depth, if parts are placed so that it is smallest; any parts form a stage, as in the
paper."""
LARGEST_CONSECUTIVE_STAGE_GMAC: Mapping[int, tuple[float, ...]] = {
    18: (12.962, 7.357, 4.921, 3.790, *(3.567,) * 4),
    34: (24.175, 12.278, 8.489, 7.134, 6.029, 4.921, 3.790, 3.568),
}
"""The same if each stage has consecutive parts, as `train --strategy hybrid` needs them."""


MODEL = (
    "Modeled bounds: total load over the largest stage, times the number of replicas. “Stages only” is one replica with a stage on "
    "each rank, where any parts form a stage, as in the paper; “consecutive stages” have parts that follow one another, as `train "
    "--strategy hybrid` computes them; “stages and replicas” is the highest bound with two or more stages of any parts. The loads "
    "are multiply-adds of the reference network at 96 × 112 × 96 voxels, or those of place-layers. The model ignores "
    "communication, and the stages wait for each other unless a step has many micro-batches. Data parallelism alone is at most "
    "as fast as its number of ranks."
)
PAPER = (
    "Published: table 3 of Akintoye et al. 2021 (V100 GPUs, ADNI): compare only the shape of the curves. Speed-ups are computed "
    "from times in whole minutes; the paper prints neither the number of stages nor that of replicas.",
    "The text of the paper prints speed-ups “for 3D-ResAttNet34” that are those of the 18-layer columns of its table, to every "
    "digit. The speed-ups here are computed from the minutes of each network.",
)


def stage_bound(depth: int, stages: int, *, consecutive: bool = False) -> float:
    """Return the upper bound of the speed-up of one replica in stages: total load over the largest stage.

    Args:
        consecutive: each stage has consecutive parts, instead of any.
    """
    largest = LARGEST_CONSECUTIVE_STAGE_GMAC if consecutive else LARGEST_STAGE_GMAC
    return math.fsum(LOADS_GMAC[depth]) / largest[depth][stages - 1]


def hybrid_bound(depth: int, gpus: int) -> float:
    """Return the highest bound of replicas of two or more stages on some GPUs; replicas multiply the bound of the stages."""
    return max((gpus // stages * stage_bound(depth, stages) for stages in GPUS[1:gpus]), default=1.0)


def resattnet_table(reports: Sequence[RunReport]) -> Table | None:
    """Return the measured trainings of 3D-ResAttNet, bounds and the paper's times; None unless a training used several ranks.

    Args:
        reports: of the run; of several networks the last one counts, and reports of `place-layers` for this network.
    """
    own = [report for report in reports if _network_of(report) in DEPTH_OF]
    network = _network_of(own[-1]) if own else ""
    own = [report for report in own if _network_of(report) == network]
    measured = _measured(own)
    if not measured:
        return None
    ranks = tuple(sorted({*GPUS, *(ranks for column in measured for ranks in column.seconds)}))
    columns = (
        *measured,
        *_modeled(DEPTH_OF[network]),
        *_placed(reports, network, ranks),
        *(_published(one) for one in PUBLISHED if one.depth == DEPTH_OF[network]),
    )
    conditions = conditions_of([report.results["training"] for report in own])
    return Table(
        caption=f"3D-ResAttNet-{DEPTH_OF[network]}. Speed-up over one rank, in parentheses per rank. Columns headed “Modeled” were "
        "not measured.",
        ranks=ranks,
        columns=tuple(column for column in columns if column.seconds or column.bounds),
        notes=(f"{conditions}; the accuracy is that of the validation split.", MODEL, *PAPER),
    )


def _network_of(report: RunReport) -> str:
    """Return the network that a report of `train` has timed; empty for any other report."""
    known = report.results.get("training", {}) if report.verb == "train" else {}
    return str(known.get("network", "")) if "step_seconds" in known else ""


def _measured(reports: Sequence[RunReport]) -> list[Column]:
    """Return a column for each strategy with a training of several ranks, which contains the training of one rank, too."""
    facts = [report.results["training"] for report in reports]
    strategies = dict.fromkeys(str(known.get("strategy")) for known in facts if known.get("world_size", 1) > 1)
    columns = []
    for strategy in strategies:
        own = [
            report for report, known in zip(reports, facts, strict=True)
            if known.get("world_size", 1) == 1 or str(known.get("strategy")) == strategy
        ]  # fmt: skip
        seconds = {ranks: float(known["step_seconds"]) for ranks, known in measured_trainings(own).items()}
        columns.append(
            Column(
                heading=f"Measured, {strategy}",
                seconds=seconds,
                one=seconds.get(1),
                is_measured=True,
                accuracy=_accuracies(own),
            )
        )
    return columns


def _accuracies(reports: Sequence[RunReport]) -> dict[int, float]:
    figures: dict[int, float] = {}
    for report in reports:
        accuracy = report.results.get("metrics", {}).get("validation_accuracy")
        if accuracy is not None:
            figures[int(report.results["training"].get("world_size", 1))] = accuracy
    return figures


def _modeled(depth: int) -> tuple[Column, ...]:
    stages = {gpus: stage_bound(depth, gpus) for gpus in GPUS}
    consecutive = {gpus: stage_bound(depth, gpus, consecutive=True) for gpus in GPUS}
    hybrid = {gpus: hybrid_bound(depth, gpus) for gpus in GPUS}
    return (
        Column(heading="Modeled, stages only", bounds=stages),
        Column(heading="Modeled, consecutive stages", bounds=consecutive),
        Column(heading="Modeled, stages and replicas", bounds=hybrid),
    )


def _placed(reports: Sequence[RunReport], network: str, ranks: Sequence[int]) -> list[Column]:
    """Return the bounds by each report of `place-layers` for a network, with as many replicas as the ranks suffice for."""
    placed = [
        report.results
        for report in reports
        if report.verb == "place-layers" and report.config.get("network") == network
    ]
    return [_of_placement(known, ranks) for known in placed]


def _of_placement(known: Mapping[str, Any], ranks: Sequence[int]) -> Column:
    stages = int(known["devices"])
    bounds = {number: number // stages * float(known["speed_up_bound"]) for number in ranks if number >= stages}
    return Column(heading=f"Modeled, {stages} stages of place-layers", bounds=bounds)


def _published(trainings: PublishedTrainings) -> Column:
    return Column(
        heading=f"Published, {trainings.task}",
        seconds={gpus: 60.0 * trainings.minutes[gpus - 1] for gpus in GPUS},
        one=60.0 * trainings.minutes[0],
        accuracy=dict(zip(GPUS, trainings.accuracies, strict=True)),
    )
