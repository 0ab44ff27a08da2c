"""A plan as a picture: one column for each place, one row for each step, and arrows for what later steps need. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from medweave import DRIVER_TYPE
from medweave.plan.document import Input, Item, Move, Plan, PlannedStep
from medweave.plan.flow import HERE, RESULTS
from medweave.plan.text import figures_text, nearest, place_name, reuse_text, size
from medweave.report.arrows import PORT, TRACK, Box, Route, cut, drawn, routes, spread
from medweave.report.timeline import short_duration

WIDTH, HEIGHT, ROW = 190.0, 44.0, 62.0  # of a box; from one row to the next
MARGIN, BEHIND = 18.0, 5.0  # around all; from a box to one behind it
TITLE, LINE, LETTER = 60.0, 16.0, 9.8  # the height above the columns, of a line, and a letter's width in the title
LETTERS = 28  # of a box's small line
COLOURS = ("#3a7fc4", "#b7791f", "#2f9461", "#b5478a", "#7c5cd0", "#7d7a2e")  # read on white and on black
STYLE = """
  svg { --ink: #1c2430; --soft: #5d6978; --paper: #fff; --band: #f4f6f9; --faint: #b4bdc9; --bad: #b83232; background: var(--paper);
        font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6eaf0; --soft: #9aa7b8; --paper: #14181f; --band: #1d232d; --faint: #4b5767; --bad: #f08a8a; } }
  text { fill: var(--ink); font-size: 13px; } .title { font-size: 17px; font-weight: 600; } .name { font-weight: 600; }
  .soft { fill: var(--soft); font-size: 11.5px; } .bad { fill: var(--bad); } .band { fill: var(--band); }
  .box { fill: var(--paper); stroke-width: 1.6; } .reused { fill: var(--band); }
  .maybe { stroke-dasharray: 5 3; }
  .off { fill: var(--paper); stroke: var(--faint); stroke-dasharray: 2 3; }
  .file { fill: none; stroke-width: 1.2; } .arrow { fill: none; stroke: var(--soft); stroke-width: 1.3; }
  .moves { stroke-width: 2; } .small { stroke: var(--faint); stroke-width: 1; }
  .arrow-tip { fill: var(--soft); } .small-tip { fill: var(--faint); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrow:
    """An edge from a step or input to a later step, with the data to transfer.

    Attributes:
        names: transferred data; empty if it stays at its place.
        classes: of all transferred data; None if one is not declared.
        num_bytes: of all transferred data; None if unknown.
        to_many: the later step has several jobs.
    """

    source: str
    target: str
    names: tuple[str, ...] = ()
    classes: frozenset[str] | None = frozenset()
    num_bytes: int | None = None
    route: str = ""
    to_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnBox:
    """Position and color of a drawn box."""

    left: float
    top: float
    right: float
    height: float
    colour: str

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def port(self, below: float) -> float:
        """Return the height at which arrows meet its sides; for steps, outgoing and incoming arrows are apart."""
        return self.top + self.height / 2 + (below if self.height == HEIGHT else 0.0)


def picture_of(plan: Plan) -> str:
    """Return the picture as an SVG file."""
    columns = _columns(plan)
    boxes = _boxes(plan, columns)
    arrows = _arrows(plan, boxes)
    arrow_routes = routes(boxes, [(arrow.source, arrow.target) for arrow in arrows])
    lefts, gaps, width = spread(arrow_routes, len(columns), width=WIDTH, margin=MARGIN)
    heads = [_head(plan, place) for place in columns]
    top = TITLE + LINE * (max(map(len, heads)) + 1)
    end, foot = top + ROW * len(boxes), _foot(plan)
    drawn_boxes = {name: _drawn_box(name, box, lefts, top) for name, box in boxes.items()}
    parts = [
        *_begin(
            plan,
            max(
                width,
                MARGIN * 2 + LETTER * max(len(plan.workflow) + len(plan.site_name) + 24, len(plan.site_title) * 0.7),
            ),
            end + LINE * (len(foot) + 1.5),
        )
    ]
    for number, (left, lines) in enumerate(zip(lefts, heads, strict=True)):
        parts += _column(_colour(number), left, lines, end)
    for arrow, route in sorted(zip(arrows, arrow_routes, strict=True), key=_weight):
        parts.append(_arrow(arrow, route, drawn_boxes[arrow.source], drawn_boxes[arrow.target], gaps))
    for data in plan.inputs:
        parts += _input(data, drawn_boxes[data.name])
    for word, step in _numbered(plan.steps):
        parts += _step(step, word, drawn_boxes[step.step])
    parts += _results(drawn_boxes[RESULTS])
    parts += [_text(style, MARGIN, end + LINE * (line + 1), words) for line, (style, words) in enumerate(foot)]
    return "\n".join([*parts, "</svg>\n"])


# ---- layout


def _place(step: PlannedStep) -> str | None:
    return HERE if step.connector == DRIVER_TYPE else step.deployment


def _columns(plan: Plan) -> list[str | None]:
    """Return the places: this machine first, then in the order of use."""
    return list(dict.fromkeys([HERE, *(data.place for data in plan.inputs), *map(_place, plan.steps)]))


def _boxes(plan: Plan, columns: Sequence[str | None]) -> dict[str, Box]:
    places = {member.name: member.place for member in plan.inputs} | {
        member.step: _place(member) for member in plan.steps
    }
    places[RESULTS] = HERE
    return {name: Box(column=columns.index(place), row=row) for row, (name, place) in enumerate(places.items())}


def _drawn_box(name: str, box: Box, lefts: Sequence[float], top: float) -> _DrawnBox:
    is_step = name.startswith("/")
    indent, height = (0.0, HEIGHT) if is_step else (12.0, HEIGHT - 10)
    left = lefts[box.column]
    return _DrawnBox(
        left=left + indent, right=left + WIDTH - BEHIND - indent, top=top + ROW * (box.row + 0.5) - height / 2,
        height=height, colour=_colour(box.column),
    )  # fmt: skip


def _colour(column: int) -> str:
    return COLOURS[column % len(COLOURS)]


def _arrows(plan: Plan, boxes: Iterable[str]) -> list[_Arrow]:
    """Return the arrows between boxes; those without a transfer only between direct neighbors."""
    known, before = set(boxes), nearest(plan.steps)
    arrows = {
        (source, step.step): _Arrow(source=source, target=step.step)
        for step in plan.steps
        if step.runs is not False
        for source in (*step.inputs, *(f"/{name}" for name in before[step.step]))
        if source in known
    }
    many = {step.step for step in plan.steps if step.one_job_for_each}
    for move in plan.moves:
        for item in move.items:
            name, _, output = item.name.partition("/")
            for target in item.needed_by:
                pair = (f"/{name}" if output else name, target)
                arrows[pair] = _with_item(arrows.get(pair, _Arrow(source=pair[0], target=target)), item, move)
    return [replace(arrow, to_many=arrow.target in many) for arrow in arrows.values()]


def _with_item(arrow: _Arrow, item: Item, move: Move) -> _Arrow:
    """Return an arrow with one more item to transfer."""
    is_known = item.num_bytes is not None and (arrow.num_bytes is not None or not arrow.names)
    return replace(
        arrow,
        names=(*arrow.names, item.name),
        classes=None if arrow.classes is None or item.classes is None else arrow.classes | {*item.classes},
        num_bytes=(arrow.num_bytes or 0) + (item.num_bytes or 0) if is_known else None,
        route=" or ".join(route.route for route in move.ways),
    )


def _is_small(arrow: _Arrow) -> bool:
    """Return whether only aggregate data is transferred, no images and no models."""
    return bool(arrow.names) and arrow.classes == frozenset({"aggregate"})


def _weight(pair: tuple[_Arrow, Route]) -> int:
    return 2 if pair[0].names and not _is_small(pair[0]) else int(not pair[0].names)


def _numbered(steps: Sequence[PlannedStep]) -> Iterator[tuple[str, PlannedStep]]:
    """Yield the steps with their numbers, as in the text."""
    numbers = itertools.count(1)
    for step in steps:
        yield f"{next(numbers)}  " if step.runs is not False else "", step


# ---- drawing


def _begin(plan: Plan, width: float, height: float) -> Iterator[str]:
    words = f"Plan of {plan.workflow} at site '{plan.site_name}'"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img">'
    )
    yield f"<title>{escape(words)}</title>\n<style>{STYLE}</style>"
    yield f"<defs>{''.join(_tip(name) for name in (*map(str, range(len(COLOURS))), 'arrow', 'small'))}</defs>"
    yield _text("title", MARGIN, 28, words)
    yield _text("soft", MARGIN, 46, f"{plan.site_title[0].upper()}{plan.site_title[1:]}")


def _tip(name: str) -> str:
    """Return an arrow head: one per color, because not every browser inherits the color of the arrow."""
    fill = f' style="fill:{_colour(int(name))}"' if name.isdecimal() else f' class="{name}-tip"'
    return (
        f'<marker id="tip-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"{fill}/></marker>'
    )


def _head(plan: Plan, place: str | None) -> list[str]:
    """Return the name of a column, its kind, and the data classes there."""
    kind = next(
        (member.connector for member in plan.steps if _place(member) == place),
        "driver" if place is HERE else "",
    )
    gets = next((", ".join(member.gets or ()) for member in plan.holdings if member.place == place), "")
    return [place_name(place), kind, *textwrap.wrap(f"gets {gets}" if gets else "", LETTERS + 4)]


def _column(colour: str, left: float, lines: Sequence[str], end: float) -> Iterator[str]:
    yield (
        f'<rect class="band" x="{left - 8:g}" y="{TITLE:g}" width="{WIDTH + 16:g}" height="{end - TITLE + 4:g}" rx="6"/>'
    )
    yield f'<rect x="{left - 8:g}" y="{TITLE:g}" width="{WIDTH + 16:g}" height="4" rx="2" fill="{colour}"/>'
    for line, text in enumerate(lines):
        style = "soft" if line else "name"
        yield _text(style, left + WIDTH / 2, TITLE + LINE * (line + 1) + 7, text, 'text-anchor="middle"')


def _step(step: PlannedStep, number: str, box: _DrawnBox) -> Iterator[str]:
    is_off = step.runs is False
    style = {True: "box", None: "box maybe", False: "off"}[step.runs]
    style += " reused" * (step.reuse is not None and step.reuse.state == "reused")
    yield f"<g><title>{escape(_tooltip(step))}</title>"
    if step.one_job_for_each and not is_off:
        yield _rect(style, box, shift=BEHIND)
    yield _rect(style, box)
    yield _text("soft" if is_off else "name", box.left + 10, box.top + 18, cut(number + step.step.lstrip("/"), 24))
    yield f"{_text('soft', box.left + 10, box.top + 35, cut(_small_line(step), LETTERS))}</g>"


def _small_line(step: PlannedStep) -> str:
    """Return the most important facts of a step."""
    if step.runs is False:
        return "does not run"
    asks = {resource.name: resource for resource in step.asks if resource.most}
    gpus = asks.get("GPUs")
    words = [
        "cache hit" if step.reuse is not None and step.reuse.state == "reused" else "",
        f"if {step.condition}" if step.runs is None else "",
        f"{step.locations} nodes" if step.locations > 1 else "",
        f"{'up to ' * (gpus.least < gpus.most)}{gpus.most:g} GPU{'s' * (gpus.most > 1)}" if gpus else "",
        f"each of {step.one_job_for_each[0].rpartition('/')[2]}" if step.one_job_for_each else "",
        f"about {short_duration(step.job_seconds.median)}" if step.job_seconds else "",
    ]
    needs = [f"{cores.most:g} core{'s' * (cores.most != 1)}"] if (cores := asks.get("cores")) else []
    needs += [size(asks["memory"].most * 2**20).replace(".0 ", " ")] if "memory" in asks else []
    return " · ".join(filter(None, words)) or ", ".join(needs) or f"role {step.role}"


def _tooltip(step: PlannedStep) -> str:
    """Return the tooltip of a step."""
    where = f"{step.deployment}/{step.service}" if step.service else step.deployment
    why = f"{step.condition} is false" if step.runs is False else step.why
    took = f"{figures_text(step.job_seconds, short_duration)} in earlier runs" if step.job_seconds else ""
    reused = reuse_text(step.reuse) if step.reuse is not None else ""
    return "\n".join(filter(None, (step.label, f"{where}: {why}", took, reused)))


def _input(data: Input, box: _DrawnBox) -> Iterator[str]:
    known = size(data.num_bytes) if data.num_bytes is not None else ""
    words = " · ".join(filter(None, (", ".join(data.classes or ()), known))) or "input"
    yield _rect("file", box)
    yield _text("", box.left + 16, box.top + 15, cut(data.name, 22))
    yield _text("soft", box.left + 16, box.top + 28, cut(words, 24))


def _results(box: _DrawnBox) -> Iterator[str]:
    yield _rect("file", box)
    yield _text("", box.left + 16, box.top + 22, RESULTS)


def _arrow(arrow: _Arrow, route: Route, begin: _DrawnBox, end: _DrawnBox, gaps: Sequence[float]) -> str:
    if route.gap is None:
        path = f"M{begin.middle:g} {begin.bottom:g}V{end.top - 1 - (BEHIND if arrow.to_many else 0):g}"
    else:
        x0 = begin.right if route.leaves > 0 else begin.left
        x1 = end.right + 1 if route.enters > 0 else end.left - 1
        across = gaps[route.gap] + TRACK * route.track
        path = drawn((x0, begin.port(PORT)), across, (x1, end.port(-PORT)))
    style, tip, own = ("small", "small", "") if _is_small(arrow) else ("", "arrow", "")
    if arrow.names and not _is_small(arrow):
        style, tip, own = "moves", str(COLOURS.index(begin.colour)), f' style="stroke:{begin.colour}"'
    known = f", {size(arrow.num_bytes)}" if arrow.num_bytes is not None else ""
    words = f"{', '.join(arrow.names)}: {arrow.route}{known}" if arrow.names else "stays at this place"
    return f'<path class="arrow {style}"{own} marker-end="url(#tip-{tip})" d="{path}"><title>{escape(words)}</title></path>'


def _foot(plan: Plan) -> list[tuple[str, str]]:
    lines = [
        (
            "soft",
            "Colored arrows: files that are copied to another place. Pale arrows: only values. Stacked boxes: "
            "several jobs.",
        )
    ]
    if any(step.reuse is not None and step.reuse.state == "reused" for step in plan.steps):
        lines.append(("soft", "Filled boxes (“cache hit”): outputs of an earlier run are reused."))
    if plan.seconds is not None:
        lines.append(("soft", f"Duration of earlier runs: {figures_text(plan.seconds, short_duration)}."))
    return [*lines, *(("bad", f"The run would fail: {problem.what}") for problem in plan.problems)]


def _rect(style: str, box: _DrawnBox, *, shift: float = 0.0) -> str:
    own = "" if style == "off" else f' style="stroke:{box.colour}"'
    radius = box.height / 2 if style == "file" else 5
    return (
        f'<rect class="{style}"{own} x="{box.left + shift:g}" y="{box.top - shift:g}" '
        f'width="{box.right - box.left:g}" height="{box.height:g}" rx="{radius:g}"/>'
    )


def _text(style: str, x: float, y: float, words: str, more: str = "") -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" {more}>{escape(words)}</text>'
