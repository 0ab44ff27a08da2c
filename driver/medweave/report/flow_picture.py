"""The steps of a run as a picture: one column for each place, one row for each step, arrows for data between steps.

The arrows follow from the event log: a step reads files with the content that another step wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from medweave.report.arrows import PORT, TRACK, Box, Route, cut, drawn, routes, spread
from medweave.report.timeline import colours, short_duration
from medweave_core.runlog.jobs import UNFINISHED, Job

WIDTH, HEIGHT, ROW = 180.0, 42.0, 58.0  # size of a box; distance between rows
MARGIN = 14.0  # around the picture
HEAD, LINE, LETTERS = 46.0, 16.0, 27
MUCH = 2**20  # bytes: a larger transfer between places has an arrow, even if others imply it
REUSED = "cache hit"
OTHERS = ("failed", "cancelled", UNFINISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStep:
    """A step of the run.

    Attributes:
        name: its name for people.
        deployment: its deployment; of several the last one.
        state: completed, failed, cancelled, unfinished, or cache hit; of several jobs the worst.
        words: its jobs and their time.
        after: paths of the steps whose outputs it read, without most that other arrows imply.
    """

    path: str
    name: str
    deployment: str
    where: str
    state: str
    words: str
    after: tuple[str, ...]


def steps_of(jobs: Sequence[Job]) -> list[FlowStep]:
    """Return the steps of some jobs in the order in which they began."""
    by_step: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.scheduled_s):
        by_step.setdefault(job.step, []).append(job)
    before = _drawn(_before(by_step), {path: own[-1].deployment for path, own in by_step.items()})
    steps = []
    for path, own in by_step.items():
        last = list({job.name: job for job in own}.values())
        steps.append(
            FlowStep(
                path=path,
                name=path.strip("/").replace("/", "."),
                deployment=last[-1].deployment,
                where=", ".join(dict.fromkeys(job.where for job in last)),
                state=_state(last),
                words=_words(last),
                after=tuple(before[path]),
            )
        )
    return steps


def flow_picture(jobs: Sequence[Job], kinds: Mapping[str, str]) -> str:
    """Return the picture as SVG for a page with the colors of the report.

    Args:
        kinds: type of each deployment, if known.
    """
    steps, colour = steps_of(jobs), colours(jobs)
    columns = list(colour)
    boxes = {step.path: Box(column=columns.index(step.deployment), row=row) for row, step in enumerate(steps)}
    arrows = routes(boxes, [(source, step.path) for step in steps for source in step.after])
    lefts, gaps, width = spread(arrows, len(columns), width=WIDTH, margin=MARGIN)
    end = HEAD + ROW * len(steps) + 8
    parts = [
        f'<svg viewBox="0 0 {width:g} {end + 4:g}" style="max-width:{width:g}px" aria-hidden="true" focusable="false">',
        "<defs>",
        *(_tip(f"flow-{number}", colour[name]) for number, name in enumerate(columns)),
        _tip("flow-stays", "var(--soft)"),
        "</defs>",
    ]
    for left, name in zip(lefts, columns, strict=True):
        parts += _column(left, name, kinds.get(name, ""), colour[name], end)
    parts += [_arrow(route, boxes, lefts, gaps, columns, colour) for route in arrows]
    for step in steps:
        parts += _box(step, lefts[boxes[step.path].column], HEAD + ROW * boxes[step.path].row, colour[step.deployment])
    return "\n".join([*parts, "</svg>"])


def describe_steps(steps: Sequence[FlowStep]) -> str:
    """Return the picture in words for screen readers: `check on laptop, completed; train on hpc, failed, after check`."""
    names = {step.path: step.name for step in steps}
    return "; ".join(
        f"{step.name} on {step.where}, {step.state}"
        + (f", after {' and '.join(names[path] for path in step.after)}" if step.after else "")
        for step in steps
    )


def _before(by_step: Mapping[str, Sequence[Job]]) -> dict[str, dict[str, int]]:
    """Return the steps whose outputs each step read, with the bytes; of two that wrote the same content, the later one."""
    wrote: dict[str, str] = {}
    sources: dict[str, dict[str, int]] = {}
    for path, jobs in by_step.items():
        read = {sha256: size for job in jobs for sha256, size in _contents(job.inputs)}
        sources[path] = {}
        for sha256, size in read.items():
            if sha256 in wrote:
                sources[path][wrote[sha256]] = sources[path].get(wrote[sha256], 0) + size
        wrote |= {sha256: path for job in jobs for sha256, _ in _contents(job.outputs)}
    return sources


def _contents(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, int]]:
    items = [item for items in data.values() for item in items if item.get("sha256")]
    return [(str(item["sha256"]), int(item.get("bytes") or 0)) for item in items]


def _drawn(before: Mapping[str, Mapping[str, int]], places: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the arrows to draw: without those that others imply, unless much data went to another place."""
    above: dict[str, set[str]] = {}
    for path, steps in before.items():
        above[path] = {*steps, *(ancestor for step in steps for ancestor in above[step])}
    return {
        path: [
            source
            for source, num_bytes in steps.items()
            if not any(source in above[other] for other in steps)
            or (num_bytes >= MUCH and places[source] != places[path])
        ]
        for path, steps in before.items()
    }


def _state(jobs: Sequence[Job]) -> str:
    if all(job.reused_from for job in jobs):
        return REUSED
    return next((job.state for job in jobs if job.state != "completed"), "completed")


def _words(jobs: Sequence[Job]) -> str:
    state, num_done = _state(jobs), sum(job.state == "completed" for job in jobs)
    took = [job.duration_s for job in jobs if job.duration_s is not None and not job.reused_from]
    words = (
        [f"{num_done} of {len(jobs)} jobs" if num_done < len(jobs) else f"{len(jobs)} jobs"] if len(jobs) > 1 else []
    )
    words += [state] if state != "completed" or len(jobs) == 1 else []
    words += [short_duration(sum(took))] if took and state != REUSED else []
    return " · ".join(words)


# ---- SVG elements


def _tip(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{colour}"/></marker>'
    )


def _column(left: float, name: str, kind: str, colour: str, end: float) -> list[str]:
    middle = f'x="{left + WIDTH / 2:g}" text-anchor="middle"'
    return [
        f'<rect class="band" x="{left - 8:g}" y="0" width="{WIDTH + 16:g}" height="{end:g}" rx="6"/>',
        f'<rect x="{left - 8:g}" y="0" width="{WIDTH + 16:g}" height="4" rx="2" style="fill:{colour}"/>',
        f'<text class="name" {middle} y="{LINE + 5:g}">{escape(cut(name, LETTERS - 4))}</text>',
        f'<text class="more" {middle} y="{LINE * 2 + 4:g}">{escape(cut(kind, LETTERS))}</text>',
    ]


def _box(step: FlowStep, left: float, top: float, colour: str) -> list[str]:
    kind = step.state if step.state in OTHERS else "reused" if step.state == REUSED else "done"
    stroke = f' style="stroke:{colour}"' if kind in ("done", "reused") else ""
    y = top + (ROW - HEIGHT) / 2
    return [
        f"<g><title>{escape(f'{step.name} on {step.where}: {step.words}')}</title>",
        f'<rect class="{kind}"{stroke} x="{left:g}" y="{y:g}" width="{WIDTH:g}" height="{HEIGHT:g}" rx="5"/>',
        f'<text class="name" x="{left + 10:g}" y="{y + 18:g}">{escape(cut(step.name, LETTERS - 4))}</text>',
        f'<text class="more {kind}-words" x="{left + 10:g}" y="{y + 34:g}">{escape(cut(step.words, LETTERS))}</text></g>',
    ]


def _arrow(
    route: Route, boxes: Mapping[str, Box], lefts: Sequence[float], gaps: Sequence[float], columns: Sequence[str],
    colour: Mapping[str, str],
) -> str:  # fmt: skip
    begin, end = boxes[route.source], boxes[route.target]
    first, last = lefts[begin.column], lefts[end.column]
    y0, y1 = (HEAD + ROW * (box.row + 0.5) for box in (begin, end))
    if route.gap is None:
        path = f"M{first + WIDTH / 2:g} {y0 + HEIGHT / 2:g}V{y1 - HEIGHT / 2 - 1:g}"
    else:
        start = first + (WIDTH if route.leaves > 0 else 0.0)
        stop = last + (WIDTH + 1 if route.enters > 0 else -1.0)
        path = drawn((start, y0 + PORT), gaps[route.gap] + TRACK * route.track, (stop, y1 - PORT))
    if begin.column == end.column:
        return f'<path class="arrow" marker-end="url(#flow-stays)" d="{path}"/>'
    own = colour[columns[begin.column]]
    return f'<path class="arrow moves" style="stroke:{own}" marker-end="url(#flow-{begin.column})" d="{path}"/>'
