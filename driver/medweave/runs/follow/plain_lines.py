"""A run as lines of text: one for each change, none twice, and at most one every ten seconds for progress.

The number of jobs of a scattered step is not known before they are placed, so the lines give no total.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from medweave.runs.follow.formatting import end_of, size, took
from medweave_core.contracts.events import Event, step_label
from medweave_core.runlog.engine_names import place_label
from medweave_core.runlog.run_state import JobProgress, RunState

PAUSE_S = 10.0
FEW_JOBS = 20  # up to so many jobs of a scattered step, the end of each has a line
SMALL_BYTES, SHORT_S = 2**20, 1.0  # copies below both have no line
LABEL_WIDTH = 12


@dataclass(slots=True)
class PlainLines:
    """Builds the lines of a run and remembers which were printed.

    Attributes:
        last_s: time of the last line of each kind, s since the run's start.
        printed: labels and texts of lines that are printed only once.
    """

    last_s: dict[str, float] = field(default_factory=dict)
    printed: set[tuple[str, str]] = field(default_factory=set)

    def of(self, event: Event, state: RunState) -> list[str]:
        """Return the lines of an event.

        Args:
            state: state of the run after the event.
        """
        job = state.jobs.get(event.job or "")
        if event.type == "run.started":
            return [f"medweave: run {state.run_id} of {state.workflow}"]
        if event.type.startswith("transfer."):
            return self._of_transfer(event, state)
        if event.type in ("notice", "job.reaction"):
            return self._once(
                job.label if job else place_label(event.deployment or "run"), f"note: {event.data.get('text')}"
            )
        if job is None:
            return []
        if event.type == "job.started":
            return self._of_start(job, state)
        if event.type == "job.progress":
            text = f"{job.text} ({job.label})" if job.label != step_label(job.step) else job.text
            return self._sometimes(step_label(job.step), text, state.now_s)
        return self._of_end(job, state) if event.type == "job.ended" else []

    def _of_start(self, job: JobProgress, state: RunState) -> list[str]:
        again = f", attempt {job.attempt}" if job.attempt > 1 else ""
        label = step_label(job.step)
        scattered = job.label != label
        return self._once(
            label if scattered and not again else job.label, f"started on {place_label(job.where)}{again}"
        )

    def _of_end(self, job: JobProgress, state: RunState) -> list[str]:
        label = step_label(job.step)
        if job.label == label:
            return [_line(label, end_of(job))]
        siblings = [other for other in state.jobs.values() if other.step == job.step]
        done, known = sum(other.state == "completed" for other in siblings), len(siblings)
        text = f"{end_of(job)} ({done} done so far)"
        if known > FEW_JOBS and job.state == "completed" and done < known:
            return self._sometimes(label, text, state.now_s, name=job.label)
        return [_line(job.label, text)]

    def _of_transfer(self, event: Event, state: RunState) -> list[str]:
        data, label = event.data, place_label(event.deployment or "?")
        origin = place_label(str(data.get("from", "?")))
        if event.type == "transfer.progress":
            return self._sometimes(
                f"copy {origin} {label}", f"copy from {origin}: {data.get('text')}", state.now_s, name=label
            )
        num_bytes, seconds = int(data.get("bytes", 0)), float(data.get("seconds", 0.0))
        if num_bytes < SMALL_BYTES and seconds < SHORT_S:
            return []
        present_bytes = int(data.get("reused_bytes", 0))
        more = f", {size(present_bytes)} already at the destination" if present_bytes else ""
        text = f"copy from {origin}: {size(num_bytes)} in {took(seconds)}, {data.get('route')}{more}"
        return self._sometimes(f"copied {origin} {label}", text, state.now_s, name=label)

    def _sometimes(self, kind: str, text: str, now_s: float, *, name: str = "") -> list[str]:
        if now_s - self.last_s.get(kind, now_s - PAUSE_S) < PAUSE_S:
            return []
        self.last_s[kind] = now_s
        return [_line(name or kind, text)]

    def _once(self, label: str, text: str) -> list[str]:
        if (label, text) in self.printed:
            return []
        self.printed.add((label, text))
        return [_line(label, text)]


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL_WIDTH}} {text}"
