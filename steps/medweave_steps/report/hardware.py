"""The hardware of a training: power, utilization, memory and loss of its ranks on one time axis, and the figures of its card."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.energy import J_PER_WH, CountedEnergy
from medweave_core.contracts.hardware import HardwareUse
from medweave_core.contracts.progress import duration
from medweave_steps.report.gather import RunMaterial
from medweave_steps.report.words import plural
from medweave_steps.runtime.monitor import Recording, thinned_series
from medweave_steps.runtime.svg import FIRST, INK, SECOND, THIRD, Chart, svg_of

MOST_NAMED_RANKS = 3
MIB_PER_GIB = 1024

_PANELS = (
    ("power, W", {"gpu_power_w": "GPU", "processor_power_w": "processor"}, 1.0),
    ("GPU utilization", {"gpu_utilization": "GPU"}, 1.0),
    ("busy cores", {"process_cores": "process"}, 1.0),
    ("memory, GiB", {"gpu_memory_used_mib": "GPU", "process_memory_mib": "process"}, 1.0 / MIB_PER_GIB),
)
"""Label of each part of the chart, its series by the name in a recording, and the factor of their values."""
_STYLES = ("-", "--")
_SCORES = {"dice": "Dice", "macro_f1": "macro-F1"}
"""Scores of the tasks, by the name of their figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSection:
    """The content of the section; the chart is None where the training log has no samples."""

    chart: Chart | None
    facts: Sequence[tuple[str, str]]


def section_of(material: RunMaterial) -> HardwareSection | None:
    """Return the section; None without samples and without figures of a hardware monitor."""
    last = material.results_of("train-distributed") or material.results_of("train")
    facts = hardware_facts(last.get("training", {}), last.get("metrics", {}))
    recordings = [recording for recording in material.hardware if recording.samples]
    if not facts and not recordings:
        return None
    return HardwareSection(chart=hardware_chart(recordings) if recordings else None, facts=facts)


def hardware_facts(training: Mapping[str, Any], metrics: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Return the figures of the hardware monitor in the run report of a training; none without a monitor.

    Args:
        metrics: figures of the model on the validation split.
    """
    if "hardware" not in training:
        return []
    energy = codec.from_json(CountedEnergy, training["energy"], where="the energy of the training")
    use = codec.from_json(HardwareUse, training["hardware"], where="the hardware figures of the training")
    parts = "; ".join(part.describe() for part in energy.components)
    return [
        *([("Energy by component", parts)] if parts else []),
        *use.describe(),
        *_efficiency_of(energy, use, metrics),
        ("Time of the samples", duration(use.seconds)),
        *([("Not measured", "; ".join(use.missing))] if use.missing else []),
    ]


def _efficiency_of(
    energy: CountedEnergy, use: HardwareUse, metrics: Mapping[str, float | None]
) -> Iterator[tuple[str, str]]:
    """Yield energy times time of the samples; score per energy only if counters measured all of every epoch, of all attempts."""
    if energy.components and use.has_energy_of_gpus:
        joules = sum(part.wh for part in energy.components) * J_PER_WH
        yield "Energy-delay product", f"{joules * use.seconds:,.0f} J·s"
    for name, text in _SCORES.items():
        score = metrics.get(f"validation_{name}")
        if score is not None and energy.whole_wh and not energy.missing:
            yield f"Validation {text} per kJ", f"{score / (energy.whole_wh * J_PER_WH / 1000):.3g} (whole machines)"


def hardware_chart(recordings: Sequence[Recording]) -> Chart:
    """Draw power, utilization, memory and loss below each other over the time since the first rank started."""
    start = min(recording.started for recording in recordings)
    offsets_s = [(recording.started - start).total_seconds() for recording in recordings]
    series = [thinned_series(recording) for recording in recordings]
    lasts_s = [offset_s + recording.seconds for offset_s, recording in zip(offsets_s, recordings, strict=True)]
    shown = [panel for panel in _PANELS if any(known.get(name) for known in series for name in panel[1])]
    unit, unit_s = ("minutes", 60.0) if max(lasts_s) >= 120 else ("seconds", 1.0)

    def draw(panels: Any) -> None:
        for axes, (label, names, factor) in zip(panels, shown, strict=False):
            for (place, known), (number, name) in itertools.product(enumerate(series), enumerate(names)):
                if points := known.get(name):
                    times = [(offsets_s[place] + t_s) / unit_s for t_s, _ in points]
                    values = [value * factor for _, value in points]
                    color = (FIRST, SECOND, THIRD)[(place if len(series) > 1 else number) % 3]
                    text = _label(recordings, place, names[name])
                    axes.plot(times, values, _STYLES[number], color=color, linewidth=1.2, label=text)
            axes.set(ylabel=label)
            axes.set_ylim(bottom=0)
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelcolor=INK)
        marks = [
            ((offset_s + mark["t_s"]) / unit_s, mark["loss"])
            for offset_s, recording in zip(offsets_s, recordings, strict=True)
            for mark in (recording.marks if recording.rank == recordings[0].rank else ())
        ]
        panels[-1].plot([time for time, _ in marks], [loss for _, loss in marks], color=INK, marker="o", markersize=2.5)
        panels[-1].set(xlabel=f"{unit} since the first step", ylabel="loss", xlim=(0, max(lasts_s) / unit_s or 1))
        panels[-1].set_ylim(bottom=0)

    what = f"Power, utilization, memory and loss of {plural(len(recordings), 'rank')} over {duration(max(lasts_s))}"
    more = f" One line for each of {len(recordings)} ranks." if len(recordings) > MOST_NAMED_RANKS else ""
    caption = f"Hardware of each rank, and the loss at the end of each epoch or round.{more} {_origin(recordings[0])}"
    return Chart(svg=svg_of(draw, "hardware", rows=len(shown) + 1), alt=f"{what}.", caption=caption.strip())


def _label(recordings: Sequence[Recording], place: int, text: str) -> str | None:
    """Return the text of a line in the legend: with its rank where there are a few, else once for all ranks."""
    if len(recordings) == 1:
        return text
    if len(recordings) <= MOST_NAMED_RANKS:
        return f"{text}, rank {recordings[place].rank}"
    return text if place == 0 else None


def _origin(recording: Recording) -> str:
    """Return whether the power is measured or modelled, as text."""
    sources = recording.header.get("energy", {})
    names = {"processor": "processor", "gpu": "GPU"}
    texts = [f"{names[name]} {part['kind']} ({part['source']})" for name, part in sources.items() if name in names]
    return f"Power: {'; '.join(texts)}." if texts else ""
