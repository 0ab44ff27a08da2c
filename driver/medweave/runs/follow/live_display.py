"""The live display of a run on a terminal: a row for each step and place, current copies and the last notices."""

from __future__ import annotations

import contextlib
import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from medweave.runs.follow.formatting import activity_of, end_of, size, took
from medweave_core.contracts.events import Event
from medweave_core.contracts.progress import duration
from medweave_core.runlog.engine_names import place_label
from medweave_core.runlog.run_state import ENDED, WAITS, RunState, StepProgress, steps

MARKS = {
    "later": ("·", "dim"),
    "placed": ("↓", "cyan"),
    "waiting": ("◷", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cancelled": ("■", "yellow"),
}
BAR_WIDTH, TIME_WIDTH = 16, 11
NUM_NOTICES, OTHER_ROWS = 3, 8
REDRAW_S = 0.2


class LiveDisplay:
    """Display that draws on standard error until it is closed; the last frame stays."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._spinner, self._message, self._drawn_s, self._ended = Spinner("dots"), "", -REDRAW_S, False

    def take(self, line: str, event: Event | None, state: RunState) -> None:
        """Do nothing: the next frame shows the state."""

    def show(self, state: RunState, now_s: float) -> None:
        """Draw at most five times a second, and once when the run has ended."""
        if self._ended or (0 <= now_s - self._drawn_s < REDRAW_S and state.end is None):
            return
        self._drawn_s, self._ended = now_s, state.end is not None
        rows = max(self._console.height - OTHER_ROWS, 3)
        with contextlib.suppress(OSError):  # the terminal was closed: the HUP that follows cancels the run
            self._live.start()
            self._live.update(picture(state, now_s, self._spinner, self._message, rows), refresh=True)

    def say(self, text: str) -> None:
        """Show a message below the live display, or print it once the display is closed."""
        if self._live.is_started:
            self._message = text
        else:
            with contextlib.suppress(OSError):
                self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Stop drawing and restore the cursor."""
        with contextlib.suppress(OSError):
            self._live.stop()


def picture(state: RunState, now_s: float, spinner: Spinner, message: str, num_rows: int) -> RenderableType:
    """Return one frame of the live display.

    Args:
        now_s: seconds since the run's start.
        message: a line below the table.
        num_rows: number of rows for steps.
    """
    if state.began is None:
        return Text(message or "medweave: starting StreamFlow …", style="dim")
    now_s = state.seconds if state.end is not None else now_s
    parts: list[RenderableType] = [_head(state, now_s), _table(state, now_s, spinner, num_rows)]
    parts += [_copy(*pair, state) for pair in state.copies]
    parts += [Text.assemble(("  note ", "yellow"), (f"{label}: ", "bold"), text) for label, text in _notices(state)]
    if message:
        parts.append(Text(message, style="bold yellow"))
    return Group(*parts)


def _head(state: RunState, now_s: float) -> Text:
    rows = steps(state)
    over = sum(row.state == "completed" for row in rows)
    return Text.assemble(
        ("medweave ", "bold"), (state.run_id, "cyan"), f"  {over} of {len(rows)} steps done, ", (duration(now_s), "bold")
    )  # fmt: skip


def _table(state: RunState, now_s: float, spinner: Spinner, num_rows: int) -> Table:
    """Return the table of the steps that fit, running ones first."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right", no_wrap=True, min_width=TIME_WIDTH)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.expand = True
    rows = steps(state)
    shown = visible(rows, num_rows)
    for row in shown:
        table.add_row(*_row(row, now_s, spinner, over=state.end is not None))
    if len(shown) < len(rows):
        table.add_row("", Text(f"and {len(rows) - len(shown)} more steps", style="dim"))
    return table


def visible(rows: list[StepProgress], num_rows: int) -> list[StepProgress]:
    """Return the rows to show if not all fit, in their order: running ones before failed, later and completed ones."""
    order = ("running", "waiting", "placed", "failed", "cancelled", "later", "completed")
    chosen = sorted(range(len(rows)), key=lambda number: order.index(rows[number].state))[:num_rows]
    return [rows[number] for number in sorted(chosen)]


def _row(row: StepProgress, now_s: float, spinner: Spinner, *, over: bool) -> tuple[RenderableType, ...]:
    if row.state == "later":
        outcome = Text("did not run" if over else "", style="dim")
        return Text(*MARKS[row.state]), Text(row.label, style="dim"), "", "", "", outcome
    mark: RenderableType = spinner if row.state == "running" else Text(*MARKS[row.state])
    label = row.label if len(row.jobs) == 1 else f"{row.label} ×{len(row.jobs)}"
    style = "bold" if row.state == "running" else ""
    time = took(row.seconds(now_s))
    return (
        mark,
        Text(label, style=style),
        Text(place_label(row.where), style="cyan"),
        _bar(row),
        Text(time),
        _text(row, now_s),
    )


def _bar(row: StepProgress) -> RenderableType:
    """Return the progress bar of a single job that reports progress. A scatter has none: its number of jobs is not known yet."""
    job = row.jobs[0]
    if len(row.jobs) > 1 or job.state in ENDED or not job.total:
        return ""
    return ProgressBar(total=job.total, completed=job.done, width=BAR_WIDTH)


def _text(row: StepProgress, now_s: float) -> Text:
    failed = [job for job in row.jobs if job.state == "failed"]
    if len(row.jobs) == 1:
        job = row.jobs[0]
        style = {"failed": "red", "waiting": "yellow", "completed": "dim"}.get(job.state, "")
        if job.state == "completed" and job.text and not job.reused_from:
            return Text(job.text, style=style)
        return Text(end_of(job) if job.state in ENDED else activity_of(job, now_s), style=style)
    counts = [("completed", "done"), ("running", "running"), ("waiting", "waiting"), ("placed", "receiving inputs")]
    counted = [f"{number} {word}" for state, word in counts if (number := row.count(state))]  # type: ignore[arg-type]
    text = Text(", ".join(counted), style="dim" if row.state == "completed" else "")
    if failed:
        text.append(f", {len(failed)} failed: {failed[0].label}, {end_of(failed[0])}", style="red")
    elif current := [job for job in row.jobs if job.state in ("running", "waiting") and (job.text or job.reason)]:
        text.append(f"; {current[0].label}: {activity_of(current[0], now_s)}", style="dim")
    return text


def _copy(source: str, destination: str, state: RunState) -> Table:
    copy = state.copies[source, destination]
    line = Table.grid(padding=(0, 1))
    words = f"{size(copy.num_bytes)} of {size(copy.total_bytes)}" if copy.total_bytes else size(copy.num_bytes)
    line.add_row(
        Text("⇄", style="magenta"), Text(f"{place_label(source)} → {place_label(destination)}", style="cyan"),
        ProgressBar(total=max(copy.total_bytes, 1), completed=copy.num_bytes, width=BAR_WIDTH), Text(copy.text or words),
    )  # fmt: skip
    return line


def _notices(state: RunState) -> list[tuple[str, str]]:
    """Return the last notices, without those about waiting, which are in the job's row."""
    return [notice for notice in state.notices if not notice[1].startswith(WAITS)][-NUM_NOTICES:]
