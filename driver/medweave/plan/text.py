"""A plan as text for people. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Sequence

from medweave import DRIVER_TYPE
from medweave.plan.document import Figures, Holding, Input, Item, Move, Plan, PlannedStep, ResourceRequest, Reuse
from medweave.project.prices import amount_text
from medweave.report.energy import Model
from medweave.report.timeline import short_duration
from medweave_core.contracts.energy import spelled

WIDTH = 110
HERE = "this machine"
NAMES = 46  # width of the names of transferred data
NOTHING = "-"


def text_of(plan: Plan) -> str:
    """Return a plan as text."""
    parts = (_head, _inputs, _steps, _reuse, _resources, _moves, _holdings, _time, _problems)
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part(plan)))) + "\n"


def _head(plan: Plan) -> Iterator[str]:
    yield f"Plan of {plan.workflow} at site '{plan.site_name}'"
    yield from _wrapped(f"{plan.site_title[0].upper()}{plan.site_title[1:]}", "  ")
    yield f"  job file   {plan.job}"
    yield f"  site file  {plan.site}"


def _inputs(plan: Plan) -> Iterator[str]:
    if plan.inputs:
        yield "Inputs"
        rows = [("input", "place", "size", "class")]
        rows += [
            (
                data.name,
                place_name(data.place),
                _size(data, "unknown" if data.place is None else "unknown (at the site)"),
                _classes(data),
            )
            for data in plan.inputs
        ]
        yield from _table(rows)


def _steps(plan: Plan) -> Iterator[str]:
    yield "Steps, in order of execution"
    after = nearest(plan.steps)
    rows = [("", "step", "after", "where", "why")]
    numbers = itertools.count(1)
    for step in plan.steps:
        name, before = step.step.lstrip("/"), ", ".join(after[step.step]) or NOTHING
        if step.runs is False:
            rows.append(("", name, NOTHING, "does not run", f"{step.condition} is false"))
            continue
        why = [step.why if step.why.startswith("--") else f"role {step.role}"]
        if step.one_job_for_each:
            names = [source.rpartition("/")[2] for source in step.one_job_for_each]
            why.append(f"one job per item of {', '.join(names)}")
        if step.runs is None:
            why.append(f"runs only if {step.condition} is true")
        rows.append((f"{next(numbers)}", name, before, _where(step), "; ".join(why)))
    yield from _table(rows)


def _reuse(plan: Plan) -> Iterator[str]:
    folder = f"{plan.looked_in[0]}/"
    predictions = [(step, step.reuse) for step in plan.steps if step.reuse is not None]
    reasons = {reuse.why for _, reuse in predictions}
    if len(reasons) == 1 and all(reuse.state == "runs" and not reuse.num_reused for _, reuse in predictions):
        yield f"Cache hits, predicted from {folder}: none ({reasons.pop()})"
        return
    yield f"Cache hits, predicted from {folder}"
    yield from _table([(step.step.lstrip("/"), reuse_text(reuse)) for step, reuse in predictions])


def reuse_text(reuse: Reuse) -> str:
    """Return the prediction of a cache hit as text."""
    reused = f"cache hit: outputs of {', '.join(reuse.from_runs)}"
    unless = f", if {reuse.unless} still has them, with the same programs and settings" if reuse.unless else ""
    if reuse.state == "reused":
        return f"{reused}{unless}"
    if reuse.state == "not-known":
        before = ", ".join(path.lstrip("/") for path in reuse.after)
        return (
            f"unknown until {before} {'has' if len(reuse.after) == 1 else 'have'} run"
            if before
            else f"unknown: {reuse.why}"
        )
    if reuse.num_reused:
        jobs = f"{reuse.num_jobs - reuse.num_reused} of {reuse.num_jobs} jobs" if reuse.num_jobs else ""
        return f"runs: {jobs}, {reuse.why}; the others: {reused}{unless}"
    return f"runs: {reuse.why}"


def _resources(plan: Plan) -> Iterator[str]:
    yield "Resources per job (and the limit of the service, if the site file has one)"
    rows: list[tuple[str, ...]] = [("step", "cores", "memory", "GPUs", "time limit", "")]
    for step in plan.steps:
        if step.runs is not False:
            texts = {resource.name: _resource(resource) for resource in step.asks}
            cells = [texts.get(name, NOTHING) for name in ("cores", "memory", "GPUs", "time")]
            rows.append((step.step.lstrip("/"), *cells, f"on each of {step.locations} nodes" * (step.locations > 1)))
    yield from _table(rows)


def _moves(plan: Plan) -> Iterator[str]:
    if not plan.moves:
        yield "Transfers: none; all steps run on one machine."
        return
    yield "Transfers"
    rows = {
        place: [_item(names, item) for names, item in _grouped(move.items)] for place, move in enumerate(plan.moves)
    }
    widths = [max(len(row[column]) for items in rows.values() for row in items) for column in (1, 2)]
    for place, move in enumerate(plan.moves):
        yield f"  {place_name(move.source)} → {place_name(move.destination)}, {_routes(move)}"
        for names, classes, size_text, needed in rows[place]:
            first, *more = textwrap.wrap(names, NAMES, break_long_words=False, break_on_hyphens=False)
            yield f"    {first:<{NAMES}}  {classes:<{widths[0]}}  {size_text:<{widths[1]}}  for {needed}"
            yield from (f"    {line}" for line in more)
        if move.earlier_bytes is not None:
            yield (
                f"    earlier runs copied {figures_text(move.earlier_bytes, size)}, route "
                f"{', '.join(move.earlier_routes)}"
            )
    between = next((move for move in plan.moves if len(move.ways) > 1), None)
    if between is not None:
        yield "  Between two sites, the run probes these routes and uses the first that works:"
        yield from _table([(route.route, route.condition) for route in between.ways], indent="    ")


def _item(names: Sequence[str], item: Item) -> tuple[str, str, str, str]:
    needed = ", ".join(path.lstrip("/") for path in item.needed_by)
    return ", ".join(names), _classes(item), _size(item, "size unknown"), needed


def _holdings(plan: Plan) -> Iterator[str]:
    with_rules = any(holding.may_hold is not None for holding in plan.holdings)
    if all(holding.gets is None for holding in plan.holdings):
        yield "Data classes: not declared by the workflow (`holds` in its roles.yml)."
        return
    yield "Data classes by place" + ("; the data rules of the site (mayHold) allow all of them" if with_rules else "")
    rows = [("place", "receives", *(("may hold",) if with_rules else ()))]
    rows += [_holding(holding, with_rules) for holding in plan.holdings]
    yield from _table(rows)
    if not with_rules:
        yield "  The site file has no data rules (mayHold), so every transfer is allowed."


def _holding(holding: Holding, with_rules: bool) -> tuple[str, ...]:
    cells = (place_name(holding.place), ", ".join(holding.gets or ()) or NOTHING)
    return (*cells, ", ".join(holding.may_hold or ()) or "nothing") if with_rules else cells


def _time(plan: Plan) -> Iterator[str]:
    folders = ", ".join(f"{folder}/" for folder in plan.looked_in)
    if not plan.num_earlier_runs:
        yield f"Duration: unknown; no earlier run of this workflow in {folders}."
        return
    runs = f"{plan.num_earlier_runs} earlier run{'s' * (plan.num_earlier_runs > 1)} in {folders}"
    yield f"Duration and energy of {runs} (with the same or other data): median (range; number of runs)"
    rows = []
    for step in plan.steps:
        if step.runs is not False:
            per_job = " per job" if step.one_job_for_each else ""
            figures = _took(step.job_seconds, step.job_wh, per_job) if step.job_seconds else "unknown at this place"
            cores, gpus = (hours.median if hours else None for hours in (step.core_hours, step.gpu_hours))
            rows.append((step.step.lstrip("/"), figures + _hours(cores, gpus) + _costs(step.cost, plan.currency)))
    whole = _took(plan.seconds, plan.wh, "") if plan.seconds else "unknown: no complete run at these places"
    whole += _hours(plan.core_hours, plan.gpu_hours) + _costs(plan.cost, plan.currency)
    yield from _table([*rows, ("whole run", whole)])
    if plan.currency is None:
        yield "  Cost: unknown; the site file has no `prices`."
    if any(step.job_wh for step in plan.steps):
        yield from _wrapped(Model().method, "  ")


def _hours(cores: float | None, gpus: float | None) -> str:
    """Return the core-hours and GPU-hours as text; empty if they are zero or unknown."""
    return "".join(
        f"; {hours:.{2 if hours < 10 else 0}f} {unit}"
        for hours, unit in ((cores, "core-hours"), (gpus, "GPU-hours"))
        if hours
    )


def _costs(amount: float | None, currency: str | None) -> str:
    """Return the cost as text; empty if the site file has no prices."""
    if currency is None:
        return ""
    return "; cost unknown" if amount is None else f"; {amount_text(amount, currency)}"


def _took(seconds: Figures, wh: Figures | None, per_job: str) -> str:
    energy = f", about {spelled(wh.median)}" if wh is not None else ""
    return f"{figures_text(seconds, short_duration)}{energy}{per_job}"


def _problems(plan: Plan) -> Iterator[str]:
    if plan.problems:
        yield f"The run would fail: {len(plan.problems)} problem{'s' * (len(plan.problems) > 1)}"
    for problem in plan.problems:
        yield f"  {problem.what}"
        for label, text in (("seen", problem.seen), ("expected", problem.expected), ("do", problem.do)):
            yield f"    {label + ':':<9} {text}"


def nearest(steps: Sequence[PlannedStep]) -> dict[str, list[str]]:
    """Return the direct predecessors of each step: without those that another predecessor waits for."""
    ancestors: dict[str, set[str]] = {}
    direct = {}
    for step in steps:
        ancestors[step.step] = {*step.after, *(path for before in step.after for path in ancestors[before])}
        direct[step.step] = [
            path.lstrip("/") for path in step.after if not any(path in ancestors[other] for other in step.after)
        ]
    return direct


def _where(step: PlannedStep) -> str:
    where = f"{step.deployment}/{step.service}" if step.service else step.deployment
    if step.connector == DRIVER_TYPE:
        return f"{where} ({HERE})"
    return f"{where} × {step.locations}" if step.locations > 1 else where


def place_name(name: str | None) -> str:
    """Return the name of a deployment, or `this machine`."""
    return HERE if name is None else name


def _routes(move: Move) -> str:
    return move.ways[0].route if len(move.ways) == 1 else "between two sites"


def _grouped(items: Sequence[Item]) -> list[tuple[list[str], Item]]:
    """Return groups of items of unknown size with the same classes and the same steps."""
    groups: list[tuple[list[str], Item]] = []
    for item in items:
        same = next((names for names, other in groups if _alike(item, other)), None)
        if same is None:
            groups.append(([item.name], item))
        else:
            same.append(item.name)
    return groups


def _alike(one: Item, other: Item) -> bool:
    is_unknown = one.num_bytes is None and other.num_bytes is None
    return is_unknown and (one.classes, one.needed_by) == (other.classes, other.needed_by)


def _classes(item: Input | Item) -> str:
    return ", ".join(item.classes) if item.classes else "class not declared"


def _size(item: Input | Item, unknown: str) -> str:
    if item.num_bytes is None:
        return unknown
    files = f" in {item.num_files:,} files" if item.num_files != 1 else ""
    return f"{size(item.num_bytes)}{files}"


def size(num_bytes: float) -> str:
    """Return a size such as `812 B` or `1.4 MiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        num_bytes /= 1024
        if num_bytes < 1023.95:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1024:,.1f} TiB"


def figures_text(figures: Figures, spelled: Callable[[float], str]) -> str:
    """Return median, range and number of runs as text."""
    runs = f"{figures.num_runs} run{'s' * (figures.num_runs > 1)}"
    if figures.low == figures.high:
        return f"{spelled(figures.median)} ({runs})"
    return f"{spelled(figures.median)} ({spelled(figures.low)} to {spelled(figures.high)}; {runs})"


def _resource(resource: ResourceRequest) -> str:
    amount = _amount(resource.most, resource.unit)
    if resource.least != resource.most:
        amount = f"{resource.least:g} to {amount}"
    if resource.cap is None:
        return amount
    if resource.name == "time":
        return f"{amount}, limited to {_amount(resource.cap, 's')}" if resource.cap < resource.most else amount
    return f"{amount} of {_amount(resource.cap, resource.unit)}"


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return short_duration(value).replace(" 00 min", "").replace(" 00 s", "")
    if unit == "MiB":
        return size(value * 2**20).replace(".0 ", " ")
    return f"{value:g}"


def _table(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> Iterator[str]:
    """Yield the lines of a table; columns are as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        yield (indent + "  ".join([*cells, row[-1]])).rstrip()


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
