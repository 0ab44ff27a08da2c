"""The timeline of a run as inline SVG: one lane per concurrent job, grouped by step, colored by deployment.

A step with many jobs is drawn as the number of its jobs that run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from medweave_core.contracts.progress import duration
from medweave_core.runlog.jobs import Job

WIDTH = 1000.0
LABEL_WIDTH = 150.0
RIGHT = 18.0
LANE = 25.0
BAR = 16.0
AXIS = 26.0
NUM_COLOURS = 6
_TICKS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800),
)
MAX_TICKS = 8
MOST_JOBS = 100  # of a step, with a bar each
NUM_COLUMNS = 240  # in the picture of a step with more jobs
CHARACTER = 6.6  # width of one character of a label, in the picture's units


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Jobs of one step that followed one another, or all its jobs at one deployment.

    Attributes:
        label: the step's name in its first lane, empty in further ones.
        is_crowded: the step has more jobs than bars can show.
    """

    step: str
    label: str
    jobs: tuple[Job, ...]
    is_crowded: bool = False


def colours(jobs: Iterable[Job]) -> dict[str, str]:
    """Return the CSS color of each deployment, in order of appearance."""
    names = list(dict.fromkeys(job.deployment for job in jobs))
    return {name: f"var(--c{1 + place % NUM_COLOURS})" for place, name in enumerate(names)}


def lanes(jobs: Sequence[Job], end_s: float) -> list[Lane]:
    """Return lanes in which jobs do not overlap, with the steps in the order in which they began."""
    by_step: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: (job.scheduled_s, job.name)):
        by_step.setdefault(job.step, []).append(job)
    result = []
    for step, own in by_step.items():
        rows: list[list[Job]] = []
        is_crowded = len(own) > MOST_JOBS
        if is_crowded:
            rows = [[job for job in own if job.deployment == name] for name in colours(own)]
        for job in () if is_crowded else own:
            row = next((row for row in rows if _end(row[-1], end_s) <= job.scheduled_s), None)
            if row is None:
                rows.append([job])
            else:
                row.append(job)
        name = step.strip("/").replace("/", ".")
        label = f"{name} × {len(own)}" if len(own) > 1 else name
        result += [
            Lane(step=step, label="" if place else label, jobs=tuple(row), is_crowded=is_crowded)
            for place, row in enumerate(rows)
        ]
    return result


def timeline(jobs: Sequence[Job], end_s: float) -> str:
    """Return the timeline as SVG, hidden from screen readers, since the table of jobs has the same figures.

    Args:
        jobs: jobs of the run.
        end_s: length of the run, s.
    """
    end_s = max([end_s, 0.001, *(_end(job, end_s) for job in jobs)])
    rows, colour = lanes(jobs, end_s), colours(jobs)
    height = AXIS + LANE * max(len(rows), 1) + 6
    scale = (WIDTH - LABEL_WIDTH - RIGHT) / end_s
    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" aria-hidden="true" focusable="false">',
        *_axis(end_s, scale, height),
    ]
    for place, lane in enumerate(rows):
        top = AXIS + LANE * place
        if lane.label:
            if place:
                parts.append(f'<path class="rule" d="M0 {top:g}H{WIDTH:g}"/>')
            label = lane.label if len(lane.label) * CHARACTER < LABEL_WIDTH - 10 else f"{lane.label[:19]}…"
            parts.append(f'<text class="step" x="2" y="{top + LANE / 2 + 4:g}">{escape(label)}</text>')
        if lane.is_crowded:
            parts += _crowd(lane.jobs, top, scale, end_s, colour[lane.jobs[0].deployment])
            continue
        edges = [LABEL_WIDTH, *(LABEL_WIDTH + _end(job, end_s) * scale for job in lane.jobs)]
        starts = [*(LABEL_WIDTH + job.scheduled_s * scale for job in lane.jobs[1:]), WIDTH]
        for job, before, after in zip(lane.jobs, edges, starts, strict=False):
            parts += _bar(job, top, scale, end_s, colour[job.deployment], (before, after))
    return "\n".join([*parts, "</svg>"])


def _bar(job: Job, top: float, scale: float, end_s: float, colour: str, neighbours: tuple[float, float]) -> list[str]:
    """Return the elements of one job. Its text is in the bar, else after or before it if there is room, else omitted."""
    end = _end(job, end_s)
    begin = end if job.is_queued else job.started_s if job.started_s is not None else job.scheduled_s
    x, width = LABEL_WIDTH + begin * scale, max((end - begin) * scale, 1.5)
    y = top + (LANE - BAR) / 2
    waited = LABEL_WIDTH + job.scheduled_s * scale
    parts = ["<g>", f"<title>{escape(_title(job))}</title>"]
    if x - waited > 0.5:
        parts.append(
            f'<rect class="wait" x="{waited:.2f}" y="{y + BAR / 2 - 1.5:.2f}" width="{x - waited:.2f}" height="3"/>'
        )
    kind = job.state if job.state in ("failed", "cancelled", "unfinished") else "done"
    fill = f' style="fill:{colour}"' if kind == "done" else ""
    parts.append(f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{BAR:g}" rx="2.5"{fill}/>')
    text = _bar_text(job, end - begin)
    needed = len(text) * CHARACTER + 8
    if width > needed + 2:
        place = f'class="inside {kind}-text" x="{x + 6:.2f}"'
    elif x + width + needed < neighbours[1]:
        place = f'class="outside" x="{x + width + 5:.2f}"'
    elif waited - needed > neighbours[0]:
        place = f'class="outside" text-anchor="end" x="{waited - 5:.2f}"'
    else:
        return [*parts, "</g>"]
    return [*parts, f'<text {place} y="{y + BAR / 2 + 4:.2f}">{escape(text)}</text></g>']


def _crowd(jobs: Sequence[Job], top: float, scale: float, end_s: float, colour: str) -> list[str]:
    """Return the elements of many jobs: the mean number of running ones in each column of the picture."""
    spans = [(job.started_s, _end(job, end_s)) for job in jobs if job.started_s is not None and not job.is_queued]
    busy, column_s = [0.0] * NUM_COLUMNS, end_s / NUM_COLUMNS
    for begin, end in spans:
        first, last = (min(int(moment / column_s), NUM_COLUMNS - 1) for moment in (begin, end))
        for column in range(first, last + 1):
            busy[column] += max(min(end, (column + 1) * column_s) - max(begin, column * column_s), 0.0)
    most, height = max(max(busy), 1e-9), LANE - 4
    base = top + LANE - 2
    steps = "".join(
        f"V{base - height * seconds / most:.1f}H{LABEL_WIDTH + (column + 1) * column_s * scale:.1f}"
        for column, seconds in enumerate(busy)
    )
    failed = sum(job.state == "failed" for job in jobs)
    title = f"{len(jobs):,} jobs on {jobs[0].where}: at most {most_at_once(spans):,} at once" + (
        f", {failed:,} failed" if failed else ""
    )
    return [
        "<g>",
        f"<title>{escape(title)}</title>",
        f'<path style="fill:{colour}" d="M{LABEL_WIDTH:g} {base:g}{steps}V{base:g}Z"/>',
        "</g>",
    ]


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of the spans (begin, end) overlap at most."""
    changes = sorted([change for begin, end in spans for change in ((begin, 1), (end, -1))])
    return max(itertools.accumulate((change for _, change in changes)), default=0)


def _bar_text(job: Job, seconds: float) -> str:
    if job.reused_from:
        return "cache hit"
    if job.is_queued:
        return f"{job.state} in the queue"
    word = {"failed": "failed after ", "cancelled": "cancelled after ", "unfinished": "unfinished after "}.get(
        job.state, ""
    )
    return f"{word}{short_duration(job.duration_s if job.duration_s is not None else seconds)}"


def _title(job: Job) -> str:
    again = f", attempt {job.attempt}" if job.attempt > 1 else ""
    again += f", {short_duration(job.queued_s)} in the queue" if job.queued_s else ""
    memory = f", peak memory {job.peak_memory_mib:.0f} MiB" if job.peak_memory_mib else ""
    took = f" {short_duration(job.duration_s)}" if job.duration_s is not None else ""
    return f"{job.label} on {job.where}{again}: {job.state}{took}{memory}"


def short_duration(seconds: float) -> str:
    """Return a duration, with one decimal below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def _end(job: Job, end_s: float) -> float:
    return job.ended_s if job.ended_s is not None else end_s


def _axis(end_s: float, scale: float, height: float) -> list[str]:
    step = next((tick for tick in _TICKS_S if end_s / tick <= MAX_TICKS), end_s / MAX_TICKS)
    parts = []
    for place in range(int(end_s / step) + 1):
        x = LABEL_WIDTH + place * step * scale
        anchor = "start" if not place else "end" if x > WIDTH - 30 else "middle"
        parts.append(f'<path class="tick" d="M{x:.2f} {AXIS - 6:g}V{height - 4:g}"/>')
        parts.append(
            f'<text class="axis" x="{x:.2f}" y="{AXIS - 11:g}" text-anchor="{anchor}">{_tick(place * step)}</text>'
        )
    return parts


def _tick(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        minutes, rest = divmod(seconds, 60)
        return f"{minutes:g}:{rest:02.0f} min" if rest else f"{minutes:g} min"
    hours, rest = divmod(seconds, 3600)
    return f"{hours:g}:{rest / 60:02.0f} h" if rest else f"{hours:g} h"
